"""What an analyser says about the files of a tree, and how a separate process is asked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_SECONDS = 60.0
MAX_OUTPUT_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule broken in a file of the tree, at lines `line` to `end`."""

    file: str
    line: int
    end: int
    rule: str


@dataclass(slots=True)
class Analysis:
    """`unread` says why a file could not be examined, `broken` why a rule could not be applied."""

    hits: list[Hit] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


class AnalyserFailed(Exception):
    """The analyser gave no usable answer; the message says why."""


class AnalyserCrashed(AnalyserFailed):
    """A signal ended the analyser, as happens when a file makes its parser run out of stack."""


def divide(ask: Callable[[Sequence[str]], Analysis], files: Sequence[str]) -> Analysis:
    """Asks about all files; where that crashes, about halves, until the file at fault stands alone and is unread.

    So one crafted file cannot switch an analyser off for the others. Raises `AnalyserFailed`.
    """
    ends = time.monotonic() + TIMEOUT_SECONDS
    whole, waiting = Analysis(), [files] if files else []
    while waiting:
        group = waiting.pop()
        try:
            part = ask(group)
        except AnalyserCrashed as crashed:
            if time.monotonic() > ends:
                raise
            if len(group) == 1:
                whole.unread[group[0]] = f"crashes the analyser: {crashed}"
            else:
                waiting += [group[: len(group) // 2], group[len(group) // 2 :]]
            continue
        whole.hits += part.hits
        whole.unread |= part.unread
        whole.broken |= part.broken
    return whole


def run_module(arguments: Sequence[str], folder: Path, *, stdin: str = "") -> bytes:
    """The standard output of `python -m ...`, run inside the folder.

    The folder holds a stranger's files: with -P Python imports nothing from it. The environment is cut down, since
    analysers need none of the caller's secrets and must not be steered by its settings.
    """
    environment = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "TMPDIR") if name in os.environ
    }
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-X", "utf8", "-m", *arguments],
                cwd=folder,
                env=environment,
                input=stdin.encode(),
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AnalyserFailed(f"no answer within {TIMEOUT_SECONDS:.0f} s") from None
        except OSError as error:
            raise AnalyserFailed(f"cannot be started: {error.strerror}") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().split("\n")[-1][:200]
            kind = AnalyserCrashed if done.returncode < 0 else AnalyserFailed
            raise kind(f"ended with status {done.returncode}: {said}")
        if output.seek(0, os.SEEK_END) > MAX_OUTPUT_BYTES:
            raise AnalyserFailed(f"answered more than {MAX_OUTPUT_BYTES} bytes")
        output.seek(0)
        return output.read()
