"""What becomes visible when a round ends without a report: its check never stays in progress."""

from __future__ import annotations

import sqlalchemy as sa

from service.forge.base import PullState
from service.publisher.effects import Effect, to_payload
from service.publisher.publication import Posting, check_ended
from service.store import audit, pulls
from service.store.schema import work
from service.worker.policy import FoundPolicy, posting_of, stored_policy
from service.worker.replies import policy_fault
from service.worker.station import REVIEW, Station

EFFECTS = ("round_comment", "ci_comment", "review", "check", "threads", "labels", "reply", "reaction")


def put_effects(
    station: Station, connection: sa.Connection, effects: tuple[Effect, ...], pull_id: int | None = None
) -> None:
    """Notes what is to stand outside; whoever works the quick lane brings it about."""
    for effect in effects:
        station.outbox.put(connection, effect.key, effect.kind, to_payload(effect), pull_id=pull_id)


def keep_policy(
    station: Station, connection: sa.Connection, state: PullState, found: FoundPolicy
) -> pulls.Pull:
    """Remembers the pull request with the policy that was read for it, or tells what is wrong with the file."""
    pull = pulls.remember(connection, station.forge_name, state, station.clock())
    if found.fault:
        put_effects(station, connection, (policy_fault(state, found.policy, found),), pull.id)
    else:
        pulls.save_policy(connection, pull, found.policy, found.sha)
    return pull


def on_death(
    station: Station, connection: sa.Connection, table: sa.Table, row_id: int, kind: str, error: str
) -> None:
    """Tells of work that was given up."""
    object_ = f"{table.name} {row_id} ({kind})"
    audit.record(connection, station.clock(), station.owner, "gave up", object_, {"error": error})
    if table is work and kind == REVIEW:
        payload = connection.execute(sa.select(table.c.payload).where(table.c.id == row_id)).scalar_one()
        close_check(station, connection, payload["repo"], payload["number"], error)


def close_check(
    station: Station, connection: sa.Connection, repo: str, number: int, reason: str = ""
) -> None:
    """Completes the check of a pull request's head: `reason` says why there is no report, "" that none is needed."""
    pull = pulls.find(connection, station.forge_name, repo, number)
    if pull is None:
        return
    policy = stored_policy(connection, station.forge_name, repo, number)
    posting: Posting = posting_of(policy, station, repo)
    ended = check_ended(repo, pull.head_sha, posting, policy.review.language, reason)
    put_effects(station, connection, (ended,), pull.id)
