"""Whose words these are, whether they still stand as written, and whether they still concern the head."""

from __future__ import annotations

from reviewer.errors import ReviewError
from reviewer.report.marker import marker
from service.forge.base import User


class StaleHead(ReviewError):
    """The pull request has a newer head than the one reviewed; nothing more was posted."""


def is_own(author: User, me: User) -> bool:
    """A person may have a bot's name but for its ending: only one of the two is us."""
    return author.login.lower() == me.login.lower() and author.is_bot == me.is_bot


def same_text(one: str, other: str) -> bool:
    """Forges change line ends and drop what is empty at the end."""
    return normal(one) == normal(other)


def normal(text: str) -> str:
    return text.replace("\r\n", "\n").rstrip()


def first_line(body: str) -> str:
    """Where a marker stands."""
    return normal(body).partition("\n")[0]


def reply_marker(to: str) -> str:
    """The marker of the answer to `to`."""
    return marker("reply", to=to)
