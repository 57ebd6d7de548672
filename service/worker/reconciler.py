"""Asking the forge what was missed: deliveries that never came, heads never reviewed, commands never run,
words that start CI never heard."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa

from reviewer.errors import ReviewError
from service.events.commands import parse_commands
from service.events.intents import RunCommand
from service.forge.base import Comment, PullState, User
from service.publisher.own import is_own
from service.store import pulls, rounds
from service.store.pulls import Pull
from service.worker.ci import triggers as ci
from service.worker.intake import queue, request_review
from service.worker.policy import stored_policy
from service.worker.station import REVIEW, Station

log = logging.getLogger(__name__)

_OVERLAP = timedelta(minutes=5)
"""Clocks differ, and a comment may be delivered a little after it was made."""


def reconcile(station: Station, repositories: Iterable[str], since: datetime) -> None:
    """Finds what was missed since a time. One repository that fails does not keep the others from it."""
    try:
        for guid in station.forge.failed_deliveries(since - _OVERLAP):
            station.forge.redeliver(guid)
    except ReviewError as error:
        log.warning("deliveries cannot be asked for: %s", error)
    for repo in repositories:
        try:
            _repository(station, repo, since)
        except ReviewError as error:
            log.warning("%s cannot be reconciled: %s", repo, error)


def _repository(station: Station, repo: str, since: datetime) -> None:
    me = station.forge.me(repo)
    still_open: set[int] = set()
    for state in station.forge.open_pulls(repo):
        still_open.add(state.number)
        comments = [
            comment
            for comment in station.forge.comments(repo, state.number, since - _OVERLAP)
            if _counts(comment, me)
        ]
        with station.database.write() as connection:
            known = pulls.find(connection, station.forge_name, repo, state.number)
            policy = stored_policy(connection, station.forge_name, repo, state.number)
            triggers = policy.service.triggers
            skipped = {label.casefold() for label in triggers.skip_labels}
            wanted = (
                triggers.automatic
                and (triggers.drafts or not state.draft)
                and (triggers.bots or not state.author.is_bot)
                and skipped.isdisjoint(label.casefold() for label in state.labels)
            )
            if (
                wanted
                and not _is_under_way(station, connection, state)
                and not _reviewed(connection, known, state)
            ):
                request_review(station, connection, repo, state.number)
            for comment in comments:
                queue(station, connection, _commands(comment, repo, state.number), seen=station.clock())
            ci.find_missed(station, connection, state, since - _OVERLAP)
    with station.database.write() as connection:
        ci.find_closed(station, connection, repo, still_open)


def _counts(comment: Comment, me: User) -> bool:
    """Bots command nothing, and an edited comment may hold somebody else's words."""
    return (
        not (comment.author.is_bot or is_own(comment.author, me)) and comment.updated_at == comment.created_at
    )


def _is_under_way(station: Station, connection: sa.Connection, state: PullState) -> bool:
    """Whether a review waits or runs. It was not missed: asked for again, it would have all its attempts once more,
    lose that it is a full one, wait no longer for what it waits for, and run a second time."""
    return station.work.open_payload(connection, REVIEW, f"{state.repo}#{state.number}") is not None


def _reviewed(connection: sa.Connection, known: Pull | None, state: PullState) -> bool:
    """Whether this head has a finished round."""
    newest = rounds.of_pull(connection, known.id, 5) if known is not None else []
    return any(one.head_sha == state.head_sha and one.finished_at is not None for one in newest)


def _commands(comment: Comment, repo: str, number: int) -> tuple[RunCommand, ...]:
    return tuple(
        RunCommand(
            repo=repo,
            number=number,
            comment_id=comment.id,
            inline=False,
            index=index,
            author=comment.author,
            command=command,
        )
        for index, command in enumerate(parse_commands(comment.body))
    )
