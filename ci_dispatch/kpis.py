"""Reads the numbers that a bench step wrote: `{"kpis": [{"name", "value", "unit", "extra": {...}}]}`.

A runner imports this module: it stands on pydantic and the standard library alone.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from ci_dispatch.model import Sample
from ci_dispatch.untrusted import UntrustedError, clean, read_json, show

MAX_KPIS = 1_000
"""Of one run; three sides in up to 50 rounds then stay below what a report may hold."""
MAX_FILE = 4 << 20
_MAX_NAMED, _NAME, _UNIT, _EXTRAS = 20, 200, 20, 16

Side = Literal["head", "base", "base_again"]


class _LieError(ValueError):
    """An entry is no number with a name; says what it is."""


def read(path: Path, side: Side, round: int, *, below: Path | None = None) -> tuple[list[Sample], list[str]]:
    """Read one run's numbers; nothing in the file can make this fail.

    Args:
        path: the file, as the job left it.
        side: which tree ran.
        round: which round of the interleaved runs.
        below: the step's output folder, below which no symbolic link is followed; None guards the file alone.

    Returns:
        The samples, each name once, and what was no number, in words that name side and round.
    """
    folder = path.parent if below is None else below
    where = f"{side}, round {round}"
    try:
        value = read_json(folder, str(path.relative_to(folder)), max_bytes=MAX_FILE)
        entries = value.get("kpis") if isinstance(value, dict) else None
        if not isinstance(entries, list):
            raise UntrustedError('expected {"kpis": [...]}')
    except UntrustedError as error:
        return [], [f"{where}: {clean(path.name, 100)}: {error}"]
    samples: dict[str, Sample] = {}
    bad: list[str] = []
    twice: set[str] = set()
    for number, entry in enumerate(entries[:MAX_KPIS]):
        try:
            sample = _sample(entry, side, round)
        except _LieError as lie:
            bad.append(f"{where}: entry {number}: {lie}")
            continue
        if sample.name in samples:
            twice.add(sample.name)
        samples[sample.name] = sample
    bad += [f"{where}: {show(name, 80)}: given twice, so neither counts" for name in sorted(twice)]
    if len(entries) > MAX_KPIS:
        bad.insert(0, f"{where}: {len(entries):,} entries; the first {MAX_KPIS:,} are read")
    if len(bad) > _MAX_NAMED:
        bad[_MAX_NAMED:] = [f"{where}: {len(bad) - _MAX_NAMED:,} more"]
    return [one for name, one in samples.items() if name not in twice], bad


def _sample(entry: object, side: Side, round: int) -> Sample:
    if not isinstance(entry, dict):
        raise _LieError(f"expected an object, got {show(entry, 60)}")
    name = entry.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME or clean(name, _NAME) != name:
        raise _LieError(f"name: expected a text of 1 to {_NAME} characters, got {show(name, 60)}")
    if unknown := entry.keys() - {"name", "value", "unit", "extra"}:
        raise _LieError(f"{show(name, 80)}: unknown key {show(min(unknown), 60)}")
    value = _number(f"{show(name, 80)}: value", entry.get("value"))
    if value <= 0:
        raise _LieError(f"{show(name, 80)}: value: expected a number above 0, got {show(entry['value'], 60)}")
    unit = entry.get("unit", "")
    if not isinstance(unit, str) or len(unit) > _UNIT:
        raise _LieError(f"{show(name, 80)}: unit: expected a short text, got {show(unit, 60)}")
    return Sample(
        name=name,
        side=side,
        round=round,
        value=value,
        unit=clean(unit, _UNIT),
        extra=_extra(name, entry.get("extra", {})),
    )


def _extra(name: str, extra: object) -> dict[str, float]:
    if not isinstance(extra, dict) or len(extra) > _EXTRAS:
        raise _LieError(f"{show(name, 80)}: extra: expected an object of up to {_EXTRAS} numbers")
    return {clean(key, 60): _number(f"{show(name, 80)}: {show(key, 40)}", one) for key, one in extra.items()}


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _LieError(f"{what}: expected a number, got {show(value, 60)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _LieError(f"{what}: expected a finite number, got {show(value, 60)}")
    return number
