"""The tables in which the local forge keeps what a forge on the network would keep."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store.schema import id_column, make_table, words
from service.store.types import BigId, Json, Utc


def _table(name: str, *items: sa.schema.SchemaItem) -> sa.Table:
    return make_table(f"local_{name}", *items)


def _on_pull() -> tuple[sa.Column[Any], ...]:
    return (words("repo"), sa.Column("number", sa.Integer, nullable=False))


def _moment(name: str) -> sa.Column[Any]:
    return sa.Column(name, Utc, nullable=False)


pulls = _table(
    "pulls",
    id_column(),
    *_on_pull(),
    words("title"),
    words("body"),
    words("author"),
    words("head_ref"),
    words("base_ref"),
    # As last seen: what is left of a pull request whose branches are gone.
    words("head_sha"),
    words("base_sha"),
    sa.Column("draft", sa.Boolean, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("labels", Json, nullable=False),
    _moment("created_at"),
    sa.UniqueConstraint("repo", "number"),
)

comments = _table(
    "comments",
    id_column(),
    *_on_pull(),
    words("author"),
    words("body"),
    _moment("created_at"),
    _moment("updated_at"),
    sa.Index("ix_local_comments_pull", "repo", "number"),
)

reactions = _table(
    "reactions",
    id_column(),
    sa.Column("comment_id", BigId, nullable=False),
    words("author"),
    words("content"),
    sa.UniqueConstraint("comment_id", "author", "content"),
)

reviews = _table(
    "reviews",
    id_column(),
    *_on_pull(),
    words("author"),
    sa.Column("state", sa.String(24), nullable=False),
    words("body"),
    words("commit"),
    _moment("submitted_at"),
    sa.Index("ix_local_reviews_pull", "repo", "number"),
)

# What a forge knows exactly: a time that is equal may hide an edit.
edited_reviews = _table(
    "edited_reviews",
    id_column(),
    sa.Column("review_id", BigId, nullable=False, unique=True),
)

# A merge by squash leaves the head outside of its base.
merges = _table(
    "merges",
    id_column(),
    *_on_pull(),
    words("commit"),
    _moment("merged_at"),
    sa.UniqueConstraint("repo", "number"),
)

# A thread is an inline comment that answers none (`thread` is 0), with those that answer it.
inline = _table(
    "inline_comments",
    id_column(),
    *_on_pull(),
    sa.Column("thread", BigId, nullable=False, default=0),
    words("author"),
    words("body"),
    words("commit"),
    words("path"),
    sa.Column("line", sa.Integer),
    sa.Column("side", sa.String(8), nullable=False),
    sa.Column("start_line", sa.Integer),
    sa.Column("start_side", sa.String(8)),
    sa.Column("resolved", sa.Boolean, nullable=False, default=False),
    _moment("created_at"),
    _moment("updated_at"),
    sa.Index("ix_local_inline_comments_pull", "repo", "number"),
)

checks = _table(
    "checks",
    id_column(),
    words("repo"),
    words("head_sha"),
    words("name"),
    words("author"),
    sa.Column("shown", Json, nullable=False),
    _moment("updated_at"),
    sa.Index("ix_local_checks_head", "repo", "head_sha"),
)

permissions = _table(
    "permissions",
    id_column(),
    words("repo"),
    words("login"),
    sa.Column("permission", sa.Integer, nullable=False),
    sa.UniqueConstraint("repo", "login"),
)
