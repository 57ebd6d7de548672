"""Beam search over our models returns the sequences and scores of Hugging Face transformers, in float32 on a CPU."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from runtime.attention.reference import ReferenceAttention
from runtime.batch import StepInputs
from runtime.beam import BeamParameters, BeamSearch, Hypothesis
from runtime.config import read_config
from runtime.engine import Engine, EngineOptions
from runtime.kv_cache import allocate_cache
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.processors import ProcessorParameters
from runtime.request import FinishReason, SamplingParameters
from runtime.weights import load_weights
from tests.runtime.beam_driver import Logprobs, run

PEER = Path(__file__).with_name("peer_beams.py")
CPU = torch.device("cpu")
PAGE_SIZE = 32
MODELS = {
    "model": {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
        "max_position_embeddings": 64, "eos_token_id": None,
    }
}  # fmt: skip
DEFAULTS = {
    "length_penalty": 1.0,
    "early_stopping": False,
    "return_sequences": 1,
    "stop_ids": [],
    "banned": [],
    "repetition_penalty": 1.0,
}
EARLY_STOPPING = (False, True, "never")


def model_searches() -> list[dict[str, Any]]:
    searches = []
    for beams, penalty, early in itertools.product((2, 3, 4), (0.5, 1.0, 2.0), EARLY_STOPPING):
        searches.append(
            DEFAULTS
            | {
                "model": "model",
                "prompt": [7, 3, 9, 40],
                "beams": beams,
                "length_penalty": penalty,
                "early_stopping": early,
                "return_sequences": beams,
                "max_tokens": 10,
                "stops_that_occur": [2, 4, 6, 3][:beams],
            }
        )
    common = DEFAULTS | {"model": "model", "prompt": [5], "max_tokens": 6}
    searches.append(common | {"beams": 4, "return_sequences": 4})
    # Three tokens are left, one of which ends: at first there are fewer continuations than beams.
    searches.append(
        common | {"beams": 4, "return_sequences": 3, "banned": list(range(3, 64)), "stop_ids": [1]}
    )
    # On and off the boundaries of a page of four; the last three with a penalty on what the prompt or the beam has.
    for length, penalty in ((3, 1.0), (4, 1.0), (5, 1.4), (8, 1.4), (9, 1.4)):
        searches.append(
            DEFAULTS
            | {
                "model": "model",
                "prompt": [(11 * place + 1) % 60 for place in range(length)],
                "beams": 3,
                "return_sequences": 2,
                "max_tokens": 9,
                "repetition_penalty": penalty,
            }
        )
    return searches


def table_searches(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(4)
    searches = []
    for _ in range(count):
        beams, stops = int(random.choice([2, 3, 4, 8, 16])), int(random.choice([0, 1, 1, 2, 3]))
        size = beams + stops + int(random.integers(12))
        searches.append(
            DEFAULTS
            | {
                "vocab_size": size,
                "beams": beams,
                "length_penalty": float(random.choice([-1.5, 0.0, 0.5, 1.0, 2.0, 5.0])),
                "early_stopping": EARLY_STOPPING[random.integers(3)],
                "return_sequences": int(random.integers(1, beams + 1)),
                "max_tokens": int(random.integers(1, 10)),
                "stop_ids": random.permutation(size)[:stops].tolist(),
            }
        )
    return searches


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beams")
    request = {"seed": 3, "models": MODELS, "searches": model_searches() + table_searches(150)}
    done = subprocess.run(
        [sys.executable, str(PEER), str(folder)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def search_of(given: dict[str, Any], vocab_size: int) -> BeamSearch:
    names = ("beams", "length_penalty", "early_stopping", "return_sequences")
    parameters = BeamParameters(**{name: given[name] for name in names})
    return BeamSearch(parameters, given["max_tokens"], given["stop_ids"], vocab_size)


def model_logprobs(model: Model, prompt: list[int], banned: list[int]) -> Logprobs:
    """Every sequence computed anew, prompt and all, one page each."""

    def logprobs(histories: list[tuple[int, ...]]) -> np.ndarray:
        batch, length = len(histories), len(prompt) + len(histories[0])
        ids = torch.tensor([[*prompt, *history] for history in histories], dtype=torch.int32)
        positions = torch.arange(length, dtype=torch.int32).repeat(batch)
        pages = torch.arange(1, batch + 1, dtype=torch.int32)
        indptr = torch.arange(batch + 1, dtype=torch.int32) * length
        lengths = torch.full((batch,), length, dtype=torch.int32)
        inputs = StepInputs(
            token_ids=ids.flatten(),
            positions=positions,
            slots=(pages.repeat_interleave(length) * PAGE_SIZE + positions).long(),
            query_indptr=indptr,
            sequence_lengths=torch.zeros_like(lengths),
            kv_lengths=lengths,
            block_tables=pages[:, None],
            last_tokens=indptr[1:].long() - 1,
            max_query_length=length,
            is_decode=False,
            host_kv_lengths=lengths.numpy(),
        )
        caches = allocate_cache(model.config, batch + 1, PAGE_SIZE, torch.float32, CPU)
        scores = torch.log_softmax(model(inputs, caches), -1)
        scores[:, banned] = -math.inf
        return scores.numpy()

    return logprobs


def assert_equal_to(expected: dict[str, Any], results: list[Hypothesis]) -> None:
    assert [list(one.tokens) for one in results] == expected["tokens"]
    for one, score in zip(results, expected["scores"], strict=True):
        assert one.score == pytest.approx(score, rel=1e-4)
        assert sum(one.logprobs) / len(one.tokens) ** expected["length_penalty"] == pytest.approx(
            one.score, rel=1e-5
        )
        assert one.stopped == (one.tokens[-1] in expected["stop_ids"])


def test_a_model_gives_the_sequences_and_scores_of_transformers(saved: Path) -> None:
    config = read_config(saved / "model")
    model = Model(config, load_weights(saved / "model", config, CPU), ReferenceOps(), ReferenceAttention())
    stopped, early = set(), 0
    for expected in json.loads((saved / "expected.json").read_text()):
        if "prompt" in expected and expected["repetition_penalty"] == 1:
            logprobs = model_logprobs(model, expected["prompt"], expected["banned"])
            results, steps = run(search_of(expected, config.vocab_size), logprobs)
            assert_equal_to(expected, results)
            assert all(len(choices) == expected["beams"] for choices in steps[:-1])
            stopped |= {one.stopped for one in results}
            early += len(steps) < expected["max_tokens"]
    assert stopped == {True, False}
    assert early > 5


@pytest.mark.parametrize("buckets", [None, (2, 4, 8)], ids=["eager", "replayed"])
@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlapped"])
@pytest.mark.parametrize("pages", [200, 16], ids=["roomy", "preempted"])
def test_the_engine_gives_the_sequences_of_transformers(
    saved: Path, buckets: tuple[int, ...] | None, overlap: bool, pages: int
) -> None:
    """All searches at once, with requests that draw their tokens between them."""
    config = read_config(saved / "model")
    weights = load_weights(saved / "model", config, CPU)
    options = EngineOptions(pages, 4, max_batch=8, max_step_tokens=7, buckets=buckets, overlap=overlap)

    def engine() -> Engine:
        return Engine(Model(config, weights, ReferenceOps(), ReferenceAttention()), options)

    serving = engine()
    drawing = SamplingParameters(temperature=1.0, seed=5, max_tokens=15)
    searches, plain = [], []
    for given in json.loads((saved / "expected.json").read_text()):
        if "prompt" not in given:
            continue
        names = ("beams", "length_penalty", "early_stopping", "return_sequences")
        sampling = SamplingParameters(
            max_tokens=given["max_tokens"],
            stop_ids=frozenset(given["stop_ids"]),
            logprobs=0,
            processors=ProcessorParameters(
                repetition_penalty=given["repetition_penalty"],
                logit_bias=dict.fromkeys(given["banned"], -math.inf),
            ),
        )
        beams = BeamParameters(**{name: given[name] for name in names})
        searches.append((given, serving.submit(given["prompt"], sampling, beams=beams)))
        plain.append(serving.submit(given["prompt"][:2], drawing))
    while serving.has_work():
        serving.step()
    for given, request in searches:
        ended = [one for one in request.siblings if not one.error]
        assert [[token.id for token in one.tokens] for one in ended] == given["tokens"]
        for one, score in zip(ended, given["scores"], strict=True):
            assert one.aux is not None
            length = len(one.tokens) ** given["length_penalty"]
            assert one.aux.cumulative_logprob / length == pytest.approx(score, rel=1e-4)
            assert (one.finish_reason == FinishReason.STOP) == (one.tokens[-1].id in given["stop_ids"])
    alone = [engine().generate([one.prompt], drawing)[0].tokens for one in plain[:3]]
    assert [one.tokens for one in plain[:3]] == alone
    assert (serving.scheduler.preemptions > 0) == (pages == 16)
    assert serving._pool.available == serving._pool.capacity
    assert sorted(serving.scheduler._rows) == list(range(8))
    assert serving.scheduler._promised == 0


def test_tables_of_odds_give_the_sequences_and_scores_of_transformers(saved: Path) -> None:
    tables = load_file(saved / "tables.safetensors")
    early = 0
    for index, expected in enumerate(json.loads((saved / "expected.json").read_text())):
        if "prompt" not in expected:
            table = torch.log_softmax(tables[str(index)], -1).numpy()
            results, steps = run(
                search_of(expected, expected["vocab_size"]),
                lambda histories, table=table: np.array(
                    [table[len(history), (0, *history)[-1]] for history in histories]
                ),
            )
            assert_equal_to(expected, results)
            early += len(steps) < expected["max_tokens"]
    assert early > 10
