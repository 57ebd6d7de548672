"""Buttons on the checks of jobs, and checks that are asked for again on the forge."""

from __future__ import annotations

import sqlalchemy as sa

from ci_dispatch.model import Outcome
from ci_dispatch.report import CANCEL, REBASELINE
from service.events.commands import CiCancel
from service.events.intents import ButtonPressed, Recheck
from service.events.permissions import Allowed, allowed
from service.forge.base import Permission, PullState
from service.policy import Policy
from service.publisher.effects import Reply
from service.store import audit, jobs
from service.store.pulls import Pull
from service.worker.ci.asked import Asked, Pressed, ask, replies_of
from service.worker.ci.case import may_run
from service.worker.ci.commands import newest
from service.worker.ci.names import job_of
from service.worker.outcome import put_effects
from service.worker.station import Station


def press(
    station: Station,
    connection: sa.Connection,
    intent: Recheck | ButtonPressed,
    state: PullState,
    pull: Pull,
    policy: Policy,
    permission: Permission,
) -> None:
    """Does what somebody pressed for; whoever may not, and a check of an older head, change nothing."""
    name = job_of(intent.name)
    button = intent.identifier if isinstance(intent, ButtonPressed) else ""
    names: tuple[str, ...] = () if name is None else (name,)
    if not intent.name:
        names = tuple(one.name for one in newest(connection, pull, state))
    if state.head_sha != intent.head_sha or not names:
        return
    if button == REBASELINE:
        body = replies_of(policy).rebaseline(names[0])
        reply = Reply(repo=state.repo, number=state.number, to=f"ci:check:{intent.check_run_id}", body=body)
        put_effects(station, connection, (reply,), pull.id)
        return
    if button == CANCEL:
        right = allowed(CiCancel(), intent.by, state.author, permission, policy.service.permissions)
        for one in newest(connection, pull, state) if isinstance(right, Allowed) else ():
            if one.name in names and jobs.cancel(connection, one.id, Outcome.CANCELLED, station.clock()):
                by = {"job": one.name, "head": state.head_sha}
                audit.record(connection, station.clock(), intent.by.login, "cancelled a job", pull.name, by)
        return
    # Others' words may have qualified the head: that lets nobody else run it again.
    if not may_run(state, policy, intent.by, permission):
        return
    pressed = Pressed(login=intent.by.login, commit=intent.head_sha, at=station.clock(), allowed=True)
    asked = Asked(
        repo=state.repo,
        number=state.number,
        to=f"check:{intent.check_run_id}",
        jobs=names,
        again=True,
        pressed=pressed,
    )
    ask(station, connection, asked)
