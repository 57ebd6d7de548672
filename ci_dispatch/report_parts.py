"""One job made ready for the templates: every text from outside is redacted, cut and escaped here, and only here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar, overload

from ci_dispatch.model import (
    Comparison,
    Difference,
    Golden,
    Job,
    JobResult,
    KpiVerdict,
    Notice,
    Outcome,
    StepRun,
)
from ci_dispatch.plan import NO_PATHS

State = Literal["waiting", "running", "done", "skipped"]

ICONS: Mapping[str, str] = {
    "waiting": "⏳",
    "running": "🔄",
    "skipped": "⏭️",
    Outcome.PASSED: "✅",
    Outcome.CODE: "❌",
    Outcome.GOLDEN: "❌",
    Outcome.PERF: "❌",
    Outcome.TIMED_OUT: "❌",
    Outcome.INFRA: "⚠️",
    Outcome.HARDWARE: "⚠️",
    Outcome.SUPERSEDED: "⚪",
    Outcome.CANCELLED: "⚪",
}
_RANK = ("worse", "too_few", "better", "new", "ok", "reported")
_NAME, _VALUE, _LINE, _URL = 200, 120, 500, 500
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class Writing:
    """How text is made fit to be read where it is posted. Whoever posts passes its own functions.

    Attributes:
        text: the phrases of `templates/ci/text.<language>.yaml`, by key with values.
        redact: takes secrets out.
        code: one line as a code span of Markdown.
        fence: a block of code.
        inline: one line of Markdown that means nothing but its characters.
        plain: one line for a terminal.
        guard: the last look at a whole document, such as for phrases that would start something.
    """

    text: Callable[..., str]
    redact: Callable[[str], str]
    code: Callable[[str], str]
    fence: Callable[[str], str]
    inline: Callable[[str], str]
    plain: Callable[[str], str]
    guard: Callable[[str], str]

    def for_terminal(self) -> Writing:
        """The same without Markdown."""
        return replace(self, code=self.plain, inline=self.plain, fence=str)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it stands.

    Attributes:
        state: where it is; `done` has a result.
        reason: why it waits, or was skipped.
        step: the one that runs.
        seconds: how long it has run; 0 takes the steps' own.
        log_tail: the log's end while it runs.
        url: its page; "" where there is none.
        artifacts_url: what stands before an artifact's path; "" where they are not served.
    """

    job: Job
    state: State
    result: JobResult | None = None
    reason: str = ""
    step: str = ""
    seconds: float = 0.0
    log_tail: str = ""
    url: str = ""
    artifacts_url: str = ""

    def __post_init__(self) -> None:
        if (self.state == "done") != (self.result is not None):
            raise ValueError(
                f"{self.job.spec.name}: state {self.state} and a result go together only as done"
            )

    @property
    def outcome(self) -> Outcome | None:
        return self.result.outcome if self.result is not None else None

    @property
    def icon(self) -> str:
        return ICONS[self.outcome or self.state]


Row = Mapping[str, object]
ItemT = TypeVar("ItemT")
ShownT = TypeVar("ShownT")


class Rows(Sequence[ShownT], Generic[ItemT, ShownT]):
    """Things made ready only when a template asks for them, and once: there may be many more than fit."""

    def __init__(self, items: Sequence[ItemT], view: Callable[[ItemT], ShownT]) -> None:
        self._items, self._view = items, view
        self._ready: dict[int, ShownT] = {}

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> ShownT: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShownT]: ...
    def __getitem__(self, index: int | slice) -> ShownT | list[ShownT]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if index not in self._ready:
            self._ready[index] = self._view(self._items[index])
        return self._ready[index]


@dataclass(frozen=True, slots=True)
class Details:
    """What the templates say of a job. Texts are safe where they are written to; tables begin with what matters most."""

    name: str
    link: str
    icon: str
    where: str
    outcome: str
    time: str
    requests: str
    kpi_counts: str
    meaning: str
    reason: str
    is_red: bool
    steps: Sequence[Row] = ()
    kpis: Sequence[Row] = ()
    differences: Sequence[Row] = ()
    failures: Sequence[str] = ()
    notes: Sequence[str] = ()
    bad_numbers: Sequence[str] = ()
    notices: Sequence[str] = ()
    environment: Sequence[str] = ()
    left_out: Sequence[str] = ()
    rebaseline: str = ""

    @property
    def tables(self) -> tuple[Sequence[object], ...]:
        """What a report may show only the beginnings of."""
        return (self.kpis, self.differences, self.failures, self.notes, self.bad_numbers, self.notices)

    @property
    def is_worth_opening(self) -> bool:
        """Whether there is more to say than the table of jobs does."""
        if self.reason and self.icon != ICONS[Outcome.PASSED]:
            return True
        return any(map(len, self.tables)) or bool(self.rebaseline)


@dataclass(slots=True)
class _Shown:
    """Makes texts safe, and a job's parts of them."""

    view: JobView
    writing: Writing
    is_table: bool = True
    t: Callable[..., str] = field(init=False)

    def __post_init__(self) -> None:
        self.t = self.writing.text

    def cell(self, text: str, limit: int = _VALUE) -> str:
        shown = self.writing.code(cut(self.writing.redact(text), limit))
        return shown.replace("|", "\\|") if self.is_table else shown

    def line(self, text: str, limit: int = _LINE) -> str:
        return self.writing.inline(cut(self.writing.redact(text), limit))

    def where(self) -> str:
        spec, result = self.view.job.spec, self.view.result
        parts = [spec.arch if spec.gpus < 2 else f"{spec.arch} × {spec.gpus}"]
        if self.view.job.attempt > 1:
            parts.append(self.t("attempt", attempt=self.view.job.attempt))
        if result is not None and result.report.runs and not result.report.sandboxed:
            parts.append(self.t("unconfined"))
        if not spec.required:
            parts.append(self.t("optional"))
        return ", ".join(parts)

    def outcome(self) -> str:
        if self.view.outcome is not None:
            return (
                f"**{self.t(self.view.outcome.value)}**" if self.is_table else self.t(self.view.outcome.value)
            )
        if self.view.state == "running" and self.view.step:
            return self.t("running_step", step=self.cell(self.view.step, 20))
        if self.view.state == "skipped" and self.view.reason not in ("", NO_PATHS):
            return self.line(self.view.reason, _VALUE).replace("|", "\\|")
        return self.t(self.view.state)

    def requests(self, comparisons: Sequence[Comparison]) -> str:
        if not comparisons:
            return ""
        if all(one.refused for one in comparisons):
            return self.t("refused")
        total, matched, different = (
            sum(getter)
            for getter in zip(*((c.total, c.matched, c.different) for c in comparisons), strict=True)
        )
        rest = total - matched - different
        key = "matched_rest" if rest else "matched"
        words = self.t(key, matched=matched, total=total, different=different, rest=rest)
        if any(one.refused for one in comparisons):
            words += self.t("list_comma") + self.t("refused")
        return words

    def kpi_counts(self, kpis: Sequence[KpiVerdict]) -> str:
        if not kpis:
            return ""
        slower = sum(one.verdict == "worse" for one in kpis)
        few = sum(one.verdict == "too_few" for one in kpis)
        parts = []
        if slower:
            parts.append(self.t("kpi_counts_slower", slower=slower, n=len(kpis)))
        if few:
            parts.append(self.t("kpi_counts_few", few=few, n=len(kpis)))
        return self.t("list_comma").join(parts) or self.t("kpi_counts_none", n=len(kpis))

    def kpi(self, one: KpiVerdict) -> Row:
        unit = f" {one.unit}" if one.unit else ""
        ratio = ""
        if one.ratio is not None and one.low is not None and one.high is not None:
            mark = "**" if one.verdict == "worse" and self.is_table else ""
            ratio = f"{mark}{one.ratio:.3f}{mark} [{one.low:.3f}, {one.high:.3f}]"
        copied = one.extra.get("copy_percent")
        detail = f": {self.line(one.detail, _VALUE)}" if one.detail else ""
        return {
            "name": self.cell(one.name, _NAME),
            "head": "" if one.head is None else self.cell(f"{one.head:.4g}{unit}"),
            "base": "" if one.base is None else self.cell(f"{one.base:.4g}{unit}"),
            "ratio": ratio,
            "noise": "" if one.noise is None else f"±{100 * one.noise:.1f} %",
            "of_copy": "" if copied is None else f"{copied:.1f} %",
            "verdict": self.t(f"verdict_{one.verdict}")
            + (detail.replace("|", "\\|") if self.is_table else detail),
        }

    def steps(self, runs: Sequence[StepRun]) -> list[Row]:
        """A line a step and side; runs of one side that ended alike are one line."""
        groups: dict[tuple[str, str, str], list[StepRun]] = {}
        for run in runs:
            ended = self.t(f"limits_{run.ending}", status="-" if run.status is None else abs(run.status))
            if run.detail:
                ended += f": {self.cell(run.detail, 300)}"
            groups.setdefault((run.name, run.side, ended), []).append(run)
        return [
            {
                "name": (name if side == "head" else f"{name} ({side})")
                + (f", {self.t('runs', n=len(of_side))}" if len(of_side) > 1 else ""),
                "ended": ended,
                "time": duration(sum(run.seconds for run in of_side)),
            }
            for (name, side, ended), of_side in groups.items()
        ]

    def difference(self, one: Difference) -> Row:
        return {
            "case": self.cell(one.case),
            "request": one.request,
            "field": self.cell(one.field),
            "expected": self.cell(one.expected),
            "actual": self.cell(one.actual),
        }

    def notice(self, one: Notice) -> str:
        return self.line(f"{one.kind} {one.where} {one.gpu} {one.detail}")

    def fact(self, item: tuple[str, str]) -> str:
        return f"{self.cell(item[0])}: {self.cell(item[1], _NAME)}"

    def rebaseline(self, golden: Golden) -> str:
        """How the raw outputs become the golden: a command where artifacts are served, else in words."""
        result = self.view.result
        assert result is not None
        artifacts = [one.path for one in result.report.artifacts]
        named = next((path for path in artifacts if f"/{path}".endswith(f"/{golden.output}")), golden.output)
        words = self.t(
            "rebaseline_copy", artifact=self.cell(named, _LINE), kept=self.cell(golden.kept, _LINE)
        )
        if not self.view.artifacts_url or named not in artifacts:
            return words
        source = shlex.quote(f"{self.view.artifacts_url}/{named}")
        target = shlex.quote(golden.kept)
        command = f"curl --fail --location --output {target} {source}\ngit diff {target}"
        return f"{words}\n\n{self.writing.fence(self.writing.redact(command))}"


def details(view: JobView, writing: Writing, *, is_table: bool = True) -> Details:
    """All of a job; `is_table` where a bar would end a table's cell."""
    shown = _Shown(view, writing, is_table)
    result, spec = view.result, view.job.spec
    name = writing.code(spec.name) if is_table else writing.plain(spec.name)
    link = f"[{name}]({view.url})" if view.url and len(view.url) <= _URL else name
    seconds = view.seconds
    facts: dict[str, object] = {"requests": "", "kpi_counts": "", "meaning": ""}
    reason = ""
    if view.state == "waiting" and view.reason:
        reason = f"{writing.text('waits')}{writing.text('separator')}{view.reason}"
    if result is not None:
        report, kpis = result.report, sorted(result.kpis, key=lambda one: _RANK.index(one.verdict))
        seconds = seconds or sum(run.seconds for run in report.runs)
        reason = result.reason
        facts = {
            "requests": shown.requests(report.comparisons),
            "kpi_counts": shown.kpi_counts(result.kpis),
            "meaning": writing.text(f"means_{result.outcome.value}"),
            "steps": shown.steps(report.runs),
            "kpis": Rows(kpis, shown.kpi),
            "differences": Rows([one for c in report.comparisons for one in c.differences], shown.difference),
            "failures": Rows([words for c in report.comparisons for words in c.failures], shown.line),
            "notes": Rows([words for c in report.comparisons for words in c.notes], shown.line),
            "bad_numbers": Rows(report.bad_numbers, shown.line),
            "notices": Rows(report.notices, shown.notice),
            "environment": Rows(tuple(report.environment.items()), shown.fact),
            "left_out": Rows(report.left_out, shown.line),
        }
        if result.outcome is Outcome.GOLDEN:
            passed = {one.kept for one in report.comparisons if one.passed}
            wanted = [golden for golden in spec.goldens if golden.kept not in passed]
            facts["rebaseline"] = "\n\n".join(shown.rebaseline(golden) for golden in wanted)
    return Details(
        name=spec.name,
        link=link,
        icon=view.icon,
        where=shown.where(),
        outcome=shown.outcome(),
        time=duration(seconds) if seconds else "",
        reason=shown.line(reason, 1_000),
        is_red=ICONS.get(view.outcome or "") == "❌",
        **facts,  # type: ignore[arg-type]
    )


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def cut(text: str, limit: int) -> str:
    """The first `limit` characters, with … for the rest."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_colours(text: str) -> str:
    """A log's text without the sequences by which a terminal is told colours and cursor moves."""
    return _ANSI.sub("", text)
