"""Copies and fills move bytes and round nothing: every comparison is exact, and covers the bytes around the regions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels import cuda, launch
from kernels import fused_copy as operation
from kernels.copy_plan import REPEAT_LAST, CopyPlan
from kernels.fused_copy import LARGE_CAPACITY, Backend, build_cases, fused_copy, fused_copy_reference
from tests.kernels.fused_copy_kit import BACKENDS, ON_GPU, needs_gpu, random_bytes, random_lanes

POISON = 0x7F


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


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
    plan.copy(kept.new_empty(5, 0), kept.new_empty(5, 0))
    plan.fill(kept.view(2, 2)[:, 1:1], 3)
    plan.fill(kept[3:], 1)
    fused_copy(plan, backend=backend)
    assert kept.tolist() == [9, 9, 9, 1]


def test_an_unknown_backend_is_refused(device: torch.device) -> None:
    plan = CopyPlan()
    plan.fill(torch.zeros(4, device=device), 1)
    with pytest.raises(ValueError, match="backend: expected one of None, cuda, triton, got cutlass"):
        fused_copy(plan, backend="cutlass")  # type: ignore[arg-type]


def test_without_nvcc_triton_does_it(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    launched: list[str] = []
    monkeypatch.setattr(cuda, "available", lambda: False)
    monkeypatch.setattr(launch, "launch", lambda kernel, *_, **__: launched.append(kernel.__name__))
    plan = CopyPlan()
    plan.fill(torch.zeros(4, device=device), 1)
    fused_copy(plan)
    assert launched == ["_fused_copy_kernel"]


def test_the_build_reaches_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(operation, "_LIBRARY", lambda function, *_, **__: seen.append(function))
    with launch.recording(lambda kernel, *_: seen.append(kernel.__name__)):
        for case in build_cases():
            case.call()
    assert seen == ["fused_copy_small", "fused_copy_large", "_fused_copy_kernel"]


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
