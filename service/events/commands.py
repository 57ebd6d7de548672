"""Commands in comments: one a line, `/verb arguments`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from ci_dispatch.said import said_lines
from reviewer.model import Frozen

MAX_COMMANDS = 10

_ATTEMPT = re.compile(r"^[ \t]*/[A-Za-z]", re.MULTILINE)
_FINDING = re.compile(r"F[1-9][0-9]{0,8}")
_JOB = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_LONGEST_VERB = 20
_SHOWN = 200


class Review(Frozen):
    """A round on what is new, or on everything."""

    kind: Literal["review"] = "review"
    full: bool = False


class Dismiss(Frozen):
    kind: Literal["dismiss"] = "dismiss"
    finding: str
    reason: str


class Reopen(Frozen):
    kind: Literal["reopen"] = "reopen"
    finding: str


class Explain(Frozen):
    kind: Literal["explain"] = "explain"
    finding: str


class CiRun(Frozen):
    """`jobs` by name; none of them means all."""

    kind: Literal["ci_run"] = "ci_run"
    jobs: tuple[str, ...] = ()


class CiRetry(Frozen):
    kind: Literal["ci_retry"] = "ci_retry"


class CiCancel(Frozen):
    kind: Literal["ci_cancel"] = "ci_cancel"


class CiStatus(Frozen):
    kind: Literal["ci_status"] = "ci_status"


class Help(Frozen):
    kind: Literal["help"] = "help"


class Invalid(Frozen):
    """A line that was meant as a command and is none. `hint` is the verb meant, or the usage; "" for too many."""

    kind: Literal["invalid"] = "invalid"
    line: str
    problem: Literal["unknown", "usage", "too_many"]
    hint: str = ""


Command = Review | Dismiss | Reopen | Explain | CiRun | CiRetry | CiCancel | CiStatus | Help
Parsed = Annotated[Command | Invalid, Field(discriminator="kind")]

_Parse = Callable[[Sequence[str]], Command | None]


def _bare(command: type[CiRetry | CiCancel | CiStatus | Help]) -> _Parse:
    return lambda words: None if words else command()


def _review(words: Sequence[str]) -> Review | None:
    if [word.lower() for word in words] not in ([], ["full"]):
        return None
    return Review(full=bool(words))


def _dismiss(words: Sequence[str]) -> Dismiss | None:
    finding = _finding(words[:1])
    return Dismiss(finding=finding, reason=" ".join(words[1:])) if finding and words[1:] else None


def _reopen(words: Sequence[str]) -> Reopen | None:
    finding = _finding(words)
    return Reopen(finding=finding) if finding else None


def _explain(words: Sequence[str]) -> Explain | None:
    finding = _finding(words)
    return Explain(finding=finding) if finding else None


def _ci_run(words: Sequence[str]) -> CiRun | None:
    return CiRun(jobs=tuple(dict.fromkeys(words))) if all(map(_JOB.fullmatch, words)) else None


def _finding(words: Sequence[str]) -> str | None:
    """The one id that `words` are, which may stand in backticks as in the report, or before a colon."""
    found = words[0].strip("`:,").upper() if len(words) == 1 else ""
    return found if _FINDING.fullmatch(found) else None


_VERBS: dict[str, tuple[_Parse, str]] = {
    "review": (_review, "/review [full]"),
    "dismiss": (_dismiss, "/dismiss ID reason"),
    "reopen": (_reopen, "/reopen ID"),
    "explain": (_explain, "/explain ID"),
    "help": (_bare(Help), "/help"),
}
_CI_VERBS: dict[str, tuple[_Parse, str]] = {
    "run": (_ci_run, "/ci run [job ...]"),
    "retry": (_bare(CiRetry), "/ci retry"),
    "cancel": (_bare(CiCancel), "/ci cancel"),
    "status": (_bare(CiStatus), "/ci status"),
}
_CI_USAGE = f"/ci {'|'.join(_CI_VERBS)}"


def parse_commands(body: str) -> tuple[Command | Invalid, ...]:
    """The commands of a comment in order, at most 10; one `Invalid` more says that there were others.

    A verb that nobody could have meant as one of ours is left to other bots, without a word.
    """
    if not _ATTEMPT.search(body):
        return ()
    found: list[Command | Invalid] = []
    for line in said_lines(body):
        command = _parse(line)
        if command is None:
            continue
        if len(found) == MAX_COMMANDS:
            found.append(Invalid(line=line[:_SHOWN], problem="too_many"))
            break
        found.append(command)
    return tuple(found)


def written(command: Command | Invalid) -> str:
    """The command as one would write it; what is no command, as it was written."""
    match command:
        case Invalid(line=line):
            return line
        case Review(full=True):
            return "/review full"
        case Dismiss(finding=finding, reason=reason):
            return f"/dismiss {finding} {reason}"
        case Reopen(finding=finding) | Explain(finding=finding):
            return f"/{command.kind} {finding}"
        case CiRun(jobs=jobs):
            return " ".join(("/ci run", *jobs))
    return f"/{command.kind.replace('_', ' ')}"


def _parse(line: str) -> Command | Invalid | None:
    if not re.match("/[A-Za-z]", line):
        return None
    verb, *words = line[1:].split()
    verbs, prefix = _VERBS, ""
    if verb.lower() == "ci":
        verbs, prefix = _CI_VERBS, "ci "
        verb, *words = words or [""]
    if verb.lower() in verbs:
        parse, usage = verbs[verb.lower()]
        return parse(words) or Invalid(line=line[:_SHOWN], problem="usage", hint=usage)
    known = [*verbs] if prefix else [*verbs, "ci"]
    close = difflib.get_close_matches(verb[:_LONGEST_VERB].lower(), known, n=1, cutoff=0.6 if prefix else 0.7)
    if close:
        return Invalid(line=line[:_SHOWN], problem="unknown", hint=f"/{prefix}{close[0]}")
    return Invalid(line=line[:_SHOWN], problem="usage", hint=_CI_USAGE) if prefix else None
