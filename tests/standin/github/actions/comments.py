"""Comments on the conversation, and reactions."""

from __future__ import annotations

from tests.standin.github.state import App, IssueComment, PullRequest, Reaction, User, World


def create(
    world: World, pull: PullRequest, user: User, body: str, *, app: App | None = None, seen: bool = True
) -> IssueComment:
    now = world.now()
    comment = IssueComment(world.next_id(), now, now, seen, user, body, app)
    pull.comments.append(comment)
    pull.updated_at = now
    world.emit("issue_comment", "created", pull.repo, user, pull, comment)
    return comment


def edit(
    world: World, pull: PullRequest, comment: IssueComment, user: User, body: str, *, seen: bool = True
) -> None:
    changes = {"body": {"from": comment.body}}
    comment.body, comment.updated_at, comment.seen = body, world.now(), seen
    comment.edited_at = comment.updated_at
    world.emit("issue_comment", "edited", pull.repo, user, pull, comment, changes=changes)


def delete(world: World, pull: PullRequest, comment: IssueComment, user: User) -> None:
    pull.comments.remove(comment)
    world.emit("issue_comment", "deleted", pull.repo, user, pull, comment)


def react(world: World, given: list[Reaction], user: User, content: str) -> tuple[Reaction, bool]:
    """The user's reaction of this kind, and whether it is new."""
    for one in given:
        if one.user is user and one.content == content:
            return one, False
    made = Reaction(world.next_id(), user, content, world.now())
    given.append(made)
    return made, True
