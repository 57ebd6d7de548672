"""Benchmarks that print figures; run with `whitesmoke bench`."""
