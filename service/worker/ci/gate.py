"""The gate at work: judges a pull request anew, and starts what it qualifies for, or says why not."""

from __future__ import annotations

from ci_dispatch.gate import Decision, GoSeen
from service.forge.base import PullState
from service.policy import Policy
from service.publisher.effects import Effect
from service.store import jobs
from service.store.lease import State
from service.store.pulls import Pull
from service.store.work import WorkClaim
from service.worker.ci.asked import Asked, Pressed, note_decision, replies_of
from service.worker.ci.case import judge
from service.worker.ci.merge import merge_native
from service.worker.ci.native import run_native
from service.worker.ci.start import start
from service.worker.ci.triggers import stop
from service.worker.outcome import keep_policy, put_effects
from service.worker.policy import known_policy, read_policy
from service.worker.station import Station


def run_gate(station: Station, claim: WorkClaim) -> None:
    """Settles one question. Everything is looked at as it is now, not as it was when it was asked."""
    asked = Asked.model_validate(claim.payload)
    state = station.forge.pull(asked.repo, asked.number)
    if state.state != "open":
        with station.database.write() as connection:
            claim.guard(connection)
            stop(station, connection, asked.repo, asked.number)
            station.work.finish(connection, claim, State.SUPERSEDED, "the pull request is closed")
        return
    pull, policy = _read(station, claim, state)
    replies = replies_of(policy)
    if policy.ci.mode == "off":
        _settle(station, claim, pull, state, asked.reply(replies.off()))
        return
    pressed = () if asked.pressed is None else (_go(asked.pressed),)
    for_jobs = bool(asked.jobs) or asked.retry
    decision = judge(station, state, policy, for_jobs=for_jobs, pressed=pressed)
    if not decision.qualified:
        reply = asked.reply(replies.refused((decision.reason, *decision.notes)))
        _settle(station, claim, pull, state, reply, decision)
    elif policy.ci.mode == "native":
        effects = run_native(station, state, policy, asked, claim.attempts)
        merge_native(station, state, policy, decision)
        _settle(station, claim, pull, state, effects, decision)
    else:
        start(station, claim, pull, state, policy, decision, asked)


def _read(station: Station, claim: WorkClaim, state: PullState) -> tuple[Pull, Policy]:
    """The pull request and the policy of its base branch, remembered for the events to come. Jobs of other heads stop."""
    with station.database.read() as connection:
        last_good = known_policy(connection, station.forge_name, state.repo, state.number)
    found = read_policy(station, state, last_good)
    with station.database.write() as connection:
        claim.guard(connection)
        pull = keep_policy(station, connection, state, found)
        jobs.supersede(connection, pull.id, state.head_sha, station.clock())
    return pull, found.policy


def _settle(
    station: Station,
    claim: WorkClaim,
    pull: Pull,
    state: PullState,
    effects: tuple[Effect, ...],
    decision: Decision | None = None,
) -> None:
    with station.database.write() as connection:
        claim.guard(connection)
        if decision is not None:
            note_decision(station, connection, state, decision)
        put_effects(station, connection, effects, pull.id)
        station.work.finish(connection, claim)


def _go(pressed: Pressed) -> GoSeen:
    return GoSeen(login=pressed.login, created_at=pressed.at, allowed=pressed.allowed, commit=pressed.commit)
