"""GPUs that are not to be used, by UUID, kept over restarts; and which GPUs the host has had.

A GPU is put here by what the runner saw or by the service's list, and leaves it when an operator releases it there or after enough good
probes in a row. Memory errors that could not be corrected are never forgiven by probes.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from ci_dispatch.model import Frozen, Notice
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.files import write_private
from ci_dispatch.runner.inventory import Known

log = logging.getLogger(__name__)

GOOD_PROBES = 3
_STICKY = ("ecc", "service")
_HOST_KINDS = frozenset({"gpu_missing", "compute", "ecc", "xid", "orphan", "memory"})


class Entry(Frozen):
    """Why a GPU is out of use. `listed`: the service has it in its list as well, so leaving that list is a release."""

    kind: str
    detail: str
    since: str = Field(description="UTC, for people")
    good_probes: int = 0
    listed: bool = False


class _KnownGpu(Frozen):
    index: int
    name: str


class _Content(Frozen):
    known: dict[str, _KnownGpu] = {}
    entries: dict[str, Entry] = {}


class Quarantine:
    """One file's worth; all methods may be called from any thread, and each change is on disk when they return."""

    def __init__(self, path: Path, good_probes: int = GOOD_PROBES) -> None:
        """Raises RunnerError where the file is not one of ours: a GPU must not come back because a file is damaged."""
        self._path = path
        self._needed = good_probes
        self._lock = threading.Lock()
        try:
            self._content = _Content.model_validate_json(path.read_bytes()) if path.exists() else _Content()
        except (OSError, ValidationError) as error:
            raise RunnerError(
                f"{path} cannot be read: {str(error).splitlines()[0]}",
                "look at it; remove it to use all GPUs again",
            ) from None

    def known(self) -> dict[str, Known]:
        """The GPUs that the host has had, by UUID."""
        return {uuid: Known(one.index, one.name) for uuid, one in self._content.known.items()}

    def reasons(self) -> dict[str, str]:
        """Why each quarantined GPU is."""
        entries = self._content.entries
        return {uuid: f"quarantined, {one.kind}: {one.detail}" for uuid, one in entries.items()}

    def on_trial(self) -> tuple[str, ...]:
        """Those that good probes would release."""
        return tuple(uuid for uuid, one in self._content.entries.items() if one.kind not in _STICKY)

    def meet(self, seen: dict[str, Known], *, forget_others: bool = False) -> None:
        """Remembers the GPUs that are visible; with `forget_others` no other is expected any more."""
        with self._lock:
            kept = {} if forget_others else self._content.known
            new = {uuid: _KnownGpu(index=one.index, name=one.name) for uuid, one in seen.items()}
            self._write(known={**kept, **new})

    def add(self, notices: Iterable[Notice]) -> list[Notice]:
        """Puts the GPUs of which notices speak out of use. One that is here stays for its first, or a lasting, reason.

        Answers the notices that were news.
        """
        news = []
        with self._lock:
            entries = dict(self._content.entries)
            for notice in notices:
                old = entries.get(notice.gpu)
                if not notice.gpu or not _speaks_against_gpu(notice):
                    continue
                if old is not None and (old.kind in _STICKY or notice.kind not in _STICKY):
                    entries[notice.gpu] = old.model_copy(update={"good_probes": 0})
                    continue
                log.warning("GPU %s is quarantined, %s: %s", notice.gpu, notice.kind, notice.detail)
                entries[notice.gpu] = Entry(
                    kind=notice.kind,
                    detail=notice.detail,
                    since=_today(),
                    listed=old is not None and old.listed,
                )
                news.append(notice)
            self._write(entries=entries)
        return news

    def hear(self, listed: Iterable[str]) -> None:
        """The service's list. What was in it and no longer is has been released by an operator."""
        now = frozenset(listed)
        with self._lock:
            entries = dict(self._content.entries)
            for uuid, old in self._content.entries.items():
                if old.listed and uuid not in now:
                    log.warning("GPU %s is released by an operator", uuid)
                    del entries[uuid]
            known = {
                uuid: one
                for uuid, one in self._content.known.items()
                # An operator who releases a GPU that is gone says that it will not come back.
                if uuid in entries or self._content.entries.get(uuid, _NO_ENTRY).kind != "gpu_missing"
            }
            for uuid in now:
                old_entry = entries.get(uuid) or Entry(
                    kind="service", detail="the service lists it", since=_today()
                )
                entries[uuid] = old_entry.model_copy(update={"listed": True})
            self._write(known=known, entries=entries)

    def probed(self, uuid: str, *, good: bool) -> bool:
        """Counts a probe of a GPU on trial; True where it is released by it."""
        with self._lock:
            old = self._content.entries.get(uuid)
            if old is None or old.kind in _STICKY:
                return False
            count = old.good_probes + 1 if good else 0
            entries = dict(self._content.entries)
            if count >= self._needed:
                log.warning("GPU %s is released after %d good probes", uuid, count)
                del entries[uuid]
            else:
                entries[uuid] = old.model_copy(update={"good_probes": count})
            self._write(entries=entries)
            return count >= self._needed

    def _write(
        self, *, known: dict[str, _KnownGpu] | None = None, entries: dict[str, Entry] | None = None
    ) -> None:
        content = _Content(
            known=self._content.known if known is None else known,
            entries=self._content.entries if entries is None else entries,
        )
        if content != self._content:
            write_private(self._path, content.model_dump_json(indent=1).encode())
            self._content = content


_NO_ENTRY = Entry(kind="", detail="", since="")


def _speaks_against_gpu(notice: Notice) -> bool:
    """A Xid that a wrong kernel causes on a good GPU is no reason to stop using it."""
    return notice.kind in _HOST_KINDS and not notice.is_program_fault


def _today() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
