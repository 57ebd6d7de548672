"""What deliveries mean for CI: whose word has the gate judge anew, and what stops jobs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa

from service.events.intents import PhraseSaid, ReviewDismissed, ReviewSubmitted
from service.forge.base import PullState
from service.policy import Policy
from service.store import jobs, pulls
from service.worker.ci.asked import Asked, ask
from service.worker.policy import known_policy
from service.worker.station import Station


def consider(
    station: Station, connection: sa.Connection, said: PhraseSaid | ReviewSubmitted | ReviewDismissed
) -> None:
    """Has the gate judge. It answers a comment with the phrase where that does not count; reviews it only reads."""
    policy = known_policy(connection, station.forge_name, said.repo, said.number)
    if policy is not None and policy.ci.mode == "off":
        return
    to = ""
    if policy is not None and isinstance(said, PhraseSaid):
        to = f"comment:{said.comment_id}"
    ask(station, connection, Asked(repo=said.repo, number=said.number, to=to))


def follow(station: Station, connection: sa.Connection, repo: str, number: int) -> None:
    """There may be another head, or a verdict on it. Which head it is, the gate asks the forge: deliveries come in any
    order."""
    policy = known_policy(connection, station.forge_name, repo, number)
    if policy is not None and policy.ci.mode != "off":
        ask(station, connection, Asked(repo=repo, number=number))


def reconsider(station: Station, connection: sa.Connection, repo: str) -> None:
    """The policy may be another: of every open pull request, as it may have had no CI before."""
    for pull in pulls.open_pulls(connection, station.forge_name, repo):
        ask(station, connection, Asked(repo=repo, number=pull.number))


def look_at_merge(station: Station, connection: sa.Connection, repo: str, head_sha: str) -> None:
    """The forge's own checks of a commit have ended: pull requests that only wait for those can be merged."""
    for pull in pulls.open_pulls(connection, station.forge_name, repo):
        policy = pulls.policy(connection, pull)
        if pull.head_sha == head_sha and policy is not None and _merges(policy):
            ask(station, connection, Asked(repo=repo, number=pull.number))


def find_missed(station: Station, connection: sa.Connection, state: PullState, since: datetime) -> None:
    """Words and pushes since then may have been missed, and of what a merge waits for nobody tells for sure."""
    policy = known_policy(connection, station.forge_name, state.repo, state.number)
    changed = state.updated_at is None or state.updated_at >= since
    if policy is None or (policy.ci.mode != "off" and (changed or policy.ci.merge.automatic)):
        ask(station, connection, Asked(repo=state.repo, number=state.number))


def find_closed(station: Station, connection: sa.Connection, repo: str, still_open: Collection[int]) -> None:
    """Pull requests of ours that are no longer among the open ones: the gate sees for itself, and stops their jobs."""
    for pull in pulls.open_pulls(connection, station.forge_name, repo):
        if pull.number not in still_open:
            ask(station, connection, Asked(repo=repo, number=pull.number))


def _merges(policy: Policy) -> bool:
    return policy.ci.mode == "native" and policy.ci.merge.automatic


def stop(station: Station, connection: sa.Connection, repo: str, number: int) -> None:
    """A closed pull request needs no jobs."""
    pull = pulls.find(connection, station.forge_name, repo, number)
    if pull is not None:
        jobs.cancel_pull(connection, pull.id, station.clock())
