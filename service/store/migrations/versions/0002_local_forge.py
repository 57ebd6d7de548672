"""The tables of the local forge.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "local_checks",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("shown", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_checks"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_local_checks_head", "local_checks", ["repo", "head_sha"])
    op.create_table(
        "local_comments",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_comments"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_local_comments_pull", "local_comments", ["repo", "number"])
    op.create_table(
        "local_inline_comments",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("thread", ID, nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer()),
        sa.Column("side", sa.String(length=8), nullable=False),
        sa.Column("start_line", sa.Integer()),
        sa.Column("start_side", sa.String(length=8)),
        sa.Column("resolved", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_inline_comments"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_local_inline_comments_pull", "local_inline_comments", ["repo", "number"])
    op.create_table(
        "local_permissions",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("login", sa.Text(), nullable=False),
        sa.Column("permission", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_permissions"),
        sa.UniqueConstraint("repo", "login", name="uq_local_permissions_repo"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "local_pulls",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("head_ref", sa.Text(), nullable=False),
        sa.Column("base_ref", sa.Text(), nullable=False),
        sa.Column("head_sha", sa.Text(), nullable=False),
        sa.Column("base_sha", sa.Text(), nullable=False),
        sa.Column("draft", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_pulls"),
        sa.UniqueConstraint("repo", "number", name="uq_local_pulls_repo"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "local_reactions",
        sa.Column("id", ID, nullable=False),
        sa.Column("comment_id", ID, nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_reactions"),
        sa.UniqueConstraint("comment_id", "author", "content", name="uq_local_reactions_comment_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "local_reviews",
        sa.Column("id", ID, nullable=False),
        sa.Column("repo", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_local_reviews"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_local_reviews_pull", "local_reviews", ["repo", "number"])
