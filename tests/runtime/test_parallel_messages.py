"""What the other ranks make of rank 0's messages is what rank 0 has; little is said of what they know already."""

import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from runtime.beam import BeamParameters
from runtime.embeddings import InputEmbeddings
from runtime.engine import Engine
from runtime.parallel.messages import PlanReader, PlanWriter
from runtime.request import Request, SamplingParameters
from runtime.runner import Flight, _sampled
from runtime.scheduler import Decode, Prefill, StepPlan
from tests.runtime.kit import CONFIG, CPU, make_model, weights_for
from tests.runtime.test_overlap import OPTIONS, SCHEDULES, SIZES, TINY, WEIGHTS, Asked

DRAWN = SamplingParameters(temperature=1.0, seed=3, max_tokens=12)


def state(request: Request) -> list[object]:
    """All of a request that a launch may read."""
    group = request.group
    return [
        request.prompt, request.sampling, request.seed, [token.id for token in request.tokens], request.computed,
        request.pending, request.pages, request.row, request.generation, request.decodes, request.length,
        request.in_search, request.embeddings is None, group and len(group.members), group and group.samples_together,
        group and group.members.index(request), group and group.stop_ids,
        group and group.search and group.search.candidates_per_row,
    ]  # fmt: skip


class Told:
    """An engine of whose every step another rank is told; what that makes of it must be the same."""

    def __init__(self, serving: Engine) -> None:
        self.serving = serving
        self.writer = PlanWriter()
        self.reader = PlanReader(CONFIG, CPU)
        self.bytes: list[int] = []
        self._launch = serving._runner.launch
        serving._runner.launch = self.launch  # type: ignore[method-assign]

    def launch(self, plan: StepPlan) -> Flight:
        packed = pickle.dumps(self.writer.message(plan))
        self.bytes.append(len(packed))
        heard = self.reader.plan(pickle.loads(packed))
        if isinstance(plan, Decode):
            assert isinstance(heard, Decode)
            assert [state(one) for one in heard.requests] == [state(one) for one in plan.requests]
            assert list(heard.page_copies) == list(plan.page_copies)
        else:
            assert isinstance(heard, Prefill)
            for ours, theirs in zip(plan.chunks, heard.chunks, strict=True):
                assert (ours.start, ours.count, ours.samples) == (theirs.start, theirs.count, theirs.samples)
                assert state(ours.request) == state(theirs.request)
                if ours.samples:
                    drawn = [_sampled(chunk.request) for chunk in (ours, theirs)]
                    assert [state(one) for one in drawn[0]] == [state(one) for one in drawn[1]]
        return self._launch(plan)


@settings(deadline=None, max_examples=60)
@given(SCHEDULES, SIZES)
def test_every_step_is_the_same_to_those_who_are_told(
    schedule: list[Asked], sizes: dict[str, object]
) -> None:
    told = Told(Engine(make_model(TINY, WEIGHTS), replace(OPTIONS, **sizes)))
    aborts: dict[int, Request] = {}
    for step in range(3000):
        for number, asked in enumerate(schedule):
            if asked.at == step:
                aborts.update((number, one) for one in asked.submit(told.serving)[:1])
            elif asked.aborted_at == step and number in aborts and aborts[number].finish_reason is None:
                told.serving.abort(aborts[number].id)
        told.serving.step()
        if step > 20 and not told.serving.has_work():
            break
    # Whoever has ended is forgotten as soon as other requests take part.
    last = told.serving.submit([1], replace(DRAWN, max_tokens=2))
    while last.finish_reason is None:
        told.serving.step()
    assert len(told.reader.requests) == len(told.writer._known) <= 1


def test_a_decode_says_little_of_what_is_known() -> None:
    told = Told(Engine(make_model(CONFIG, weights_for(CPU)), replace(OPTIONS, pages=200, page_size=8)))
    for number in range(4):
        told.serving.submit(list(range(60 + number)), replace(DRAWN, max_tokens=40))
    while told.serving.has_work():
        told.serving.step()
    assert max(told.bytes) > 500
    assert max(told.bytes[-30:]) < 330, "four lanes, none of them new"


@pytest.mark.parametrize("sequences", [{}, {"n": 2}, {"beams": BeamParameters(2)}])
def test_given_embeddings_go_with_their_request(sequences: dict[str, object]) -> None:
    told = Told(Engine(make_model(CONFIG, weights_for(CPU)), OPTIONS))
    rows = torch.randn(3, CONFIG.hidden_size, generator=torch.Generator().manual_seed(3))
    given = InputEmbeddings(rows, (4, 0, 2))
    sampling = SamplingParameters(max_tokens=3)
    request = told.serving.submit([1, 2, 3, 4, 5], sampling, embeddings=given, **sequences)  # type: ignore[arg-type]
    members = [request] if request.group is None else list(request.group.members)
    told.writer.embeddings.update(dict.fromkeys(members, given))
    told.serving.step()
    shadows = list(told.reader.requests.values())
    assert len(shadows) == len(members)
    assert len({id(one.embeddings) for one in shadows}) == 1, "a group's are prepared once"
    for one in shadows:
        assert one.embeddings is not None
        x, wanted = torch.zeros(5, CONFIG.hidden_size), torch.zeros(5, CONFIG.hidden_size)
        one.embeddings.overlay(x, 0, 5)
        wanted[[4, 0, 2]] = rows
        assert torch.equal(x, wanted)
    assert not told.writer.embeddings, "they are sent once"
