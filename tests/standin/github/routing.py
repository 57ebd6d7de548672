"""Routes by the path templates of GitHub's own description, and what a handler gets and gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlencode

from tests.standin.github.answer import Answer, Refused, invalid, not_found
from tests.standin.github.auth import Actor
from tests.standin.github.hooks import Hooks
from tests.standin.github.limits import Limits
from tests.standin.github.state import IssueComment, PullRequest, Repository, Review, User, World

BODY_LIMIT = 65536
"""Characters in a comment, review or output text."""


@dataclass
class Switches:
    """What a test turned for the whole server."""

    largest_diff: int = 300
    """Files; a larger diff is answered 406."""
    mergeability_known: bool = True
    """Otherwise `mergeable` is null, as GitHub has it while it is still finding out."""


@dataclass
class Call:
    """One request, read and authenticated."""

    world: World
    hooks: Hooks
    limits: Limits
    method: str
    path: str
    url: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]
    actor: Actor
    switches: Switches
    params: dict[str, str] = field(default_factory=dict)

    def repo(self) -> Repository:
        found = self.world.repos.get(f"{self.params['owner']}/{self.params['repo']}".lower())
        if found is None or not self.actor.may_see(found):
            raise not_found()
        return found

    def pull(self) -> PullRequest:
        number = self.params.get("pull_number") or self.params["issue_number"]
        found = self.repo().pulls.get(self.integer(number))
        if found is None:
            raise not_found()
        return found

    def issue_comment(self) -> tuple[PullRequest, IssueComment]:
        wanted = self.integer(self.params["comment_id"])
        for pull in self.repo().pulls.values():
            for comment in pull.comments:
                if comment.id == wanted:
                    return pull, comment
        raise not_found()

    def review(self) -> tuple[PullRequest, Review]:
        pull = self.pull()
        wanted = self.integer(self.params["review_id"])
        for review in pull.reviews:
            if review.id == wanted:
                return pull, review
        raise not_found()

    def sender(self) -> User:
        """Who a change is made by: the token's user, or the app's bot."""
        if self.actor.user is None:
            raise Refused(401, "Requires authentication")
        return self.actor.user

    def commit(self, name: str = "ref") -> str:
        sha = self.repo().git.resolve(self.params[name])
        if sha is None:
            raise Refused(422, f"No commit found for SHA: {self.params[name]}")
        return sha

    def since(self) -> datetime | None:
        text = self.query.get("since")
        return datetime.fromisoformat(text) if text else None

    def integer(self, text: str) -> int:
        if not text.isdigit():
            raise not_found()
        return int(text)

    def text_field(self, name: str, resource: str) -> str:
        """A text of the body, within GitHub's limits."""
        value = self.body.get(name)
        if not isinstance(value, str) or not value.strip():
            raise invalid(resource, name, "missing_field")
        if len(value) > BODY_LIMIT:
            message = f"{name} is too long (maximum is {BODY_LIMIT} characters)"
            raise invalid(resource, name, "custom", message)
        return value

    def page(self, items: Sequence[Any], show: Callable[[Any], Any], wrap: str | None = None) -> Answer:
        """One page of a list, with the Link header; `wrap` names the list inside an object with its total."""
        size = max(1, min(_number(self.query.get("per_page"), 30), 100))
        number = max(1, _number(self.query.get("page"), 1))
        shown = [show(one) for one in items[(number - 1) * size : number * size]]
        last = max(1, -(-len(items) // size))
        steps = []
        if number > 1:
            steps += [("prev", number - 1), ("first", 1)]
        if number < last:
            steps += [("next", number + 1), ("last", last)]
        links = ", ".join(f'<{self._at(page)}>; rel="{name}"' for name, page in steps)
        body = shown if wrap is None else {"total_count": len(items), wrap: shown}
        return Answer(200, body, {"Link": links} if links else {})

    def _at(self, page: int) -> str:
        return f"{self.url}?{urlencode({**self.query, 'page': page})}"


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default


Handler = Callable[[Call], Answer]


@dataclass(frozen=True)
class Route:
    """`template` is the path as the description writes it. `permission` is what an app needs (name:level, several
    where any will do), `role` what a user needs in the repository, or `app` where only the app itself may ask."""

    method: str
    template: str
    pattern: re.Pattern[str]
    handler: Handler
    permission: tuple[str, ...]
    role: str

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def spelt(self) -> int:
        return len(re.sub(r"\{\w+\}", "", self.template))


ROUTES: list[Route] = []


def route(name: str, *permission: str, role: str = "read") -> Callable[[Handler], Handler]:
    """Registers a handler for an operation, `GET /repos/{owner}/{repo}` for one."""
    method, _, template = name.partition(" ")
    # Paths, refs and labels may hold slashes; everything else is one segment.
    pattern = re.sub(r"\\{(path|ref|basehead|branch|name)\\}", r"(?P<\1>.+)", re.escape(template))
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", pattern)

    def register(handler: Handler) -> Handler:
        ROUTES.append(Route(method, template, re.compile(f"^{pattern}$"), handler, permission, role))
        return handler

    return register


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    best = None
    for one in ROUTES:
        match = one.pattern.match(path) if one.method == method else None
        # The more of a path a template spells out, the better it fits.
        if match and (best is None or one.spelt > best[0].spelt):
            best = one, {name: unquote(text) for name, text in match.groupdict().items()}
    return best
