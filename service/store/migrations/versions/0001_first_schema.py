"""The first schema.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_object", "audit", ["object", "id"])
    op.create_table(
        "budgets",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_budgets"),
        sa.UniqueConstraint("repo", "day", name="uq_budgets_repo"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "deliveries",
        sa.Column("id", ID, nullable=False),
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("processed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sa.UniqueConstraint("guid", name="uq_deliveries_guid"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_deliveries_received",
        "deliveries",
        ["id"],
        sqlite_where=sa.text("state = 'received'"),
        postgresql_where=sa.text("state = 'received'"),
    )
    op.create_index("ix_deliveries_received_at", "deliveries", ["received_at"])
    op.create_table(
        "effects",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_effects"),
        sa.UniqueConstraint("key", name="uq_effects_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_effects_created_at", "effects", ["created_at"])
    op.create_table(
        "pulls",
        sa.Column("id", ID, nullable=False),
        sa.Column("forge", sa.Text(), nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("base_sha", sa.Text(), nullable=False),
        sa.Column("base_ref", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("merged", sa.Boolean(), nullable=False),
        sa.Column("draft", sa.Boolean(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("policy_sha", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("ledger", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_pulls"),
        sa.UniqueConstraint("forge", "repo", "number", name="uq_pulls_forge"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_pulls_updated", "pulls", ["state", "updated_at"])
    op.create_table(
        "work",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("available_by", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_work"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_work_finished",
        "work",
        ["finished_at"],
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_work_leased",
        "work",
        ["lease_until"],
        sqlite_where=sa.text("state = 'leased'"),
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.create_index(
        "ix_work_ready",
        "work",
        ["kind", "available_at"],
        sqlite_where=sa.text("state = 'ready'"),
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "uq_work_open",
        "work",
        ["kind", "subject"],
        unique=True,
        sqlite_where=sa.text("state IN ('ready', 'leased')"),
        postgresql_where=sa.text("state IN ('ready', 'leased')"),
    )
    op.create_table(
        "dismissals",
        sa.Column("id", ID, nullable=False),
        sa.Column("pull_id", ID, nullable=False),
        sa.Column("finding_id", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("dismissed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reopened_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["pull_id"], ["pulls.id"], name="fk_dismissals_pull_id_pulls", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_dismissals"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_dismissals_standing",
        "dismissals",
        ["pull_id", "finding_id"],
        unique=True,
        sqlite_where=sa.text("reopened_at IS NULL"),
        postgresql_where=sa.text("reopened_at IS NULL"),
    )
    op.create_table(
        "findings",
        sa.Column("id", ID, nullable=False),
        sa.Column("pull_id", ID, nullable=False),
        sa.Column("finding_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("blocking", sa.Boolean(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("line_start", sa.Integer(), nullable=False),
        sa.Column("line_end", sa.Integer(), nullable=False),
        sa.Column("side", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("support", sa.Integer(), nullable=False),
        sa.Column("of", sa.Integer(), nullable=False),
        sa.Column("first_round", sa.Integer(), nullable=False),
        sa.Column("last_round", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["pull_id"], ["pulls.id"], name="fk_findings_pull_id_pulls", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
        sa.UniqueConstraint("pull_id", "finding_id", name="uq_findings_pull_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "outbox",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("pull_id", ID, nullable=True),
        sa.Column("payload_digest", sa.Text(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pull_id"], ["pulls.id"], name="fk_outbox_pull_id_pulls", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("key", name="uq_outbox_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_outbox_finished",
        "outbox",
        ["finished_at"],
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_outbox_leased",
        "outbox",
        ["lease_until"],
        sqlite_where=sa.text("state = 'leased'"),
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.create_index("ix_outbox_pull_id", "outbox", ["pull_id"])
    op.create_index(
        "ix_outbox_ready",
        "outbox",
        ["kind", "available_at"],
        sqlite_where=sa.text("state = 'ready'"),
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_table(
        "rounds",
        sa.Column("id", ID, nullable=False),
        sa.Column("pull_id", ID, nullable=False),
        sa.Column("round_index", sa.Integer(), nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("base_sha", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["pull_id"], ["pulls.id"], name="fk_rounds_pull_id_pulls", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_rounds"),
        sa.UniqueConstraint("pull_id", "head_sha", "round_index", name="uq_rounds_pull_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "rep_outputs",
        sa.Column("id", ID, nullable=False),
        sa.Column("round_id", ID, nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("rep", sa.Integer(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("prompt_version", sa.Text(), nullable=False),
        sa.Column("completion", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name="fk_rep_outputs_round_id_rounds", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_rep_outputs"),
        sa.UniqueConstraint(
            "round_id",
            "step",
            "rep",
            "subject",
            "turn",
            "attempt",
            "prompt_version",
            name="uq_rep_outputs_round_id",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_rep_outputs_created_at", "rep_outputs", ["created_at"])
