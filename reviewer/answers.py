"""What a model must answer at each step, and the tolerant reading of what it did answer.

The JSON schemas sent to endpoints come from these models, so the schema and the check cannot drift apart.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeVar

import json_repair
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reviewer.engines.base import Completion
from reviewer.model import Answer, FactCheck, Recheck, Severity, Side


class Draft(BaseModel):
    """Unknown keys are ignored: models add some, and nothing is lost with them."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FindingDraft(Draft):
    path: str = Field(description="path of the file, as in the diff")
    line_start: int = Field(ge=0, description="first line at fault on `side`; 0 for the whole file")
    line_end: int = Field(ge=0, description="last line at fault")
    side: Side = Field(default=Side.RIGHT, description="RIGHT: the new file; LEFT: the old one")
    severity: Severity
    category: str = Field(default="general", description="one word, such as correctness or concurrency")
    title: str = Field(min_length=1, description="one line that states the fault")
    body: str = Field(description="what goes wrong, when, and why")
    suggestion: str = Field(default="", description="how to mend it")
    quoted_code: str = Field(default="", description="the lines at fault, word for word, without +/-")
    symbols: tuple[str, ...] = Field(default=(), description="names in the checkout that the claim rests on")
    checklist_ids: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _lines_in_order(self) -> FindingDraft:
        if self.line_end < self.line_start:
            raise ValueError(f"line_end {self.line_end} lies before line_start {self.line_start}")
        return self


class ItemAnswer(Draft):
    id: str = Field(description="the checklist item's id")
    answer: Answer
    evidence: str = Field(default="", description="where you saw it; required for fail and unsure")
    findings: tuple[int, ...] = Field(default=(), description="0-based indices of your findings that fail it")


class DiscoverAnswer(Draft):
    findings: tuple[FindingDraft, ...]
    checklist: tuple[ItemAnswer, ...] = ()
    strengths: tuple[str, ...] = ()


class MergeAnswer(Draft):
    title: str = Field(min_length=1)
    body: str
    suggestion: str = ""


class RecheckAnswer(Draft):
    answer: Literal[Recheck.FIXED, Recheck.STILL_OPEN, Recheck.CANNOT_SUBSTANTIATE]
    evidence: str = ""


class DedupAnswer(Draft):
    groups: tuple[tuple[int, ...], ...] = Field(description="indices of the findings that share a root cause")


class FactCheckAnswer(Draft):
    verdict: Literal[FactCheck.HOLD, FactCheck.REFUTED]
    evidence: str = ""


class Unparsable(ValueError):
    """The answer cannot be read as what was asked for; the message says why, for the retry."""


AnswerT = TypeVar("AnswerT", bound=Draft)

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


def parse(completion: Completion, model: type[AnswerT]) -> AnswerT:
    """Reads a completion as `model`: strict JSON first, then a fenced block, then a repaired text.

    A refused or cut answer is never repaired: half an answer would pass for a whole one.
    """
    if completion.finish in ("length", "refusal"):
        raise Unparsable(f"the answer ended with '{completion.finish}'")
    text = completion.text.strip()
    if not text:
        raise Unparsable("the answer is empty")
    try:
        return model.model_validate(_read(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "answer"
        raise Unparsable(f"{place}: {first['msg']}") from error


def _read(text: str) -> Any:
    for candidate in (text, *(match.group(1) for match in _FENCE.finditer(text))):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    start = text.find("{")
    if start < 0:
        raise Unparsable("the answer holds no JSON object")
    return json_repair.loads(text[start:])
