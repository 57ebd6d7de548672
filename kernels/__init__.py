"""The GPU kernels that the engine stands on. Imports nothing of the other rooms."""
