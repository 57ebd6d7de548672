"""What the bot answers to those who ask for CI, in the language of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ci_dispatch.reasons import Reason, sentence
from reviewer.model import Language
from reviewer.redact import redact
from reviewer.report.escape import code_span, guard, inline
from reviewer.report.limit import clip
from reviewer.text import load_text
from service.events.commands import CiRun, written

_NAME, _WHY, _REASON, _HEAD = 100, 300, 1_000, 12


class JobLine(NamedTuple):
    """The newest attempt at a job. `state` is one of the store's, or the outcome."""

    name: str
    state: str
    attempt: int
    why: str


class CiReplies:
    """One method an answer. `forbidden` are phrases that the bot must never say, such as the one that starts CI."""

    def __init__(self, language: Language, forbidden: Sequence[str]) -> None:
        self._text = load_text("service/ci_replies", language)
        self._language = language
        self._forbidden = tuple(forbidden)

    def off(self) -> str:
        return self._text("not_set_up")

    def asked(self, head_sha: str, jobs: Sequence[str]) -> str:
        return self._text("asked_jobs" if jobs else "asked", head=_head(head_sha), jobs=_names(jobs))

    def asked_again(self, head_sha: str) -> str:
        return self._text("asked_again", head=_head(head_sha))

    def nothing_again(self, head_sha: str) -> str:
        command = code_span(written(CiRun(jobs=("JOB",))))
        return self._text("nothing_again", head=_head(head_sha), command=command)

    def refused(self, reasons: Sequence[Reason]) -> str:
        """The first reason is the answer; the others stand below it."""
        answer, *others = self._sentences(reasons)
        return guard(
            "\n\n".join((self._text("refused", reason=answer), *map("- {}".format, others))),
            self._forbidden,
        )

    def told(self, reasons: Sequence[Reason]) -> str:
        """Reasons as they are, a paragraph each."""
        return guard("\n\n".join(self._sentences(reasons)), self._forbidden)

    def left(self, sentences: Sequence[str]) -> str:
        """Why jobs that were asked for do not run, a line each."""
        lines = (f"- {inline(clip(redact(one), _REASON))}" for one in sentences)
        return guard("\n".join(lines), self._forbidden)

    def stopped(self, count: int) -> str:
        return self._text("stopped", n=count) if count else self._text("none_open")

    def rebaseline(self, job: str) -> str:
        return self._text("rebaseline", job=_names([job]))

    def status(self, head_sha: str, jobs: Sequence[JobLine]) -> str:
        """A table of the newest attempts."""
        if not jobs:
            return self._text("none_yet", head=_head(head_sha))
        rows = [[self._text(f"{key}") for key in ("job", "state", "attempt", "why")], ["---"] * 4]
        for job in jobs:
            why = inline(clip(redact(job.why), _WHY))
            cells = (_names([job.name]), self._state(job.state), str(job.attempt), why)
            rows.append([cell.replace("|", "\\|") for cell in cells])
        return guard("\n".join(f"| {' | '.join(row)} |" for row in rows), self._forbidden)

    def _state(self, state: str) -> str:
        return self._text(f"state_{state}")

    def _sentences(self, reasons: Sequence[Reason]) -> list[str]:
        said = (inline(clip(redact(in_words(reason, self._language)), _REASON)) for reason in reasons)
        return list(dict.fromkeys(said))


def in_words(reason: Reason, language: Language) -> str:
    """The reason as a sentence; not escaped."""
    if language == "en":
        return sentence(reason)
    return load_text("service/ci_reasons", language)(reason.why, **reason.data)


def _names(names: Iterable[str]) -> str:
    return " ".join(code_span(clip(redact(name), _NAME)) for name in names)


def _head(head_sha: str) -> str:
    return code_span(head_sha[:_HEAD])
