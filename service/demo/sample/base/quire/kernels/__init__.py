"""Triton kernels. Import a module of this package only where `available()` says that it can run."""

from __future__ import annotations

from importlib.util import find_spec


def available() -> bool:
    """Whether torch, Triton and a GPU are here."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    import torch

    return torch.cuda.is_available()
