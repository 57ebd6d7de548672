"""CI without a service: a repository's jobs run on this host, through the executor that runners use."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci_dispatch import perf
from ci_dispatch.model import Artifact, Gpu, Job, JobResult, JobSpec, Tree
from ci_dispatch.plan import NO_PATHS, Change, concerns, new_job
from ci_dispatch.runner import sandbox
from ci_dispatch.runner.base import KeepError, SourceError, Workplace
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.execute import execute
from ci_dispatch.runner.inventory import open_devices
from ci_dispatch.runner.unpack import unpack
from ci_dispatch.verdict import judge
from reviewer.checkout.repository import locate
from reviewer.checkout.snapshot import GitCheckout
from reviewer.errors import GitError, ReviewError
from reviewer.globs import matches

_PASSED = (
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
"""Variables of this host that jobs see where they are set."""


@dataclass(frozen=True, slots=True)
class GitSources:
    """Trees of a local repository's commits."""

    checkout: GitCheckout
    scratch: Path

    def fetch(self, tree: Tree, into: Path) -> None:
        """Unpack a tree into an empty folder. Raises SourceError."""
        archive = self.scratch / f"{tree}.tar.gz"
        try:
            self.checkout.archive(
                self.checkout.head_sha if tree == "head" else self.checkout.base_sha, archive
            )
            unpack(archive, into)
        except GitError as error:
            raise SourceError(str(error)) from None
        finally:
            archive.unlink(missing_ok=True)


@dataclass(slots=True)
class FolderWatcher:
    """Keeps log and artifacts below a folder, where there is one, and tells of each step."""

    folder: Path | None
    tell: Callable[[str], None]
    show: Callable[[bytes], None] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def begin(self, step: str) -> None:
        self.tell(step)

    def log(self, chunk: bytes) -> None:
        if self.show is not None:
            self.show(chunk)
        if self.folder is not None:
            with (self.folder / "log.txt").open("ab") as file:
                file.write(chunk)

    def keep(self, path: str, file: Path) -> Artifact:
        """Copies a file. Raises KeepError where it cannot."""
        try:
            if self.folder is not None:
                kept = self.folder / "artifacts" / path
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, kept, follow_symlinks=False)
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            return Artifact(path=path, bytes=file.stat().st_size, sha256=digest)
        except OSError as error:
            raise KeepError(f"it cannot be kept: {error.strerror}") from None


def change_of(checkout: GitCheckout, repo: Path) -> Change:
    """What is tested: a local change is its author's own, so trusted."""
    paths = {path for file in checkout.diff.files for path in (file.path, file.old_path)}
    return Change(
        repo=locate(repo).folder.resolve().name,
        number=0,
        head_sha=checkout.head_sha,
        base_sha=checkout.base_sha,
        trusted=True,
        paths=tuple(sorted(paths)),
    )


def select(
    specs: Sequence[JobSpec], change: Change, names: Sequence[str], everything: bool
) -> list[tuple[Job, str]]:
    """Jobs in the policy's order, each with why it does not run; "" where it does.

    Args:
        names: run these whatever changed, and no others; none takes all that changed paths concern.
        everything: changed paths do not matter.

    Raises:
        ReviewError: a name that no job has.
    """
    known = [spec.name for spec in specs]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ReviewError(
            f"the policy has no job {', '.join(unknown)}",
            f"choose of: {', '.join(known)}" if known else "declare jobs under ci.jobs",
        )
    chosen = []
    for spec in specs:
        if names and spec.name not in names:
            continue
        runs = bool(names) or everything or concerns(spec, change, matches)
        chosen.append((new_job(spec, change, matches, ()), "" if runs else NO_PATHS))
    return chosen


def free_gpus(spec: JobSpec) -> tuple[tuple[Gpu, ...], str]:
    """GPUs of this host for a job, or why there are none."""
    if spec.gpus == 0:
        return (), ""
    try:
        devices = open_devices(spec.arch)
    except RunnerError as error:
        return (), f"it needs {spec.gpus} x {spec.arch}: {error.message}"
    try:
        states = devices.read()
    finally:
        devices.stop()
    if len(states) < spec.gpus:
        return (), f"it needs {spec.gpus} x {spec.arch}, this host has {len(states)}"
    gpus = tuple(
        Gpu(
            uuid=one.uuid,
            index=one.index,
            name=one.name,
            arch=spec.arch,
            memory_mb=one.memory_total >> 20,
            driver=one.driver,
        )
        for one in states[: spec.gpus]
    )
    return gpus, ""


def workplace(folder: Path, confined: bool) -> Workplace:
    """A place for jobs below a folder. They find the Python that runs this first on their PATH."""
    own = Path(sys.executable).parent
    prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
    seen = tuple(sorted(path for path in prefixes if not sandbox.is_seen(path, ())))
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return Workplace(
        folder=folder,
        caches=folder / "caches",
        passed={**passed, "PATH": f"{own}:{sandbox.PATH}"},
        sandboxed=confined,
        readonly=seen,
    )


def run_job(
    job: Job, gpus: Sequence[Gpu], checkout: GitCheckout, watcher: FolderWatcher, place: Workplace
) -> JobResult:
    """Run one job to its verdict. Raises ReviewError where the folder for it cannot be made."""
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        if watcher.folder is not None:
            shutil.rmtree(watcher.folder, ignore_errors=True)
            watcher.folder.mkdir(parents=True)
    except OSError as error:
        raise ReviewError(
            f"cannot make {error.filename}: {error.strerror}", "choose another folder"
        ) from None
    report = execute(job, gpus, GitSources(checkout, place.folder), watcher, place)
    if gpus:
        facts = {"gpu": ", ".join(gpu.name for gpu in gpus), "driver": gpus[0].driver}
        report = report.model_copy(update={"environment": {**report.environment, **facts}})
    kpis = perf.compare(report.samples, job.spec.perf) if job.spec.perf is not None else ()
    return judge(job, report, kpis)
