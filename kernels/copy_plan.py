"""What `fused_copy` launches: regions checked, and described as the words that its kernels read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from kernels import contract

REPEAT_LAST: Final = "repeat last"
Padding = float | torch.Tensor | Literal["repeat last"]
Counts = int | Sequence[int] | npt.NDArray[np.int64]

# A descriptor's int64 words, in the order of csrc/fused_copy.cu.
DESTINATION, SOURCE, DESTINATION_STRIDE, SOURCE_STRIDE, ROW_BYTES, ROWS = range(6)
LIVE_BASE, LIVE_STEP, COUNT, VALUE, FILL, UNIT = range(6, 12)
WORDS = 12

# How the padding is found; a descriptor's FILL is one of these plus the element's size.
CONSTANT, AT_ADDRESS, LAST_COPIED = 0, 16, 32

SHORT_ROW_BYTES = 1024
"""Strided rows below this move in units that divide everything; longer ones each by themselves."""


@dataclass(frozen=True)
class Region:
    """One entry of a plan: `source` is None for a fill, `padding` for a copy.

    Attributes:
        counted: whether a count decides how many rows are copied.
        extra: rows copied beyond the count.
        count: int32 on the device, read when the kernel runs.
    """

    destination: torch.Tensor
    source: torch.Tensor | None
    padding: Padding | None
    counted: bool = False
    extra: int = 0
    count: torch.Tensor | None = None

    @property
    def takes_count(self) -> bool:
        """Whether each launch gives the count."""
        return self.counted and self.count is None


class CopyPlan:
    """Regions of one device, launched together by `fused_copy`. Methods that add a region return its number.

    Args:
        device: where the launch runs; by default where the first region's destination lies.

    Attributes:
        words: a descriptor for each region, int64 [regions, WORDS].
        device: where the launch runs; None while that is open.
        prepared: what launches made of the regions; emptied by each change.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.regions: list[Region] = []
        self.words: npt.NDArray[np.int64] = np.zeros((0, WORDS), np.int64)
        self.device = device
        self.prepared: dict[str, Any] = {}
        self._extents: list[tuple[_Extent, tuple[_Extent, ...]]] = []
        self._lowest: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._highest: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._bounds: tuple[int, int] | None = None

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> int:
        """Add a copy of all of `source`."""
        return self._put(len(self.regions), Region(destination, source, None))

    def fill(self, destination: torch.Tensor, value: float | torch.Tensor) -> int:
        """Add a fill with a constant, or with what the one-element tensor `value` holds when the kernel runs."""
        return self._put(len(self.regions), Region(destination, None, value))

    def mirror(
        self,
        destination: torch.Tensor,
        source: torch.Tensor,
        padding: Padding,
        *,
        extra: int = 0,
        count: torch.Tensor | None = None,
    ) -> int:
        """Add a copy of the first `count + extra` rows of `source` and a fill of the rows after them.

        Args:
            count: int32, one element, read when the kernel runs and held to what fits; by default the count is the
                one given at each launch.
        """
        return self._put(len(self.regions), Region(destination, source, padding, True, extra, count))

    def rebind(
        self, number: int, *, destination: torch.Tensor | None = None, source: torch.Tensor | None = None
    ) -> None:
        """Point a region at other tensors of the same dtype and shape, from the next launch on."""
        if not 0 <= number < len(self.regions):
            raise ValueError(f"number: expected a region in [0, {len(self.regions)}), got {number}")
        old = self.regions[number]
        if source is not None and old.source is None:
            raise ValueError(f"source: expected none for region {number}, a fill, got a tensor")
        new = replace(
            old,
            destination=old.destination if destination is None else destination,
            source=old.source if source is None else source,
        )
        contract.require("destination", new.destination, dtype=old.destination.dtype, shape=old.destination.shape,
                         device=old.destination.device)  # fmt: skip
        self._put(number, new)

    def require_counts(self, count: Counts | None) -> int | npt.NDArray[np.int64]:
        """Check a launch's count, or its counts, one for each region.

        Raises:
            ValueError: a region depends on it and there is none, none does and there is one, or rows would be cut off.
        """
        if self._bounds is None:
            if count is not None:
                raise ValueError(
                    f"count: expected none, since no region takes one at the launch, got {count}"
                )
            return 0
        lowest, highest = self._bounds
        if count is None:
            raise ValueError(f"count: expected one in [{lowest}, {highest}], got none")
        if isinstance(count, int):
            if not lowest <= count <= highest:
                raise ValueError(f"count: expected one in [{lowest}, {highest}], got {count}")
            return count
        counts = np.asarray(count, np.int64)
        if counts.shape != self._lowest.shape:
            raise ValueError(
                f"count: expected one for each of {len(self.regions)} regions, got shape {list(counts.shape)}"
            )
        outside = (counts < self._lowest) | (counts > self._highest)
        if np.count_nonzero(outside):
            at = int(outside.argmax())
            raise ValueError(
                f"count[{at}]: expected one in [{self._lowest[at]}, {self._highest[at]}], got {counts[at]}"
            )
        return counts

    def _put(self, number: int, region: Region) -> int:
        name = f"region {number}"
        words, reads = _describe(name, region, self.device)
        written = _Extent.of(f"{name}'s destination", region.destination)
        others = [extents for index, extents in enumerate(self._extents) if index != number]
        for other in (*reads, *(extent for w, r in others for extent in (w, *r))):
            written.require_apart(other)
        for read in reads:
            for other, _ in others:
                other.require_apart(read)
        if number == len(self.regions):
            self.regions.append(region)
            self._extents.append((written, reads))
            self.words = np.vstack([self.words, words])
        else:
            self.regions[number], self._extents[number] = region, (written, reads)
            self.words[number] = words
        self.device = self.device or region.destination.device
        self.prepared.clear()
        self._bound()
        return number

    def _bound(self) -> None:
        anything = 1 << 62
        taking = [(r.extra, r.destination.shape[0]) if r.takes_count else None for r in self.regions]
        self._lowest = np.array([-anything if t is None else -t[0] for t in taking], np.int64)
        self._highest = np.array([anything if t is None else t[1] - t[0] for t in taking], np.int64)
        self._bounds = (int(self._lowest.max()), int(self._highest.min())) if any(taking) else None


@dataclass(frozen=True)
class _Extent:
    """Bytes that a tensor spans: [low, high), of them `width` in every `stride`."""

    name: str
    low: int
    high: int
    stride: int
    width: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "_Extent":
        size = tensor.element_size()
        low = tensor.data_ptr()
        if tensor.device.type == "meta" or not tensor.numel():
            return cls(name, 0, 0, 0, 0)  # apart from everything, wherever its pointer is
        high = (
            low + size + size * sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        )
        dimensions = _merge(tensor.shape, tensor.stride())
        strided = dimensions[:-1] if dimensions and dimensions[-1][1] == 1 else dimensions
        if len(strided) != 1:
            return cls(name, low, high, 0, 0)
        columns = dimensions[-1][0] if len(dimensions) == 2 else 1
        return cls(name, low, high, strided[0][1] * size, columns * size)

    def require_apart(self, other: "_Extent") -> None:
        if self.low >= other.high or other.low >= self.high or self._interleaves(other):
            return
        raise ValueError(
            f"{self.name}: expected memory that nothing else of the plan reads or writes, "
            f"got [{self.low:#x}, {self.high:#x}) over {other.name}, [{other.low:#x}, {other.high:#x})"
        )

    def _interleaves(self, other: "_Extent") -> bool:
        if not self.stride or self.stride != other.stride:
            return False
        ahead = (other.low - self.low) % self.stride
        return ahead >= self.width and self.stride - ahead >= other.width


def _describe(
    name: str, region: Region, device: torch.device | None
) -> tuple[list[int], tuple[_Extent, ...]]:
    destination, source = region.destination, region.source
    contract.require_tensor(f"{name}'s destination", destination)
    device, size = device or destination.device, destination.element_size()
    contract.require(f"{name}'s destination", destination, device=_reached(destination, device), aligned=size)
    reads = []
    if source is not None:
        contract.require(f"{name}'s source", source, dtype=destination.dtype, shape=destination.shape,
                         device=_reached(source, device), aligned=size)  # fmt: skip
        reads.append(_Extent.of(f"{name}'s source", source))
    words = [0] * WORDS
    words[DESTINATION], words[SOURCE] = destination.data_ptr(), 0 if source is None else source.data_ptr()
    _describe_rows(name, words, destination, destination if source is None else source)
    total = destination.numel() * size
    copies_all = source is not None and not region.counted
    if copies_all:
        words[LIVE_BASE] = total
    if region.counted:
        if not destination.dim():
            raise ValueError(f"{name}'s destination: expected rows to count, got a tensor of no dimensions")
        words[LIVE_STEP] = total // max(1, destination.shape[0])
        words[LIVE_BASE] = region.extra * words[LIVE_STEP]
    if region.count is not None:
        contract.require(
            f"{name}'s count",
            region.count,
            dtype=torch.int32,
            shape=(1,),
            device=_reached(region.count, device),
            aligned=4,
        )
        rows = destination.shape[0]
        contract.require_range(f"{name}'s count", region.count, -region.extra, rows - region.extra + 1)
        words[COUNT] = region.count.data_ptr()
        reads.append(_Extent.of(f"{name}'s count", region.count))
    if not copies_all:
        words[FILL], words[VALUE] = _describe_padding(name, region)
        if isinstance(region.padding, torch.Tensor):
            reads.append(_Extent.of(f"{name}'s padding", region.padding))
    return words, tuple(reads)


def _reached(tensor: torch.Tensor, device: torch.device) -> torch.device:
    """Where a region's tensor has to lie: on `device`, or in pinned host memory, which a GPU reaches over the bus."""
    return tensor.device if device.type == "cuda" and tensor.is_pinned() else device


def _describe_rows(name: str, words: list[int], destination: torch.Tensor, source: torch.Tensor) -> None:
    size = destination.element_size()
    if not destination.numel():
        words[ROWS] = 1
        return
    dimensions = _merge(destination.shape, destination.stride(), source.stride())
    if not dimensions or dimensions[-1][1:] != (1, 1):
        dimensions.append((1, 1, 1))
    if len(dimensions) > 2:
        raise ValueError(
            f"{name}: expected dimensions that merge into contiguous rows at one stride, got shape "
            f"{list(destination.shape)} with strides {list(destination.stride())} and {list(source.stride())}"
        )
    rows, to, come = dimensions[0] if len(dimensions) == 2 else (1, 0, 0)
    columns = dimensions[-1][0]
    if rows > 1 and to < columns:
        raise ValueError(
            f"{name}'s destination: expected rows that do not overlap, got strides {list(destination.stride())}"
        )
    words[ROWS], words[ROW_BYTES] = rows, columns * size
    words[DESTINATION_STRIDE], words[SOURCE_STRIDE] = to * size, come * size
    if rows > 1 and columns * size < SHORT_ROW_BYTES:
        words[UNIT] = largest_unit(words, 16)


def largest_unit(words: Sequence[int], most: int) -> int:
    """The largest power of two, at most `most`, that divides a region's pointers, strides, rows and live bytes."""
    together = most
    for word in (DESTINATION, SOURCE, DESTINATION_STRIDE, SOURCE_STRIDE, ROW_BYTES, LIVE_BASE, LIVE_STEP):
        together |= int(words[word])
    return together & -together


def _describe_padding(name: str, region: Region) -> tuple[int, int]:
    destination, padding = region.destination, region.padding
    size = destination.element_size()
    contract.require_value(f"{name}'s padding: element bytes", size, (1, 2, 4, 8))
    if isinstance(padding, torch.Tensor):
        contract.require(f"{name}'s padding", padding, dtype=destination.dtype, shape=(1,), device=destination.device,
                         aligned=size)  # fmt: skip
        return AT_ADDRESS + size, padding.data_ptr()
    if padding == REPEAT_LAST:
        if destination.dim() != 1:
            raise ValueError(
                f"{name}'s padding: expected {REPEAT_LAST!r} for one dimension, got {destination.dim()}"
            )
        return LAST_COPIED + size, 0
    return CONSTANT + size, _pattern(name, padding, destination.dtype)


def _pattern(name: str, value: object, dtype: torch.dtype) -> int:
    try:
        element = torch.tensor([value], dtype=dtype)
        exact = dtype.is_floating_point or element.item() == value
    except (RuntimeError, TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise ValueError(
            f"{name}'s padding: expected a value of {str(dtype).removeprefix('torch.')}, got {value!r}"
        )
    octets = element.view(torch.uint8).numpy().tobytes()
    return int.from_bytes(octets * (8 // len(octets)), "little", signed=True)


def _merge(shape: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, ...]]:
    """(size, stride, ...) of the fewest dimensions that walk the same elements in the same order."""
    merged: list[tuple[int, ...]] = []
    for dimension in zip(shape, *strides, strict=True):
        if dimension[0] == 1:
            continue
        if merged and all(
            outer == dimension[0] * inner for outer, inner in zip(merged[-1][1:], dimension[1:], strict=True)
        ):
            merged[-1] = (merged[-1][0] * dimension[0], *dimension[1:])
        else:
            merged.append(dimension)
    return merged
