"""Judges answers by kept ones: ids and text exactly, log probabilities within a tolerance; every request is counted once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runtime.request import FinishReason
from runtime.smoke.errors import SmokeError

Answers = Sequence[Mapping[str, Any]]
# Log probabilities are float64 of float32 logits on a CPU. On a GPU logits are bf16, whose neighbours from 4 to 8 are
# 2^-5 apart: two of them.
TOLERANCES = {"float32": 1e-4, "bfloat16": 6e-2}
WELL = (FinishReason.STOP.value, FinishReason.LENGTH.value)
BADLY = (FinishReason.ABORT.value, FinishReason.ERROR.value)


class Status(StrEnum):
    """What became of a request."""

    MATCHED = "matched"
    DIFFERENT = "different"
    FAILED = "failed"
    """It ended with an error, or its server did."""
    OTHER = "other"
    """It ended in a way that is none of the known ones, or nothing is kept for it, or it was not asked."""


@dataclass(frozen=True)
class Outcome:
    """One request's; `details` are lines to print."""

    case: str
    request: int
    status: Status
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A suite's outcome."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether something ran and all of it matched."""
        return bool(self.outcomes) and self.count(Status.MATCHED) == len(self.outcomes)

    @property
    def counts(self) -> dict[str, int]:
        """By the names that are printed."""
        return {
            "total": len(self.outcomes),
            "matched": self.count(Status.MATCHED),
            "compare diff count": self.count(Status.DIFFERENT),
            "visit failed": self.count(Status.FAILED),
            "other": self.count(Status.OTHER),
        }

    def count(self, status: Status) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)

    def __str__(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in self.counts.items())


def compare(made: Mapping[str, Any], golden: Mapping[str, Any]) -> Verdict:
    """Judge a suite's answers by the kept ones, or by those of a twin that was asked beside them.

    Raises:
        SmokeError: the kept ones are of another suite, architecture or dtype.
    """
    for key in ("suite", "arch", "dtype"):
        ours, kept = made["provenance"][key], golden["provenance"][key]
        if ours != kept:
            raise SmokeError(
                f"golden: kept for {key} {kept}, this is {ours}: not comparable; make its own (--rebaseline)"
            )
    tolerance = TOLERANCES[made["provenance"]["dtype"]]
    twins = made.get("twins", {})
    outcomes: list[Outcome] = []
    for name, answers in made["cases"].items():
        twin = twins.get(name)
        kept = golden["cases"].get(name, ()) if twin is None else made["cases"].get(twin, ())
        outcomes += _case(name, answers, kept, tolerance)
    for name in golden["cases"]:
        if name not in made["cases"]:
            outcomes += _case(name, (), golden["cases"][name], tolerance)
    return Verdict(tuple(outcomes))


def unwell(made: Mapping[str, Any]) -> list[str]:
    """A line for each answer that is none, which must not be kept."""
    return [
        f"{name}, request {number}: {answer['finish_reason']}: {answer['error']}"
        for name, answers in made["cases"].items()
        for number, answer in enumerate(answers)
        if answer["finish_reason"] not in WELL
    ]


def _case(name: str, answers: Answers, kept: Answers, tolerance: float) -> Iterator[Outcome]:
    for number in range(max(len(answers), len(kept))):
        at = f"{name}, request {number}"
        if number >= len(answers):
            yield Outcome(name, number, Status.OTHER, (f"{at}: kept, but not asked",))
            continue
        answer = answers[number]
        reason = answer["finish_reason"]
        if reason in BADLY:
            yield Outcome(name, number, Status.FAILED, (f"{at}: {reason}: {answer['error']}",))
        elif reason not in WELL:
            yield Outcome(
                name, number, Status.OTHER, (f"{at}: it ended with {reason}, which is no known way",)
            )
        elif number >= len(kept) or kept[number]["finish_reason"] not in WELL:
            yield Outcome(name, number, Status.OTHER, (f"{at}: no kept answer",))
        else:
            lines = tuple(f"{at}: {line}" for line in _differences(answer, kept[number], tolerance))
            yield Outcome(name, number, Status.DIFFERENT if lines else Status.MATCHED, lines)


def _differences(answer: Mapping[str, Any], kept: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    for field in ("ids", "text", "finish_reason"):
        if answer[field] != kept[field]:
            yield f"{field}: expected {kept[field]}, got {answer[field]}"
    ours, theirs = answer["logprobs"], kept["logprobs"]
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if (one is None) != (other is None) or (one is not None and not abs(one - other) <= tolerance):
            yield f"logprobs[{at}]: expected {other}, got {one}"
    if len(ours) != len(theirs):
        yield f"logprobs: expected {len(theirs)}, got {len(ours)}"
