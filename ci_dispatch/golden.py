"""Compares a smoke step's raw outputs with the golden kept at the base. The job's own summary plays no part.

A runner imports this module: it stands on pydantic and the standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci_dispatch.model import Arch, Comparison, Difference, Golden, Tolerance
from ci_dispatch.untrusted import UntrustedError, clean, read_json, show

MAX_DIFFERENCES, MAX_FAILURES, MAX_NOTES = 50, 20, 20
_A_REQUEST = 5
"""Differences named of one request: the rest of its answer seldom says more."""
_NAME, _SHOWN = 200, 500
_EXACT = Tolerance()


class _RefusedError(ValueError):
    """Nothing may be compared; says why and what to do."""


def compare(golden: Golden, output: Path, kept: Path, arch: Arch) -> Comparison:
    """Compare raw outputs with a golden.

    Args:
        golden: what is compared, and how exactly.
        output: the raw outputs; the part of the path that `golden.output` names is the job's, and no link in it is followed.
        kept: the golden in the base's tree.
        arch: the job's, which must be the one that the golden was kept on.

    Returns:
        Counts in which every request, asked or kept, stands once; or why nothing was compared.
    """
    try:
        ours, theirs = _load(golden, output), _load_kept(golden, kept)
        notes = _same_origin(golden, ours, theirs, arch)
        twins = _twins(golden, theirs)
    except _RefusedError as refusal:
        return Comparison(kept=golden.kept, refused=clean(str(refusal), _SHOWN))
    tally = _Tally(golden.tolerances)
    asked, expected = ours["cases"], theirs["cases"]
    for name in dict.fromkeys((*expected, *twins, *asked)):
        tally.case(name, asked.get(name), expected.get(twins.get(name, name)))
    return tally.result(golden.kept, notes)


def _load(golden: Golden, output: Path) -> dict[str, Any]:
    parts = Path(golden.output).parts
    below = output.parts[-len(parts) :] == parts and len(output.parts) > len(parts)
    folder, path = (output.parents[len(parts) - 1], golden.output) if below else (output.parent, output.name)
    return _shaped(folder, path, f"raw outputs {golden.output}", "did the smoke step write them?")


def _load_kept(golden: Golden, kept: Path) -> dict[str, Any]:
    remedy = "make one from this job's raw outputs, look at it, and commit it"
    return _shaped(kept.parent, kept.name, f"golden {golden.kept}", remedy)


def _shaped(folder: Path, path: str, what: str, remedy: str) -> dict[str, Any]:
    try:
        value = read_json(folder, path)
    except UntrustedError as error:
        raise _RefusedError(f"{what}: {error}; {remedy}") from None
    shaped: dict[str, Any] = value if isinstance(value, dict) else {}
    for key in ("provenance", "cases"):
        if not isinstance(shaped.get(key), dict):
            raise _RefusedError(
                f'{what}: expected {{"provenance": {{...}}, "cases": {{...}}}}, no such {key}'
            )
    return shaped


def _same_origin(
    golden: Golden, ours: Mapping[str, Any], theirs: Mapping[str, Any], arch: Arch
) -> tuple[str, ...]:
    """Refuse what was made elsewhere; returns remarks on what else differs, such as versions."""
    made, kept = ours["provenance"], theirs["provenance"]
    for key in dict.fromkeys(("arch", *golden.provenance)):
        if key not in kept:
            raise _RefusedError(f"golden {golden.kept}: its provenance has no {key}; make it again")
        if key == "arch" and kept[key] != arch:
            raise _RefusedError(
                f"golden {golden.kept}: kept on {show(kept[key], 40)}, this job runs on {arch}: not comparable;"
                " keep one for this architecture"
            )
        if key not in made or not _same(made[key], kept[key], _EXACT):
            ours_is = show(made[key], 40) if key in made else "nothing"
            raise _RefusedError(
                f"golden {golden.kept}: kept for {key} {show(kept[key], 40)}, these outputs say {ours_is}:"
                " not comparable"
            )
    others = [key for key in kept if key not in golden.provenance and key not in ("arch", "commit")]
    return tuple(
        clean(f"{key}: kept with {show(kept[key], 60)}, made with {show(made.get(key), 60)}", _SHOWN)
        for key in others
        if not _same(made.get(key), kept[key], _EXACT)
    )[:MAX_NOTES]


def _twins(golden: Golden, theirs: Mapping[str, Any]) -> dict[str, str]:
    """Cases whose answers are another case's, as the golden says. What the outputs claim is not asked."""
    twins = theirs.get("twins", {})
    if not isinstance(twins, dict):
        raise _RefusedError(f'golden {golden.kept}: expected "twins" to map a case to another')
    for name, twin in twins.items():
        if not isinstance(twin, str) or not isinstance(theirs["cases"].get(twin), list) or twin in twins:
            raise _RefusedError(
                f"golden {golden.kept}: twin {show(twin, 80)} of {show(name, 80)} has no kept answers of its own"
            )
    return twins


@dataclass(slots=True)
class _Tally:
    """Counts requests, and remembers the first that were not as kept."""

    tolerances: Mapping[str, Tolerance]
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("total", "matched", "different", "failed", "other"), 0)
    )
    differences: list[Difference] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def case(self, name: str, answers: object, kept: object) -> None:
        """Count a case that was asked or kept or both."""
        requests = len(kept) if isinstance(kept, list) else 0
        if answers is None:
            self._count("other", max(1, requests), f"{name}: kept, but not asked")
        elif not isinstance(answers, list):
            error = answers.get("error") if isinstance(answers, dict) else None
            why = error if isinstance(error, str) else "neither answers nor an error"
            self._count("failed", max(1, requests), f"{name}: {why}")
        elif not isinstance(kept, list):
            self._count("other", max(1, len(answers)), f"{name}: no kept answers")
        else:
            for number in range(max(len(answers), requests)):
                if number >= requests:
                    self._count("other", 1, f"{name}, request {number}: no kept answer")
                elif number >= len(answers):
                    self._count("other", 1, f"{name}, request {number}: kept, but not asked")
                else:
                    self._request(name, number, answers[number], kept[number])

    def _request(self, name: str, number: int, answer: object, kept: object) -> None:
        error, kept_error = _error_of(answer), _error_of(kept)
        if error and error != kept_error:
            self._count("failed", 1, f"{name}, request {number}: {error}")
            return
        found = list(_differences("", answer, kept, self.tolerances, _EXACT))
        self.counts["total"] += 1
        self.counts["different" if found else "matched"] += 1
        room = min(_A_REQUEST, MAX_DIFFERENCES - len(self.differences))
        self.differences += [
            Difference(
                case=clean(name, _NAME),
                request=number,
                field=clean(where or "answer", _NAME),
                expected=show(theirs, _SHOWN),
                actual=show(ours, _SHOWN),
            )
            for where, ours, theirs in found[:room]
        ]

    def _count(self, kind: str, requests: int, words: str) -> None:
        self.counts["total"] += requests
        self.counts[kind] += requests
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(clean(words, _SHOWN))

    def result(self, kept: str, notes: tuple[str, ...]) -> Comparison:
        """The comparison; one in which nothing was asked says so."""
        if not self.counts["total"]:
            self.failures.append("no case: nothing was asked and nothing is kept")
        return Comparison(
            kept=kept,
            differences=tuple(self.differences),
            failures=tuple(self.failures),
            notes=notes,
            **self.counts,
        )


def _error_of(answer: object) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, str) else ""


def _differences(
    where: str, ours: object, theirs: object, tolerances: Mapping[str, Tolerance], tolerance: Tolerance
) -> Iterator[tuple[str, object, object]]:
    """Places at which two values differ, each with both; a field's name chooses the tolerance of all below it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys((*theirs, *ours)):
            place = f"{where}.{key}" if where else key
            if key not in ours or key not in theirs:
                yield place, ours.get(key, _ABSENT), theirs.get(key, _ABSENT)
            else:
                yield from _differences(
                    place, ours[key], theirs[key], tolerances, tolerances.get(key, tolerance)
                )
    elif isinstance(ours, list) and isinstance(theirs, list):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from _differences(f"{where}[{index}]", one, other, tolerances, tolerance)
        if len(ours) != len(theirs):
            yield f"length of {where or 'answer'}", len(ours), len(theirs)
    elif not _same(ours, theirs, tolerance):
        yield where, ours, theirs


_ABSENT = "(absent)"


def _same(ours: object, theirs: object, tolerance: Tolerance) -> bool:
    """Whether two values without parts are the same; true and 1 are not."""
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return _close(ours, theirs, tolerance)
    return type(ours) is type(theirs) and ours == theirs


def _close(ours: float, theirs: float, tolerance: Tolerance) -> bool:
    if ours == theirs:
        return True
    try:
        one, other = float(ours), float(theirs)
    except OverflowError:  # a whole number beyond any float
        return False
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    if math.isinf(one) or math.isinf(other):
        return False
    return abs(one - other) <= tolerance.absolute + tolerance.relative * abs(other)
