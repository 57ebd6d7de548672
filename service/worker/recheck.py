"""Buttons and re-requested checks: who pressed may start a round or a job, for the pull requests with that head."""

from __future__ import annotations

import json

from service.events.commands import Review
from service.events.intents import ButtonPressed, Recheck, read_intent
from service.events.permissions import Allowed, allowed
from service.publisher.effects import CHECK_NAME
from service.publisher.publication import FULL_REVIEW
from service.store import pulls
from service.store.work import WorkClaim
from service.worker.ci.buttons import press
from service.worker.intake import request_review
from service.worker.policy import stored_policy
from service.worker.station import Station


def run_recheck(station: Station, claim: WorkClaim) -> None:
    """Does what the check is for, on each pull request that it belongs to, if the person may ask for it."""
    intent = read_intent(json.dumps(claim.payload))
    if not isinstance(intent, Recheck | ButtonPressed):
        raise TypeError(f"{claim.subject} is no check event")
    wanted = isinstance(intent, Recheck) or intent.identifier == FULL_REVIEW
    numbers = intent.pulls or station.forge.pulls_of(intent.repo, intent.head_sha)
    permission = station.forge.permission(intent.repo, intent.by.login)
    states = [station.forge.pull(intent.repo, number) for number in numbers]
    with station.database.write() as connection:
        claim.guard(connection)
        if isinstance(intent, Recheck):
            # The forge shows it as queued from now on, whatever comes of it here.
            station.outbox.renew(connection, f"check:{intent.repo}:{intent.head_sha}:{intent.name}")
        for state in states:
            policy = stored_policy(connection, station.forge_name, state.repo, state.number)
            pull = pulls.find(connection, station.forge_name, state.repo, state.number)
            if pull is not None:
                press(station, connection, intent, state, pull, policy, permission)
            right = allowed(
                Review(full=True), intent.by, state.author, permission, policy.service.permissions
            )
            current = state.state == "open" and state.head_sha == intent.head_sha
            if wanted and current and intent.name in ("", CHECK_NAME) and isinstance(right, Allowed):
                request_review(station, connection, state.repo, state.number, full=True)
        station.work.finish(connection, claim)
