"""The engine on small random models: what a request gets does not depend on who shares its steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from runtime.attention.reference import ReferenceAttention
from runtime.config import ExpertsConfig, ModelConfig
from runtime.engine import Engine, EngineOptions
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.request import FinishReason, Request, RequestError, SamplingParameters
from runtime.weights import Weights, random_weights
from tests.runtime.test_tokenizer import TOKENIZER

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    vocab_size=300, hidden_size=32, intermediate_size=64, layers=2, q_heads=4, kv_heads=2, head_dim=16, max_length=128,
    norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e4}, dtype=torch.float32,
)  # fmt: skip
OPTIONS = EngineOptions(pages=64, page_size=4, max_batch=8, max_step_tokens=32)
PROMPTS = [[1, 2, 3], list(range(20, 47)), [9], [20, 21, 22, 23, 24, 99, 98, 97]]
WARM = SamplingParameters(temperature=1.0, top_k=40, top_p=0.95, max_tokens=12, seed=7)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(CONFIG, 5, CPU)


@pytest.fixture(scope="module")
def engine(weights: Weights) -> Callable[..., Engine]:
    def make(*, text: bool = False, config: ModelConfig = CONFIG, **options: object) -> Engine:
        model = Model(config, weights, ReferenceOps(), ReferenceAttention())
        return Engine(model, replace(OPTIONS, **options), TOKENIZER if text else None)  # type: ignore[arg-type]

    return make


def ids(request: Request) -> list[int]:
    return [token.id for token in request.tokens]


@pytest.fixture(scope="module")
def alone(engine: Callable[..., Engine]) -> Callable[[SamplingParameters], list[list[int]]]:
    """What each prompt gives when it has an engine to itself."""
    return lru_cache(lambda sampling: [ids(engine().generate([prompt], sampling)[0]) for prompt in PROMPTS])


@pytest.mark.parametrize("sampling", [replace(WARM, temperature=0.0), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 5},
        {"max_batch": 2},
        {"pages": 14},
        {"reuse_prefixes": False},
        {"page_size": 16, "pages": 20},
        {"buckets": (1, 2, 4)},
        {"buckets": (3,), "pages": 14, "max_step_tokens": 5},
    ],
    ids=[
        "together",
        "chunked",
        "two at a time",
        "preempted",
        "no reuse",
        "long pages",
        "replayed",
        "replayed, preempted",
    ],
)
def test_tokens_do_not_depend_on_company_chunks_pages_or_preemption(
    engine: Callable[..., Engine],
    alone: Callable[[SamplingParameters], list[list[int]]],
    options: dict[str, object],
    sampling: SamplingParameters,
) -> None:
    together = engine(**options)
    requests = together.generate(PROMPTS, sampling)
    assert [ids(request) for request in requests] == alone(sampling)
    assert {request.finish_reason for request in requests} == {FinishReason.LENGTH}
    if "pages" in options and options["pages"] == 14:
        assert together.scheduler.preemptions > 0
    if together.graphs is not None:
        assert together.graphs.hits
        assert set(together.graphs.eager) == {"prefill"}


def test_a_reused_prefix_gives_the_same_tokens(engine: Callable[..., Engine]) -> None:
    shared = engine()
    first, second = (shared.generate([PROMPTS[1]], WARM)[0] for _ in range(2))
    assert second.cached_prefix == 24
    assert ids(first) == ids(second)


def test_another_seed_gives_other_tokens(engine: Callable[..., Engine]) -> None:
    one, other = (ids(engine().generate([PROMPTS[0]], replace(WARM, seed=seed))[0]) for seed in (7, 8))
    assert one != other


def test_stop_ids_end_a_sequence_unless_ignored(engine: Callable[..., Engine], weights: Weights) -> None:
    greedy = SamplingParameters(max_tokens=12)
    free = ids(engine().generate([PROMPTS[0]], greedy)[0])
    at = free.index(free[5])
    (stopped,) = engine().generate([PROMPTS[0]], replace(greedy, stop_ids=frozenset({free[5]})))
    assert (ids(stopped), stopped.finish_reason) == (free[: at + 1], FinishReason.STOP)
    config = replace(CONFIG, stop_ids=frozenset({free[5]}))
    (by_model,) = engine(config=config).generate([PROMPTS[0]], greedy)
    assert ids(by_model) == ids(stopped)
    (ignoring,) = engine(config=config).generate([PROMPTS[0]], replace(greedy, ignore_stop_ids=True))
    assert ids(ignoring) == free


def test_text_streams_and_ends_before_a_stop_string(engine: Callable[..., Engine]) -> None:
    talking = engine(text=True)
    sampling = SamplingParameters(temperature=2.0, seed=3, max_tokens=40)
    whole = talking.generate(["white smoke"], sampling)[0]
    assert whole.text == TOKENIZER.decode(ids(whole))
    letter = next(letter for letter in whole.text[3:] if letter.isascii())
    request = talking.submit("white smoke", replace(sampling, stop=(letter,)))
    pieces = [output.text for output in talking.stream(request)]
    assert "".join(pieces) == request.text == whole.text[: whole.text.index(letter)]
    assert request.finish_reason == FinishReason.STOP


def test_logprobs_are_those_of_the_whole_distribution(engine: Callable[..., Engine]) -> None:
    (request,) = engine().generate([PROMPTS[0]], replace(WARM, logprobs=3, max_tokens=4))
    for token in request.tokens:
        assert token.logprob is not None
        assert len(token.alternatives) == 3
        logs = [logprob for _, logprob in token.alternatives]
        assert logs == sorted(logs, reverse=True)
        assert token.logprob <= logs[0] + 1e-12
    (greedy,) = engine().generate([PROMPTS[0]], SamplingParameters(max_tokens=4, logprobs=1))
    assert [(token.id, token.logprob) for token in greedy.tokens] == [
        token.alternatives[0] for token in greedy.tokens
    ]


def test_an_abort_ends_one_request_and_frees_its_pages(
    engine: Callable[..., Engine], alone: Callable[[SamplingParameters], list[list[int]]]
) -> None:
    serving = engine()
    stays, goes = (serving.submit(prompt, WARM) for prompt in PROMPTS[:2])
    serving.step()
    serving.abort(goes.id)
    with pytest.raises(RequestError, match="request_id: nobody is not being served"):
        serving.abort("nobody")
    while serving.has_work():
        serving.step()
    assert (goes.finish_reason, stays.finish_reason) == (FinishReason.ABORT, FinishReason.LENGTH)
    assert ids(stays) == alone(WARM)[0]
    assert goes.pages == []


def test_nan_logits_end_the_request_that_has_them_alone(weights: Weights) -> None:
    embedding = weights.embedding.clone()
    embedding[50] = float("nan")
    model = Model(CONFIG, replace(weights, embedding=embedding), ReferenceOps(), ReferenceAttention())
    serving = Engine(model, OPTIONS)
    good, bad = serving.submit(PROMPTS[0], WARM), serving.submit([50, 3], WARM)
    while serving.has_work():
        serving.step()
    assert (bad.finish_reason, bad.error, bad.tokens) == (FinishReason.ERROR, "the logits hold NaN", [])
    assert good.finish_reason == FinishReason.LENGTH
    # Pages that held NaN serve again.
    assert serving.generate([PROMPTS[1]], WARM)[0].finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], WARM, "prompt: expected at least one token"),
        ([300], WARM, "prompt: expected token ids from 0 to 299, got 300 at 0"),
        ([1] * 117, WARM, "prompt: expected at most 116 tokens"),
        ("text", WARM, "prompt: this engine has no tokenizer"),
        ([1], replace(WARM, stop=("x",)), "stop: this engine has no tokenizer"),
    ],
)
def test_bad_requests_are_refused_and_the_engine_goes_on(
    engine: Callable[..., Engine], prompt: str | list[int], sampling: SamplingParameters, message: str
) -> None:
    serving = engine()
    with pytest.raises(RequestError, match=message):
        serving.submit(prompt, sampling)
    assert not serving.has_work()
    assert len(serving.generate([[1]], WARM)[0].tokens) == 12


def test_an_id_in_use_is_refused_and_free_again_afterwards(engine: Callable[..., Engine]) -> None:
    serving = engine()
    serving.submit([1], WARM, "one")
    with pytest.raises(RequestError, match="request_id: one is being served already"):
        serving.submit([2], WARM, "one")
    while serving.has_work():
        serving.step()
    serving.submit([2], WARM, "one")


@pytest.mark.parametrize("fp8", [False, True], ids=["float32", "fp8"])
def test_mixture_of_experts(fp8: bool) -> None:
    config = replace(CONFIG, hidden_size=128, q_heads=8, kv_heads=8, intermediate_size=128, fp8=fp8,
                     experts=ExpertsConfig(4, 2, 128, normalize=True))  # fmt: skip
    model = Model(config, random_weights(config, 1, CPU), ReferenceOps(), ReferenceAttention())
    together = [ids(request) for request in Engine(model, OPTIONS).generate(PROMPTS, WARM)]
    assert together == [ids(Engine(model, OPTIONS).generate([prompt], WARM)[0]) for prompt in PROMPTS]
