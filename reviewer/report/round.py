"""The round report: one comment per pull request, edited in place by every later round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reviewer.model import Outcome, ReportedFinding, RoundReport, State
from reviewer.report.environment import render_template
from reviewer.report.escape import FORBIDDEN_PHRASES, PRODUCT, code_span, fence, guard, inline, plain
from reviewer.report.kpi import render_kpi
from reviewer.report.limit import COMMENT_LIMIT, Kept, Section, clip, compose
from reviewer.report.marker import marker
from reviewer.report.redacted import redacted
from reviewer.report.shown import Shown, change_of, clock, counts, heading, link_to, percent, show
from reviewer.text import Text, load_text

_ALWAYS_NAMED = 20
_SENTENCE, _PATH = 1_000, 1_000
_SIGNS = {
    "fixed": "✅",
    "still_open": "🔁",
    "again": "🔁",
    "cannot_substantiate": "❔",
    "fail": "❔",
    "new": "🆕",
    "dismissed": "🚫",
    "refuted": "🚫",
}
_CHANGES = tuple(_SIGNS)


def render_round(
    report: RoundReport,
    *,
    blob_url: str = "",
    forbidden: Sequence[str] = FORBIDDEN_PHRASES,
    limit: int = COMMENT_LIMIT,
) -> str:
    """The comment's Markdown, at most `limit` UTF-16 units long.

    `blob_url` is what a forge puts before `/<commit>/<path>` to show a file; without it places are no links.
    `forbidden` are phrases that must not appear, as they would start something.
    """
    report = redacted(report.model_copy(update={"fates": ()}))
    text = load_text("report/text", report.language)

    def view(finding: ReportedFinding) -> Shown:
        return show(finding, report.round_index, text, link_to(finding, report, blob_url))

    other = sorted(report.non_blocking, key=lambda one: (one.state is State.REFUTED, one.severity.rank))
    everything = (*report.blocking, *other, *report.closed)
    changes = sorted(everything, key=lambda one: _CHANGES.index(change_of(one, report.round_index)))
    unreviewed = list(_unreviewed(report).items())
    sections = {
        "reasons": Section(report.verdict.reasons, _sentence),
        "warnings": Section(report.warnings, _sentence),
        "blocking": Section(report.blocking, view),
        "named": Section(unreviewed[:_ALWAYS_NAMED], lambda item: _file(item, text)),
        "changes": Section(changes if report.round_index > 1 else (), view),
        "other": Section(other, view),
        "unreviewed": Section(unreviewed[_ALWAYS_NAMED:], lambda item: _file(item, text)),
    }
    values = _values(report, text)

    def render(kept: Mapping[str, Kept]) -> str:
        return guard(
            render_template("round.md.jinja", **values, kept=kept, groups=_by_reason(kept)), forbidden
        )

    return compose(sections, render, limit)


def _values(report: RoundReport, text: Text) -> dict[str, object]:
    pull, kpi, verdict = report.pull, report.kpi, report.verdict
    return {
        "t": text,
        "marker": marker("round", pull=pull.number, round=report.round_index, head=pull.head_sha),
        "heading": heading("round", report, text),
        "icon": icon(report),
        "sentence": sentence(report, text),
        "detectors_only": verdict.detectors_only,
        "glance": at_a_glance(report, text),
        "reviewers": text("reviewers", n=kpi.reps),
        "signs": _SIGNS,
        "coverage": percent(kpi.coverage),
        "lines": text("lines", n=kpi.delta_lines),
        "files": text("files_full", n=kpi.full_files)
        if kpi.delta_files == kpi.full_files
        else text("files_delta", n=kpi.full_files, delta=kpi.delta_files),
        "shards": text("shards", n=kpi.shards),
        "agentic": kpi.agentic_reps,
        "round": report.round_index,
        "last_round": report.round_index - 1,
        "blocking_total": len(report.blocking),
        "other_total": len(report.non_blocking),
        "unreviewed_total": len({one.path for one in report.unreviewed}),
        "kpi": fence(render_kpi(kpi), "json"),
        "footer": text(
            "footer",
            product=PRODUCT,
            round=report.round_index,
            head=plain(pull.head_sha[:12]),
            time=clock(report.reviewed_at),
        ),
    }


def icon(report: RoundReport) -> str:
    """A coloured sign that is read before the words."""
    if report.verdict.outcome is Outcome.LGTM:
        return "⚪" if report.verdict.detectors_only else "🟢"
    return "🔴" if report.verdict.outcome is Outcome.BLOCKED else "🟡"


def sentence(report: RoundReport, text: Text) -> str:
    """What the verdict means for whoever wants to merge."""
    verdict = report.verdict
    if verdict.outcome is Outcome.BLOCKED:
        return text("blocked", n=verdict.blocking)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return text("inconclusive")
    return text("detectors_only_lgtm" if verdict.detectors_only else "lgtm")


def at_a_glance(report: RoundReport, text: Text) -> list[str]:
    """Findings by severity, who looked, and at how much."""
    kpi = report.kpi
    if report.verdict.detectors_only:
        return [counts(report), text("no_reviewers")]
    share = text("reviewed_share", coverage=percent(kpi.coverage), lines=text("lines", n=kpi.delta_lines))
    glance = [counts(report), text("reviewers", n=kpi.reps), share]
    if kpi.discover_fail:
        glance.append(text("answers_lost", n=kpi.discover_fail, total=kpi.discover_ok + kpi.discover_fail))
    return glance


def _sentence(words: str) -> str:
    return inline(clip(words, _SENTENCE))


def _unreviewed(report: RoundReport) -> dict[tuple[str, str], int]:
    """Changed lines by reason and path, in the order of the report: a file may have several hunks."""
    lines: dict[tuple[str, str], int] = {}
    for one in report.unreviewed:
        lines[one.reason, one.path] = lines.get((one.reason, one.path), 0) + one.lines
    return lines


def _file(item: tuple[tuple[str, str], int], text: Text) -> tuple[str, str]:
    (reason, path), lines = item
    count = f" ({text('unreviewed_lines', n=lines)})" if lines else ""
    return _sentence(reason), code_span(clip(path, _PATH)) + count


def _by_reason(kept: Mapping[str, Kept]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for reason, file in (*kept["named"].items, *kept["unreviewed"].items):
        groups.setdefault(reason, []).append(file)
    return groups
