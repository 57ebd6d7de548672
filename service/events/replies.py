"""What the bot answers to commands, in the language of the policy: `templates/service/replies.<language>.yaml`.

Answers are Markdown. All that comes from people, models or files is redacted and escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reviewer.ledger import Dismissal
from reviewer.model import Fate, Language, ReportedFinding, State
from reviewer.redact import redact
from reviewer.report.escape import FORBIDDEN_PHRASES, code_span, fence, guard, inline
from reviewer.report.limit import COMMENT_LIMIT, clip, fit, shorten
from reviewer.report.redacted import redacted
from reviewer.report.shown import show
from reviewer.text import load_text
from service.events.commands import MAX_COMMANDS, Command, Invalid, Reopen, written
from service.events.permissions import Refused
from service.events.policy import Rights
from service.forge.base import User

_ROOM = 2_000  # left free of each comment for the publisher's marker
_LINE, _TITLE, _REASON, _SAID, _KNOWN = 200, 300, 1_000, 10, 50
_HEAD = 12
_COMMANDS = (
    ("review", "/review"),
    ("review_full", "/review full"),
    ("dismiss", "/dismiss ID reason"),
    ("reopen", "/reopen ID"),
    ("explain", "/explain ID"),
    ("ci_run", "/ci run [job ...]"),
    ("ci_retry", "/ci retry"),
    ("ci_cancel", "/ci cancel"),
    ("ci_status", "/ci status"),
    ("help", "/help"),
)


class Replies:
    """One method an answer. `forbidden` are phrases that the bot must never say, such as the one that starts CI."""

    def __init__(self, language: Language, forbidden: Sequence[str] = FORBIDDEN_PHRASES) -> None:
        self._text = load_text("service/replies", language)
        self._report_text = load_text("report/text", language)
        self._forbidden = tuple(forbidden)

    def compose(self, answers: Sequence[tuple[Command | Invalid, str]]) -> str:
        """One comment of all answers to another, each command quoted above its answer."""

        def render(count: int) -> str:
            parts = [f"> {_code(written(command))}\n\n{answer}" for command, answer in answers[:count]]
            if left := len(answers) - count:
                parts.append(f"*{self._text('left_out', n=left)}*")
            return guard("\n\n".join(parts), self._forbidden)

        return fit(render, len(answers), COMMENT_LIMIT - _ROOM)

    # Reviews

    def queued(self, head_sha: str, *, full: bool) -> str:
        return self._text("queued_full" if full else "queued", head=code_span(head_sha[:_HEAD]))

    def closed(self) -> str:
        return self._text("closed")

    def over_tokens(self, spent: int, limit: int) -> str:
        return self._beyond("over_tokens", "budget.tokens_per_day", spent=f"{spent:,}", limit=f"{limit:,}")

    def over_cost(self, spent: float, limit: float) -> str:
        return self._beyond(
            "over_cost", "budget.cost_usd_per_day", spent=f"{spent:.2f}", limit=f"{limit:.2f}"
        )

    def too_many_files(self, found: int, limit: int) -> str:
        return self._beyond("too_many_files", "size.files", found=f"{found:,}", limit=f"{limit:,}")

    def patch_too_large(self, found: int, limit: int) -> str:
        return self._beyond("patch_too_large", "size.patch_bytes", found=f"{found:,}", limit=f"{limit:,}")

    def policy_invalid(self, file: str, branch: str, problems: str) -> str:
        """`problems` are the lines of the `ConfigError`."""
        note = self._report_text("shortened")
        lines = shorten(lambda part: fence(part), redact(problems), 8_000, note)
        head = self._text("policy_invalid", file=_code(file), branch=_code(branch))
        return guard(f"{head}\n\n{lines}", self._forbidden)

    # Findings

    def dismissed(self, finding: ReportedFinding, by: str, reason: str, verdict: str) -> str:
        """`verdict` is the last round's without the finding."""
        line = self._text("dismissed", **_named(finding), by=_code(by), reason=_prose(reason, _REASON))
        back = code_span(written(Reopen(finding=finding.id)))
        return f"{line}\n\n{self._text('dismissed_after', command=back, verdict=verdict)}"

    def reopened(self, finding: ReportedFinding, verdict: str) -> str:
        return self._text("reopened", **_named(finding), verdict=verdict)

    def no_finding(self, finding_id: str, known: Iterable[str]) -> str:
        ids = [_code(one) for one in known]
        key = "no_finding" if ids else "no_finding_yet"
        shown = ids if len(ids) <= _KNOWN else ["…", *ids[-_KNOWN:]]
        return self._text(key, id=_code(finding_id), known=" ".join(shown))

    def not_open(self, finding: ReportedFinding) -> str:
        return self._text("not_open", id=code_span(finding.id), state=self._text(f"state_{finding.state}"))

    def not_dismissed(self, finding: ReportedFinding) -> str:
        return self._text(
            "not_dismissed", id=code_span(finding.id), state=self._text(f"state_{finding.state}")
        )

    def explained(
        self,
        finding: ReportedFinding,
        round_index: int,
        dismissal: Dismissal | None = None,
        fates: Sequence[Fate] = (),
    ) -> str:
        """Why a finding stands as it does. `fates` are those of round `round_index`, the last one."""
        one = show(redacted(finding), round_index, self._report_text)
        parts = [
            f"**[{one.severity}] {one.title}** · {one.id} · {one.place} · {' · '.join(one.facts)}",
            self._text("explain_rounds", first=finding.first_round, last=finding.last_round),
            self._standing(finding, dismissal),
            *(one.code, one.body, one.evidence, one.suggestion, one.also_at),
            self._said([fate for fate in fates if fate.finding_id == finding.id]),
        ]
        return "\n\n".join(part for part in parts if part)

    # Refusals

    def refused(self, refusal: Refused, author: User) -> str:
        level = self._text(f"level_{refusal.needed}")
        return self._text(f"refused_{refusal.reason}", author=_code(author.login), level=level)

    def invalid(self, command: Invalid) -> str:
        hint, help_ = code_span(command.hint), code_span("/help")
        return self._text(command.problem, hint=hint, help=help_, n=MAX_COMMANDS)

    def help(self, rights: Rights) -> str:
        """The table of commands, with the permission that each asks for."""
        heads = [self._text(key) for key in ("help_command", "help_does", "help_who")]
        rows = [heads, ["---"] * 3]
        for right, usage in _COMMANDS:
            who = self._text(f"level_{rights.needed(right)}")
            if right == "review" and rights.author_may_review:
                who = self._text("who_author", level=who)
            rows.append([code_span(usage), self._text(f"help_{right}"), who])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"**{self._text('help_heading')}**\n\n{table}\n\n{self._text('help_rules', n=MAX_COMMANDS)}"

    def _beyond(self, key: str, setting: str, **values: str) -> str:
        return self._text(key, setting=code_span(f"service.{setting}"), **values)

    def _standing(self, finding: ReportedFinding, dismissal: Dismissal | None) -> str:
        if dismissal is not None:
            reason = _prose(dismissal.reason, _REASON)
            return self._text("explain_dismissed", by=_code(dismissal.by), reason=reason)
        if finding.state in (State.FIXED, State.REFUTED):
            return self._text(f"explain_{finding.state}")
        if finding.blocking:
            key = "explain_blocks" if finding.of else "explain_detector_blocks"
            return self._text(key, severity=finding.severity)
        if finding.demoted:
            return self._text("explain_demoted", reason=_prose(finding.demoted, _REASON))
        return self._text("explain_mild", severity=finding.severity)

    def _said(self, fates: Sequence[Fate]) -> str:
        said = [fate.raw for fate in fates if fate.raw.rep >= 0]
        if not said:
            return ""
        lines = [
            self._text(
                "explain_said_line", rep=raw.rep + 1, severity=raw.severity, title=_prose(raw.title, _TITLE)
            )
            for raw in said[:_SAID]
        ]
        if more := len(said) - len(lines):
            lines.append(self._text("explain_more", n=more))
        return "\n".join((self._text("explain_said"), "", *(f"- {line}" for line in lines)))


def _named(finding: ReportedFinding) -> dict[str, str]:
    return {"id": code_span(finding.id), "title": _prose(finding.title, _TITLE)}


def _code(text: str) -> str:
    return code_span(clip(redact(text), _LINE))


def _prose(text: str, limit: int) -> str:
    return inline(clip(redact(text), limit))
