"""Jobs for tests of the executor: trees from dictionaries, steps as shell or Python, a watcher that remembers."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci_dispatch.model import Artifact, Gpu, Job, JobReport, JobSpec, Step, Tree
from ci_dispatch.runner.base import KeepError, SourceError, Workplace
from ci_dispatch.runner.execute import execute

PYTHON = "/usr/bin/python3"
Files = Mapping[str, str]


@dataclass
class MemorySources:
    """Trees as dictionaries from path to text; None cannot be fetched. Text that begins with `->` is a symbolic link."""

    head: Files | None = field(default_factory=dict)
    base: Files | None = field(default_factory=dict)

    def fetch(self, tree: Tree, into: Path) -> None:
        files = self.head if tree == "head" else self.base
        if files is None:
            raise SourceError(f"the {tree} cannot be fetched: the connection broke")
        for name, text in files.items():
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("->"):
                path.symlink_to(text[2:])
            else:
                path.write_text(text)
                path.chmod(0o755 if text.startswith("#!") else 0o644)


@dataclass
class MemoryWatcher:
    """Keeps artifacts below a folder, and the log with the time of each chunk. `on_log` sees every chunk."""

    folder: Path
    on_log: Callable[[bytes], None] = lambda chunk: None
    refuse: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)
    begun: list[str] = field(default_factory=list)
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return b"".join(chunk for _, chunk in self.chunks).decode(errors="replace")

    def begin(self, step: str) -> None:
        self.begun.append(step)

    def log(self, chunk: bytes) -> None:
        self.chunks.append((time.monotonic(), chunk))
        self.on_log(chunk)

    def keep(self, path: str, file: Path) -> Artifact:
        if self.refuse:
            raise KeepError(self.refuse)
        kept = self.folder / path
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept, follow_symlinks=False)
        content = kept.read_bytes()
        return Artifact(path=path, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@dataclass
class Ran:
    """A job's report, and what was seen of it meanwhile."""

    report: JobReport
    watcher: MemoryWatcher

    @property
    def log(self) -> str:
        """What the steps printed, without the runner's own lines."""
        return "\n".join(
            line for line in self.watcher.text.splitlines() if not line.startswith("[whitesmoke]")
        )

    @property
    def endings(self) -> list[str]:
        return [run.ending for run in self.report.runs]


def shell(script: str, name: Any = "smoke", timeout: float = 60) -> Step:
    return Step(name=name, argv=("/bin/sh", "-c", script), timeout=timeout)


def python(script: str, name: Any = "smoke", timeout: float = 60) -> Step:
    return Step(name=name, argv=(PYTHON, "-c", script), timeout=timeout)


def job(*steps: Step, trusted: bool = False, repo: str = "owner/name", **spec: Any) -> Job:
    return Job(
        repo=repo,
        number=7,
        head_sha="a" * 40,
        base_sha="b" * 40,
        trusted=trusted,
        spec=JobSpec(name="a-job", steps=steps, **{"memory_mb": 1024, "disk_mb": 256, **spec}),
    )


@dataclass
class Bench:
    """A workplace below a folder, and jobs that run there."""

    folder: Path
    workplace: Workplace

    def run(
        self,
        job: Job,
        sources: MemorySources | None = None,
        watcher: MemoryWatcher | None = None,
        workplace: Workplace | None = None,
        gpus: Sequence[Gpu] = (),
    ) -> Ran:
        watcher = watcher or self.watcher()
        return Ran(
            execute(job, gpus, sources or MemorySources(), watcher, workplace or self.workplace), watcher
        )

    def watcher(self, **arguments: Any) -> MemoryWatcher:
        return MemoryWatcher(self.folder / "artifacts", **arguments)


def make_bench(folder: Path, **workplace: Any) -> Bench:
    return Bench(
        folder, Workplace(folder / "runner", folder / "caches", **{"grace_seconds": 1.0, **workplace})
    )


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether a condition came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
