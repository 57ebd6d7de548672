"""`python -m kernels bench`: one file of rows per operation, timed by `harness`."""
