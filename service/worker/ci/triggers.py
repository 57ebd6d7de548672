"""What deliveries mean for CI: whose word has the gate judge anew, and what stops jobs."""

from __future__ import annotations

import sqlalchemy as sa

from service.events.intents import PhraseSaid, ReviewDismissed, ReviewSubmitted
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


def stop(station: Station, connection: sa.Connection, repo: str, number: int) -> None:
    """A closed pull request needs no jobs."""
    pull = pulls.find(connection, station.forge_name, repo, number)
    if pull is not None:
        jobs.cancel_pull(connection, pull.id, station.clock())
