"""Two GPUs over NCCL: the answers of one up to near-ties, the same bits with and without overlap, and every end in seconds."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from runtime.engine import Engine
from runtime.parallel.engine import Ranks
from runtime.parallel.group import Solo
from runtime.parallel.processes import RankError
from runtime.request import Request, SamplingParameters
from tests.runtime.parallel_kit import GPU_MODELS, source
from tests.runtime.test_parallel_end import SECONDS, alive, pid_of, running, step_on, wait_until_gone

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")

PROMPTS = [[1, 2, 3], list(range(30, 60)), [7], list(range(100, 190))]
GREEDY = SamplingParameters(max_tokens=24, ignore_stop_ids=True, logprobs=2)
DRAWN = SamplingParameters(max_tokens=24, temperature=1.0, top_k=40, seed=4)
# One bucket, so that a step is computed alike whenever others end.
SIZES: dict[str, Any] = {"pages": 160, "max_batch": 8, "max_step_tokens": 256, "buckets": (8,)}
# Of a log probability: bf16's neighbours near 8 are 2^-5 apart, and a sum in parts rounds once more in each of 6 places, to
# whose independent errors sqrt(6) belongs. An e4m3 value that falls to its neighbour changes by up to 2^-4; experts do
# that in three layers.
BOUNDS = {"dense": 2.0**-5 * 6**0.5, "fp8": 2.0**-5 * 6**0.5 * 4, "fp8 experts": 2.0**-5 * 6**0.5 * 6}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2, "cuda") as made:
        yield made


def asked(serving: Engine) -> list[Request]:
    requests = [serving.submit(prompt, one) for one in (GREEDY, DRAWN) for prompt in PROMPTS]
    while serving.has_work():
        serving.step()
    return requests


def ids(requests: list[Request]) -> list[list[int]]:
    return [[token.id for token in request.tokens] for request in requests]


@pytest.mark.parametrize("name", GPU_MODELS)
def test_two_gpus_answer_as_one(ranks: Ranks, name: str) -> None:
    answers = {}
    for overlap in (True, False):
        serving = ranks.build(source(GPU_MODELS[name], **SIZES, overlap=overlap))
        answers[overlap] = asked(serving)
        assert serving.graphs is not None
        assert serving.graphs.hits[8] > 20
        serving.close()
    assert ids(answers[True]) == ids(answers[False])
    given = source(GPU_MODELS[name], **SIZES)
    alone = asked(Engine(given.model(torch.device("cuda", 0), Solo())[0], given.options))
    bound, equal = BOUNDS[name], 0
    for ours, theirs in zip(answers[True][:4], alone[:4], strict=True):
        for token, wanted in zip(ours.tokens, theirs.tokens, strict=True):
            if token.id != wanted.id:
                (_, first), (_, second) = wanted.alternatives
                assert first - second < 2 * bound, "another token although it was no near-tie"
                break
            assert token.logprob == pytest.approx(wanted.logprob, abs=bound)
            equal += 1
    assert equal > 24, "they part too soon to tell"


@pytest.mark.parametrize(("how", "status"), [("close", 0), ("raise", 3), ("forget", 0)])
def test_12_capture_then_exit_ends_in_seconds_on_two_gpus(how: str, status: int) -> None:
    with running(how, "cuda") as (process, other):
        started = time.monotonic()
        process.wait(60)
        assert not alive(other), "it was not waited for"
        assert time.monotonic() - started < SECONDS
        _, errors = process.communicate()
        assert process.returncode == status, errors
        assert "Traceback" not in errors


def test_rank_0_killed_the_other_gpu_is_left_too() -> None:
    with running("compute", "cuda") as (process, other):
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        wait_until_gone(other)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_rank_ends_rank_0_with_its_reason_on_two_gpus(stopped: bool) -> None:
    """Also where rank 0 waits for a replay whose collectives never end."""
    with Ranks(2, "cuda") as ranks:
        serving = ranks.build(source(GPU_MODELS["dense"], **SIZES))
        serving.submit([1, 2, 3], replace(DRAWN, max_tokens=60))
        for _ in range(5):
            serving.step()
        other = pid_of(ranks)
        os.kill(other, signal.SIGSTOP if stopped else signal.SIGKILL)
        threading.Timer(0.5, os.kill, (other, signal.SIGKILL)).start()
        started = time.monotonic()
        with pytest.raises(RankError, match=r"^rank 1: killed by SIGKILL$"):
            step_on(serving)
        assert time.monotonic() - started < SECONDS
        wait_until_gone(other)
        started = time.monotonic()
    assert time.monotonic() - started < SECONDS
    assert not alive(other)
