"""Many device-to-device copies and fills in one launch.

A `CopyPlan` is built once from tensors and launched often with `fused_copy`. Its regions are

- `copy(destination, source)`: all of `source`;
- `fill(destination, value)`: a constant, or what a one-element tensor on the device holds when the kernel runs;
- `mirror(destination, source, padding)`: the first `count` rows (leading dimension) of `source`, and `padding` in every
  row after them: a constant, a one-element tensor, or `REPEAT_LAST`, the last copied element (0 where none is), as
  index pointers need it. The count is given at each launch, or read from a device tensor when the kernel runs.

Source and destination agree in dtype (any), shape and device, and their dimensions merge into rows of contiguous
elements at one stride. Any alignment: long rows move as 16-byte vectors with byte edges, or in the widest words that
both sides' alignment shares; short strided rows in the widest word that divides pointers, strides and row. On a GPU a
region may also lie in pinned host memory, which the kernel reaches over the bus: for a few kilobytes that is quicker than
a copy of its own. A destination shares no memory with another or with anything that the plan reads (ValueError); strided
ones may interleave.

Limits: descriptors are a kernel's parameters, LARGE_CAPACITY regions a launch; a plan of more takes several launches.
Elements that are filled have at most 8 bytes. The plan holds its tensors alive. `rebind` costs the host about as much as
adding a region did: where staging buffers take turns, keep a plan for each.

With nvcc the kernel is csrc/fused_copy.cu; a graph captures it with the counts of that moment. Without it a Triton kernel
reads descriptors from a device table: slower, in words of 8 bytes at most, and counts other than the last launch's are
uploaded, so not inside a capture (RuntimeError); counts read on the device work in both. Its launches of one plan share
that table, so they belong on one stream, or in an order that the caller makes.
"""

from collections.abc import Iterator
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from triton.runtime import driver

from kernels import contract, cuda, launch, target
from kernels.contract import VECTOR_BYTES
from kernels.copy_plan import (
    AT_ADDRESS,
    CONSTANT,
    LAST_COPIED,
    REPEAT_LAST,
    ROW_BYTES,
    ROWS,
    UNIT,
    WORDS,
    CopyPlan,
    Counts,
    largest_unit,
)

SMALL_CAPACITY = 32
LARGE_CAPACITY = 288  # a kernel may have 32,764 bytes of parameters
UNROLL = 8
LINE_BYTES = 128
THREADS, THREADS_WHEN_LARGE = 128, 512
LARGE_BYTES = 8 << 20
TRITON_UNITS = 2048

Backend = Literal["cuda", "triton"]

_LIBRARY = cuda.Library(
    "fused_copy.cu",
    dict.fromkeys(("fused_copy_small", "fused_copy_large"), (c_void_p, c_int, c_int, c_int)),
    {"UNROLL": UNROLL, "SMALL_CAPACITY": SMALL_CAPACITY, "LARGE_CAPACITY": LARGE_CAPACITY},
)


def fused_copy(plan: CopyPlan, count: Counts | None = None, *, backend: Backend | None = None) -> None:
    """Do all of `plan` on the current stream.

    Args:
        count: rows copied of every mirror without a device count, or one for each region (those of other regions are
            ignored); copied when the function returns.
        backend: by default "cuda" where there is an nvcc, else "triton".

    Raises:
        ValueError: the count is missing or would cut rows off, the plan lies on another device than the current, or
            the backend is unknown.
        RuntimeError: new counts would have to be uploaded inside a capture (Triton).
    """
    counts = plan.require_counts(count)
    device = plan.device
    if device is None:
        return
    on_gpu = device.type == "cuda"
    if on_gpu and device.index != torch.cuda.current_device():
        raise ValueError(
            f"plan: expected the current device, cuda:{torch.cuda.current_device()}, got {device}"
        )
    if backend == "triton" or (backend is None and not _has_nvcc()):
        _launch_triton(plan, counts)
        return
    contract.require_value("backend", backend, (None, "cuda", "triton"))
    if not on_gpu and device.type != "meta":
        raise ValueError(f"plan: expected a CUDA device, got {device} (on a CPU use the reference function)")
    parts = plan.prepared.get("cuda")
    if parts is None:
        parts = plan.prepared["cuda"] = _parts(plan)
    # Triton's way to the current stream costs a tenth of torch's.
    stream = driver.active.get_current_stream(device.index) if on_gpu else None
    for part in parts:
        part.counts[:] = counts if isinstance(counts, int) else counts[part.span]
        _LIBRARY(*part.arguments, stream=stream)


def fused_copy_reference(plan: CopyPlan, count: Counts | None = None) -> None:
    """The same through torch, region by region, on any device."""
    counts = np.broadcast_to(plan.require_counts(count), len(plan.regions))
    for region, host_count in zip(plan.regions, counts, strict=True):
        destination, source, padding = region.destination, region.source, region.padding
        live = 0
        if source is not None:
            live = destination.shape[0] if destination.dim() else 1
        if region.counted:
            given = int(host_count if region.count is None else region.count)
            live = max(0, min(live, given + region.extra))
        if source is not None:
            (destination[:live] if destination.dim() else destination).copy_(
                source[:live] if source.dim() else source
            )
        if isinstance(padding, str):
            padding = destination[live - 1 : live] if live else 0
        if padding is not None:
            rest = destination[live:] if destination.dim() else destination
            rest.copy_(torch.as_tensor(padding, dtype=destination.dtype).expand_as(rest))


@dataclass(frozen=True)
class _Part:
    """One launch of the regions in `span`.

    Attributes:
        parameters: Params of csrc/fused_copy.cu; `counts` is a view of those in it.
        arguments: the exported function and what it is called with, the parameters' address first.
    """

    parameters: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    arguments: tuple[str, int, int, int, bool]
    span: slice


@dataclass
class _Tables:
    """What the Triton kernel reads on the device."""

    words: torch.Tensor
    owner: torch.Tensor
    first: torch.Tensor
    counts: torch.Tensor | None = None
    uploaded: npt.NDArray[np.int64] | None = None


def _has_nvcc() -> bool:
    return not contract.INTERPRETING and cuda.available()


def _parts(plan: CopyPlan) -> list[_Part]:
    total = len(plan.regions)
    return [
        _part(plan, slice(low, min(low + LARGE_CAPACITY, total))) for low in range(0, total, LARGE_CAPACITY)
    ]


def _part(plan: CopyPlan, span: slice) -> _Part:
    words = plan.words[span]
    regions = len(words)
    function, capacity = (
        ("fused_copy_small", SMALL_CAPACITY)
        if regions <= SMALL_CAPACITY
        else ("fused_copy_large", LARGE_CAPACITY)
    )
    total = int((words[:, ROWS] * words[:, ROW_BYTES]).sum())
    threads = THREADS if total < LARGE_BYTES else THREADS_WHEN_LARGE
    blocks = _blocks(words, threads * UNROLL * VECTOR_BYTES, threads * UNROLL)
    parameters = np.zeros(2 + capacity * (2 + WORDS), np.int64)
    header, counts, first, table = np.split(parameters, np.cumsum([2, capacity, capacity]))
    header[:] = regions, (threads * UNROLL * VECTOR_BYTES).bit_length() - 1
    first[:regions] = np.cumsum(blocks) - blocks
    table.reshape(capacity, WORDS)[:regions] = words
    programmatic = "pdl" in target.current().features
    arguments = function, parameters.ctypes.data, int(blocks.sum()), threads, programmatic
    return _Part(parameters, counts[:regions], arguments, span)


def _blocks(words: npt.NDArray[np.int64], piece_bytes: int, piece_units: int) -> npt.NDArray[np.int64]:
    """Blocks of each region, at least one, so that a block's region is never after the block's own number.

    A long row's first piece is short of its bytes before the destination's next line, so there may be one more.
    """
    rows, row_bytes, unit = words[:, ROWS], words[:, ROW_BYTES], words[:, UNIT]
    by_units = -(-(rows * row_bytes) // (np.maximum(unit, 1) * piece_units))
    by_pieces = rows * ((row_bytes + LINE_BYTES - 2) // piece_bytes + 1)
    return np.maximum(1, np.where(unit > 0, by_units, by_pieces))


def _launch_triton(plan: CopyPlan, counts: int | npt.NDArray[np.int64]) -> None:
    tables = plan.prepared.get("triton")
    if tables is None:
        tables = plan.prepared["triton"] = _upload_tables(plan)
    wanted = np.array(np.broadcast_to(counts, len(plan.regions)))
    if tables.counts is None or not np.array_equal(wanted, tables.uploaded):
        tables.counts, tables.uploaded = _upload(wanted, plan.device), wanted
    launch.launch(
        _fused_copy_kernel,
        (tables.owner.shape[0],),
        tables.words,
        tables.counts,
        tables.owner,
        tables.first,
        UNITS=TRITON_UNITS,
        num_warps=4,
    )


def _upload_tables(plan: CopyPlan) -> _Tables:
    words = plan.words.copy()
    words[:, UNIT] = [largest_unit(row, 8) for row in words]
    blocks = _blocks(words, 1, TRITON_UNITS)  # every region has a unit here
    owner = np.repeat(np.arange(len(words), dtype=np.int64), blocks)
    return _Tables(*(_upload(table, plan.device) for table in (words, owner, np.cumsum(blocks) - blocks)))


def _upload(table: npt.NDArray[np.int64], device: torch.device | None) -> torch.Tensor:
    host = torch.from_numpy(table.copy())
    if device is None or device.type != "cuda":
        return host.to(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "fused_copy: expected the counts of the last launch inside a capture, got others, which would be uploaded; "
            "launch once before the capture, or let the counts be read on the device"
        )
    return host.pin_memory().to(device, non_blocking=True)


# The names of kernels/copy_plan.py, as a kernel may read them.
(_DESTINATION, _SOURCE, _DESTINATION_STRIDE, _SOURCE_STRIDE, _ROW_BYTES, _ROWS, _LIVE_BASE, _LIVE_STEP, _COUNT, _VALUE,
 _FILL, _UNIT) = map(tl.constexpr, range(WORDS))  # fmt: skip
_WORDS = tl.constexpr(WORDS)
_CONSTANT, _AT_ADDRESS, _LAST_COPIED = map(tl.constexpr, (CONSTANT, AT_ADDRESS, LAST_COPIED))


@triton.jit
def _pattern(fill, value, source, source_stride, row_bytes, live):
    """Eight bytes of padding; 0 where the last copied element is asked for and there is none."""
    element = fill & 15  # the kinds are multiples of 16
    kind = fill - element
    address = value
    if kind == _LAST_COPIED:
        last = live - element
        address = source + (last // row_bytes) * source_stride + last % row_bytes
    pattern = value
    if kind != _CONSTANT:
        pattern = tl.full((), 0, tl.int64)
        if (kind == _AT_ADDRESS) | (live > 0):
            for byte in range(8):
                at = (address + byte % element).to(tl.pointer_type(tl.uint8))
                pattern |= tl.load(at).to(tl.int64) << (8 * byte)
    return pattern


@triton.jit
def _move(words, block, live, pattern, WORD: tl.constexpr, BYTES: tl.constexpr, UNITS: tl.constexpr):
    destination = tl.load(words + _DESTINATION)
    source = tl.load(words + _SOURCE)
    row_bytes = tl.load(words + _ROW_BYTES)
    per_row = row_bytes // BYTES
    unit = block * UNITS + tl.arange(0, UNITS)
    row = unit // per_row
    column = (unit - row * per_row) * BYTES
    inside = row < tl.load(words + _ROWS)
    copied = inside & (row * row_bytes + column < live)
    from_address = source + row * tl.load(words + _SOURCE_STRIDE) + column
    to_address = destination + row * tl.load(words + _DESTINATION_STRIDE) + column
    held = tl.load(from_address.to(tl.pointer_type(WORD)), mask=copied, other=0)
    held = tl.where(copied, held, pattern.to(WORD))
    tl.store(to_address.to(tl.pointer_type(WORD)), held, mask=inside)


@triton.jit
def _fused_copy_kernel(table, counts, owner, first, UNITS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    region = tl.load(owner + program)
    block = program - tl.load(first + region)
    words = table + region * _WORDS
    row_bytes = tl.load(words + _ROW_BYTES)
    count = tl.load(counts + region)
    count_address = tl.load(words + _COUNT)
    if count_address != 0:
        count = tl.load(count_address.to(tl.pointer_type(tl.int32))).to(tl.int64)
    live = tl.load(words + _LIVE_BASE) + count * tl.load(words + _LIVE_STEP)
    live = tl.minimum(tl.maximum(live, 0), row_bytes * tl.load(words + _ROWS))
    pattern = _pattern(
        tl.load(words + _FILL),
        tl.load(words + _VALUE),
        tl.load(words + _SOURCE),
        tl.load(words + _SOURCE_STRIDE),
        row_bytes,
        live,
    )
    unit = tl.load(words + _UNIT)
    if row_bytes > 0:
        if unit == 8:
            _move(words, block, live, pattern, tl.int64, 8, UNITS)
        elif unit == 4:
            _move(words, block, live, pattern, tl.int32, 4, UNITS)
        elif unit == 2:
            _move(words, block, live, pattern, tl.int16, 2, UNITS)
        else:
            _move(words, block, live, pattern, tl.int8, 1, UNITS)


def build_cases() -> Iterator[launch.BuildCase]:
    """One kernel in two capacities, and the fallback."""

    def case(name: str, regions: int, backend: Backend) -> launch.BuildCase:
        def call() -> None:
            plan = CopyPlan()
            for _ in range(regions):
                plan.mirror(launch.meta(8, dtype=torch.int32), launch.meta(8, dtype=torch.int32), 0)
            fused_copy(plan, 4, backend=backend)

        return launch.BuildCase(f"fused_copy/{name}", call)

    yield case("small", 1, "cuda")
    yield case("large", SMALL_CAPACITY + 1, "cuda")
    yield case("triton", 1, "triton")


def check(device: torch.device) -> tuple[float, float]:
    """A few regions of odd sizes; returns the share of wrong bytes and its bound."""
    generator = torch.Generator(device).manual_seed(1)
    wrong, total = 0, 0
    for backend in ("cuda", "triton") if device.type == "cuda" and _has_nvcc() else ("triton",):
        pool = torch.randint(0, 256, (3, 4096), dtype=torch.uint8, generator=generator, device=device)
        ours, expected = CopyPlan(), CopyPlan()
        for plan, written in ((ours, pool[1]), (expected, pool[2])):
            written.fill_(0x7F)
            plan.copy(written[3:1030], pool[0, 1:1028])
            plan.mirror(written[1032:1096].view(torch.int32), pool[0, :64].view(torch.int32), REPEAT_LAST)
            plan.fill(written[2048:].view(64, 32)[:, 5:9], 9)
        fused_copy(ours, 5, backend=backend)  # type: ignore[arg-type]
        fused_copy_reference(expected, 5)
        wrong += int((pool[1] != pool[2]).sum())
        total += 4096
    return wrong / total, 0.0
