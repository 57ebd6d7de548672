"""From GitHub's JSON to what the service knows."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from service.forge.base import Comment, ForgeError, Permission, PullState, Review, User

_GHOST = User("ghost")
"""GitHub's own stand-in for an account that was deleted."""

_BOT_ENDING = "[bot]"


def read_user(data: Any) -> User:
    return User(data["login"], data["type"] == "Bot") if data else _GHOST


def read_actor(data: Any) -> User:
    """A user as GraphQL has it, which names an App's user without the ending that REST gives it."""
    if not data:
        return _GHOST
    login, is_bot = data["login"], data["__typename"] == "Bot"
    if is_bot and not login.endswith(_BOT_ENDING):
        login += _BOT_ENDING
    return User(login, is_bot)


def read_pull(repo: str, data: Any) -> PullState:
    head, base = data["head"], data["base"]
    return PullState(
        repo=repo,
        number=data["number"],
        title=data["title"],
        body=data["body"] or "",
        author=read_user(data["user"]),
        head_sha=head["sha"],
        head_ref=head["ref"],
        head_repo=head["repo"]["full_name"] if head["repo"] else "",
        base_ref=base["ref"],
        base_sha=base["sha"],
        draft=bool(data.get("draft")),
        state=data["state"],
        merged=bool(data["merged_at"]),
        labels=tuple(label["name"] for label in data["labels"]),
        updated_at=datetime.fromisoformat(data["updated_at"]),
    )


def read_comment(data: Any) -> Comment:
    return Comment(
        id=data["id"],
        author=read_user(data["user"]),
        body=data["body"] or "",
        created_at=datetime.fromisoformat(data["created_at"]),
        updated_at=datetime.fromisoformat(data["updated_at"]),
    )


def read_review(data: Any) -> Review:
    return Review(
        id=data["id"],
        author=read_user(data["user"]),
        state=data["state"],
        body=data["body"] or "",
        commit=data["commit_id"] or "",
        submitted_at=datetime.fromisoformat(data["submitted_at"]),
    )


def read_permission(data: Any) -> Permission:
    """By role; one that an organisation made itself counts as the plain one that it builds on."""
    for name in (data.get("role_name", ""), data["permission"]):
        if name.upper() in Permission.__members__:
            return Permission[name.upper()]
    return Permission.NONE


def read_content(repo: str, path: str, data: Any) -> bytes | None:
    """A file's content; None for a folder, a submodule, or a link that leads nowhere."""
    if not isinstance(data, dict) or data["type"] != "file":
        return None
    if data["encoding"] != "base64":
        raise ForgeError(
            f"{path} in {repo} is larger than the 1 MiB that GitHub gives of a file", "make it smaller"
        )
    return base64.b64decode(data["content"])
