"""Recording a round's completions and answering from the recording later: JSON lines, one completion each.

The first line is a header, `{"whitesmoke_recording": 1, "recorded_at": ..., "note": ...}`. Every other line holds
the request's key and prompt version, and either the completion or how it failed; or, when a recording is closed,
what the engine warned of. A key recorded twice is answered by its last line, so that a recording can be mended by
appending to it.
"""

from __future__ import annotations

import errno
import fcntl
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from reviewer.engines.base import Completion, CompletionFailed, Engine, Key, Request
from reviewer.errors import ReviewError
from reviewer.model import Frozen
from reviewer.redact import redact


class Header(Frozen):
    whitesmoke_recording: Literal[1] = 1
    recorded_at: str
    note: str = ""


class Failure(Frozen):
    reason: str
    message: str


class Entry(Frozen):
    """One line: what was asked, and what came of it."""

    key: Key
    prompt_version: str
    result: Completion | Failure


class Remarks(Frozen):
    """The last line of a round whose engine had warnings: they are part of its report."""

    warnings: tuple[str, ...]


class Recorder:
    """Passes requests on to `engine` and appends what comes back to the recording at `path`.

    Secrets are redacted from the completion itself, not only from the file: the round must see what a replay of
    it will see. An existing recording is continued. Raises `ReviewError` where `path` cannot be written, is no
    recording, or is being written by another process.
    """

    def __init__(
        self,
        engine: Engine,
        path: Path,
        *,
        note: str = "",
        redact: Callable[[str], str] = redact,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine = engine
        self._path = path
        self._redact = redact
        self._file = _open(path)
        try:
            if self._file.tell():
                _load(path)
                if not path.read_bytes().endswith(b"\n"):
                    self._file.write(b"\n")
            else:
                self._append(Header(recorded_at=now().isoformat(), note=note))
        except ReviewError:
            self._file.close()
            raise

    async def complete(self, request: Request) -> Completion:
        try:
            completion = self._redacted(await self._engine.complete(request))
        except CompletionFailed as failed:
            failure = Failure(reason=failed.reason, message=self._redact(str(failed)))
            self._append(Entry(key=request.key, prompt_version=request.prompt_version, result=failure))
            raise CompletionFailed(failure.reason, failure.message) from failed
        self._append(Entry(key=request.key, prompt_version=request.prompt_version, result=completion))
        return completion

    def warnings(self) -> tuple[str, ...]:
        return tuple(map(self._redact, self._engine.warnings()))

    def close(self) -> None:
        with self._file:
            if warnings := self.warnings():
                self._append(Remarks(warnings=warnings))

    def _redacted(self, completion: Completion) -> Completion:
        calls = tuple(replace(call, arguments=self._redact(call.arguments)) for call in completion.tool_calls)
        return replace(completion, text=self._redact(completion.text), tool_calls=calls)

    def _append(self, line: Frozen) -> None:
        """Writes a whole line or, on a full disk, none of it."""
        data = line.model_dump_json().encode() + b"\n"
        end = self._file.tell()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "no space left on device")
        except OSError as error:
            self._file.truncate(end)
            self._file.seek(end)
            raise _unwritable(self._path, error) from error


class Replay:
    """Answers from the recording at `path`. Raises `ReviewError` naming file and line where it is malformed.

    `recorded_at` is the ISO time of its making; `note` says what it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        header, lines = _load(path)
        self.recorded_at = header.recorded_at
        self.note = header.note
        self._entries = {line.key: line for line in lines if isinstance(line, Entry)}
        self._warnings = next((line.warnings for line in reversed(lines) if isinstance(line, Remarks)), ())
        self._used: set[Key] = set()
        self._changed: set[Key] = set()

    async def complete(self, request: Request) -> Completion:
        key = request.key
        entry = self._entries.get(key)
        if entry is None:
            raise CompletionFailed("replay_miss", f"{self._path.name} holds no answer for {_name(key)}")
        self._used.add(key)
        if entry.prompt_version != request.prompt_version:
            self._changed.add(key)
        if isinstance(entry.result, Failure):
            raise CompletionFailed(entry.result.reason, entry.result.message)
        return entry.result

    def warnings(self) -> tuple[str, ...]:
        """What was warned of while recording, and each step whose prompt is no longer the recorded one."""
        changed = Counter(key.step for key in self._changed)
        return self._warnings + tuple(
            f"the prompt of step {step} changed since this recording was made ({_count(changed[step])})"
            for step in sorted(changed)
        )

    def unused(self) -> tuple[Key, ...]:
        """The recorded keys that were never asked for, in the recording's order."""
        return tuple(key for key in self._entries if key not in self._used)


def _name(key: Key) -> str:
    return " ".join(f"{name} {value}" for name, value in asdict(key).items())


def _count(completions: int) -> str:
    return f"{completions} completion{'s' * (completions != 1)}"


def _open(path: Path) -> BinaryIO:
    """The file, at its end and locked for this process. Unbuffered: a line is on its way once it is written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ReviewError(
            f"recording {path} is being written by another process", "wait for it or choose another file"
        ) from error
    return file


def _unwritable(path: Path, error: OSError) -> ReviewError:
    return ReviewError(
        f"recording {path} cannot be written: {error.strerror}", "free some space or choose another file"
    )


LineT = TypeVar("LineT")
_HEADER = TypeAdapter(Header)
_LINE: TypeAdapter[Entry | Remarks] = TypeAdapter(Entry | Remarks)


def _load(path: Path) -> tuple[Header, list[Entry | Remarks]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReviewError(
            f"recording {path} cannot be read: {error.strerror}", "name an existing recording"
        ) from error
    # Not splitlines(): completions may hold U+2028 and its like, which JSON does not escape.
    first, *rest = data.removesuffix(b"\n").split(b"\n")
    header = _read(path, 1, first, _HEADER)
    return header, [_read(path, number, line, _LINE) for number, line in enumerate(rest, start=2)]


def _read(path: Path, number: int, line: bytes, kind: TypeAdapter[LineT]) -> LineT:
    try:
        return kind.validate_json(line)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "line"
        what = "is no recording" if number == 1 else "is malformed"
        raise ReviewError(
            f"{path}:{number} {what} ({place}: {fault['msg']})", "record the round again or delete the line"
        ) from error
