"""What the local forge merged, and which of its reviews were edited.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "local_edited_reviews",
        sa.Column("id", ID, nullable=False),
        sa.Column("review_id", ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_edited_reviews"),
        sa.UniqueConstraint("review_id", name="uq_local_edited_reviews_review_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "local_merges",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("merged_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_merges"),
        sa.UniqueConstraint("repo", "number", name="uq_local_merges_repo"),
        sqlite_autoincrement=True,
    )
