"""The tables. `migrations/` builds the same ones step by step; a test holds the two together.

Ids are never used twice (AUTOINCREMENT on SQLite), so that a late wake-up or claim cannot mean another row. The
column that may be large comes last: SQLite reads a row from its start, and stops where it has what it needs.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store.types import BigId, Json, Packed, Utc, Words

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def make_table(name: str, *items: sa.schema.SchemaItem) -> sa.Table:
    """A table of the store's schema whose ids are never used twice."""
    return sa.Table(name, metadata, *items, sqlite_autoincrement=True)


def id_column() -> sa.Column[int]:
    return sa.Column("id", BigId, primary_key=True)


def words(name: str) -> sa.Column[str]:
    """Text that is "" where nothing is said."""
    return sa.Column(name, Words, nullable=False, default="")


def _pull_id(*, nullable: bool = False) -> sa.Column[int]:
    return sa.Column("pull_id", BigId, sa.ForeignKey("pulls.id", ondelete="CASCADE"), nullable=nullable)


def _where(condition: str) -> dict[str, Any]:
    """Makes an index partial: small, and unique only where `condition` holds."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _lease_columns() -> tuple[sa.Column[Any], ...]:
    """What `service.store.lease` needs. `fence` grows with every claim, `revision` with every new payload."""
    return (
        sa.Column("revision", sa.Integer, nullable=False, default=1),
        sa.Column("state", sa.String(16), nullable=False, default="ready"),
        sa.Column("available_at", Utc, nullable=False),
        words("owner"),
        sa.Column("lease_until", Utc),
        sa.Column("fence", sa.Integer, nullable=False, default=0),
        sa.Column("attempts", sa.Integer, nullable=False, default=0),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        words("error"),
        sa.Column("created_at", Utc, nullable=False),
        sa.Column("finished_at", Utc),
        sa.Column("payload", Json, nullable=False),
    )


def _lease_indexes(table: str) -> tuple[sa.Index, ...]:
    return (
        sa.Index(f"ix_{table}_ready", "kind", "available_at", **_where("state = 'ready'")),
        sa.Index(f"ix_{table}_leased", "lease_until", **_where("state = 'leased'")),
        sa.Index(f"ix_{table}_finished", "finished_at", **_where("finished_at IS NOT NULL")),
    )


deliveries = make_table(
    "deliveries",
    id_column(),
    sa.Column("guid", Words, nullable=False, unique=True),
    words("event"),
    words("action"),
    words("repo"),
    sa.Column("headers", Json, nullable=False),
    sa.Column("received_at", Utc, nullable=False, index=True),
    sa.Column("state", sa.String(16), nullable=False),
    words("error"),
    sa.Column("processed_at", Utc),
    sa.Column("body", Packed),
    sa.Index("ix_deliveries_received", "id", **_where("state = 'received'")),
)

pulls = make_table(
    "pulls",
    id_column(),
    words("forge"),
    words("repo"),
    sa.Column("number", sa.Integer, nullable=False),
    words("head_sha"),
    words("base_sha"),
    words("base_ref"),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("merged", sa.Boolean, nullable=False),
    sa.Column("draft", sa.Boolean, nullable=False),
    words("title"),
    words("author"),
    sa.Column("updated_at", Utc, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, default=0),
    words("policy_sha"),
    sa.Column("policy", Words),
    sa.Column("ledger", Words),
    sa.UniqueConstraint("forge", "repo", "number"),
    sa.Index("ix_pulls_updated", "state", "updated_at"),
)

heads = make_table(
    "heads",
    id_column(),
    words("forge"),
    words("repo"),
    sa.Column("number", sa.Integer, nullable=False),
    words("before"),
    words("sha"),
    sa.Column("at", Utc, nullable=False, index=True),
    sa.UniqueConstraint("forge", "repo", "number", "before", "sha"),
)

rounds = make_table(
    "rounds",
    id_column(),
    _pull_id(),
    sa.Column("round_index", sa.Integer, nullable=False),
    words("head_sha"),
    words("base_sha"),
    words("outcome"),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("finished_at", Utc),
    sa.Column("tokens", sa.BigInteger, nullable=False, default=0),
    sa.Column("cost_usd", sa.Float, nullable=False, default=0.0),
    sa.Column("report", Words),
    sa.UniqueConstraint("pull_id", "head_sha", "round_index"),
)

findings = make_table(
    "findings",
    id_column(),
    _pull_id(),
    words("finding_id"),
    words("state"),
    words("severity"),
    sa.Column("blocking", sa.Boolean, nullable=False),
    words("category"),
    words("path"),
    sa.Column("line_start", sa.Integer, nullable=False),
    sa.Column("line_end", sa.Integer, nullable=False),
    words("side"),
    words("title"),
    words("source"),
    sa.Column("support", sa.Integer, nullable=False),
    sa.Column("of", sa.Integer, nullable=False),
    sa.Column("first_round", sa.Integer, nullable=False),
    sa.Column("last_round", sa.Integer, nullable=False),
    sa.Column("updated_at", Utc, nullable=False),
    sa.UniqueConstraint("pull_id", "finding_id"),
)

rep_outputs = make_table(
    "rep_outputs",
    id_column(),
    sa.Column("round_id", BigId, sa.ForeignKey("rounds.id", ondelete="CASCADE"), nullable=False),
    words("step"),
    sa.Column("rep", sa.Integer, nullable=False),
    words("subject"),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    words("prompt_version"),
    sa.Column("completion", Json, nullable=False),
    sa.Column("created_at", Utc, nullable=False, index=True),
    sa.UniqueConstraint("round_id", "step", "rep", "subject", "turn", "attempt", "prompt_version"),
)

dismissals = make_table(
    "dismissals",
    id_column(),
    _pull_id(),
    words("finding_id"),
    words("author"),
    words("reason"),
    sa.Column("dismissed_at", Utc, nullable=False),
    sa.Column("reopened_at", Utc),
    sa.Index("uq_dismissals_standing", "pull_id", "finding_id", unique=True, **_where("reopened_at IS NULL")),
)

effects = make_table(
    "effects",
    id_column(),
    sa.Column("key", Words, nullable=False, unique=True),
    sa.Column("created_at", Utc, nullable=False, index=True),
)

audit = make_table(
    "audit",
    id_column(),
    sa.Column("at", Utc, nullable=False, index=True),
    words("actor"),
    words("action"),
    words("object"),
    sa.Column("detail", Json, nullable=False),
    sa.Index("ix_audit_object", "object", "id"),
)

budgets = make_table(
    "budgets",
    id_column(),
    words("repo"),
    sa.Column("day", sa.Date, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("cost_usd", sa.Float, nullable=False),
    sa.UniqueConstraint("repo", "day"),
)

work = make_table(
    "work",
    id_column(),
    words("kind"),
    words("subject"),
    sa.Column("available_by", Utc, nullable=False),
    *_lease_columns(),
    *_lease_indexes("work"),
    sa.Index("uq_work_open", "kind", "subject", unique=True, **_where("state IN ('ready', 'leased')")),
)

outbox = make_table(
    "outbox",
    id_column(),
    sa.Column("key", Words, nullable=False, unique=True),
    words("kind"),
    _pull_id(nullable=True),
    words("payload_digest"),
    words("external_id"),
    *_lease_columns(),
    *_lease_indexes("outbox"),
    sa.Index("ix_outbox_pull_id", "pull_id"),
)
