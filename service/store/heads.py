"""When each commit became the head of a pull request: by our receipt of the delivery, never by a commit's own date."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from service.store.dialect import insert
from service.store.schema import heads


def record(
    connection: sa.Connection,
    forge: str,
    repo: str,
    number: int,
    sha: str,
    at: datetime,
    *,
    before: str = "",
) -> None:
    """Remembers one push, from `before` where that is known.

    The same step told again, under another id or late, changes nothing; nor does a pull request that is reopened as it
    was.
    """
    known = of_pull(connection, forge, repo, number)
    if not before and known and known[-1][0] == sha:
        return
    row = {"forge": forge, "repo": repo, "number": number, "before": before, "sha": sha, "at": at}
    connection.execute(insert(connection, heads, row).on_conflict_do_nothing())


def of_pull(connection: sa.Connection, forge: str, repo: str, number: int) -> list[tuple[str, datetime]]:
    """Every (commit, time) of a pull request, oldest first."""
    named = (heads.c.forge == forge, heads.c.repo == repo, heads.c.number == number)
    found = sa.select(heads.c.sha, heads.c.at).where(*named).order_by(heads.c.at, heads.c.id)
    return [(row.sha, row.at) for row in connection.execute(found)]
