"""A finding in words that can be posted as they stand: everything from outside is escaped and of bounded length."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from textwrap import dedent
from typing import Literal
from urllib.parse import quote

from reviewer.model import (
    ChecklistResult,
    FactCheck,
    Recheck,
    ReportedFinding,
    RoundReport,
    Severity,
    Side,
    State,
)
from reviewer.report.escape import block, code_span, fence, inline, inline_html, plain
from reviewer.report.limit import clip, shorten
from reviewer.report.suggestion import language_of, render_suggestion
from reviewer.text import Text

_TITLE, _PATH, _REASON, _LABEL, _PLACES = 300, 300, 600, 300, 20
_BODY, _SUGGESTION, _EVIDENCE, _CODE = 8_000, 6_000, 2_000, 2_500


@dataclass(frozen=True, slots=True)
class Shown:
    """Markdown, but for what ends in `_html`, which goes inside an HTML element. `facts` are short remarks in
    the order in which a reader wants them; `change` says what became of it since the last round."""

    finding: ReportedFinding
    id: str
    severity: str
    title: str
    title_html: str
    place: str
    place_html: str
    votes_html: str
    facts: tuple[str, ...]
    code: str
    body: str
    suggestion: str
    reason: str
    reason_html: str
    evidence: str
    also_at: str
    change: str
    refuted: bool


def show(finding: ReportedFinding, round_index: int, text: Text, link: str = "") -> Shown:
    """`link` is where the finding's lines can be read, "" where nowhere."""
    note = text("shortened")
    where = place_of(finding)
    place = code_span(where)
    title = clip(finding.title, _TITLE)
    reason = clip(finding.demoted, _REASON)
    code = clip(dedent(finding.quoted_code).strip("\r\n"), _CODE)
    source = clip(finding.source, _LABEL)
    facts = [_votes(finding, text, code_span(source))]
    if finding.side is Side.LEFT:
        facts.append(text("base_side"))
    if finding.fact_check is FactCheck.HOLD:
        facts.append(text("facts_hold"))
    suggestion = shorten(
        lambda part: render_suggestion(part, finding.path), finding.suggestion, _SUGGESTION, note
    )
    evidence = shorten(block, finding.evidence, _EVIDENCE, note)
    refuted = finding.state is State.REFUTED
    also_at = [code_span(clip(one, _PATH)) for one in finding.merged_from[:_PLACES]]
    change = change_of(finding, round_index)
    if finding.first_round < round_index:
        facts.append(text("first_seen", round=finding.first_round))
        facts.append(text(f"change_{change}"))
    return Shown(
        finding=finding,
        id=code_span(finding.id),
        severity=finding.severity.value,
        title=inline(title),
        title_html=inline_html(title),
        place=f"[{place}]({link})" if link else place,
        place_html=f"<code>{html.escape(plain(where), quote=False)}</code>",
        votes_html=_votes(finding, text, inline_html(source)),
        facts=tuple(facts),
        code=fence(code, language_of(finding.path)) if code.strip() else "",
        body=shorten(block, finding.body, _BODY, note),
        suggestion=_labelled("suggestion", suggestion, text),
        reason=inline(reason),
        reason_html=inline_html(reason),
        evidence=_labelled("refuted" if refuted else "facts", evidence, text),
        also_at=_labelled("also_at", text("list_comma").join(also_at), text),
        change=change,
        refuted=refuted,
    )


_HEADINGS = {
    "round": ("round_heading", "round_heading_local"),
    "review": ("review_heading", "review_heading_local"),
}


def heading(kind: Literal["round", "review"], report: RoundReport, text: Text) -> str:
    """The first line of a report; a local change has no number."""
    with_number, local = _HEADINGS[kind]
    number = report.pull.number
    key = with_number if number else local
    return text(key, number=number, round=report.round_index, verdict=report.verdict)


def place_of(finding: ReportedFinding) -> str:
    """`path:3` or `path:3-7`, as it came; a path too long for any reader loses its beginning."""
    path = finding.path if len(finding.path) <= _PATH else "…" + finding.path[-_PATH:]
    if not finding.line_start:
        return path
    last = f"-{finding.line_end}" if finding.line_end > finding.line_start else ""
    return f"{path}:{finding.line_start}{last}"


def link_to(finding: ReportedFinding, report: RoundReport, blob_url: str) -> str:
    """Where a forge shows the finding's lines: `blob_url` is what stands before `/<commit>/<path>`."""
    if not blob_url:
        return ""
    commit = report.pull.base_sha if finding.side is Side.LEFT else report.pull.head_sha
    path = quote(finding.path.encode("utf-8", "replace"))
    lines = ""
    if finding.line_start:
        lines = f"#L{finding.line_start}"
        if finding.line_end > finding.line_start:
            lines += f"-L{finding.line_end}"
    return f"{blob_url}/{quote(commit)}/{path}{lines}"


def change_of(finding: ReportedFinding, round_index: int) -> str:
    """One of: new, again, still_open, cannot_substantiate, fail, fixed, dismissed, refuted."""
    if finding.state is not State.OPEN:
        return finding.state.value
    if finding.recheck not in (None, Recheck.FIXED):
        return finding.recheck.value
    return "new" if finding.first_round >= round_index else "again"


def label_of(result: ChecklistResult) -> str:
    """A checklist item on one line: its section in brackets, then what it asks."""
    return f"\\[{inline(clip(result.section, _LABEL))}\\] {inline(clip(result.text, _LABEL))}"


def labels(finding: ReportedFinding, items: Mapping[str, ChecklistResult]) -> list[str]:
    """The checklist items that a finding fails; an id that this round did not ask about stands for itself."""
    return [
        label_of(items[id_]) if id_ in items else code_span(clip(id_, _LABEL))
        for id_ in finding.checklist_ids[:_PLACES]
    ]


def counts(report: RoundReport) -> str:
    """`P0/0 · P1/1 · P2/3 · P3/3`: every open finding by severity, whether it blocks or not."""
    reported = (*report.blocking, *report.non_blocking)
    return " · ".join(
        f"{severity}/{sum(finding.severity is severity for finding in reported)}" for severity in Severity
    )


def clock(reviewed_at: str) -> str:
    """`2026-09-01 11:57 UTC+8` from ISO 8601."""
    try:
        moment = datetime.fromisoformat(reviewed_at)
    except ValueError:
        return plain(reviewed_at)
    offset = moment.utcoffset()
    if offset is None:
        return f"{moment:%Y-%m-%d %H:%M}"
    minutes = round(offset.total_seconds() / 60)
    hours, rest = divmod(abs(minutes), 60)
    zone = f"{'+' if minutes > 0 else '-'}{hours}" + (f":{rest:02}" if rest else "") if minutes else ""
    return f"{moment:%Y-%m-%d %H:%M} UTC{zone}"


def percent(share: float) -> str:
    """Rounded towards what is honest: neither 100% nor 0% unless it is exactly that."""
    if 0 < share < 1:
        return f"{min(99, max(1, round(share * 100)))}%"
    return f"{share:.0%}"


def _labelled(key: str, words: str, text: Text) -> str:
    """`words` after their label; below it where they begin with a list or a fence."""
    if not words:
        return ""
    below = re.match(r"```|[-*+] |[0-9]+[.)] ", words)
    label = f"**{text(key)}**{text('separator')}"
    return label.rstrip() + "\n\n" + words if below else label + words


def _votes(finding: ReportedFinding, text: Text, source: str) -> str:
    if finding.of:
        return text("said_by", support=finding.support, of=finding.of)
    return text("detector", source=source)
