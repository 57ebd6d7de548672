"""From a stored delivery to work: intents are decided and queued in the transaction that settles the delivery."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from service.events.intents import (
    ButtonPressed,
    ChecksEnded,
    DraftChanged,
    HeadChanged,
    Ignored,
    InstallationChanged,
    Intent,
    PhraseSaid,
    PolicyChanged,
    PullClosed,
    Recheck,
    ReviewDismissed,
    ReviewRequested,
    ReviewSubmitted,
    RunCommand,
)
from service.events.payloads import (
    CheckRunEvent,
    CheckSuiteEvent,
    IssueCommentEvent,
    Payload,
    PayloadError,
    PullEvent,
    ReviewCommentEvent,
    ReviewEvent,
    read_payload,
)
from service.events.rules import Context, decide
from service.policy import Policy
from service.store import audit, deliveries, heads
from service.store.deliveries import DeliveryState
from service.store.lease import State
from service.worker.ci import triggers as ci
from service.worker.outcome import close_check
from service.worker.policy import known_policy
from service.worker.station import COMMAND, RECHECK, REVIEW, Station


def process(station: Station, delivery_id: int) -> bool:
    """Settles one delivery; False where somebody else has it. A worker that dies midway rolls back, and the
    delivery is still there. Raises `ForgeError` where the forge must be asked and does not answer."""
    with station.database.read() as connection:
        delivery = deliveries.get(connection, delivery_id)
    if delivery is None:
        return False
    try:
        payload: Payload | PayloadError = read_payload(delivery.event, delivery.body or b"")
    except PayloadError as error:
        payload = error
    repo, number = _place(payload)
    me = station.forge.me(repo).login if repo else ""
    with station.database.write() as connection:
        if deliveries.take(connection, delivery_id) is None:
            return False
        now = station.clock()
        if isinstance(payload, PayloadError):
            deliveries.settle(connection, delivery_id, DeliveryState.FAILED, now, error=str(payload))
            return True
        known = known_policy(connection, station.forge_name, repo, number)
        policy, ci = (known or Policy()).service, None if known is None else known.ci
        intents = decide(payload, Context(me=me, app_id=station.app_id, policy=policy, ci=ci))
        seen = delivery.received_at
        queue(station, connection, intents, seen=seen, debounce=policy.triggers.debounce_seconds)
        ignored = [intent.reason for intent in intents if isinstance(intent, Ignored)]
        state = DeliveryState.IGNORED if len(ignored) == len(intents) else DeliveryState.DONE
        deliveries.settle(connection, delivery_id, state, now, repo=repo, error="; ".join(ignored))
        return True


def _place(payload: Payload | PayloadError) -> tuple[str, int | None]:
    """The repository and the pull request that a delivery is about, as far as it is about one."""
    match payload:
        case PullEvent(repo=repo) | ReviewEvent(repo=repo) | ReviewCommentEvent(repo=repo):
            return repo, payload.pull_request.number
        case IssueCommentEvent(repo=repo):
            return repo, payload.issue.number
        case CheckRunEvent(repo=repo) | CheckSuiteEvent(repo=repo):
            return repo, None
        case _:
            return "", None


def queue(
    station: Station,
    connection: sa.Connection,
    intents: Sequence[Intent],
    *,
    seen: datetime,
    debounce: float = 0.0,
) -> None:
    """Queues what a delivery that came at `seen` asks for. What concerns a comment happens once, whichever delivery
    brings it."""
    for intent in intents:
        if not isinstance(intent, RunCommand):
            _apply(station, connection, intent, seen, debounce)
    commands = [intent for intent in intents if isinstance(intent, RunCommand)]
    if commands:
        first = commands[0]
        subject = f"{first.repo}#{first.number}:{'inline' if first.inline else 'comment'}:{first.comment_id}"
        if audit.first_time(connection, f"command:{subject}", station.clock()):
            payload = {"commands": [command.model_dump(mode="json") for command in commands]}
            station.work.put(connection, COMMAND, subject, payload)


def _apply(
    station: Station, connection: sa.Connection, intent: Intent, seen: datetime, debounce: float
) -> None:
    match intent:
        case ReviewRequested(repo=repo, number=number):
            delay = debounce if intent.debounce else 0.0
            request_review(station, connection, repo, number, full=intent.full, delay=delay)
        case HeadChanged(repo=repo, number=number, head_sha=sha):
            # The later of the two clocks: whichever is behind, a comment from before the push must not count.
            at = max(seen, intent.at or seen)
            before = intent.supersedes or ""
            heads.record(connection, station.forge_name, repo, number, sha, at, before=before)
            ci.follow(station, connection, repo, number)
            station.work.abort(connection, REVIEW, f"{repo}#{number}", f"{sha[:12]} was pushed")
        case PhraseSaid() | ReviewSubmitted() | ReviewDismissed():
            ci.consider(station, connection, intent)
        case PullClosed(repo=repo, number=number):
            ci.stop(station, connection, repo, number)
            if station.work.supersede(connection, REVIEW, f"{repo}#{number}", "the pull request was closed"):
                close_check(station, connection, repo, number)
        case DraftChanged(repo=repo, number=number, draft=True):
            station.work.supersede(connection, REVIEW, f"{repo}#{number}", "the pull request became a draft")
        case DraftChanged(repo=repo, number=number):
            ci.follow(station, connection, repo, number)
        case Recheck() | ButtonPressed():
            subject = f"{intent.repo}:{intent.head_sha}:{intent.name}"
            station.work.put(connection, RECHECK, subject, intent.model_dump(mode="json"))
        case PolicyChanged(repo=repo):
            ci.reconsider(station, connection, repo)
        case ChecksEnded(repo=repo, head_sha=sha):
            ci.look_at_merge(station, connection, repo, sha)
        case InstallationChanged():
            audit.record(
                connection,
                station.clock(),
                "forge",
                "installed" if intent.active else "uninstalled",
                f"installation {intent.installation_id}",
                {"added": intent.added, "removed": intent.removed},
            )
        case _:
            pass


def request_review(
    station: Station,
    connection: sa.Connection,
    repo: str,
    number: int,
    *,
    full: bool = False,
    delay: float = 0.0,
) -> None:
    """Queues a round. Requests for one pull request that wait together become one, a full one if any of them is."""
    subject = f"{repo}#{number}"
    waiting = station.work.open_payload(connection, REVIEW, subject, (State.READY,)) or {}
    payload = {"repo": repo, "number": number, "full": full or waiting.get("full", False)}
    station.work.put(connection, REVIEW, subject, payload, delay=delay)
