"""The CUDA-graph decode engine that CI builds and smoke-tests. Stands on `kernels` alone."""
