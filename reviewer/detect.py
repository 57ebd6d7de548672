"""Runs the detectors over everything that a pull request changes, whatever round it is: they cost no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reviewer.checklist import Item
from reviewer.checkout.base import Checkout
from reviewer.detectors.run import DetectorRun, detect
from reviewer.model import Language, Side, Unreviewed


def detect_changes(
    checkout: Checkout, excluded: Iterable[Unreviewed], items: Sequence[Item], language: Language
) -> DetectorRun:
    """What the items' detectors say about the lines that the change adds, in files that are reviewed at all."""
    left_out = {one.path for one in excluded}
    contents: dict[str, bytes] = {}
    changed: dict[str, frozenset[int]] = {}
    for file in checkout.diff.files:
        if file.path in left_out or not file.added:
            continue
        content = checkout.read(file.path, Side.RIGHT)
        if content is not None:
            contents[file.path] = content
            changed[file.path] = frozenset(
                line.new for hunk in file.hunks for line in hunk.lines() if line.kind == "+" and line.new
            )
    return detect(contents, changed, items, language)
