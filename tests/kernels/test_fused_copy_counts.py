"""How many rows of a mirror are copied: counts given at a launch, or read on the device, in and out of a graph."""

from __future__ import annotations

import pytest
import torch

from kernels.copy_plan import REPEAT_LAST, CopyPlan
from kernels.fused_copy import Backend, fused_copy
from tests.kernels.fused_copy_kit import BACKENDS, ON_GPU, needs_gpu, random_lanes, zeros


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


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
