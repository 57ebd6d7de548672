"""What a plan refuses, and how its regions change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels import contract
from kernels.copy_plan import REPEAT_LAST, CopyPlan
from kernels.fused_copy import Backend, fused_copy
from tests.kernels.fused_copy_kit import BACKENDS, DEVICE, zeros


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


def test_a_rebound_region_moves_the_new_tensors(device: torch.device, backend: Backend) -> None:
    first, second, to = (torch.full((8,), value, dtype=torch.int32, device=device) for value in (1, 2, 0))
    plan = CopyPlan()
    number = plan.mirror(to, first, -1)
    fused_copy(plan, 8, backend=backend)
    plan.rebind(number, source=second)
    fused_copy(plan, 3, backend=backend)
    assert to.tolist() == [2, 2, 2, -1, -1, -1, -1, -1]


def test_rebinding_refuses_what_is_not_there() -> None:
    plan = CopyPlan()
    plan.fill(zeros(4), 1)
    for number in (1, -1):
        with pytest.raises(ValueError, match=rf"number: expected a region in \[0, 1\), got {number}"):
            plan.rebind(number, destination=zeros(4))
    with pytest.raises(ValueError, match="source: expected none for region 0, a fill, got a tensor"):
        plan.rebind(0, source=zeros(4))


def test_an_empty_region_is_apart_from_a_region_around_it() -> None:
    pool = zeros(8)
    plan = CopyPlan()
    plan.fill(pool, 1)
    plan.fill(pool[3:3], 2)
    plan.copy(zeros(0), pool[5:5])
    assert len(plan.regions) == 3


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


BAD_REGIONS: dict[str, tuple[Callable[[CopyPlan], object], str]] = {
    "overlap": (overlapping, "region 0's destination: expected memory that nothing else .* over region 0's source"),
    "overlapping destinations": (overlapping_destinations, "region 1's destination: .* over region 0's destination"),
    "earlier source": (destination_read_by_an_earlier_region, "region 1's destination: .* over region 0's source"),
    "later source": (source_written_by_an_earlier_region, "region 0's destination: .* over region 2's source"),
    "overlapping columns": (overlapping_columns, "region 1's destination: .* over region 0's destination"),
    "count overwritten": (count_inside_a_destination, "over region 0's count"),
    "dtype": (lambda p: p.copy(zeros(4), zeros(4, dtype=torch.int64)), "source: expected dtype int32, got int64"),
    "shape": (lambda p: p.copy(zeros(4), zeros(5)), r"source: expected shape \[4\], got \[5\]"),
    "destination not a tensor": (lambda p: p.fill(3, 1), "destination: expected a tensor, got int"),
    "no value": (lambda p: p.fill(zeros(4), None), "padding: expected a value of int32, got None"),
    "no padding": (lambda p: p.mirror(zeros(4), zeros(4), None), "padding: expected a value of int32, got None"),
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


def test_a_device_count_out_of_range_is_refused_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "DEBUG", True)
    with pytest.raises(ValueError, match=r"count: expected values in \[0, 5\), got \[9, 9\]"):
        CopyPlan().mirror(zeros(4), zeros(4), 0, count=zeros(1) + 9)
