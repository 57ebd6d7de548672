"""`python -m runtime bench`: decode steps against their memory floor, latency under arrivals, captures, and peers."""
