"""The one statement that SQLAlchemy spells differently for each database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert(
    connection: sa.Connection, table: sa.Table, values: Mapping[str, Any] | None = None
) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that can say ON CONFLICT; both databases understand the same words after it."""
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return make(table) if values is None else make(table).values(values)
