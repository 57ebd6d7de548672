"""Rounds, and the completions that each has already paid for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from reviewer.engines.base import Completion, Key
from reviewer.model import RoundReport
from service.store.dialect import insert
from service.store.schema import rep_outputs, rounds

_COMPLETION = TypeAdapter(Completion)


@dataclass(frozen=True, slots=True)
class Round:
    """A round; `outcome` is "" and `finished_at` None until it is over. `tokens` are those in and out."""

    id: int
    pull_id: int
    round_index: int
    head_sha: str
    base_sha: str
    outcome: str
    started_at: datetime
    finished_at: datetime | None
    tokens: int
    cost_usd: float


_COLUMNS = tuple(rounds.c[name] for name in Round.__dataclass_fields__)


def start(
    connection: sa.Connection, pull_id: int, round_index: int, head_sha: str, base_sha: str, now: datetime
) -> Round:
    """The round with this index on this head: a new one, or the one that was started before a crash."""
    fresh = insert(
        connection,
        rounds,
        {
            "pull_id": pull_id,
            "round_index": round_index,
            "head_sha": head_sha,
            "base_sha": base_sha,
            "started_at": now,
        },
    )
    # An update that changes nothing: DO NOTHING would return no row for the one that is there.
    found = fresh.on_conflict_do_update(
        index_elements=[rounds.c.pull_id, rounds.c.head_sha, rounds.c.round_index],
        set_={"pull_id": fresh.excluded.pull_id},
    )
    return Round(*connection.execute(found.returning(*_COLUMNS)).one())


def finish(connection: sa.Connection, round_id: int, report: RoundReport, now: datetime) -> None:
    """Stores the report and what it cost. Its findings are stored with the ledger (`pulls.save_ledger`)."""
    done = sa.update(rounds).where(rounds.c.id == round_id)
    connection.execute(
        done.values(
            outcome=report.verdict.outcome,
            report=report.model_dump_json(),
            finished_at=now,
            tokens=report.kpi.tokens_in + report.kpi.tokens_out,
            cost_usd=report.kpi.cost_usd,
        )
    )


def discard(connection: sa.Connection, round_id: int) -> None:
    """Forgets a round that was started and found that there was nothing to do."""
    connection.execute(sa.delete(rounds).where(rounds.c.id == round_id, rounds.c.finished_at.is_(None)))


def of_pull(connection: sa.Connection, pull_id: int, limit: int) -> list[Round]:
    """The newest rounds of a pull request, newest first."""
    found = sa.select(*_COLUMNS).where(rounds.c.pull_id == pull_id).order_by(rounds.c.id.desc()).limit(limit)
    return [Round(*row) for row in connection.execute(found)]


def report(connection: sa.Connection, round_id: int) -> RoundReport | None:
    """What a round found; None while it runs."""
    text = connection.execute(sa.select(rounds.c.report).where(rounds.c.id == round_id)).scalar()
    return None if text is None else RoundReport.model_validate_json(text)


class RepOutputs:
    """The completions of one round: a round that is run again asks only for those that it did not get."""

    def __init__(self, round_id: int) -> None:
        self._round_id = round_id

    def get(self, connection: sa.Connection, key: Key, prompt_version: str) -> Completion | None:
        columns = rep_outputs.c
        named = [columns[name] == value for name, value in self._row(key, prompt_version).items()]
        found = connection.execute(sa.select(columns.completion).where(*named)).scalar()
        return None if found is None else _COMPLETION.validate_python(found)

    def put(
        self,
        connection: sa.Connection,
        key: Key,
        prompt_version: str,
        completion: Completion,
        now: datetime,
    ) -> None:
        """Keeps a completion; the first one under a key stays."""
        row = {
            **self._row(key, prompt_version),
            "completion": _COMPLETION.dump_python(completion, mode="json"),
            "created_at": now,
        }
        connection.execute(insert(connection, rep_outputs, row).on_conflict_do_nothing())

    def _row(self, key: Key, prompt_version: str) -> dict[str, Any]:
        return {
            "round_id": self._round_id,
            "step": key.step,
            "rep": key.rep,
            "subject": key.subject,
            "turn": key.turn,
            "attempt": key.attempt,
            "prompt_version": prompt_version,
        }
