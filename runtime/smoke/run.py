"""Runs a suite, keeps every raw output, and compares: ids and text exactly, log probabilities within a tolerance."""

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import tokenizers
import torch
import triton

from kernels import target
from runtime.engine import Engine
from runtime.parallel.connect import DevicesError
from runtime.parallel.engine import ParallelEngine, Ranks
from runtime.parallel.group import Solo
from runtime.parallel.source import EngineSource
from runtime.request import FinishReason, Request, SamplingParameters
from runtime.smoke.cases import SEED, SUITES, Case
from runtime.tokenizer import Tokenizer
from runtime.weights import random_weights

FOLDER = Path(__file__).parent
GOLDENS = FOLDER / "goldens"
# Log probabilities are float64 of float32 logits on a CPU; on a GPU logits are bf16, whose neighbours are 2^-8 apart,
# of values up to about 8.
TOLERANCES = {"float32": 1e-4, "bfloat16": 6e-2}


class SmokeError(ValueError):
    """A suite cannot be run or compared; says what is missing and what to do."""


@dataclass(frozen=True)
class Difference:
    """Where an answer is not the kept one."""

    case: str
    request: int
    field: str
    expected: object
    actual: object

    def __str__(self) -> str:
        return (
            f"{self.case}, request {self.request}: {self.field}: expected {self.expected}, got {self.actual}"
        )


@dataclass(frozen=True)
class Verdict:
    """A suite's outcome; every request is counted once.

    Attributes:
        matched: requests that answered as kept.
        differences: of requests that answered otherwise.
        failed: requests or cases that ended with an error.
        other: requests without a kept answer, and kept answers without a request.
    """

    total: int
    matched: int
    differences: tuple[Difference, ...]
    failed: tuple[str, ...]
    other: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether something ran and all of it matched."""
        return (
            self.total > 0
            and self.matched == self.total
            and not (self.differences or self.failed or self.other)
        )

    def __str__(self) -> str:
        different = len({(one.case, one.request) for one in self.differences})
        return (
            f"total: {self.total}, matched: {self.matched}, compare diff count: {different},"
            f" visit failed: {len(self.failed)}, other: {len(self.other)}"
        )


def run_suite(suite: str, out: Path) -> dict[str, Any]:
    """Serve every case of a suite; raw outputs also go to `out/suite.json`, whatever becomes of the comparison.

    Raises:
        SmokeError: no such suite, or no device for it.
    """
    if suite not in SUITES:
        raise SmokeError(f"suite: expected one of {', '.join(SUITES)}, got {suite}")
    if suite == "gpu" and not torch.cuda.is_available():
        raise SmokeError("suite gpu: no GPU here; --suite cpu runs anywhere")
    device = _device_of(suite)
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
    answers: dict[str, Any] = {}
    with _Servers(device) as servers:
        for case in SUITES[suite]:
            try:
                answers[case.name] = [_answer(one) for one in _serve(case, servers, tokenizer)]
            except DevicesError as error:
                raise SmokeError(f"suite {suite}: {error}") from None
            except Exception as error:  # noqa: BLE001 - one broken case must not hide the others' answers
                answers[case.name] = {"error": f"{type(error).__name__}: {error}"}
    twins = {case.name: case.twin for case in SUITES[suite] if case.twin is not None}
    made = {"provenance": provenance(suite), "twins": twins, "cases": answers}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{suite}.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return made


def compare(made: Mapping[str, Any], golden: Mapping[str, Any]) -> Verdict:
    """Judge a suite's answers by the kept ones, or by those of a twin that was asked beside them.

    Raises:
        SmokeError: the kept ones are of another architecture or dtype.
    """
    for key in ("suite", "arch", "dtype"):
        ours, kept = made["provenance"][key], golden["provenance"][key]
        if ours != kept:
            raise SmokeError(
                f"golden: kept for {key} {kept}, this is {ours}: not comparable; make its own (--rebaseline)"
            )
    tolerance = TOLERANCES[made["provenance"]["dtype"]]
    tally = Counter[str]()
    differences, failed, other = [], [], []
    for name, answers in made["cases"].items():
        twin = made.get("twins", {}).get(name)
        kept = golden["cases"].get(name) if twin is None else made["cases"].get(twin)
        if isinstance(answers, dict):
            tally["total"] += len(kept) if isinstance(kept, list) else 1
            failed.append(f"{name}: {answers['error']}")
            continue
        for number, answer in enumerate(answers):
            tally["total"] += 1
            if answer["finish_reason"] not in (FinishReason.STOP, FinishReason.LENGTH):
                failed.append(f"{name}, request {number}: {answer['finish_reason']}: {answer['error']}")
            elif not isinstance(kept, list) or number >= len(kept):
                other.append(f"{name}, request {number}: no kept answer")
            else:
                found = list(_differences(name, number, answer, kept[number], tolerance))
                differences += found
                tally["matched"] += not found
    other += [f"{name}: kept, but not asked" for name in golden["cases"].keys() - made["cases"].keys()]
    return Verdict(tally["total"], tally["matched"], tuple(differences), tuple(failed), tuple(other))


def read_golden(suite: str, folder: Path = GOLDENS) -> dict[str, Any]:
    """The kept answers of a suite for this machine's architecture.

    Raises:
        SmokeError: there are none.
    """
    path = golden_path(suite, folder)
    if not path.exists():
        raise SmokeError(
            f"{path}: no kept answers for this architecture; look at the raw outputs, then --rebaseline"
        )
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


def golden_path(suite: str, folder: Path = GOLDENS) -> Path:
    """Where a suite's answers are kept: by architecture, since another rounds otherwise."""
    return folder / f"{suite}-{provenance(suite)['arch']}.json"


def provenance(suite: str) -> dict[str, str]:
    """What an answer depends on: architecture, dtype and versions; and the commit that it was made at."""
    on_gpu = _device_of(suite).type == "cuda"
    return {
        "suite": suite,
        "arch": target.current().arch if on_gpu else "cpu",
        "dtype": "bfloat16" if on_gpu else "float32",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": _commit(),
    }


def _device_of(suite: str) -> torch.device:
    """Two ranks are two GPUs where there are GPUs, else two processes."""
    on_gpu = suite == "gpu" or (suite == "tp2" and torch.cuda.is_available())
    return torch.device("cuda" if on_gpu else "cpu")


class _Servers:
    """Makes the engine of each case; processes of ranks stay for the next case unless they have failed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ranks: Ranks | None = None
        self._parallel: ParallelEngine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._ranks is not None:
            self._ranks.close()

    def engine(self, case: Case, tokenizer: Tokenizer) -> Engine:
        """The case's engine; the one before it is closed."""
        source = EngineSource(case.model, case.options, partial(random_weights, seed=SEED), case.backend)
        if case.ranks == 1:
            return Engine(source.model(self._device, Solo())[0], case.options, tokenizer)
        if self._parallel is not None:
            self._parallel.close()
        if self._ranks is not None and (self._ranks.failure is not None or self._ranks.size != case.ranks):
            self._ranks.close()
            self._ranks = None
        self._ranks = self._ranks or Ranks(case.ranks, self._device.type)
        self._parallel = self._ranks.build(source, tokenizer)
        return self._parallel


def _serve(case: Case, servers: _Servers, tokenizer: Tokenizer) -> list[Request]:
    engine = servers.engine(case, tokenizer)
    sampling: Sequence[SamplingParameters] = (
        [case.sampling] * len(case.prompts)
        if isinstance(case.sampling, SamplingParameters)
        else case.sampling
    )
    requests = [engine.submit(prompt, one) for prompt, one in zip(case.prompts, sampling, strict=True)]
    while engine.has_work():
        engine.step()
    return requests


def _answer(request: Request) -> dict[str, Any]:
    return {
        "ids": [token.id for token in request.tokens],
        "text": request.text,
        "logprobs": [token.logprob for token in request.tokens],
        "finish_reason": request.finish_reason,
        "error": request.error,
    }


def _differences(
    case: str, number: int, answer: Mapping[str, Any], kept: Mapping[str, Any], tolerance: float
) -> list[Difference]:
    found = [
        Difference(case, number, field, kept[field], answer[field])
        for field in ("ids", "text", "finish_reason")
        if answer[field] != kept[field]
    ]
    pairs = list(zip(answer["logprobs"], kept["logprobs"], strict=False))
    for at, (ours, theirs) in enumerate(pairs):
        if (ours is None) != (theirs is None) or (ours is not None and not abs(ours - theirs) <= tolerance):
            found.append(Difference(case, number, f"logprobs[{at}]", theirs, ours))
    if len(answer["logprobs"]) != len(kept["logprobs"]):
        found.append(Difference(case, number, "logprobs", len(kept["logprobs"]), len(answer["logprobs"])))
    return found


def _commit() -> str:
    """The commit of the code, with `-dirty` where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        cwd=FOLDER,
        check=False,
    )
    return done.stdout.strip() or "unknown"
