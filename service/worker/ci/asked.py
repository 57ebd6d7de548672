"""The question that the gate is asked, and what is written down of its answer."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from ci_dispatch.gate import Decision
from reviewer.model import Frozen
from service.events.ci_replies import CiReplies
from service.forge.base import PullState
from service.policy import Policy
from service.publisher.effects import Reply
from service.store import audit
from service.worker.station import CI_GATE, Station


class Pressed(Frozen):
    """Somebody's press of a button on a check of `commit`."""

    login: str
    commit: str
    at: datetime
    allowed: bool


class Asked(Frozen):
    """Why the gate is asked. `to` is what a refusal answers; "" refuses without a word. `jobs` are asked for by name,
    whatever changed; `again` runs those that have ended once more, `retry` those that ended for lack of a working machine."""

    repo: str
    number: int
    to: str = ""
    jobs: tuple[str, ...] = ()
    again: bool = False
    retry: bool = False
    pressed: Pressed | None = None

    def reply(self, body: str) -> tuple[Reply, ...]:
        """The answer, where somebody waits for one."""
        if not self.to:
            return ()
        return (Reply(repo=self.repo, number=self.number, to=f"ci:{self.to}", body=body),)


def ask(station: Station, connection: sa.Connection, asked: Asked) -> None:
    """Has the gate judge. Questions that nobody waits to see answered are one for each pull request."""
    subject = f"{asked.repo}#{asked.number}" + (f":{asked.to}" if asked.to else "")
    station.work.put(connection, CI_GATE, subject, asked.model_dump(mode="json"))


def replies_of(policy: Policy) -> CiReplies:
    return CiReplies(policy.review.language, (policy.ci.gate.phrase,))


def note_decision(station: Station, connection: sa.Connection, state: PullState, decision: Decision) -> None:
    """Writes down who let which commit on the GPUs, or why nobody did."""
    action = "qualified for CI" if decision.qualified else "did not qualify for CI"
    place = f"{state.repo}#{state.number}"
    actor = decision.login or station.owner
    audit.record(connection, station.clock(), actor, action, place, decision.model_dump(mode="json"))
