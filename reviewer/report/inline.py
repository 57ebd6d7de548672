"""Inline comments: each new finding at its place in the diff."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reviewer.diff import Diff
from reviewer.model import ReportedFinding, RoundReport, Side, State
from reviewer.report.environment import render_template
from reviewer.report.escape import FORBIDDEN_PHRASES, code_span, guard
from reviewer.report.marker import marker
from reviewer.report.placement import Placement, place
from reviewer.report.redacted import redacted
from reviewer.report.shown import labels, place_of, show
from reviewer.text import load_text

_NOTES = {"partial": "clipped_place", "nearest": "real_place", "file": "file_place"}


@dataclass(frozen=True, slots=True)
class InlineComment:
    """A comment on `line` of `side` (1-based; from `start_line` of `start_side` for several lines), or on the
    file as a whole where `line` is None."""

    finding_id: str
    path: str
    body: str
    line: int | None
    side: Side
    start_line: int | None
    start_side: Side | None


def inline_comments(
    report: RoundReport, diff: Diff, *, forbidden: Sequence[str] = FORBIDDEN_PHRASES
) -> tuple[InlineComment, ...]:
    """One comment for each finding that is new in this round and whose file the diff has, blocking ones first.

    Findings of earlier rounds have theirs already. What the fact check refuted is no comment's worth.
    """
    report = redacted(report.model_copy(update={"fates": ()}))
    fresh = [
        one
        for one in (*report.blocking, *report.non_blocking)
        if one.first_round >= report.round_index and one.state is State.OPEN
    ]
    placed = ((one, place(one, diff)) for one in fresh)
    return tuple(
        InlineComment(
            finding_id=one.id,
            path=where.path,
            body=guard(_body(report, one, where), forbidden),
            line=where.line,
            side=where.side,
            start_line=where.start_line,
            start_side=where.start_side,
        )
        for one, where in placed
        if where.level != "body"
    )


def _body(report: RoundReport, finding: ReportedFinding, where: Placement) -> str:
    text = load_text("report/text", report.language)
    note = _NOTES.get(where.level, "")
    if where.level == "file" and not finding.line_start:
        note = ""
    return render_template(
        "inline.md.jinja",
        t=text,
        # With round and head: ids begin anew where a ledger was lost, and an old F1 is not this one.
        marker=marker("finding", id=finding.id, round=report.round_index, head=report.pull.head_sha),
        note=text(note, place=code_span(place_of(finding))) if note else "",
        one=show(finding, report.round_index, text),
        labels=labels(finding, {item.id: item for item in report.checklist}),
    )
