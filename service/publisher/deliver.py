"""Brings one effect about, so that doing it twice, or again after dying halfway, is doing it once.

Whatever the service made before is looked for before anything is made: by the id that it noted, else by a hidden
marker in what its own account wrote. A marker that someone else pasted counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from reviewer.report.marker import Kind, marker, read_marker
from service.forge.base import Forge, ForgeError, Thread
from service.publisher.effects import (
    CheckPost,
    CiComment,
    Effect,
    Labels,
    Reaction,
    Reply,
    ResolveThreads,
    ReviewPost,
    RoundComment,
)
from service.publisher.own import first_line, is_own, reply_marker, same_text
from service.publisher.review import post_review, supersede_reviews

_GONE = 404


def deliver(effect: Effect, forge: Forge, external_id: str | None = None) -> str | None:
    """Makes `effect` stand; returns the id of what stands, to be given back next time, or None where it has none.

    Raises `ForgeError`, whose `retry_after` says whether to try again, and `StaleHead` for a review whose head is
    not the pull request's any more.
    """
    match effect:
        case RoundComment():
            return _comment(effect.repo, effect.number, effect.body, _is_marked("round"), forge, external_id)
        case CiComment():
            body = f"{marker('ci', pull=effect.number)}\n{effect.body}"
            return _comment(effect.repo, effect.number, body, _is_marked("ci"), forge, external_id)
        case ReviewPost():
            review_id = post_review(effect, forge, external_id)
            supersede_reviews(effect, forge)
            return review_id
        case CheckPost():
            return _deliver_check(effect, forge)
        case ResolveThreads():
            _resolve_threads(effect, forge)
        case Labels():
            _set_labels(effect, forge)
        case Reply():
            return _reply(effect, forge, external_id)
        case Reaction():
            _react(effect, forge)
        case _:
            assert_never(effect)
    return None


def _comment(
    repo: str,
    number: int,
    body: str,
    is_marked: Callable[[str], bool],
    forge: Forge,
    external_id: str | None,
) -> str:
    """The comment that we noted, else the first of ours that is marked, else a new one, says `body`."""
    me = forge.me(repo)
    own = [one for one in forge.comments(repo, number) if is_own(one.author, me)]
    noted = [one for one in own if str(one.id) == external_id]
    marked = [one for one in own if is_marked(one.body)]
    for comment in (*noted, *marked)[:1]:
        if same_text(comment.body, body) or forge.edit_comment(repo, number, comment.id, body):
            return str(comment.id)
    return str(forge.create_comment(repo, number, body))


def _is_marked(kind: Kind) -> Callable[[str], bool]:
    def is_marked(body: str) -> bool:
        found = read_marker(body)
        return found is not None and found[0] == kind

    return is_marked


def _reply(effect: Reply, forge: Forge, external_id: str | None) -> str:
    mark = reply_marker(effect.to)
    body = f"{mark}\n{effect.body}"
    return _comment(
        effect.repo, effect.number, body, lambda text: first_line(text) == mark, forge, external_id
    )


def _react(effect: Reaction, forge: Forge) -> None:
    try:
        forge.react(effect.repo, effect.number, effect.comment_id, effect.reaction)
    except ForgeError as error:
        # Whoever deleted the comment waits for no answer.
        if error.status != _GONE:
            raise


def _deliver_check(effect: CheckPost, forge: Forge) -> str:
    # The forge knows better than our note which check of this name is the newest: that one counts.
    check_id = forge.find_check(effect.repo, effect.check.head_sha, effect.check.name)
    if check_id is None or not forge.update_check(effect.repo, check_id, effect.check):
        check_id = forge.create_check(effect.repo, effect.check)
    return str(check_id)


def _resolve_threads(effect: ResolveThreads, forge: Forge) -> None:
    repo, number = effect.round.repo, effect.round.number
    me = forge.me(repo)
    fixed, still_open = frozenset(effect.fixed), frozenset(effect.still_open)

    def is_done(thread: Thread) -> bool:
        if thread.resolved or not all(is_own(author, me) or author.is_bot for author, _ in thread.comments):
            return False
        opener, body = thread.comments[0]
        found = read_marker(body)
        if not is_own(opener, me) or found is None or found[0] != "finding":
            return False
        finding = found[1].get("id")
        # An open finding's thread stays open though its lines changed: it is not posted again.
        return finding in fixed or (thread.outdated and finding not in still_open)

    for thread in [one for one in forge.threads(repo, number) if is_done(one)]:
        forge.resolve_thread(repo, thread.id)


def _set_labels(effect: Labels, forge: Forge) -> None:
    has = {name.lower() for name in forge.pull(effect.repo, effect.number).labels}
    add = [name for name in effect.add if name.lower() not in has]
    remove = [name for name in effect.remove if name.lower() in has]
    if add or remove:
        forge.set_labels(effect.repo, effect.number, add, remove)
