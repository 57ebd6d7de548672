"""When each commit became the head of a pull request, as far as we were told.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "heads",
        sa.Column("id", ID, nullable=False),
        sa.Column("forge", sa.Text(), nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_heads"),
        sa.UniqueConstraint("forge", "repo", "number", "before", "sha", name="uq_heads_forge"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_heads_at", "heads", ["at"])
