"""The decode's rotary operation owns its lengths: what it accepts, what it refuses, and where they lie."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.batch import StepInputs
from runtime.model import Model
from runtime.rope import DecodeRope, DecodeRopeContractError
from tests.runtime.kit import CONFIG, CPU, make_model, weights_for


def inputs(
    lengths: list[int], dtype: torch.dtype = torch.int32, slots: torch.Tensor | None = None
) -> StepInputs:
    batch = len(lengths)
    vector = torch.tensor(lengths, dtype=dtype)
    return StepInputs(
        token_ids=torch.zeros(batch, dtype=torch.int32),
        positions=vector,
        slots=torch.arange(batch) + 4 if slots is None else slots,
        query_indptr=torch.arange(batch + 1, dtype=torch.int32),
        sequence_lengths=vector,
        kv_lengths=vector + 1,
        block_tables=torch.ones(batch, 1, dtype=torch.int32),
        last_tokens=None,
        max_query_length=1,
        is_decode=True,
        host_kv_lengths=np.array(lengths, np.int32) + 1,
    )


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(CONFIG, weights_for(CPU))


@pytest.fixture
def rope(model: Model) -> DecodeRope:
    return model.decode_rope()


def test_the_copy_is_its_own_and_holds_still_when_the_source_changes(rope: DecodeRope) -> None:
    given = inputs([3, 5])
    rope.prepare(given)
    assert rope.sequence_lengths.data_ptr() != given.sequence_lengths.data_ptr()
    given.sequence_lengths.add_(1)
    assert rope.sequence_lengths.tolist() == [3, 5]


def test_refresh_writes_the_new_lengths_to_the_same_address(rope: DecodeRope) -> None:
    first = inputs([3, 5])
    rope.prepare(first)
    address = rope.sequence_lengths.data_ptr()
    rope.refresh_sequence_lengths(inputs([4, 6], slots=first.slots))
    assert rope.sequence_lengths.tolist() == [4, 6]
    assert rope.sequence_lengths.data_ptr() == address


def test_a_smaller_batch_allocates_nothing(rope: DecodeRope) -> None:
    rope.prepare(inputs([3, 5, 7]))
    address = rope.sequence_lengths.data_ptr()
    rope.prepare(inputs([9]))
    assert (rope.sequence_lengths.tolist(), rope.sequence_lengths.data_ptr()) == ([9], address)
    rope.prepare(inputs([1, 2, 3]))
    assert rope.sequence_lengths.data_ptr() == address


def test_nothing_works_before_prepare(rope: DecodeRope) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: rope.sequence_lengths,
        lambda: rope.slots,
        rope.graph_buffers,
        lambda: rope.refresh_sequence_lengths(inputs([1])),
        lambda: rope.prepare(inputs([1]), forbid_reallocation=True),
    ]
    for attempt in attempts:
        with pytest.raises(DecodeRopeContractError, match="call prepare first"):
            attempt()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (inputs([1, 2], torch.int64), "sequence_lengths: expected int32, got torch.int64"),
        (inputs([]), r"sequence_lengths: expected a non-empty vector, got shape \[0\]"),
        (
            replace(inputs([1]), sequence_lengths=torch.ones(1, 1, dtype=torch.int32)),
            r"sequence_lengths: expected a non-empty vector, got shape \[1, 1\]",
        ),
        (inputs([1, 2], slots=torch.arange(3)), "sequence_lengths: expected one for each of 3 slots, got 2"),
    ],
)
def test_lengths_that_are_off_are_refused(rope: DecodeRope, given: StepInputs, message: str) -> None:
    with pytest.raises(DecodeRopeContractError, match=message):
        rope.prepare(given)


def test_another_shape_is_refused_where_reallocation_is_forbidden(rope: DecodeRope) -> None:
    first = inputs([1, 2])
    rope.prepare(first)
    for attempt in (
        lambda: rope.prepare(inputs([1, 2, 3]), forbid_reallocation=True),
        lambda: rope.refresh_sequence_lengths(inputs([1])),
    ):
        with pytest.raises(
            DecodeRopeContractError, match=r"expected shape \[2\] on cpu, since reallocation is forbidden"
        ):
            attempt()
    rope.prepare(inputs([8, 9], slots=first.slots), forbid_reallocation=True)
    assert rope.sequence_lengths.tolist() == [8, 9]


def test_other_slots_than_the_bound_ones_are_refused(rope: DecodeRope) -> None:
    rope.prepare(inputs([1, 2]))
    with pytest.raises(DecodeRopeContractError, match="slots: expected the graph-bound buffer at 0x"):
        rope.refresh_sequence_lengths(inputs([1, 2]))


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: pageable memory is as good as any on a CPU"
)
def test_pageable_host_lengths_are_refused_in_a_graphs_path(model: Model) -> None:
    rope = DecodeRope(model._ops, torch.zeros(1, device="cuda"), 1e-6)
    on_gpu = inputs([1, 2], slots=torch.arange(2, device="cuda"))
    with pytest.raises(DecodeRopeContractError, match="expected device or pinned host memory"):
        rope.prepare(on_gpu, forbid_reallocation=True)
    pinned = replace(on_gpu, sequence_lengths=on_gpu.sequence_lengths.pin_memory())
    rope.prepare(pinned)
    rope.refresh_sequence_lengths(pinned)
    torch.cuda.synchronize()
    assert rope.sequence_lengths.tolist() == [1, 2]
