"""Several answers to one prompt, searches and given embeddings, through the engine; what is told of each at its end."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from runtime.aux_info import AuxInfo, stack, unstack
from runtime.beam import BeamParameters
from runtime.embeddings import InputEmbeddings
from runtime.engine import Engine, EngineOptions
from runtime.kv_cache import NULL_PAGE
from runtime.processors import ProcessorParameters
from runtime.request import FinishReason, Request, RequestError, SamplingParameters
from runtime.runner import Flight
from runtime.scheduler import Decode, Prefill, StepPlan
from tests.runtime.kit import CONFIG, CPU, PAGE_SIZE, make_model, weights_for

WEIGHTS = weights_for(CPU)
OPTIONS = EngineOptions(pages=60, page_size=PAGE_SIZE, max_batch=6, max_step_tokens=16)
DRAWN = SamplingParameters(temperature=1.0, top_k=40, seed=11, max_tokens=9)
SEARCHED = SamplingParameters(max_tokens=8)
BEAMS = BeamParameters(3, return_sequences=2)
PROMPTS = {"inside a page": list(range(30, 40)), "at a page's end": list(range(50, 58)), "one token": [7]}
MODES: dict[str, dict[str, Any]] = {
    "eager": {"overlap": False},
    "overlapped": {},
    "replayed": {"buckets": (2, 6)},
    "chunked": {"max_step_tokens": 3},
    "preempted": {"pages": 10, "reuse_prefixes": False},
}


def engine(**options: Any) -> Engine:
    return Engine(make_model(CONFIG, WEIGHTS), replace(OPTIONS, **options))


def run_out(serving: Engine) -> None:
    while serving.has_work():
        serving.step()
    assert serving._pool.available == serving._pool.capacity
    assert sorted(serving.scheduler._rows) == list(range(6))
    assert serving.scheduler._promised == 0


def ids(request: Request) -> list[int]:
    return [token.id for token in request.tokens]


def plans_of(serving: Engine) -> list[StepPlan]:
    """The steps that an engine launches from now on."""
    plans: list[StepPlan] = []
    launch = serving._runner.launch

    def watching(plan: StepPlan) -> Flight:
        plans.append(plan)
        return launch(plan)

    serving._runner.launch = watching  # type: ignore[method-assign]
    return plans


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    "processors",
    [ProcessorParameters(), ProcessorParameters(repetition_penalty=1.5, presence_penalty=0.5)],
    ids=["plain", "penalised"],
)
def test_answers_are_those_of_requests_of_their_own(
    prompt: list[int], mode: dict[str, Any], processors: ProcessorParameters
) -> None:
    """With seeds that count up; so rows of the processors' history stay with their sequence."""
    sampling = replace(DRAWN, processors=processors)
    serving = engine(**mode)
    first = serving.submit(prompt, sampling, n=3)
    serving.submit([9, 9], DRAWN)
    run_out(serving)
    alone = engine(overlap=False)
    expected = [alone.generate([prompt], replace(sampling, seed=11 + number))[0] for number in range(3)]
    assert [ids(one) for one in first.siblings] == [ids(one) for one in expected]
    assert len({tuple(ids(one)) for one in first.siblings}) == 3


def test_the_prompt_is_computed_once_and_its_pages_are_shared() -> None:
    serving = engine()
    plans = plans_of(serving)
    free = serving._pool.available
    first = serving.submit(PROMPTS["inside a page"], DRAWN, n=3)
    serving.step()
    assert free - serving._pool.available == 3
    run_out(serving)
    assert [chunk.count for plan in plans if isinstance(plan, Prefill) for chunk in plan.chunks] == [10]
    # Each writes to its own copy of the third page but the last to hold it, which keeps it.
    copies = [copy for plan in plans if isinstance(plan, Decode) for copy in plan.page_copies]
    assert len(copies) == 2
    assert len({source for source, _ in copies}) == 1
    assert [one.aux.reused_prefix_tokens for one in first.siblings if one.aux] == [0, 10, 10]


def test_ids_of_siblings_count_up_and_an_abort_ends_all_of_them() -> None:
    serving = engine()
    for arguments in ({"n": 3}, {"beams": BEAMS}):
        first = serving.submit([1, 2, 3], SEARCHED, "r", **arguments)  # type: ignore[arg-type]
        count = len(first.siblings)
        assert [one.id for one in first.siblings] == ["r", "r.1", "r.2"][:count]
        for _ in range(4):
            serving.step()
        serving.abort("r.1")
        assert {one.finish_reason for one in first.siblings} == {FinishReason.ABORT}
        run_out(serving)
        assert all(bool(one.tokens) == ("n" in arguments) for one in first.siblings)
    waiting = serving.submit([1], SEARCHED, "r", n=2)
    serving.abort("r")
    run_out(serving)
    assert waiting.siblings[1].finish_reason == FinishReason.ABORT


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_search_gives_the_same_whatever_the_company(mode: dict[str, Any]) -> None:
    """That it is transformers' is tested with its parity; poison in rows and pages that nobody holds reaches nothing."""
    expected = engine(overlap=False, reuse_prefixes=False)
    alone = expected.submit(PROMPTS["inside a page"], SEARCHED, beams=BEAMS)
    run_out(expected)
    serving = engine(**mode | ({"pages": 14} if "pages" in mode else {}))
    for cache in serving._runner._caches:
        cache[NULL_PAGE + 1 :] = float("nan")
    serving._runner._history.last_ids.fill_(CONFIG.vocab_size - 1)
    searches = [serving.submit(PROMPTS["inside a page"], SEARCHED, beams=BEAMS) for _ in range(2)]
    serving.submit([5, 6], DRAWN)
    run_out(serving)
    for search in searches:
        assert [ids(one) for one in search.siblings] == [ids(one) for one in alone.siblings]
    assert (serving.scheduler.preemptions > 0) == ("pages" in mode)


def test_a_search_waits_for_its_step_and_others_go_on_overlapped() -> None:
    serving = engine()
    plans = plans_of(serving)
    search = serving.submit([1, 2, 3], SEARCHED, beams=BEAMS)
    plain = serving.submit([4], replace(DRAWN, max_tokens=20))
    run_out(serving)
    decodes = [plan.requests for plan in plans if isinstance(plan, Decode)]
    taken = [any(one.in_search for one in requests) for requests in decodes]
    assert not any(first and second for first, second in itertools.pairwise(taken))
    assert sum(plain in requests for requests in decodes) == 19
    assert len(ids(search)) == 8


def test_reordering_leaves_every_buffer_where_it_was() -> None:
    serving = engine(buckets=(6,))
    search = serving.submit(PROMPTS["inside a page"], SEARCHED, beams=BEAMS)
    while not serving.graphs or not serving.graphs.hits:
        serving.step()
    bound = [step.fingerprint for step in serving.graphs._steps[6]]
    run_out(serving)
    for fingerprint in bound:
        fingerprint.require_unchanged()
    assert serving.graphs.hits[6] >= 7
    assert search.group is not None
    assert search.group.search is not None
    assert search.group.search._running.rows.shape == (3, SEARCHED.max_tokens)


@pytest.mark.parametrize("chunk", [16, 3])
@pytest.mark.parametrize("pages", [60, 9])
@pytest.mark.parametrize("positions", [None, (1, 4, 5)], ids=["whole", "at positions"])
def test_embeddings_of_tokens_give_what_the_tokens_give(
    chunk: int, pages: int, positions: tuple[int, ...] | None
) -> None:
    prompt = PROMPTS["inside a page"]
    (expected,) = engine(overlap=False).generate([prompt], DRAWN)
    places = range(len(prompt)) if positions is None else positions
    rows = WEIGHTS.embedding[[prompt[place] for place in places]]
    given = (
        [] if positions is None else [0 if place in places else token for place, token in enumerate(prompt)]
    )
    serving = engine(max_step_tokens=chunk, pages=pages)
    requests = [serving.submit(given, DRAWN, embeddings=InputEmbeddings(rows, positions)) for _ in range(2)]
    run_out(serving)
    assert [ids(one) for one in requests] == [ids(expected)] * 2
    assert (serving.scheduler.preemptions > 0) == (pages == 9)


def test_no_prefix_is_reused_for_embeddings_nor_from_them() -> None:
    serving = engine()
    prompt = PROMPTS["inside a page"]
    serving.generate([prompt], DRAWN)
    other = torch.randn(len(prompt), CONFIG.hidden_size)
    embedded = serving.submit(prompt, DRAWN, embeddings=InputEmbeddings(other))
    run_out(serving)
    assert embedded.cached_prefix == 0
    fresh = engine(overlap=False)
    (again,) = serving.generate([prompt], DRAWN)
    run_out(serving)
    assert again.cached_prefix == 8
    assert ids(again) == ids(fresh.generate([prompt], DRAWN)[0]) != ids(embedded)


def test_what_is_told_of_an_output_is_the_same_in_both_forms() -> None:
    serving = engine()
    plain = serving.submit([1, 2, 3], replace(DRAWN, logprobs=0))
    search = serving.submit([1, 2, 3], replace(SEARCHED, logprobs=0), beams=BEAMS)
    silent = serving.submit([4], replace(DRAWN, stop_ids=frozenset(range(0, 300, 2))))
    aborted = serving.submit([5], replace(DRAWN, max_tokens=90))
    while not all(one.finish_reason for one in (plain, search, silent)):
        serving.step()
    serving.abort(aborted.id)
    run_out(serving)
    infos: list[AuxInfo] = []
    for request in (plain, *search.siblings, silent, aborted):
        assert request.aux is not None
        infos.append(request.aux)
    assert [info.output_tokens for info in infos] == [
        len(one.tokens) for one in (plain, *search.siblings, silent, aborted)
    ]
    assert infos[0].steps == 9
    assert infos[0].cumulative_logprob == sum(token.logprob or math.nan for token in plain.tokens)
    assert math.isnan(infos[3].cumulative_logprob)
    assert all(0 < info.time_to_first_token < info.total_time for info in infos)
    assert [info.finish_reason for info in infos[3:]] == [FinishReason.STOP, FinishReason.ABORT]
    assert [str(info) for info in unstack(stack(infos))] == [str(info) for info in infos]


ROWS = torch.zeros(3, CONFIG.hidden_size)


@pytest.mark.parametrize(
    ("submit", "message"),
    [
        (lambda e: e.submit([1], DRAWN, n=7), "sequences: expected at most 6 at once, got 7"),
        (lambda e: e.submit([1], DRAWN, n=0), "n: expected a whole number of at least 1, got 0"),
        (lambda e: e.submit([1], DRAWN, beams=BEAMS), "temperature: a search by beams draws nothing"),
        (lambda e: e.submit([1], SEARCHED, beams=BEAMS, n=2), "n: a search by beams"),
        (lambda e: e.submit([1], SEARCHED, beams=BeamParameters(8)), "sequences: expected at most 6"),
        (lambda e: e.submit([1], replace(SEARCHED, max_tokens=90), beams=BEAMS), "need 69 pages of cache"),
        (
            lambda e: e.submit([1, 2], DRAWN, embeddings=InputEmbeddings(ROWS)),
            "embeddings.rows: expected one for each of the prompt's 2 tokens, got 3 rows",
        ),
        (
            lambda e: e.submit([1], DRAWN, embeddings=InputEmbeddings(ROWS[:, :5])),
            "embeddings.rows: expected at least one row of 32",
        ),
        (
            lambda e: e.submit([1, 2], DRAWN, embeddings=InputEmbeddings(ROWS[:1].half(), (0,))),
            "embeddings.rows: expected torch.float32",
        ),
        (
            lambda e: e.submit([1, 2], DRAWN, embeddings=InputEmbeddings(ROWS[:1], (2,))),
            "embeddings.positions: expected whole numbers from 0 to 1, got 2",
        ),
        (
            lambda e: e.submit([1], replace(DRAWN, processors=ProcessorParameters(logit_bias={300: 1.0}))),
            "logit_bias: expected token ids from 0 to 299, got 300",
        ),
        (
            lambda e: e.submit([1], replace(DRAWN, processors=ProcessorParameters(min_tokens=10))),
            "min_tokens: expected at most max_tokens, 9, got 10",
        ),
    ],
)
def test_bad_input_is_refused_and_nothing_of_it_stays(
    submit: Callable[[Engine], Request], message: str
) -> None:
    serving = engine()
    with pytest.raises(RequestError, match=message):
        submit(serving)
    assert not serving.has_work()
    serving.generate([[1]], DRAWN)
    run_out(serving)


def test_stop_ids_are_held_back_until_enough_tokens_are_there() -> None:
    """Those outside the vocabulary, which no token can be, among them; and not where they end nothing."""
    stops = frozenset({5000, *range(0, 300, 25)})
    holding = ProcessorParameters(min_tokens=6)
    sampling = replace(DRAWN, max_tokens=40, stop_ids=stops, processors=holding)
    serving = engine()
    (held,) = serving.generate([[1]], sampling)
    assert not stops & set(ids(held)[:6])
    (ignoring,) = serving.generate([[1]], replace(sampling, ignore_stop_ids=True))
    (plain,) = serving.generate([[1]], replace(DRAWN, max_tokens=40, ignore_stop_ids=True))
    assert ids(ignoring) == ids(plain)


def test_a_search_over_nan_ends_with_an_error_and_the_others_go_on() -> None:
    embedding = WEIGHTS.embedding.clone()
    embedding[50] = float("nan")
    serving = Engine(make_model(CONFIG, replace(WEIGHTS, embedding=embedding)), OPTIONS)
    bad = serving.submit([50], SEARCHED, beams=BEAMS)
    good = serving.submit([1], DRAWN)
    run_out(serving)
    assert [(one.finish_reason, one.error) for one in bad.siblings] == [
        (FinishReason.ERROR, "the log probabilities hold NaN")
    ] * 2
    assert good.finish_reason == FinishReason.LENGTH
