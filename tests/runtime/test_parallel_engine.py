"""An engine over two processes gives the answers of one: sampled and greedy, captured or not, overlapped or not."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from runtime.beam import BeamParameters
from runtime.contract import GraphContractError
from runtime.embeddings import InputEmbeddings
from runtime.engine import Engine
from runtime.parallel import processes
from runtime.parallel.engine import ClosedError, Ranks
from runtime.parallel.group import Solo
from runtime.parallel.processes import RankError
from runtime.parallel.shard import ShardError
from runtime.processors import ProcessorParameters
from runtime.request import FinishReason, Request, RequestError, SamplingParameters
from runtime.weights import random_weights
from tests.runtime.kit import CPU
from tests.runtime.parallel_kit import (
    DENSE,
    FP8,
    MODELS,
    fails_on_rank_1,
    narrow_on_rank_1,
    other_weights_on_rank_1,
    source,
)

GREEDY = SamplingParameters(max_tokens=20, ignore_stop_ids=True, logprobs=2)
DRAWN = SamplingParameters(max_tokens=20, temperature=1.0, top_k=40, seed=4)
PROMPTS = [[1, 2, 3], list(range(30, 60)), [7]]
MODES: dict[str, dict[str, Any]] = {
    "eager": {"overlap": False},
    "replayed": {"overlap": False, "buckets": (1, 2, 4)},
    "overlapped": {},
    "replayed, overlapped": {"buckets": (1, 2, 4)},
}


@pytest.fixture(scope="module")
def kept_ranks() -> Iterator[Ranks]:
    with Ranks(2, "cpu") as made:
        yield made


@pytest.fixture
def ranks(kept_ranks: Ranks) -> Iterator[Ranks]:
    """Two processes, this one and another, for all engines of this module that leave them well."""
    yield kept_ranks
    if kept_ranks._engine is not None:
        kept_ranks._engine.close()


def alone(name: str, **options: Any) -> Engine:
    given = source(MODELS[name], **options)
    return Engine(given.model(CPU, Solo())[0], given.options)


def ids(requests: Sequence[Request]) -> list[list[int]]:
    return [[token.id for token in request.tokens] for request in requests]


def asked(serving: Engine) -> list[Request]:
    """Greedy and sampled requests served together, to their end."""
    requests = [
        *(serving.submit(prompt, GREEDY) for prompt in PROMPTS),
        *(serving.submit(prompt, replace(DRAWN, seed=9)) for prompt in PROMPTS),
    ]
    while serving.has_work():
        serving.step()
    return requests


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Request]]:
    """By model, what one process answers."""
    return {name: asked(alone(name, overlap=False)) for name in MODELS}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_answer_as_one_process(
    ranks: Ranks, expected: dict[str, list[Request]], name: str, mode: str
) -> None:
    serving = ranks.build(source(MODELS[name], **MODES[mode]))
    requests = asked(serving)
    if serving.graphs is not None:
        assert sum(serving.graphs.hits.values()) > 10
    serving.close()
    assert ids(requests) == ids(expected[name])
    # Of log probabilities near the top: 1e-5 of logits up to 8; with experts, 2^-8 of them (see test_parallel_group).
    bound = 8e-5 if "experts" not in name else 8 * 2.0**-8
    for ours, theirs in zip(requests[:3], expected[name][:3], strict=True):
        for token, wanted in zip(ours.tokens, theirs.tokens, strict=True):
            assert token.logprob == pytest.approx(wanted.logprob, abs=bound)


def everything(serving: Engine) -> list[Request]:
    """Requests of each kind, coming and going, with too few pages for all of them at once."""
    given = torch.randn(9, DENSE.hidden_size, generator=torch.Generator().manual_seed(2))
    stops = replace(DRAWN, stop_ids=frozenset(range(0, 300, 19)))
    changed = ProcessorParameters(repetition_penalty=1.3, min_tokens=3, logit_bias={5: 3.0})
    requests = [
        serving.submit([1] * 9, DRAWN),
        serving.submit(list(range(40, 70)), replace(stops, logprobs=2)),
        *serving.submit([3, 4], replace(DRAWN, processors=changed), n=2).siblings,
        serving.submit([], DRAWN, embeddings=InputEmbeddings(given)),
    ]
    aborted = serving.submit([8], DRAWN, "goes")
    for _ in range(12):
        serving.step()
    serving.abort("goes")
    search = replace(GREEDY, max_tokens=8, ignore_stop_ids=False, processors=replace(changed, min_tokens=0))
    requests += serving.submit([9, 4, 5], search, beams=BeamParameters(3, return_sequences=2)).siblings
    embedded = InputEmbeddings(given[:2], (4, 0))
    requests += serving.submit([2] * 6, DRAWN, n=2, embeddings=embedded).siblings
    given.zero_()  # what the caller does with them later changes nothing
    while serving.has_work():
        serving.step()
    assert aborted.finish_reason == FinishReason.ABORT
    assert serving._pool.available == serving._pool.capacity
    return requests


@pytest.mark.parametrize("options", [{"buckets": (2, 6)}, {"overlap": False}, {"max_step_tokens": 5}])
def test_every_kind_of_request_is_served_by_two_ranks_as_by_one(
    ranks: Ranks, options: dict[str, Any]
) -> None:
    few = {"pages": 20, "reuse_prefixes": False, **options}
    serving = ranks.build(source(**few))
    requests = everything(serving)
    assert serving.scheduler.preemptions > 0
    serving.close()
    for ours, theirs in zip(requests, everything(alone("dense", **few)), strict=True):
        assert ids([ours]) == ids([theirs])
        assert (ours.finish_reason, ours.error) == (theirs.finish_reason, theirs.error)


def test_reused_prefixes_and_captures_beforehand(ranks: Ranks) -> None:
    serving = ranks.build(source(buckets=(1, 2)))
    serving.capture()
    assert serving.graphs is not None
    captured = [serving.graphs.captured(bucket) for bucket in serving.graphs.buckets]
    first, second = (serving.generate([list(range(20))], DRAWN)[0] for _ in range(2))
    assert [serving.graphs.captured(bucket) for bucket in serving.graphs.buckets] == captured
    assert second.cached_prefix == 16
    assert ids([first]) == ids([second])
    serving.close()


def test_a_request_that_cannot_be_served_concerns_no_other(ranks: Ranks) -> None:
    serving = ranks.build(source())
    good = serving.submit([1], DRAWN)
    with pytest.raises(RequestError, match="expected token ids"):
        serving.submit([1000], DRAWN)
    while serving.has_work():
        serving.step()
    assert good.finish_reason == FinishReason.LENGTH
    serving.close()


def test_one_engine_at_a_time_and_none_after_its_close(ranks: Ranks) -> None:
    serving = ranks.build(source())
    with pytest.raises(ClosedError, match="close it first"):
        ranks.build(source())
    serving.submit([1], DRAWN)
    serving.step()
    serving.close()
    serving.close()
    with pytest.raises(ClosedError, match="engine: expected an open one"):
        serving.step()
    ranks.build(source()).close()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            source(replace(FP8, intermediate_size=128)),
            ShardError,
            r"mlp\.gate_proj\.weight: 2 ranks would cut an fp8 block of 128 at 64 of 128",
        ),
        (
            source(weights=fails_on_rank_1),
            RankError,
            r"^rank 1: WeightsError: model\.norm\.weight: missing$",
        ),
        (
            source(weights=other_weights_on_rank_1),
            RankError,
            r"^rank 1: model\.norm\.weight: its weights are not those of rank 0$",
        ),
        (source(weights=partial(random_weights, seed="x", other=1)), TypeError, "other"),
    ],
)
def test_an_engine_that_cannot_be_built_leaves_the_ranks_well(
    ranks: Ranks, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ranks.build(given)
    serving = ranks.build(source())
    assert ids(serving.generate([[1, 2]], DRAWN)) == ids(alone("dense").generate([[1, 2]], DRAWN))
    serving.close()


def test_an_error_of_a_step_ends_all_ranks_with_its_reason() -> None:
    with Ranks(2, "cpu") as ranks:
        serving = ranks.build(source(weights=narrow_on_rank_1))
        serving.submit([1, 2], DRAWN)
        with pytest.raises(RankError, match=r"^rank 1: [A-Z]\w+Error: .+") as caught:
            serving.step()
        assert (caught.value.rank, serving.failure is not None) == (1, True)
        with pytest.raises(RankError, match=r"^rank 1: "):
            serving.step()
        with pytest.raises(RankError, match=r"^rank 1: "):
            ranks.build(source())


def test_a_step_that_rank_0_refuses_ends_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may have begun it: nothing that follows could meet them."""
    monkeypatch.setattr(processes, "REASON_SECONDS", 0.1)
    with Ranks(2, "cpu") as ranks:
        serving = ranks.build(source(buckets=(1,)))
        serving.submit([1, 2], DRAWN)

        def refuse(*_: object) -> None:
            raise GraphContractError("buffers.row: moved")

        monkeypatch.setattr(serving.graphs, "launch", refuse)
        with pytest.raises(RankError, match=r"^rank 0: GraphContractError: buffers.row: moved$"):
            serving.step()
    with pytest.raises(ClosedError, match="ranks: expected open ones"):
        ranks.build(source())


def test_a_closed_engine_is_garbage(ranks: Ranks) -> None:
    """What it captured and allocated is gone before the next one asks for memory."""
    serving = ranks.build(source(buckets=(1,)))
    serving.generate([[1]], replace(DRAWN, max_tokens=4))
    graphs, runner = weakref.ref(serving.graphs), weakref.ref(serving._lead._runner)
    serving.close()
    assert (graphs(), runner()) == (None, None)
