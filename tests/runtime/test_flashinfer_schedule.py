"""What flashinfer's host code is told of a step, on any machine: a stand-in takes the place of the package."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime.attention import AttentionBackendError
from runtime.attention.flashinfer import Pages, _PrefillSchedule
from runtime.batch import StepInputs, make_inputs
from runtime.request import Request, SamplingParameters
from runtime.ring import Past
from runtime.scheduler import Chunk, Decode, Prefill
from tests.runtime.kit import CONFIG, CPU, PAGE_SIZE

NO_IDS = torch.zeros(4, dtype=torch.int32)


class Wrapper:
    """Keeps what it is planned with."""

    def __init__(self, *_memory: object, **_options: object) -> None:
        self.planned: list[Sequence[Any]] = []

    def plan(self, *arguments: object, **_options: object) -> None:
        self.planned.append(arguments)


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> _PrefillSchedule:
    monkeypatch.setattr(torch.cuda, "Event", Past)
    package = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    return _PrefillSchedule(package, torch.empty(0), CONFIG, PAGE_SIZE)


def _requests() -> list[Request]:
    pages = ([1, 2, 3], [4], [5, 6])
    return [
        Request(str(number), tuple(range(11)), SamplingParameters(), 0, row=number, pages=held)
        for number, held in enumerate(pages)
    ]


def _prefill() -> StepInputs:
    places = ((4, 7), (0, 2), (5, 1))
    chunks = [Chunk(one, *place, samples=True) for one, place in zip(_requests(), places, strict=True)]
    return make_inputs(Prefill(chunks), PAGE_SIZE, NO_IDS)


def test_a_prefill_is_scheduled_from_host_memory_alone(schedule: _PrefillSchedule) -> None:
    inputs = _prefill()
    assert inputs.query_indptr.tolist() == [0, 7, 9, 10]
    # A tensor without content: reading it back, as from a device, is an error.
    unread = replace(
        inputs, query_indptr=inputs.query_indptr.to("meta"), kv_lengths=inputs.kv_lengths.to("meta")
    )
    schedule.replan(unread, Pages.empty(3, 3, CPU))
    ((query_indptr, kv_indptr, _, last, *_shape),) = schedule.wrapper.planned
    assert query_indptr.tolist() == [0, 7, 9, 10]
    assert query_indptr.dtype == torch.int32
    assert kv_indptr.tolist() == [0, 3, 4, 6]
    assert last.tolist() == [3, 2, 2]


def test_a_prefill_whose_pointers_only_the_device_knows_is_refused(schedule: _PrefillSchedule) -> None:
    with pytest.raises(AttentionBackendError, match="host_query_indptr, got none; make_inputs gives it"):
        schedule.replan(replace(_prefill(), host_query_indptr=None), Pages.empty(3, 3, CPU))
    assert schedule.wrapper.planned == []


def test_a_decode_has_no_pointers_on_the_host_since_they_count_up_by_one() -> None:
    inputs = make_inputs(Decode(_requests()), PAGE_SIZE, NO_IDS)
    assert inputs.host_query_indptr is None
    assert inputs.query_indptr.tolist() == [0, 1, 2, 3]
