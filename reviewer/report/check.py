"""The check run: a conclusion, and findings as annotations on the head's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reviewer.diff import Diff
from reviewer.model import Outcome, ReportedFinding, RoundReport, Severity, Side, State
from reviewer.report.escape import FORBIDDEN_PHRASES, guard, plain, visible
from reviewer.report.limit import clip
from reviewer.report.placement import place
from reviewer.report.redacted import redacted
from reviewer.report.shown import counts, place_of
from reviewer.text import Text, load_text

Conclusion = Literal["success", "failure", "action_required"]
AnnotationLevel = Literal["notice", "warning", "failure"]

ANNOTATIONS_PER_REQUEST = 50
_TITLE = 255
_MESSAGE_BYTES = 64_000

# Neutral and skipped would satisfy a required check.
CONCLUSIONS: dict[Outcome, Conclusion] = {
    Outcome.BLOCKED: "failure",
    Outcome.INCONCLUSIVE: "action_required",
    Outcome.LGTM: "success",
}


@dataclass(frozen=True, slots=True)
class Annotation:
    """Plain text on lines (1-based, inclusive) of a file of the head; fields are named as GitHub's."""

    path: str
    start_line: int
    end_line: int
    annotation_level: AnnotationLevel
    title: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckRun:
    """`batches` hold at most 50 annotations each, as many as one request may carry."""

    conclusion: Conclusion
    title: str
    batches: tuple[tuple[Annotation, ...], ...]


def check_run(report: RoundReport, diff: Diff, *, forbidden: Sequence[str] = FORBIDDEN_PHRASES) -> CheckRun:
    """What a check run says about this round; its summary is `render_round`'s text."""
    text = load_text("report/text", report.language)
    found = annotate(report, diff, forbidden=forbidden)
    size = ANNOTATIONS_PER_REQUEST
    return CheckRun(
        conclusion=CONCLUSIONS[report.verdict.outcome],
        title=text("check_title", verdict=report.verdict, summary=counts(report)),
        batches=tuple(found[start : start + size] for start in range(0, len(found), size)),
    )


def annotate(
    report: RoundReport, diff: Diff, *, forbidden: Sequence[str] = FORBIDDEN_PHRASES
) -> tuple[Annotation, ...]:
    """Every open finding, those of earlier rounds too: a check run starts empty on each head."""
    report = redacted(report.model_copy(update={"fates": ()}))
    text = load_text("report/text", report.language)
    return tuple(
        _annotation(one, diff, text, forbidden)
        for one in (*report.blocking, *report.non_blocking)
        if one.state is State.OPEN
    )


def _annotation(finding: ReportedFinding, diff: Diff, text: Text, forbidden: Sequence[str]) -> Annotation:
    parts = [finding.body]
    if finding.suggestion:
        parts.append(f"{text('suggestion')}{text('separator')}{finding.suggestion}")
    if finding.demoted:
        parts.append(f"{text('does_not_block')}{text('separator')}{finding.demoted}")
    path, first, last = finding.path, max(1, finding.line_start), max(1, finding.line_end)
    if finding.side is Side.LEFT:
        # Annotations stand on the head alone.
        parts.append(f"{text('base_side')}{text('separator')}{place_of(finding)}")
        where = place(finding, diff)
        path = where.path
        first = last = where.line if where.line and where.side is Side.RIGHT else 1
    message = guard(visible("\n\n".join(part for part in parts if part)), forbidden) or finding.title
    return Annotation(
        path=path,
        start_line=first,
        end_line=last,
        annotation_level=_level(finding),
        title=guard(clip(f"[{finding.severity}] {plain(finding.title)}", _TITLE - 10), forbidden),
        message=message.encode()[:_MESSAGE_BYTES].decode(errors="ignore"),
    )


def _level(finding: ReportedFinding) -> AnnotationLevel:
    if finding.blocking:
        return "failure"
    return "notice" if finding.severity is Severity.P3 else "warning"
