"""The body of the pull request review that stands on the head commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reviewer.diff import Diff
from reviewer.model import Answer, ChecklistResult, Outcome, ReportedFinding, RoundReport, Severity, State
from reviewer.report.environment import render_template
from reviewer.report.escape import FORBIDDEN_PHRASES, block, guard, inline, plain
from reviewer.report.limit import COMMENT_LIMIT, Kept, Section, clip, compose, shorten, size
from reviewer.report.marker import marker
from reviewer.report.placement import place
from reviewer.report.redacted import redacted
from reviewer.report.shown import Shown, clock, counts, heading, label_of, link_to, show
from reviewer.text import Text, load_text

# The other verdicts are called the same in both artifacts.
_STATUS = {Outcome.BLOCKED: "BLOCKING"}
_STRENGTH, _EVIDENCE, _REASON, _CITED = 600, 1_000, 1_000, 10


def render_review(
    report: RoundReport,
    diff: Diff | None = None,
    *,
    phrase: str = "",
    blob_url: str = "",
    forbidden: Sequence[str] = FORBIDDEN_PHRASES,
    limit: int = COMMENT_LIMIT,
) -> str:
    """The review's Markdown, at most `limit` UTF-16 units long.

    `phrase` may start CI: it is said as it stands, on a line of its own, and only by an LGTM of reviewers.
    Findings that no inline comment can carry, as `diff` does not show their file, are told in full; the
    others by title, place and suggestion. Without `diff` all are told in full. `blob_url` and `forbidden`
    are as in `render_round`.
    """
    report = redacted(report.model_copy(update={"fates": ()}))
    text = load_text("report/text", report.language)

    def view(finding: ReportedFinding) -> Shown:
        return show(finding, report.round_index, text, link_to(finding, report, blob_url))

    reported = (*report.blocking, *report.non_blocking)
    by_id = {finding.id: finding for finding in reported}

    def item(result: ChecklistResult) -> _Item:
        known = [by_id[id_] for id_ in result.findings if id_ in by_id]
        return _Item(result, [view(one) for one in known[:_CITED]], len(known[_CITED:]), text)

    sections = {
        "reasons": Section(report.verdict.reasons, lambda reason: inline(clip(reason, _REASON))),
        "blocking": Section(report.blocking, view),
        "other": Section([one for one in report.non_blocking if one.state is not State.REFUTED], view),
        "failed": Section([one for one in report.checklist if one.answer is Answer.FAIL], item),
        "strengths": Section(report.strengths, lambda strength: inline(clip(strength, _STRENGTH))),
        "refuted": Section([one for one in report.non_blocking if one.state is State.REFUTED], view),
        "unsure": Section([one for one in report.checklist if one.answer is Answer.UNSURE], item),
    }
    inline_ids = _inline_ids(report, diff)
    head = "\n".join(
        (
            marker("review", pull=report.pull.number, round=report.round_index, head=report.pull.head_sha),
            guard(render_template("review_head.md.jinja", **_values(report, text)), forbidden),
        )
    )
    if phrase and report.verdict.outcome is Outcome.LGTM and not report.verdict.detectors_only:
        head += f"\n\n{phrase}"

    def render(kept: Mapping[str, Kept]) -> str:
        body = render_template(
            "review.md.jinja",
            t=text,
            detectors_only=report.verdict.detectors_only,
            severities=[severity.value for severity in Severity],
            inline_ids=inline_ids,
            kpi=report.kpi,
            kept=kept,
        )
        return guard(body, forbidden)

    return f"{head}\n\n{compose(sections, render, limit - size(head) - 2)}".rstrip("\n")


class _Item:
    """A checklist item with what became of it, as Markdown."""

    def __init__(self, result: ChecklistResult, findings: Sequence[Shown], uncited: int, text: Text) -> None:
        votes = result.votes
        self.checklist = inline(result.checklist)
        self.label = label_of(result)
        self.findings = findings
        self.uncited = uncited
        self.evidence = shorten(block, result.evidence, _EVIDENCE, text("shortened"))
        self.votes = (
            text(
                "votes",
                fail=votes.get(Answer.FAIL, 0),
                pass_=votes.get(Answer.PASS, 0),
                unsure=votes.get(Answer.UNSURE, 0),
            )
            if votes
            else ""
        )


def _values(report: RoundReport, text: Text) -> dict[str, object]:
    return {
        "heading": heading("review", report, text),
        "status": text("status_line", status=_STATUS.get(report.verdict.outcome, report.verdict)),
        "summary": text("summary_line", summary=counts(report)),
        "reviewed": text(
            "reviewed_line", commit=plain(report.pull.head_sha[:12]), time=clock(report.reviewed_at)
        ),
    }


def _inline_ids(report: RoundReport, diff: Diff | None) -> frozenset[str]:
    if diff is None:
        return frozenset()
    reported = (*report.blocking, *report.non_blocking)
    return frozenset(one.id for one in reported if place(one, diff).level != "body")
