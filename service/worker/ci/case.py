"""What the gate looks at: reviews, comments, pushes and permissions as they are now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import sqlalchemy as sa

from ci_dispatch.gate import (
    Case,
    CommentSeen,
    Decision,
    GoSeen,
    PushSeen,
    ReviewSeen,
    StoredVerdict,
    decide,
    people,
)
from service.events.commands import CiRun, parse_commands
from service.events.permissions import Allowed, allowed
from service.forge.base import Comment, Edited, Permission, PullState, User
from service.policy import Policy
from service.store import heads, pulls, rounds
from service.store.pulls import Pull
from service.worker.station import Station

_Permissions = Callable[[str], Permission]


def judge(
    station: Station, state: PullState, policy: Policy, *, for_jobs: bool, pressed: tuple[GoSeen, ...] = ()
) -> Decision:
    """Whether the pull request qualifies for its head now. `pressed` are buttons, which no comment shows.

    Whoever commands some jobs by name lets those run, and not all: such commands count `for_jobs` alone.
    """
    permission = _permissions(station, state.repo)
    case = _look(station, state, policy, permission, for_jobs, pressed)
    gate = policy.ci.gate
    writers = frozenset(login for login in people(case, gate) if permission(login) >= Permission.WRITE)
    return decide(replace(case, writers=writers), gate)


def _look(
    station: Station,
    state: PullState,
    policy: Policy,
    permission: _Permissions,
    for_jobs: bool,
    pressed: tuple[GoSeen, ...],
) -> Case:
    forge, repo, number = station.forge, state.repo, state.number
    comments = list(forge.comments(repo, number))
    edited = forge.edited(repo, number)
    reviews = tuple(
        ReviewSeen(
            id=one.id,
            login=one.author.login,
            state=one.state,
            body=one.body,
            commit=one.commit,
            submitted_at=one.submitted_at,
            is_bot=one.author.is_bot,
            edited=one.id in edited.reviews,
        )
        for one in forge.reviews(repo, number)
    )
    return Case(
        head_sha=state.head_sha,
        author=state.author.login,
        me=forge.me(repo).login,
        is_fork=state.is_fork,
        reviews=reviews,
        comments=tuple(_comment(one, edited) for one in comments),
        goes=(*_commanded(state, policy, comments, permission, for_jobs, edited), *pressed),
        pushes=_pushes(station, state),
        verdict=_verdict(station, state),
        mergeable=forge.mergeable(repo, number),
    )


def _comment(one: Comment, edited: Edited) -> CommentSeen:
    return CommentSeen(
        id=one.id,
        login=one.author.login,
        body=one.body,
        created_at=one.created_at,
        is_bot=one.author.is_bot,
        edited=one.id in edited.comments,
    )


def _commanded(
    state: PullState,
    policy: Policy,
    comments: list[Comment],
    permission: _Permissions,
    for_jobs: bool,
    edited: Edited,
) -> tuple[GoSeen, ...]:
    return tuple(
        GoSeen(
            login=one.author.login,
            created_at=one.created_at,
            allowed=may_run(state, policy, one.author, permission(one.author.login)),
            comment_id=one.id,
            edited=one.id in edited.comments,
        )
        for one in comments
        if not one.author.is_bot
        and any(
            isinstance(found, CiRun) and (for_jobs or not found.jobs) for found in parse_commands(one.body)
        )
    )


def may_run(state: PullState, policy: Policy, user: User, permission: Permission) -> bool:
    """Whether somebody may start CI by command or button."""
    right = allowed(CiRun(), user, state.author, permission, policy.service.permissions)
    return isinstance(right, Allowed)


def _pushes(station: Station, state: PullState) -> tuple[PushSeen, ...]:
    with station.database.read() as connection:
        told = heads.of_pull(connection, station.forge_name, state.repo, state.number)
    pushes = tuple(PushSeen(sha, at, "receipt") for sha, at in told)
    # A fork's author can have a check suite made for a commit before it is pushed here.
    if state.is_fork or any(push.sha == state.head_sha for push in pushes):
        return pushes
    seen = station.forge.push_seen(state.repo, state.head_sha, state.head_ref)
    return pushes if seen is None else (*pushes, PushSeen(state.head_sha, seen, "check_suite"))


def _verdict(station: Station, state: PullState) -> StoredVerdict | None:
    with station.database.read() as connection:
        pull = pulls.find(connection, station.forge_name, state.repo, state.number)
        return verdict_of(connection, pull, state.head_sha) if pull is not None else None


def verdict_of(connection: sa.Connection, pull: Pull, head_sha: str) -> StoredVerdict | None:
    """Our own newest of a head."""
    for one in rounds.of_pull(connection, pull.id, 20):
        if one.head_sha == head_sha and one.finished_at is not None:
            verdict = cast(Literal["BLOCKED", "LGTM", "INCONCLUSIVE"], one.outcome)
            return StoredVerdict(one.head_sha, verdict)
    return None


def _permissions(station: Station, repo: str) -> _Permissions:
    known: dict[str, Permission] = {}

    def permission(login: str) -> Permission:
        if login not in known:
            known[login] = station.forge.permission(repo, login)
        return known[login]

    return permission
