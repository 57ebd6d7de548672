"""The tables in which the local forge keeps what a forge on the network would keep."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store.schema import metadata
from service.store.types import BigId, Json, Utc, Words


def _table(name: str, *items: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(f"local_{name}", metadata, *items, sqlite_autoincrement=True)


def _id() -> sa.Column[int]:
    return sa.Column("id", BigId, primary_key=True)


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, Words, nullable=False, default="")


def _on_pull() -> tuple[sa.Column[Any], ...]:
    return (_words("repo"), sa.Column("number", sa.Integer, nullable=False))


def _moment(name: str) -> sa.Column[Any]:
    return sa.Column(name, Utc, nullable=False)


pulls = _table(
    "pulls",
    _id(),
    *_on_pull(),
    _words("title"),
    _words("body"),
    _words("author"),
    _words("head_ref"),
    _words("base_ref"),
    # As last seen: what is left of a pull request whose branches are gone.
    _words("head_sha"),
    _words("base_sha"),
    sa.Column("draft", sa.Boolean, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("labels", Json, nullable=False),
    _moment("created_at"),
    sa.UniqueConstraint("repo", "number"),
)

comments = _table(
    "comments",
    _id(),
    *_on_pull(),
    _words("author"),
    _words("body"),
    _moment("created_at"),
    _moment("updated_at"),
    sa.Index("ix_local_comments_pull", "repo", "number"),
)

reactions = _table(
    "reactions",
    _id(),
    sa.Column("comment_id", BigId, nullable=False),
    _words("author"),
    _words("content"),
    sa.UniqueConstraint("comment_id", "author", "content"),
)

reviews = _table(
    "reviews",
    _id(),
    *_on_pull(),
    _words("author"),
    sa.Column("state", sa.String(24), nullable=False),
    _words("body"),
    _words("commit"),
    _moment("submitted_at"),
    sa.Index("ix_local_reviews_pull", "repo", "number"),
)

# A thread is an inline comment that answers none (`thread` is 0), with those that answer it.
inline = _table(
    "inline_comments",
    _id(),
    *_on_pull(),
    sa.Column("thread", BigId, nullable=False, default=0),
    _words("author"),
    _words("body"),
    _words("commit"),
    _words("path"),
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
    _id(),
    _words("repo"),
    _words("head_sha"),
    _words("name"),
    _words("author"),
    sa.Column("shown", Json, nullable=False),
    _moment("updated_at"),
    sa.Index("ix_local_checks_head", "repo", "head_sha"),
)

permissions = _table(
    "permissions",
    _id(),
    _words("repo"),
    _words("login"),
    sa.Column("permission", sa.Integer, nullable=False),
    sa.UniqueConstraint("repo", "login"),
)
