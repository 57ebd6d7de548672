"""GitHub's GraphQL endpoint, as far as review threads and edits need it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from graphql import GraphQLError, execute_sync, parse, validate

from tests.standin.github.answer import Answer, Refused
from tests.standin.github.auth import Actor
from tests.standin.github.contract import Contract
from tests.standin.github.graphql_schema import schema
from tests.standin.github.render.base import Json, node_id, read_node_id, time
from tests.standin.github.state import (
    IssueComment,
    PullRequest,
    Repository,
    Review,
    ReviewComment,
    Thread,
    User,
    World,
)

_PAGE = 100


def serve(world: World, actor: Actor, body: bytes, contract: Contract) -> Answer:
    if actor.token is None:
        return Answer(401, Refused(401, "This endpoint requires you to be authenticated.").body)
    asked = json.loads(body)
    try:
        document = parse(asked["query"])
    except GraphQLError as error:
        return _misasked([error], contract)
    errors = validate(schema(), document)
    if errors:
        return _misasked(errors, contract)
    done = execute_sync(
        schema(),
        document,
        root_value=_Root(world, actor),
        variable_values=asked.get("variables"),
        operation_name=asked.get("operationName"),
    )
    shown: Json = {"data": done.data}
    if done.errors:
        shown["errors"] = [{**error.formatted, **_kind(error)} for error in done.errors]
    return Answer(200, shown)


def _misasked(errors: Sequence[GraphQLError], contract: Contract) -> Answer:
    for error in errors:
        contract.report(f"GraphQL: {error.message}")
    return Answer(200, {"errors": [error.formatted for error in errors]})


class _Problem(Exception):
    """An error that GitHub gives a type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _kind(error: GraphQLError) -> Json:
    return {"type": error.original_error.kind} if isinstance(error.original_error, _Problem) else {}


class _Root:
    """Queries and mutations; graphql-core calls the method of a field's name."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    def viewer(self, info: Any) -> Json | None:
        return None if self._actor.user is None else _actor(self._actor.user)

    def rateLimit(self, info: Any, **_: Any) -> Json:
        return {"limit": 5000, "cost": 1, "remaining": 4999, "used": 1}

    def repository(self, info: Any, owner: str, name: str, **_: Any) -> Json:
        found = self._world.repos.get(f"{owner}/{name}".lower())
        if found is None or not self._actor.may_see(found):
            raise _Problem("NOT_FOUND", f"Could not resolve to a Repository with the name '{owner}/{name}'.")
        return self._repository(found)

    def node(self, info: Any, id: str) -> Json:
        return self._thread(*self._find(id))

    def resolveReviewThread(self, info: Any, input: Json) -> Json:
        return self._settle(input["threadId"], self._actor.user)

    def unresolveReviewThread(self, info: Any, input: Json) -> Json:
        return self._settle(input["threadId"], None)

    def _settle(self, thread_id: str, by: User | None) -> Json:
        pull, thread = self._find(thread_id)
        if not self._may_resolve(pull):
            raise _Problem("FORBIDDEN", "Resource not accessible by integration")
        before, thread.resolved_by = thread.resolved_by, by
        if (before is None) != (by is None) and self._actor.user is not None:
            action = "resolved" if by else "unresolved"
            self._world.emit("pull_request_review_thread", action, pull.repo, self._actor.user, pull, thread)
        return {"thread": self._thread(pull, thread)}

    def _may_resolve(self, pull: PullRequest) -> bool:
        if self._actor.installation is not None:
            return self._actor.has_permission(pull.repo, ("pull_requests:write",))
        return self._actor.user is pull.user or self._actor.has_role(pull.repo, "write")

    def _find(self, text: str) -> tuple[PullRequest, Thread]:
        try:
            kind, number = read_node_id(text)
        except ValueError:
            kind, number = "", 0
        for pull in self._world.pulls():
            for thread in pull.threads:
                if kind == "PRRT" and thread.id == number and self._actor.may_see(pull.repo):
                    return pull, thread
        raise _Problem("NOT_FOUND", f"Could not resolve to a node with the global id of '{text}'")

    def _repository(self, repo: Repository) -> Json:
        def pull_request(info: Any, number: int) -> Json:
            if number not in repo.pulls:
                raise _Problem(
                    "NOT_FOUND", f"Could not resolve to a PullRequest with the number of {number}."
                )
            return self._pull(repo.pulls[number])

        return {
            "id": node_id("R", repo.id),
            "name": repo.name,
            "nameWithOwner": repo.full_name,
            "pullRequest": pull_request,
        }

    def _pull(self, pull: PullRequest) -> Json:
        # The threads of a pending review are its author's alone.
        shown = [
            one
            for one in pull.threads
            if one.comments[0].review.state != "PENDING" or one.comments[0].user is self._actor.user
        ]
        reviews = [one for one in pull.reviews if one.state != "PENDING" or one.user is self._actor.user]
        return {
            "id": node_id("PR", pull.id),
            "number": pull.number,
            "title": pull.title,
            "author": _actor(pull.user),
            "headRefOid": pull.head_sha,
            "isDraft": pull.draft,
            "reviewThreads": _connection("reviewThreads", shown, lambda one: self._thread(pull, one)),
            "comments": _connection("comments", pull.comments, lambda one: _text("IssueComment", "IC", one)),
            "reviews": _connection("reviews", reviews, lambda one: _text("PullRequestReview", "PRR", one)),
        }

    def _thread(self, pull: PullRequest, thread: Thread) -> Json:
        first = thread.comments[0]
        return {
            "__typename": "PullRequestReviewThread",
            "id": node_id("PRRT", thread.id),
            "isResolved": thread.resolved_by is not None,
            "isOutdated": first.outdated,
            "resolvedBy": _actor(thread.resolved_by) if thread.resolved_by else None,
            "path": first.path,
            "line": None if first.outdated else first.line,
            "startLine": None if first.outdated else first.start_line,
            "subjectType": first.subject_type.upper(),
            "viewerCanResolve": self._may_resolve(pull) and thread.resolved_by is None,
            "comments": _connection("comments", thread.comments, _comment),
        }


def _text(kind: str, prefix: str, one: IssueComment | Review) -> Json:
    return {
        "__typename": kind,
        "id": node_id(prefix, one.id),
        "databaseId": one.id,
        "fullDatabaseId": str(one.id),
        "lastEditedAt": time(one.edited_at) if one.edited_at else None,
        "body": one.body,
    }


def _comment(one: ReviewComment) -> Json:
    return {
        "__typename": "PullRequestReviewComment",
        "id": node_id("PRRC", one.id),
        "databaseId": one.id,
        "fullDatabaseId": str(one.id),
        "author": _actor(one.user),
        "body": one.body,
        "path": one.path,
        "createdAt": time(one.created_at),
    }


def _actor(user: User) -> Json:
    # Unlike the REST API, this one names an app's user without the ending.
    return {
        "__typename": "Bot" if user.type == "Bot" else "User",
        "id": node_id("U", user.id),
        "login": user.login.removesuffix("[bot]"),
        "databaseId": user.id,
    }


def _connection(name: str, items: Sequence[Any], show: Callable[[Any], Json]) -> Callable[..., Json]:
    def resolve(
        info: Any,
        first: int | None = None,
        last: int | None = None,
        after: str | None = None,
        before: str | None = None,
        **_: Any,
    ) -> Json:
        size = first if first is not None else last
        if size is None:
            raise _Problem(
                "MISSING_PAGINATION_BOUNDARIES",
                f"You must provide a `first` or `last` value to properly paginate the `{name}` connection.",
            )
        if not 1 <= size <= _PAGE:
            raise _Problem(
                "EXCESSIVE_PAGINATION",
                f"Requesting {size} records on the `{name}` connection exceeds the `first` limit of {_PAGE} records.",
            )
        start = int(after) if after else 0
        stop = int(before) - 1 if before else len(items)
        if first is not None:
            stop = min(stop, start + first)
        else:
            start = max(start, stop - size)
        return {
            "nodes": [show(one) for one in items[start:stop]],
            "totalCount": len(items),
            "pageInfo": {
                "hasNextPage": stop < len(items),
                "hasPreviousPage": start > 0,
                "startCursor": str(start + 1) if stop > start else None,
                "endCursor": str(stop) if stop > start else None,
            },
        }

    return resolve
