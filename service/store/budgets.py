"""What each repository has spent each day (UTC)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import sqlalchemy as sa

from service.store.dialect import insert
from service.store.schema import budgets


@dataclass(frozen=True, slots=True)
class Spent:
    tokens: int = 0
    cost_usd: float = 0.0


def add(connection: sa.Connection, repo: str, day: date, tokens: int, cost_usd: float) -> Spent:
    """Adds to the day and returns its sum; no addition is lost, however many come at once."""
    fresh = insert(connection, budgets, {"repo": repo, "day": day, "tokens": tokens, "cost_usd": cost_usd})
    columns, new = budgets.c, fresh.excluded
    added = fresh.on_conflict_do_update(
        index_elements=[columns.repo, columns.day],
        set_={"tokens": columns.tokens + new.tokens, "cost_usd": columns.cost_usd + new.cost_usd},
    ).returning(columns.tokens, columns.cost_usd)
    row = connection.execute(added).one()
    return Spent(row.tokens, row.cost_usd)


def spent(connection: sa.Connection, repo: str, day: date) -> Spent:
    columns = budgets.c
    found = sa.select(columns.tokens, columns.cost_usd).where(columns.repo == repo, columns.day == day)
    row = connection.execute(found).first()
    return Spent() if row is None else Spent(row.tokens, row.cost_usd)
