"""A round in a few lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reviewer.model import ReportedFinding, RoundReport
from reviewer.report.escape import plain
from reviewer.report.limit import clip
from reviewer.report.redacted import redacted
from reviewer.report.round import at_a_glance, sentence
from reviewer.report.shown import heading, place_of
from reviewer.text import Text, load_text

_TITLE = 160
_FILES = 8


def render_summary(report: RoundReport) -> str:
    """Plain text without colours; nothing in it can steer a terminal. Ends without a newline."""
    report = redacted(report.model_copy(update={"fates": ()}))
    return "\n".join(_summary(report, load_text("report/text", report.language)))


def _summary(report: RoundReport, text: Text) -> Iterator[str]:
    verdict = report.verdict
    yield heading("round", report, text)
    if verdict.detectors_only:
        yield text("detectors_only")
    yield sentence(report, text)
    yield from (f"  - {plain(reason)}" for reason in verdict.reasons)
    yield " · ".join(at_a_glance(report, text))
    yield from _findings("must_fix", report.blocking, text)
    yield from _findings("not_blocking", report.non_blocking, text)
    closed = Counter(one.state for one in report.closed)
    yield from (f"{text(f'change_{state}')} ({n})" for state, n in sorted(closed.items()))
    files = list(dict.fromkeys(one.path for one in report.unreviewed))
    if files:
        named = text("list_comma").join(plain(path) for path in files[:_FILES])
        more = f" +{len(files) - _FILES}" if len(files) > _FILES else ""
        yield f"{text('not_reviewed', n=len(files))}{text('separator')}{named}{more}"
    if report.warnings:
        yield text("warnings")
        yield from (f"  - {plain(warning)}" for warning in report.warnings)


def _findings(heading: str, findings: Sequence[ReportedFinding], text: Text) -> Iterator[str]:
    if findings:
        yield text(heading, n=len(findings))
    for one in findings:
        votes = f"{one.support}/{one.of}" if one.of else plain(one.source)
        reason = f" [{plain(one.demoted)}]" if one.demoted else ""
        yield f"  {plain(one.id)} {one.severity} {plain(place_of(one))} {clip(plain(one.title), _TITLE)} ({votes}){reason}"
