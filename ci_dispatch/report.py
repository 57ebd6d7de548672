"""What a pull request reads about its CI: a check a job, one comment for all, and the same for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from ci_dispatch.model import Outcome
from ci_dispatch.report_parts import Details, JobView, Writing, cut, details, without_colours

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "CANCEL", "REBASELINE", "RETRY", "Action", "CheckText", "JobView", "RunView", "Writing", "check", "comment", "terminal",
]  # fmt: skip

RETRY, CANCEL, REBASELINE = "ci:retry", "ci:cancel", "ci:rebaseline"
"""Identifiers of a check's buttons."""

COMMENT_LIMIT, CHECK_LIMIT = 65_536, 65_535
_TITLE, _LOG = 200, 16_000
_IN_COMMENT = 0.1
"""Share of a check's log that the comment shows of a job that failed by itself."""
_ROWS = (200, 100, 50, 25, 10, 5, 0)
_MOST_ROWS = 1_500
"""More rows than a comment ever holds: not tried."""
_JOBS = (100, 50, 25, 10, 0)
PRODUCT = "whitesmoke"

Conclusion = Literal["success", "failure", "cancelled", "timed_out", "action_required"]

# Neutral and skipped would satisfy a required check.
CONCLUSIONS: Mapping[Outcome, Conclusion] = {
    Outcome.PASSED: "success",
    Outcome.CODE: "failure",
    Outcome.GOLDEN: "failure",
    Outcome.PERF: "failure",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.INFRA: "action_required",
    Outcome.HARDWARE: "action_required",
    Outcome.SUPERSEDED: "cancelled",
    Outcome.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Action:
    """A button of a check, within GitHub's 20, 40 and 20 characters."""

    label: str
    description: str
    identifier: str


@dataclass(frozen=True, slots=True)
class CheckText:
    """A job's check. `conclusion` is None while it is not completed."""

    title: str
    summary: str
    text: str
    status: Literal["queued", "in_progress", "completed"]
    conclusion: Conclusion | None
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class RunView:
    """What the comment is about.

    Attributes:
        qualified: who started it by what, in a sentence.
        warnings: what else a reader has to know, in sentences.
    """

    head_sha: str
    base_sha: str
    qualified: str = ""
    warnings: Sequence[str] = ()


def check(view: JobView, writing: Writing) -> CheckText:
    """A job's check run: a title, what it means, and the details with the log's end. Each text is at most 65,535 long."""
    job = details(view, writing)
    t = writing.text
    facts = [words for words in (job.requests, job.kpi_counts, job.time) if words]
    title = " · ".join((job.outcome.replace("**", "").replace("`", ""), *facts))
    sentences = [job.meaning, job.reason, job.where]
    if view.job.harness_changed and view.job.spec.perf is not None:
        sentences.append(t("harness_changed"))
    if view.url:
        sentences.append(f"[{t('full_log')}]({view.url})")
    tail = view.result.report.log_tail if view.result is not None else view.log_tail

    def render(rows: int) -> str:
        log = _log(tail, 1 if rows > 10 else 0.2 if rows else 0, writing)
        body = _template("check.md.jinja", writing, job=job, rows=rows)
        return writing.guard("\n\n".join(part for part in (body, log) if part))

    return CheckText(
        title=writing.guard(cut(title, _TITLE)),
        summary=writing.guard("\n\n".join(words for words in sentences if words)),
        text=_fitting([partial(render, rows) for rows in _ROWS], CHECK_LIMIT),
        status={"waiting": "queued", "running": "in_progress"}.get(view.state, "completed"),  # type: ignore[arg-type]
        conclusion=_conclusion(view),
        actions=_actions(view, t),
    )


def comment(about: RunView, views: Sequence[JobView], writing: Writing) -> str:
    """The comment on all of a head's jobs, at most 65,536 UTF-16 units long, without the marker by which it is found again."""
    t = writing.text
    jobs = [details(view, writing) for view in views]
    warnings = [*about.warnings]
    if any(view.job.harness_changed and view.job.spec.perf is not None for view in views):
        warnings.append(t("harness_changed"))
    values: dict[str, object] = {
        "icon": _icon(views),
        "sentence": _sentence(views, t),
        "head": writing.code(about.head_sha[:12]),
        "base": writing.code(about.base_sha[:12]),
        "qualified": writing.inline(cut(writing.redact(about.qualified), 500)),
        "warnings": [writing.inline(cut(writing.redact(one), 500)) for one in warnings[:20]],
        "footer": t("footer", product=PRODUCT, head=writing.plain(about.head_sha[:12])),
    }

    tails = {
        view.job.spec.name: _log(view.result.report.log_tail, _IN_COMMENT, writing)
        for view in views
        if view.result is not None and view.outcome in (Outcome.CODE, Outcome.TIMED_OUT)
    }

    def render(rows: int, count: int) -> str:
        left_out = len(jobs) - count if count < len(jobs) else 0
        document = _template(
            "comment.md.jinja",
            writing,
            **values,
            jobs=jobs[:count],
            jobs_left_out=left_out,
            rows=rows,
            tails=tails if rows > _ROWS[-2] else {},
        )
        return writing.guard(document)

    attempts = [
        partial(render, rows, len(jobs)) for rows in _ROWS if rows == 0 or _rows(jobs, rows) <= _MOST_ROWS
    ]
    attempts += [partial(render, 0, count) for count in _JOBS if count < len(jobs)]
    return _fitting(attempts, COMMENT_LIMIT)


def terminal(view: JobView, writing: Writing) -> str:
    """The job for whoever ran it by hand: plain text, nothing in it moves the cursor."""
    plain = writing.for_terminal()
    job = details(view, plain, is_table=False)
    return _template("terminal.txt.jinja", plain, job=job, rows=50)


def _rows(jobs: Sequence[Details], most: int) -> int:
    return sum(min(most, len(table)) for job in jobs for table in job.tables)


def _conclusion(view: JobView) -> Conclusion | None:
    if view.state == "skipped":
        return "success"
    return CONCLUSIONS[view.outcome] if view.outcome is not None else None


def _actions(view: JobView, t: Callable[..., str]) -> tuple[Action, ...]:
    wanted = []
    if view.state in ("waiting", "running"):
        wanted = [(CANCEL, "cancel")]
    elif view.outcome is not None and (view.outcome.is_retried or view.outcome is Outcome.CANCELLED):
        wanted = [(RETRY, "retry")]
    elif view.outcome is Outcome.GOLDEN:
        wanted = [(REBASELINE, "rebaseline")]
    return tuple(Action(t(f"{name}_label"), t(f"{name}_does"), identifier) for identifier, name in wanted)


def _kinds(views: Sequence[JobView]) -> dict[str, int]:
    """Required jobs by what they mean for the pull request."""
    kinds = dict.fromkeys(("failed", "broken", "open", "quiet", "passed"), 0)
    for view in views:
        if not view.job.spec.required:
            continue
        if view.state in ("waiting", "running"):
            kinds["open"] += 1
        elif view.outcome is None or view.outcome is Outcome.PASSED:
            kinds["passed"] += 1
        elif view.outcome.is_retried:
            kinds["broken"] += 1
        else:
            kinds["quiet" if view.outcome.is_quiet else "failed"] += 1
    return kinds


def _sentence(views: Sequence[JobView], t: Callable[..., str]) -> str:
    kinds = _kinds(views)
    parts = [t(f"some_{kind}", n=count) for kind, count in kinds.items() if kind != "passed" and count]
    if parts:
        return " ".join(parts)
    return t("all_passed", n=kinds["passed"]) if kinds["passed"] else t("none_required")


def _icon(views: Sequence[JobView]) -> str:
    kinds = _kinds(views)
    if kinds["failed"]:
        return "🔴"
    if kinds["open"]:
        return "🔵"
    return "🟡" if kinds["broken"] or kinds["quiet"] else "🟢"


def _log(tail: str, share: float, writing: Writing) -> str:
    """The log's last lines, as many as `share` of the room allows."""
    text = writing.redact(without_colours(tail)).strip("\n")
    room = int(_LOG * share)
    if not text or not room:
        return ""
    if len(text) > room:
        text = "…\n" + text[-room:].partition("\n")[2]
    return f"**{writing.text('log')}**\n\n{writing.fence(text)}"


def _fitting(attempts: Sequence[Callable[[], str]], limit: int) -> str:
    """The first text that is short enough, counting characters beyond the basic plane twice; the last one is cut."""
    text = ""
    for attempt in attempts:
        text = attempt()
        if len(text) + sum(character > "\uffff" for character in text) <= limit:
            return text
    return text[: limit // 2]


@cache
def _environment() -> Environment:
    """Markdown is not HTML: what comes from outside is made safe by `report_parts` before it gets to a template."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("templates", "ci"),
        undefined=StrictUndefined,
        autoescape=select_autoescape(enabled_extensions=("html",)),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template(name: str, writing: Writing, **values: object) -> str:
    text = _environment().get_template(name).render(t=writing.text, **values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")  # what a template left out leaves no gap
