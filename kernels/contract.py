"""Argument checks: each raises ValueError naming the argument, what was expected and what came, before any launch."""

import os
from collections.abc import Sequence

import torch

from kernels import target

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton runs kernels on the CPU; read once, as Triton itself does when a kernel is defined."""

DEBUG = os.environ.get("WHITESMOKE_DEBUG") == "1"
"""Also check values that live on the device (page numbers, slots); this synchronises, so never in a graph."""

VECTOR_BYTES = 16


def require(
    name: str,
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    shape: Sequence[int | None] | None = None,
    device: torch.device | None = None,
    contiguous: bool = False,
    rows_contiguous: bool = False,
    aligned: int = 1,
) -> None:
    """Check one tensor argument; `None` in `shape` accepts any size, `aligned` is in bytes.

    `rows_contiguous` asks only that the last dimension has stride 1. Without `device` the tensor must lie where
    kernels run: on a GPU, or on the CPU under Triton's interpreter.

    Raises:
        ValueError: naming the argument, the expected and the actual property.
    """
    require_tensor(name, tensor)
    if dtype is not None:
        accepted = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
        if tensor.dtype not in accepted:
            raise ValueError(f"{name}: expected dtype {_alternatives(accepted)}, got {_plain(tensor.dtype)}")
    if shape is not None and not _fits(tensor.shape, shape):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(tensor.shape)}")
    _require_device(name, tensor, device)
    if contiguous and not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous tensor, got strides {list(tensor.stride())} for shape {list(tensor.shape)}"
        )
    if rows_contiguous and tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: expected contiguous rows (last stride 1), got strides {list(tensor.stride())}"
        )
    if aligned > 1 and tensor.device.type != "meta" and tensor.data_ptr() % aligned:
        raise ValueError(
            f"{name}: expected a pointer aligned to {aligned} bytes, got one {tensor.data_ptr() % aligned} bytes past"
        )


def require_tensor(name: str, value: object) -> None:
    """Check that an argument is a tensor, before anything is asked of it."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(value).__name__}")


def require_aligned_rows(name: str, tensor: torch.Tensor) -> None:
    """Check that all rows (the first dimension's) of an aligned tensor start on VECTOR_BYTES."""
    if tensor.shape[0] > 1 and tensor.stride(0) * tensor.element_size() % VECTOR_BYTES:
        raise ValueError(
            f"{name}: expected rows that start on {VECTOR_BYTES} bytes,"
            f" got a stride of {tensor.stride(0)} elements"
        )


def require_cache(
    name: str,
    cache: torch.Tensor,
    *,
    dtype: torch.dtype,
    head_dim: int | None,
    device: torch.device,
    contiguous: bool = True,
) -> None:
    """Check a paged cache, [pages, 2, kv_heads, page_size, head_dim] of `dtype` or, where the target has it, e4m3."""
    require(
        name,
        cache,
        dtype=(dtype, torch.float8_e4m3fn),
        shape=(None, 2, None, None, head_dim),
        device=device,
        contiguous=contiguous,
        aligned=VECTOR_BYTES,
    )
    current = target.current()
    if cache.dtype == torch.float8_e4m3fn and "fp8" not in current.features:
        raise ValueError(
            f"{name}: expected dtype {_plain(dtype)} on {current.arch}, got float8_e4m3fn: {target.REASONS['fp8']}"
        )
    page_size = cache.shape[3]
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"{name}: expected a page_size that is a power of two, got {page_size}")


def require_value(name: str, value: object, accepted: Sequence[object]) -> None:
    """Check that a plain argument is one of `accepted`."""
    if value not in accepted:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, accepted))}, got {value}")


def require_range(name: str, tensor: torch.Tensor, low: int, high: int) -> None:
    """In debug mode, check that every element of `tensor` is in [low, high); otherwise trust it."""
    if not DEBUG or tensor.device.type == "meta" or not tensor.numel():
        return
    least, most = (int(bound) for bound in torch.aminmax(tensor))
    if least < low or most >= high:
        raise ValueError(f"{name}: expected values in [{low}, {high}), got [{least}, {most}]")


def _require_device(name: str, tensor: torch.Tensor, device: torch.device | None) -> None:
    if device is not None:
        if tensor.device != device:
            raise ValueError(f"{name}: expected device {device}, got {tensor.device}")
    elif not (
        tensor.is_cuda or tensor.device.type == "meta" or (INTERPRETING and tensor.device.type == "cpu")
    ):
        raise ValueError(
            f"{name}: expected a CUDA device, got {tensor.device} (on a CPU use the reference function)"
        )


def _fits(actual: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(actual) == len(wanted) and all(
        w is None or a == w for a, w in zip(actual, wanted, strict=True)
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _alternatives(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(_plain(dtype) for dtype in dtypes)
