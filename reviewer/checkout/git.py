"""Runs `git` so that nothing in a repository, a pull request or the environment can make it do more than asked.

The child starts from an empty environment, without the system's and the user's configuration, without a
terminal, without any transport, in a process group of its own that dies whole at the time or output limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from reviewer.errors import GitError

MINIMUM = (2, 34)
"""The oldest git with every option used here."""

MIB = 1 << 20
_STDERR_LIMIT = 64 << 10

_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    # A partial clone would fetch what it lacks. Older gits know only the second guard; as an environment
    # variable it also outranks `protocol.<name>.allow` in a repository's own configuration.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
}

# What a repository's own configuration could name for git to run or read.
_OVERRIDES = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "log.showSignature=false",
    # A checkout owned by someone else (a mounted volume) is only read, and nothing of it is run.
    "safe.directory=*",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave. `cut` says that `out` stops at the limit; `code` is then that of a killed process."""

    code: int
    out: bytes
    err: str
    cut: bool

    @property
    def complaint(self) -> str:
        """The first line of git's own complaint, without its `fatal: ` or `error: `."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("fatal:", "error:"))), "".join(lines[:1]))
        return re.sub(r"^(fatal|error): ", "", said) or f"git ended with status {self.code}"


class TimedOut(GitError):
    """One git command took longer than it may."""


@cache
def executable() -> str:
    """The absolute path of a git that is new enough; `GitError` without one."""
    found = shutil.which("git")
    if found is None:
        raise GitError("git is not on the PATH", f"install git {MINIMUM[0]}.{MINIMUM[1]} or newer")
    # Absolute, because the child's directory may be the repository under review.
    path = os.path.abspath(found)
    said = subprocess.run(
        [path, "version"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30
    ).stdout.decode(errors="replace")
    number = re.search(r"(\d+)\.(\d+)", said)
    if number is None:
        raise GitError(f"{path} does not tell its version", "put a working git on the PATH")
    if (int(number[1]), int(number[2])) < MINIMUM:
        raise GitError(f"{path} is version {number[0]}", f"install git {MINIMUM[0]}.{MINIMUM[1]} or newer")
    return path


@dataclass(frozen=True, slots=True)
class Git:
    """Commands for one git directory; with `git_dir` None git looks for one from `folder` upwards."""

    folder: Path
    git_dir: Path | None

    def run(
        self,
        *arguments: str | bytes,
        stdin: bytes = b"",
        limit: int = 256 * MIB,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Runs to the end, to `limit` bytes of output or to `timeout` seconds (`TimedOut`)."""
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            process = self._start(arguments, source, env)
            try:
                return _collect(process, limit, time.monotonic() + timeout)
            except TimeoutError:
                raise TimedOut(
                    f"git {_name(arguments)} took longer than {timeout:g} s", "try again, or ask for less"
                ) from None
            finally:
                kill(process)

    def out(self, *arguments: str | bytes, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        """The output of a command that must succeed; `GitError` with git's complaint otherwise."""
        result = self.run(*arguments, stdin=stdin, env=env)
        if result.code or result.cut:
            raise GitError(f"git {_name(arguments)} failed in {self.folder}: {result.complaint}", "")
        return result.out

    def start_batch(self) -> subprocess.Popen[bytes]:
        """A `git cat-file --batch` that answers until it is killed."""
        return self._start(("cat-file", "--batch"), subprocess.PIPE, None, stderr=subprocess.DEVNULL)

    def _start(
        self,
        arguments: tuple[str | bytes, ...],
        stdin: int | IO[bytes],
        env: Mapping[str, str] | None,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        environment = {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), **(env or {})}
        if self.git_dir is not None:
            environment["GIT_DIR"] = str(self.git_dir)
        settings = [part for setting in _OVERRIDES for part in ("-c", setting)]
        try:
            return subprocess.Popen(
                [executable(), "--no-pager", *settings, *arguments],
                cwd=self.folder,
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise GitError(f"git cannot run in {self.folder}: {error.strerror}", "check the path") from error


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process with its whole group, reaps it and closes its pipes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            # What was still to be written to a process that is gone is of no use.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _name(arguments: tuple[str | bytes, ...]) -> str:
    return os.fsdecode(next(part for part in arguments if not os.fsdecode(part).startswith("-")))


def _collect(process: subprocess.Popen[bytes], limit: int, deadline: float) -> Result:
    out, err = bytearray(), bytearray()
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, (out, limit))
        selector.register(process.stderr, selectors.EVENT_READ, (err, _STDERR_LIMIT))
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 18)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                kept, most = key.data
                kept += chunk
                if len(kept) > most:
                    del kept[most:]
                    if kept is out:
                        kill(process)
                        return Result(process.returncode, bytes(out), _text(err), cut=True)
    try:
        code = process.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return Result(code, bytes(out), _text(err), cut=False)


def _text(raw: bytearray) -> str:
    return raw.decode(errors="replace")
