"""Who may start GPU CI: whether a pull request qualifies for its head, on whose word, and why not.

Pure. The service hands over what it saw, the permissions as they are now, and the policy of the default branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from ci_dispatch.model import Frozen
from ci_dispatch.policy import GatePolicy
from ci_dispatch.reasons import Reason, Why, give, short
from ci_dispatch.said import says_phrase
from ci_dispatch.seen import Case, CommentSeen, GoSeen, PushSeen, ReviewSeen, ReviewState, StoredVerdict

__all__ = [
    "Case",
    "CommentSeen",
    "Decision",
    "GoSeen",
    "Ground",
    "PushSeen",
    "ReviewSeen",
    "ReviewState",
    "StoredVerdict",
    "decide",
    "people",
    "pushed_at",
]

MAX_NOTES = 10


class Ground(StrEnum):
    """What qualified it."""

    APPROVAL = "approval"
    REVIEW = "review"
    COMMENT = "comment"
    COMMAND = "command"
    BUTTON = "button"
    VERDICT = "verdict"


class Decision(Frozen):
    """The gate's answer for one head. `login` and `ground` say whose word qualified it, `id` which review or comment
    (0: none). `notes` are warnings, or words that did not count, the newest first."""

    qualified: bool
    head_sha: str
    reason: Reason
    login: str = ""
    ground: Ground | None = None
    id: int = 0
    notes: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class _Claim:
    """Somebody's word for the head. `flaw` is what is wrong with the word itself, `reason` what it says otherwise."""

    login: str
    is_bot: bool
    at: datetime
    ground: Ground
    id: int
    reason: Reason
    flaw: Reason | None


def decide(case: Case, policy: GatePolicy) -> Decision:
    """Whether the head qualifies, with the reason. The order in which things are listed does not matter."""
    stops = list(_stops(case, policy))
    if stops:
        return Decision(
            qualified=False, head_sha=case.head_sha, reason=stops[0], notes=tuple(stops[1:MAX_NOTES])
        )
    head = short(case.head_sha)
    warnings = (give(Why.BLOCKED_WARNING, head=head),) if _verdict(case) == "BLOCKED" else ()
    problems: list[tuple[datetime, int, Reason]] = []
    for claim in _claims(case, policy):
        doubt = _doubt(claim, case, policy)
        problem = doubt or claim.flaw
        if problem is None:
            return Decision(
                qualified=True,
                head_sha=case.head_sha,
                reason=claim.reason,
                login=claim.login,
                ground=claim.ground,
                id=claim.id,
                notes=warnings,
            )
        # How it must be written is of interest to those alone whose word would count.
        if doubt is None or claim.flaw is None or claim.flaw.why is not Why.NOT_ALONE:
            problems.append((claim.at, claim.id, problem))
    newest = [problem for *_, problem in sorted(problems, key=lambda one: one[:2], reverse=True)]
    if not newest:
        newest = [give(Why.NOBODY_FOR_FORK if case.is_fork else Why.NOBODY, head=head, phrase=policy.phrase)]
    notes = (*warnings, *newest[1:])[:MAX_NOTES]
    return Decision(qualified=False, head_sha=case.head_sha, reason=newest[0], notes=notes)


def people(case: Case, policy: GatePolicy) -> frozenset[str]:
    """The logins whose permission the decision depends on: ask for those, put the writers into the case, decide."""
    claiming = (
        claim.login
        for claim in _claims(case, policy)
        if claim.ground not in (Ground.COMMAND, Ground.BUTTON, Ground.VERDICT)
        and not _barred(claim.login, claim.is_bot, case, policy)
    )
    objecting = (
        review.login
        for review in _opinions(case).values()
        if review.state == "CHANGES_REQUESTED" and not _barred(review.login, review.is_bot, case, policy)
    )
    # Who is named is trusted without the permission, save for forks.
    return frozenset(login for login in (*claiming, *objecting) if case.is_fork or not _named(login, policy))


def pushed_at(case: Case) -> datetime | None:
    """When the head became the head, as far as that is certain.

    Our receipt says so, else the forge's check suite. Where another commit is known to have been pushed since, the head
    came back at a time that nobody recorded.
    """
    receipts = [push for push in case.pushes if push.source == "receipt"]
    known = receipts if any(push.sha == case.head_sha for push in receipts) else case.pushes
    ours = [push.at for push in known if push.sha == case.head_sha]
    others = [push.at for push in known if push.sha != case.head_sha]
    if not ours or (others and max(others) >= max(ours)):
        return None
    return max(ours)


# What stops it, whoever says otherwise


def _stops(case: Case, policy: GatePolicy) -> Iterator[Reason]:
    head = short(case.head_sha)
    if case.mergeable is False:
        yield give(Why.CONFLICT, head=head)
    for review in sorted(_opinions(case).values(), key=_order, reverse=True):
        if (
            review.state == "CHANGES_REQUESTED"
            and _distrust(review.login, review.is_bot, case, policy) is None
        ):
            commit = short(review.commit) or "a commit that is gone"
            yield give(Why.CHANGES_REQUESTED, login=review.login, id=review.id, commit=commit)
    if policy.blocked == "stop" and _verdict(case) == "BLOCKED":
        yield give(Why.BLOCKED, head=head)


def _opinions(case: Case, commit: str | None = None) -> dict[str, ReviewSeen]:
    """Each reviewer's newest review, of one commit or of any, that is an opinion. A dismissed one is none any more, but
    neither is what it had replaced; a plain comment leaves the opinion as it was."""
    newest: dict[str, ReviewSeen] = {}
    for review in sorted(case.reviews, key=_order):
        if review.state in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED") and commit in (None, review.commit):
            newest[review.login.casefold()] = review
    return newest


def _order(review: ReviewSeen) -> tuple[datetime, int]:
    return review.submitted_at, review.id


def _verdict(case: Case) -> str:
    """Ours of the head, "" for none."""
    stored = case.verdict
    return stored.verdict if stored is not None and stored.head_sha == case.head_sha else ""


# Whose word counts


def _doubt(claim: _Claim, case: Case, policy: GatePolicy) -> Reason | None:
    """Why this person's word is not enough."""
    head = short(case.head_sha)
    if claim.ground is Ground.VERDICT:
        if _same(claim.login, case.author):
            return give(Why.AUTHOR, login=claim.login)
        return give(Why.FORK, login=claim.login, head=head) if case.is_fork else None
    if claim.ground in (Ground.COMMAND, Ground.BUTTON):
        return _barred(claim.login, claim.is_bot, case, policy)
    distrust = _distrust(claim.login, claim.is_bot, case, policy)
    if (
        distrust is None
        and case.is_fork
        and (_is_bot(claim.login, claim.is_bot) or not _writes(claim.login, case))
    ):
        return give(Why.FORK, login=claim.login, head=head)
    return distrust


def _distrust(login: str, is_bot: bool, case: Case, policy: GatePolicy) -> Reason | None:
    barred = _barred(login, is_bot, case, policy)
    if barred is not None or _named(login, policy) or _writes(login, case):
        return barred
    return give(Why.NO_PERMISSION, login=login)


def _barred(login: str, is_bot: bool, case: Case, policy: GatePolicy) -> Reason | None:
    """Who does not count whatever permission they have."""
    if _same(login, case.me):
        return give(Why.OURSELVES, login=login)
    if _same(login, case.author):
        return give(Why.AUTHOR, login=login)
    if _is_bot(login, is_bot) and not _named(login, policy):
        return give(Why.BOT, login=login)
    return None


def _is_bot(login: str, said: bool) -> bool:
    return said or login.endswith("[bot]")


def _named(login: str, policy: GatePolicy) -> bool:
    return any(_same(login, name) for name in policy.trusted)


def _writes(login: str, case: Case) -> bool:
    return any(_same(login, name) for name in case.writers)


def _same(login: str, other: str) -> bool:
    return login.casefold() == other.casefold()


# What is said


def _claims(case: Case, policy: GatePolicy) -> Iterator[_Claim]:
    """Every word for the pull request, the strongest kind first, the oldest of a kind first."""
    yield from _approvals(case, policy)
    for review in sorted(case.reviews, key=_order):
        if review.state not in ("CHANGES_REQUESTED", "PENDING") and (
            claim := _said_in_review(review, case, policy)
        ):
            yield claim
    for comment in sorted(case.comments, key=lambda one: (one.created_at, one.id)):
        if claim := _said_in_comment(comment, case, policy):
            yield claim
    for go in sorted(case.goes, key=lambda one: (one.created_at, one.comment_id)):
        yield _go(go, case)
    if _verdict(case) == "LGTM" and _named(case.me, policy):
        reason = give(Why.OWN_VERDICT, head=short(case.head_sha), login=case.me)
        yield _Claim(case.me, True, datetime.min.replace(tzinfo=UTC), Ground.VERDICT, 0, reason, None)


def _approvals(case: Case, policy: GatePolicy) -> Iterator[_Claim]:
    here, last = _opinions(case, case.head_sha), _opinions(case)
    for login in sorted({*here, *last}):
        review = here.get(login, last[login])
        data = {"login": review.login, "id": review.id, "head": short(case.head_sha)}
        flaw = None
        if login not in here and review.state == "APPROVED":
            flaw = give(Why.STALE_REVIEW, **data, commit=short(review.commit) or "a commit that is gone")
        elif login in here and review.state == "DISMISSED":
            flaw = give(Why.DISMISSED, **data)
        elif review.state != "APPROVED":
            continue
        elif not policy.approvals:
            flaw = give(Why.PHRASE_WANTED, **data, phrase=policy.phrase)
        reason = give(Why.APPROVED, **data)
        yield _Claim(
            review.login, review.is_bot, review.submitted_at, Ground.APPROVAL, review.id, reason, flaw
        )


def _said_in_review(review: ReviewSeen, case: Case, policy: GatePolicy) -> _Claim | None:
    said = _said(review.body, policy.phrase)
    if said is None:
        return None
    data = {"login": review.login, "id": review.id, "head": short(case.head_sha)}
    flaw = None
    if not said:
        flaw = give(Why.NOT_ALONE, login=review.login, phrase=policy.phrase, kind="review", id=review.id)
    elif review.commit != case.head_sha:
        flaw = give(Why.STALE_REVIEW, **data, commit=short(review.commit) or "a commit that is gone")
    elif review.state not in ("APPROVED", "COMMENTED"):
        flaw = give(Why.DISMISSED, **data)
    elif review.edited:
        flaw = give(Why.EDITED, kind="review", id=review.id, login=review.login)
    reason = give(Why.SAID_IN_REVIEW, **data, phrase=policy.phrase)
    return _Claim(review.login, review.is_bot, review.submitted_at, Ground.REVIEW, review.id, reason, flaw)


def _said_in_comment(comment: CommentSeen, case: Case, policy: GatePolicy) -> _Claim | None:
    said = _said(comment.body, policy.phrase)
    if said is None:
        return None
    if said:
        flaw = _untimely(comment.login, comment.id, comment.created_at, comment.edited, case)
    else:
        flaw = give(Why.NOT_ALONE, login=comment.login, phrase=policy.phrase, kind="comment", id=comment.id)
    head = short(case.head_sha)
    reason = give(Why.SAID_IN_COMMENT, login=comment.login, phrase=policy.phrase, head=head, id=comment.id)
    return _Claim(comment.login, comment.is_bot, comment.created_at, Ground.COMMENT, comment.id, reason, flaw)


def _go(go: GoSeen, case: Case) -> _Claim:
    head = short(case.head_sha)
    pressed = bool(go.commit)
    if not go.allowed:
        flaw: Reason | None = give(Why.NOT_ALLOWED, login=go.login, id=go.comment_id)
    elif not pressed:
        flaw = _untimely(go.login, go.comment_id, go.created_at, go.edited, case)
    elif go.commit != case.head_sha:
        flaw = give(Why.STALE_BUTTON, login=go.login, commit=short(go.commit), head=head)
    else:
        flaw = None
    why, ground = (Why.PRESSED, Ground.BUTTON) if pressed else (Why.COMMANDED, Ground.COMMAND)
    reason = give(why, login=go.login, head=head, id=go.comment_id)
    return _Claim(go.login, False, go.created_at, ground, go.comment_id, reason, flaw)


def _untimely(login: str, comment_id: int, at: datetime, edited: bool, case: Case) -> Reason | None:
    """Why a comment does not speak of the head: comments are about no commit, only later than a push or not."""
    head = short(case.head_sha)
    if edited:
        return give(Why.EDITED, kind="comment", id=comment_id, login=login)
    pushed = pushed_at(case)
    if pushed is None:
        return give(Why.PUSH_UNKNOWN, head=head, id=comment_id, login=login)
    # Strictly: the forge's times are cut to whole seconds, so that an equal one may be earlier.
    return None if at > pushed else give(Why.BEFORE_PUSH, head=head, id=comment_id, login=login)


def _said(body: str, phrase: str) -> bool | None:
    """Whether the phrase stands alone on a line; None where it does not stand there at all."""
    if says_phrase(body, phrase):
        return True
    return False if phrase.casefold() in " ".join(body.casefold().split()) else None
