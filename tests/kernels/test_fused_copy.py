"""Copies and fills move bytes and round nothing: every comparison is exact, and covers the bytes around the regions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels import contract, cuda, launch
from kernels import fused_copy as operation
from kernels.copy_plan import REPEAT_LAST, CopyPlan
from kernels.fused_copy import LARGE_CAPACITY, Backend, build_cases, fused_copy, fused_copy_reference

ON_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(
    not ON_GPU, reason="needs a GPU: graphs, streams and sizes beyond the interpreter"
)
BACKENDS = [
    pytest.param("triton"),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not (ON_GPU and cuda.available()), reason="needs a GPU and nvcc")
    ),
]
POISON = 0x7F


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


def random_bytes(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=generator.device, generator=generator)


def random_lanes(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 1 << 30, (size,), dtype=torch.int32, device=generator.device, generator=generator)


def require_equal_to_reference(
    describe: Callable[[CopyPlan, torch.Tensor], None],
    size: int,
    device: torch.device,
    backend: Backend,
    count: int | list[int] | None = None,
) -> torch.Tensor:
    """Run the plan that `describe` builds over poisoned bytes through kernel and reference; the kernel's bytes."""
    ours, expected = (torch.full((size,), POISON, dtype=torch.uint8, device=device) for _ in range(2))
    for written, run in ((ours, lambda p: fused_copy(p, count, backend=backend)), (expected, lambda p: fused_copy_reference(p, count))):  # fmt: skip
        plan = CopyPlan()
        describe(plan, written)
        run(plan)
    assert torch.equal(ours, expected)
    return ours


@pytest.mark.parametrize(
    "size", [1, 15, 16, 17, 255, 1000, *([16384, 16385, 300_001, 20_000_003] if ON_GPU else [2049])]
)
@pytest.mark.parametrize(("to", "come"), [(0, 0), (3, 3), (5, 1), (8, 4), (2, 6), (16, 24)])
def test_copies_any_size_at_any_alignment(
    size: int, to: int, come: int, device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    source = random_bytes(size + 64, generator)
    written = torch.full((size + 96,), POISON, dtype=torch.uint8, device=device)
    plan = CopyPlan()
    plan.copy(written[32 + to : 32 + to + size], source[come : come + size])
    fused_copy(plan, backend=backend)
    assert torch.equal(written[32 + to : 32 + to + size], source[come : come + size])
    assert (written[: 32 + to] == POISON).all()
    assert (written[32 + to + size :] == POISON).all()


def test_many_regions_of_every_kind_in_one_launch(
    device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    random = np.random.default_rng(5)
    source = random_bytes(1 << 17, generator)
    regions = [(int(random.integers(1, 3000)), int(random.integers(0, 1 << 15)), int(random.integers(0, 17))) for _ in range(40)]  # fmt: skip

    def describe(plan: CopyPlan, written: torch.Tensor) -> None:
        at = 0
        for number, (size, come, gap) in enumerate(regions):
            at += gap
            if number % 4 == 0:
                plan.copy(written[at : at + size], source[come : come + size])
            elif number % 4 == 1:
                plan.fill(written[at : at + size], 200)
            elif number % 4 == 2:
                plan.mirror(written[at : at + size], source[come : come + size], REPEAT_LAST)
            else:
                rows = source[come : come + size * 12].view(size, 12)[:, 2:8]
                plan.mirror(written[at : at + size * 8].view(size, 8)[:, 1:7], rows, source[:1])
                size *= 8
            at += size

    require_equal_to_reference(describe, 1 << 18, device, backend, count=1)


@pytest.mark.parametrize("lanes", [8, *([100, 512, 40_000] if ON_GPU else [])])
def test_a_smaller_batch_clears_the_padding_lanes_of_every_mirror(
    lanes: int, device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    mirrors, sources = ([random_lanes(lanes, generator) for _ in range(24)] for _ in range(2))
    plan = CopyPlan()
    for mirror, source in zip(mirrors, sources, strict=True):
        plan.mirror(mirror, source, -1)
    for count in (lanes, 5, 0):
        fused_copy(plan, count, backend=backend)
        for mirror, source in zip(mirrors, sources, strict=True):
            assert torch.equal(mirror[:count], source[:count])
            assert (mirror[count:] == -1).all()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.int64, -(2**40)),
        (torch.int32, 7),
        (torch.int16, -2),
        (torch.uint8, 255),
        (torch.bool, True),
        (torch.float32, float("nan")),
        (torch.bfloat16, 0.1),
        (torch.float64, -1e300),
    ],
)
def test_fills_with_any_dtype(
    dtype: torch.dtype, value: float, device: torch.device, backend: Backend
) -> None:
    written, expected = (torch.zeros(41, dtype=dtype, device=device) for _ in range(2))
    expected[3:38] = value
    plan = CopyPlan()
    plan.fill(written[3:38], value)
    fused_copy(plan, backend=backend)
    assert torch.equal(written.view(torch.uint8), expected.view(torch.uint8))


def test_a_fill_reads_its_value_when_it_runs(device: torch.device, backend: Backend) -> None:
    value = torch.tensor([3], dtype=torch.int32, device=device)
    written = torch.zeros(21, dtype=torch.int32, device=device)
    plan = CopyPlan()
    plan.fill(written[1:20], value)
    for now in (3, -9):
        value.fill_(now)
        fused_copy(plan, backend=backend)
        assert written.tolist() == [0, *[now] * 19, 0]


def test_an_index_pointer_has_one_more_than_the_count_and_repeats_its_last(
    device: torch.device, backend: Backend
) -> None:
    pointers = torch.arange(0, 90, 10, dtype=torch.int32, device=device)
    mirror = torch.full((9,), -5, dtype=torch.int32, device=device)
    plan = CopyPlan()
    plan.mirror(mirror, pointers, REPEAT_LAST, extra=1)
    fused_copy(plan, 5, backend=backend)
    assert mirror.tolist() == [0, 10, 20, 30, 40, 50, 50, 50, 50]


def test_repeating_the_last_of_none_fills_zeros(device: torch.device, backend: Backend) -> None:
    mirror = torch.full((9,), -5, dtype=torch.int32, device=device)
    plan = CopyPlan()
    plan.mirror(mirror, torch.ones_like(mirror), REPEAT_LAST)
    fused_copy(plan, 0, backend=backend)
    assert mirror.tolist() == [0] * 9


def test_each_region_can_have_its_own_count(device: torch.device, backend: Backend) -> None:
    mirrors = [torch.full((6,), -5, dtype=torch.int64, device=device) for _ in range(3)]
    plan = CopyPlan()
    for mirror in mirrors:
        plan.mirror(mirror, torch.arange(1, 7, device=device), 0)
    fused_copy(plan, [1, 6, 0], backend=backend)
    assert [mirror.tolist() for mirror in mirrors] == [[1, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6], [0] * 6]


@pytest.mark.parametrize(("given", "copied"), [(4, 4), (0, 0), (-3, 0), (99, 7)])
def test_a_count_on_the_device_is_read_and_held_to_what_fits(
    given: int, copied: int, device: torch.device, backend: Backend
) -> None:
    count = torch.tensor([2], dtype=torch.int32, device=device)
    source, mirror = torch.arange(1, 8, device=device), torch.full((7,), -5, device=device)
    plan = CopyPlan()
    plan.mirror(mirror, source, 0, count=count)
    fused_copy(plan, backend=backend)
    count.fill_(given)
    fused_copy(plan, backend=backend)
    assert mirror.tolist() == [*range(1, copied + 1), *[0] * (7 - copied)]


@pytest.mark.parametrize("width", [1, 3, 8, 130, *([700, 5000] if ON_GPU else [300])])
def test_block_tables_are_copied_by_rows_from_and_to_strided_tables(
    width: int, device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    rows = 9
    source = random_lanes(rows * (width + 5), generator).view(rows, width + 5)[:, 2 : 2 + width]

    def describe(plan: CopyPlan, written: torch.Tensor) -> None:
        table = written.view(torch.int32).view(rows, width + 3)
        plan.mirror(table[:, 1 : 1 + width], source, 0)

    written = require_equal_to_reference(describe, rows * (width + 3) * 4, device, backend, count=6)
    table = written.view(torch.int32).view(rows, width + 3)
    assert torch.equal(table[:6, 1 : 1 + width], source[:6])
    assert (table[:, 0] == 0x7F7F7F7F).all()


def test_rows_of_three_dimensions_merge(
    device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    source = random_lanes(5 * 4 * 8, generator).view(5, 4, 8)[:, :, :6]
    destination = torch.zeros(5, 4, 6, dtype=torch.int32, device=device)
    plan = CopyPlan()
    plan.mirror(destination, source, 3)
    fused_copy(plan, 2, backend=backend)
    assert torch.equal(destination[:2], source[:2])
    assert (destination[2:] == 3).all()


def test_destinations_may_be_columns_of_one_table(device: torch.device, backend: Backend) -> None:
    table = torch.zeros(6, 3, dtype=torch.int32, device=device)
    plan = CopyPlan()
    for column in range(3):
        plan.fill(table[:, column], column + 1)
    fused_copy(plan, backend=backend)
    assert table.tolist() == [[1, 2, 3]] * 6


@pytest.mark.parametrize(
    "regions", [33, LARGE_CAPACITY, *([LARGE_CAPACITY + 1, 3 * LARGE_CAPACITY] if ON_GPU else [])]
)
def test_no_number_of_regions_is_cut_short(
    regions: int, device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    source = random_lanes(regions * 4, generator).view(regions, 4)
    destination = torch.zeros_like(source)
    plan = CopyPlan()
    for row in range(regions):
        plan.mirror(destination[row], source[row], -1)
    fused_copy(plan, 3, backend=backend)
    assert torch.equal(destination[:, :3], source[:, :3])
    assert (destination[:, 3] == -1).all()


def test_empty_regions_and_plans_do_nothing(device: torch.device, backend: Backend) -> None:
    fused_copy(CopyPlan(), backend=backend)
    kept = torch.full((4,), 9, dtype=torch.int32, device=device)
    plan = CopyPlan()
    plan.copy(kept[:0], kept[2:2])
    plan.fill(kept[3:], 1)
    fused_copy(plan, backend=backend)
    assert kept.tolist() == [9, 9, 9, 1]


def test_a_rebound_region_moves_the_new_tensors(device: torch.device, backend: Backend) -> None:
    first, second, to = (torch.full((8,), value, dtype=torch.int32, device=device) for value in (1, 2, 0))
    plan = CopyPlan()
    number = plan.mirror(to, first, -1)
    fused_copy(plan, 8, backend=backend)
    plan.rebind(number, source=second)
    fused_copy(plan, 3, backend=backend)
    assert to.tolist() == [2, 2, 2, -1, -1, -1, -1, -1]


def overlapping(plan: CopyPlan) -> None:
    pool = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    plan.copy(pool[:32], pool[31:63])


def overlapping_destinations(plan: CopyPlan) -> None:
    pool = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    plan.fill(pool[:32], 0)
    plan.fill(pool[31:], 0)


def destination_read_by_an_earlier_region(plan: CopyPlan) -> None:
    pool = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    plan.copy(pool[:8], pool[8:16])
    plan.fill(pool[12:20], 0)


def source_written_by_an_earlier_region(plan: CopyPlan) -> None:
    pool = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    plan.fill(pool[:8], 0)
    plan.copy(pool[8:16], pool[4:12].clone())
    plan.copy(pool[16:24], pool[7:15])


def overlapping_columns(plan: CopyPlan) -> None:
    table = torch.zeros(6, 4, dtype=torch.int32, device=DEVICE)
    plan.fill(table[:, :2], 0)
    plan.fill(table[:, 1:3], 0)


def count_inside_a_destination(plan: CopyPlan) -> None:
    pool = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    plan.mirror(pool[:8], pool[8:16], 0, count=pool[7:8])


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BAD_REGIONS: dict[str, tuple[Callable[[CopyPlan], object], str]] = {
    "overlap": (overlapping, "region 0's destination: expected memory that nothing else .* over region 0's source"),
    "overlapping destinations": (overlapping_destinations, "region 1's destination: .* over region 0's destination"),
    "earlier source": (destination_read_by_an_earlier_region, "region 1's destination: .* over region 0's source"),
    "later source": (source_written_by_an_earlier_region, "region 0's destination: .* over region 2's source"),
    "overlapping columns": (overlapping_columns, "region 1's destination: .* over region 0's destination"),
    "count overwritten": (count_inside_a_destination, "over region 0's count"),
    "dtype": (lambda p: p.copy(zeros(4), zeros(4, dtype=torch.int64)), "source: expected dtype int32, got int64"),
    "shape": (lambda p: p.copy(zeros(4), zeros(5)), r"source: expected shape \[4\], got \[5\]"),
    "not a tensor": (lambda p: p.copy(zeros(4), 3), "source: expected a tensor, got int"),
    "strides": (
        lambda p: p.copy(zeros(4, 6, 8)[:, :3, :5], zeros(4, 3, 5)),
        r"expected dimensions that merge into contiguous rows at one stride, got shape \[4, 3, 5\]",
    ),
    "expanded destination": (
        lambda p: p.fill(zeros(1).expand(5), 1),
        r"destination: expected rows that do not overlap, got strides \[0\]",
    ),
    "count dtype": (
        lambda p: p.mirror(zeros(4), zeros(4), 0, count=zeros(1, dtype=torch.int64)),
        "count: expected dtype int32, got int64",
    ),
    "count shape": (lambda p: p.mirror(zeros(4), zeros(4), 0, count=zeros(2)), r"count: expected shape \[1\], got \[2\]"),
    "value too large": (lambda p: p.fill(zeros(4), 2**31), "padding: expected a value of int32, got 2147483648"),
    "value not whole": (lambda p: p.fill(zeros(4), 1.5), "padding: expected a value of int32, got 1.5"),
    "value dtype": (
        lambda p: p.fill(zeros(4), zeros(1, dtype=torch.int16)),
        "padding: expected dtype int32, got int16",
    ),
    "wide element": (
        lambda p: p.fill(zeros(4, dtype=torch.complex128), 1),
        "element bytes: expected one of 1, 2, 4, 8, got 16",
    ),
    "repeat in two dimensions": (
        lambda p: p.mirror(zeros(4, 2), zeros(4, 2), REPEAT_LAST),
        "expected 'repeat last' for one dimension, got 2",
    ),
    "no rows": (lambda p: p.mirror(zeros(), zeros(), 0), "expected rows to count"),
}  # fmt: skip


@pytest.mark.parametrize(("describe", "message"), BAD_REGIONS.values(), ids=BAD_REGIONS)
def test_a_bad_region_is_refused_and_leaves_the_plan_as_it_was(
    describe: Callable[[CopyPlan], object], message: str
) -> None:
    plan = CopyPlan()
    with pytest.raises(ValueError, match=message):
        describe(plan)
    assert len(plan.regions) == len(plan.words) <= 2


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (None, r"count: expected one in \[0, 5\], got none"),
        (6, r"count: expected one in \[0, 5\], got 6"),
        (-1, r"count: expected one in \[0, 5\], got -1"),
        ([1, 9, 0], r"count\[1\]: expected one in \[-1, 7\], got 9"),
        ([1, 1], r"count: expected one for each of 3 regions, got shape \[2\]"),
    ],
)
def test_a_count_that_would_cut_rows_off_is_refused(count: int | list[int] | None, message: str) -> None:
    plan = CopyPlan()
    plan.mirror(zeros(5), zeros(5), 0)
    plan.mirror(zeros(8), zeros(8), REPEAT_LAST, extra=1)
    plan.copy(zeros(3), zeros(3))
    with pytest.raises(ValueError, match=message):
        fused_copy(plan, count)


def test_a_count_that_no_region_takes_is_refused() -> None:
    plan = CopyPlan()
    plan.copy(zeros(3), zeros(3))
    with pytest.raises(ValueError, match="count: expected none"):
        fused_copy(plan, 3)


def test_without_nvcc_triton_does_it(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    launched: list[str] = []
    monkeypatch.setattr(cuda, "available", lambda: False)
    monkeypatch.setattr(launch, "launch", lambda kernel, *_, **__: launched.append(kernel.__name__))
    plan = CopyPlan()
    plan.fill(torch.zeros(4, device=device), 1)
    fused_copy(plan)
    assert launched == ["_fused_copy_kernel"]


def test_a_device_count_out_of_range_is_refused_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "DEBUG", True)
    with pytest.raises(ValueError, match=r"count: expected values in \[0, 5\), got \[9, 9\]"):
        CopyPlan().mirror(zeros(4), zeros(4), 0, count=zeros(1) + 9)


def test_the_build_reaches_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(operation, "_LIBRARY", lambda function, *_, **__: seen.append(function))
    with launch.recording(lambda kernel, *_: seen.append(kernel.__name__)):
        for case in build_cases():
            case.call()
    assert seen == ["fused_copy_small", "fused_copy_large", "_fused_copy_kernel"]


@needs_gpu
def test_a_launch_keeps_its_count_while_the_host_prepares_the_next(
    device: torch.device, backend: Backend
) -> None:
    source, mirror = torch.arange(1, 9, device=device), torch.zeros(8, dtype=torch.int64, device=device)
    plan = CopyPlan()
    plan.mirror(mirror, source, -1)
    fused_copy(plan, 1, backend=backend)
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    fused_copy(plan, 8, backend=backend)
    after_first = mirror.clone()
    fused_copy(plan, 5, backend=backend)
    assert after_first.tolist() == list(range(1, 9))
    assert mirror.tolist() == [1, 2, 3, 4, 5, -1, -1, -1]


@needs_gpu
def test_a_graph_replays_with_the_counts_it_reads_on_the_device(
    device: torch.device, backend: Backend
) -> None:
    count = torch.tensor([4], dtype=torch.int32, device=device)
    source, mirror = torch.arange(1, 8, device=device), torch.zeros(7, dtype=torch.int64, device=device)
    plan = CopyPlan()
    plan.mirror(mirror, source, 0, count=count)
    fused_copy(plan, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused_copy(plan, backend=backend)
    for now in (7, 2):
        count.fill_(now)
        source.add_(10)
        graph.replay()
        assert mirror.tolist() == [*source[:now].tolist(), *[0] * (7 - now)]


@needs_gpu
def test_new_counts_inside_a_capture_are_refused_by_triton(device: torch.device) -> None:
    plan = CopyPlan()
    plan.mirror(zeros(7), zeros(7), 0)
    fused_copy(plan, 3, backend="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused_copy(plan, 3, backend="triton")
        with pytest.raises(RuntimeError, match="expected the counts of the last launch inside a capture"):
            fused_copy(plan, 4, backend="triton")


@needs_gpu
@pytest.mark.parametrize("apart", [0, 3])
def test_offsets_pass_two_to_the_thirty_first(
    apart: int, device: torch.device, generator: torch.Generator, backend: Backend
) -> None:
    size = (1 << 32) + 4099
    source, written = random_bytes(size, generator), torch.empty(size + 16, dtype=torch.uint8, device=device)
    plan = CopyPlan()
    plan.copy(written[apart : apart + size], source)
    fused_copy(plan, backend=backend)
    assert torch.equal(written[apart : apart + size], source)
