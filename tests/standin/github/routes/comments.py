"""Comments on the conversation, and their reactions."""

from __future__ import annotations

from tests.standin.github.actions import comments as actions
from tests.standin.github.answer import Answer, Refused, not_found
from tests.standin.github.render import base, pulls
from tests.standin.github.routing import Call, route

_REPO = "/repos/{owner}/{repo}"
_COMMENT = f"{_REPO}/issues/comments/{{comment_id}}"
_READ = ("issues:read", "pull_requests:read")
_WRITE = ("issues:write", "pull_requests:write")


@route(f"GET {_REPO}/issues/{{issue_number}}/comments", *_READ)
def list_comments(call: Call) -> Answer:
    pull = call.pull()
    after = call.since()
    found = [one for one in pull.comments if after is None or one.updated_at >= after]
    return call.page(found, lambda one: pulls.comment(call.world, pull, one))


@route(f"GET {_REPO}/issues/comments", *_READ)
def list_comments_of_repo(call: Call) -> Answer:
    after = call.since()
    found = [
        (pull, one)
        for pull in call.repo().pulls.values()
        for one in pull.comments
        if after is None or one.updated_at >= after
    ]
    by_change = call.query.get("sort") == "updated"
    found.sort(key=lambda both: both[1].updated_at if by_change else both[1].created_at)
    if call.query.get("direction") == "desc":
        found.reverse()
    return call.page(found, lambda both: pulls.comment(call.world, *both))


@route(f"POST {_REPO}/issues/{{issue_number}}/comments", *_WRITE)
def create_comment(call: Call) -> Answer:
    pull = call.pull()
    body = call.text_field("body", "IssueComment")
    made = actions.create(call.world, pull, call.sender(), body, app=call.actor.app, seen=False)
    return Answer(201, pulls.comment(call.world, pull, made), {"Location": f"{call.url}/{made.id}"})


@route(f"GET {_COMMENT}", *_READ)
def get_comment(call: Call) -> Answer:
    pull, comment = call.issue_comment()
    return Answer(200, pulls.comment(call.world, pull, comment))


@route(f"PATCH {_COMMENT}", *_WRITE)
def edit_comment(call: Call) -> Answer:
    pull, comment = call.issue_comment()
    _own(call, comment.user is call.sender())
    body = call.text_field("body", "IssueComment")
    actions.edit(call.world, pull, comment, call.sender(), body, seen=False)
    return Answer(200, pulls.comment(call.world, pull, comment))


@route(f"DELETE {_COMMENT}", *_WRITE)
def delete_comment(call: Call) -> Answer:
    pull, comment = call.issue_comment()
    _own(call, comment.user is call.sender())
    actions.delete(call.world, pull, comment, call.sender())
    return Answer(204)


@route(f"GET {_COMMENT}/reactions", *_READ)
def list_reactions(call: Call) -> Answer:
    _, comment = call.issue_comment()
    return call.page(comment.reactions, lambda one: base.reaction(call.world, one))


@route(f"POST {_COMMENT}/reactions", *_WRITE)
def react(call: Call) -> Answer:
    _, comment = call.issue_comment()
    if call.body.get("content") not in base.REACTIONS:
        raise Refused(422, "Invalid request.\n\nInvalid value for content")
    made, new = actions.react(call.world, comment.reactions, call.sender(), call.body["content"])
    return Answer(201 if new else 200, base.reaction(call.world, made))


@route(f"DELETE {_COMMENT}/reactions/{{reaction_id}}", *_WRITE)
def unreact(call: Call) -> Answer:
    _, comment = call.issue_comment()
    wanted = call.integer(call.params["reaction_id"])
    found = next((one for one in comment.reactions if one.id == wanted), None)
    if found is None:
        raise not_found()
    comment.reactions.remove(found)
    return Answer(204)


def _own(call: Call, own: bool) -> None:
    """Others' words are changed by those who may write, and not by apps."""
    if not own and (call.actor.installation or not call.actor.has_role(call.repo(), "write")):
        raise Refused(403, "Must have admin rights to Repository.")
