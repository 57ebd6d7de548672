"""Running the commands of one comment: permission first, then everything in one transaction, then one answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa

from reviewer.ledger import Ledger
from reviewer.model import ReportedFinding, State
from service.events.commands import (
    CiCancel,
    CiRetry,
    CiRun,
    CiStatus,
    Command,
    Dismiss,
    Explain,
    Help,
    Invalid,
    Reopen,
    Review,
)
from service.events.intents import RunCommand
from service.events.permissions import Refused, allowed
from service.events.replies import Replies
from service.forge.base import Permission, PullState
from service.policy import Policy
from service.publisher.effects import Effect, Reaction, Reply
from service.publisher.publication import effects_of
from service.store import audit, pulls
from service.store.work import WorkClaim
from service.worker.ci import commands as ci
from service.worker.intake import request_review
from service.worker.outcome import put_effects
from service.worker.policy import known_policy, posting_of, stored_policy
from service.worker.station import REPUBLISH, Station


@dataclass(slots=True)
class _Run:
    """The commands of one comment on their way: what they changed, and what is answered."""

    station: Station
    connection: sa.Connection
    state: PullState
    known: Policy | None
    policy: Policy
    permission: Permission
    replies: Replies
    pull: pulls.Pull
    ledger: Ledger
    changed: bool = False
    refused: bool = False
    answers: list[tuple[Command | Invalid, str]] = field(default_factory=list)

    def run(self, intent: RunCommand) -> None:
        self.answers.append((intent.command, self._answer(intent)))

    def _answer(self, intent: RunCommand) -> str:
        command, replies = intent.command, self.replies
        if isinstance(command, Invalid):
            self.refused = True
            return replies.invalid(command)
        named = command.finding if isinstance(command, Dismiss | Reopen | Explain) else ""
        finding = self.ledger.findings.get(named)
        verdict = allowed(
            command,
            intent.author,
            self.state.author,
            self.permission,
            self.policy.service.permissions,
            finding,
        )
        if isinstance(verdict, Refused):
            self.refused = True
            return replies.refused(verdict, intent.author)
        if named and finding is None:
            self.refused = True
            return replies.no_finding(named, self.ledger.findings)
        match command:
            case Review(full=full):
                if self.state.state != "open":
                    return replies.closed()
                request_review(self.station, self.connection, self.state.repo, self.state.number, full=full)
                return replies.queued(self.state.head_sha, full=full)
            case Help():
                return replies.help(self.policy.service.permissions)
            case Dismiss() | Reopen() | Explain() if finding is not None:
                return self._about(finding, command, intent.author.login)
            case CiRun() | CiRetry() | CiCancel() | CiStatus():
                return ci.answer(self.station, self.connection, intent, self.state, self.pull, self.known)
            case _:
                raise TypeError(f"no answer to {type(command).__name__}")

    def _about(self, finding: ReportedFinding, command: Dismiss | Reopen | Explain, author: str) -> str:
        replies = self.replies
        match command:
            case Explain():
                last = self.ledger.last
                return replies.explained(
                    finding,
                    self.ledger.rounds,
                    self.ledger.dismissals.get(finding.id),
                    last.fates if last is not None else (),
                )
            case Dismiss(reason=reason):
                if finding.state is not State.OPEN:
                    self.refused = True
                    return replies.not_open(finding)
                self._change(
                    self.ledger.dismiss(finding.id, author, reason), "dismissed", finding, author, reason
                )
                return replies.dismissed(finding, author, reason, self._verdict())
            case Reopen():
                if finding.state is not State.DISMISSED:
                    self.refused = True
                    return replies.not_dismissed(finding)
                self._change(self.ledger.reopen(finding.id), "reopened", finding, author, "")
                return replies.reopened(finding, self._verdict())

    def _change(
        self, ledger: Ledger, action: str, finding: ReportedFinding, author: str, reason: str
    ) -> None:
        self.ledger, self.changed = ledger, True
        place = f"{self.pull.name} {finding.id}"
        audit.record(self.connection, self.station.clock(), author, action, place, {"reason": reason})

    def _verdict(self) -> str:
        return str(self.ledger.last.verdict) if self.ledger.last is not None else ""


def run_command(station: Station, claim: WorkClaim) -> None:
    """Runs all commands of one comment. A crash before the transaction ends leaves no trace, and it runs again."""
    intents = [RunCommand.model_validate(one) for one in claim.payload["commands"]]
    first = intents[0]
    state = station.forge.pull(first.repo, first.number)
    permission = station.forge.permission(first.repo, first.author.login)
    with station.database.write() as connection:
        claim.guard(connection)
        pull = pulls.remember(connection, station.forge_name, state, station.clock())
        known = known_policy(connection, station.forge_name, first.repo, first.number)
        policy = known or Policy()
        replies = Replies(policy.review.language, (policy.ci.gate.phrase,))
        ledger = pulls.ledger(connection, pull)
        run = _Run(station, connection, state, known, policy, permission, replies, pull, ledger)
        for intent in intents:
            run.run(intent)
        effects: list[Effect] = []
        if run.changed:
            pull = pulls.save_ledger(connection, pull, run.ledger, station.clock())
            station.work.put(connection, REPUBLISH, pull.name, {"repo": first.repo, "number": first.number})
        effects.append(
            Reply(
                repo=first.repo,
                number=first.number,
                to=f"comment:{first.comment_id}",
                body=replies.compose(run.answers),
            )
        )
        if not first.inline:
            reaction = "confused" if run.refused else "+1"
            effects.append(
                Reaction(repo=first.repo, number=first.number, comment_id=first.comment_id, reaction=reaction)
            )
        put_effects(station, connection, tuple(effects), pull.id)
        station.work.finish(connection, claim)


def republish(station: Station, claim: WorkClaim) -> None:
    """Posts the last round anew after a finding of it was dismissed or reopened."""
    state = station.forge.pull(claim.payload["repo"], claim.payload["number"])
    with station.database.read() as connection:
        pull = pulls.find(connection, station.forge_name, state.repo, state.number)
        if pull is None:
            return
        policy = stored_policy(connection, station.forge_name, state.repo, state.number)
        report = pulls.ledger(connection, pull).last
    effects: tuple[Effect, ...] = ()
    if report is not None and report.pull.head_sha == state.head_sha:
        with station.forge.checkout(state) as checkout:
            effects = effects_of(report, checkout.diff, state, posting_of(policy, station, state.repo))
    with station.database.write() as connection:
        claim.guard(connection)
        put_effects(station, connection, effects, pull.id)
        station.work.finish(connection, claim)
