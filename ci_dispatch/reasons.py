"""Why the gate, the workflow and the merge answer as they do: a reason as data, and its sentence in English."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ci_dispatch.model import Frozen


class Why(StrEnum):
    """Each names a template; `Reason.data` fills it."""

    # It qualifies.
    APPROVED = "approved"
    SAID_IN_REVIEW = "said_in_review"
    SAID_IN_COMMENT = "said_in_comment"
    COMMANDED = "commanded"
    PRESSED = "pressed"
    OWN_VERDICT = "own_verdict"
    # It does not, whoever says so.
    CONFLICT = "conflict"
    CHANGES_REQUESTED = "changes_requested"
    BLOCKED = "blocked"
    # It does not yet.
    NOBODY = "nobody"
    NOBODY_FOR_FORK = "nobody_for_fork"
    # Somebody's word that does not count.
    AUTHOR = "author"
    OURSELVES = "ourselves"
    BOT = "bot"
    NO_PERMISSION = "no_permission"
    FORK = "fork"
    STALE_REVIEW = "stale_review"
    STALE_BUTTON = "stale_button"
    DISMISSED = "dismissed"
    PHRASE_WANTED = "phrase_wanted"
    NOT_ALONE = "not_alone"
    EDITED = "edited"
    BEFORE_PUSH = "before_push"
    PUSH_UNKNOWN = "push_unknown"
    NOT_ALLOWED = "not_allowed"
    # Beside a qualification.
    BLOCKED_WARNING = "blocked_warning"
    # The forge's own workflow.
    RUN_ACTIVE = "run_active"
    RUN_SUCCESSFUL = "run_successful"
    RUN_WAITS = "run_waits"
    RUN_FAILED = "run_failed"
    RUN_NONE = "run_none"
    RUN_TOO_OLD = "run_too_old"
    RUN_BROKEN = "run_broken"
    # The merge.
    MERGE_READY = "merge_ready"
    MERGE_OFF = "merge_off"
    MERGE_CLOSED = "merge_closed"
    MERGE_DRAFT = "merge_draft"
    MERGE_UNQUALIFIED = "merge_unqualified"
    MERGE_NOTHING_REQUIRED = "merge_nothing_required"
    MERGE_FAILED = "merge_failed"
    MERGE_WAITS = "merge_waits"
    MERGE_BASE_MOVED = "merge_base_moved"
    MERGE_UNKNOWN = "merge_unknown"
    MERGE_HEAD_MOVED = "merge_head_moved"
    MERGE_REFUSED = "merge_refused"


class Reason(Frozen):
    """One answer. Names in `data` are those of the template; commits in it are 12 characters long."""

    why: Why
    data: Mapping[str, str] = {}


def give(why: Why, **data: object) -> Reason:
    return Reason(why=why, data={name: str(value) for name, value in data.items()})


def sentence(reason: Reason) -> str:
    """The reason in plain English. Not escaped: who renders it into Markdown or HTML does that."""
    return SENTENCES[reason.why].format_map(reason.data)


def short(sha: str) -> str:
    return sha[:12]


SENTENCES: Mapping[Why, str] = {
    Why.APPROVED: "{login} approved {head} (review {id}).",
    # Without the phrase itself, which nothing of ours may say.
    Why.SAID_IN_REVIEW: "{login} said the phrase in a review of {head} (review {id}).",
    Why.SAID_IN_COMMENT: "{login} said the phrase after {head} was pushed (comment {id}).",
    Why.COMMANDED: "{login} commanded /ci run after {head} was pushed (comment {id}).",
    Why.PRESSED: "{login} pressed the button on a check of {head}.",
    Why.OWN_VERDICT: "Our own review of {head} is LGTM, and the policy trusts {login}.",
    Why.CONFLICT: "{head} conflicts with its base; rebase it or merge the base, then approve the new head.",
    Why.CHANGES_REQUESTED: "{login} requests changes (review {id}, of {commit}); that holds until {login} approves or "
    "the review is dismissed.",
    Why.BLOCKED: "Our review of {head} is BLOCKED; fix or dismiss its blockers, or set ci.gate.blocked: warn.",
    Why.NOBODY: 'Nobody with write permission has approved {head} or said "{phrase}" since it was pushed.',
    Why.NOBODY_FOR_FORK: "{head} comes from a fork: someone with write permission must approve it or say "
    '"{phrase}", for each commit anew.',
    Why.AUTHOR: "{login} is the author of the pull request, whose own word does not count.",
    Why.OURSELVES: "What {login} writes does not count, as that is ourselves; our stored verdict does where the "
    "policy trusts {login}.",
    Why.BOT: "{login} is a bot that ci.gate.trusted does not name.",
    Why.NO_PERMISSION: "{login} has no write permission in the repository and is not named in ci.gate.trusted.",
    Why.FORK: "{login} is trusted, but {head} comes from a fork: it takes a person with write permission.",
    Why.STALE_REVIEW: "{login} reviewed {commit} (review {id}), and the head is {head} now; review it again.",
    Why.STALE_BUTTON: "{login} pressed the button on a check of {commit}, and the head is {head} now.",
    Why.DISMISSED: "The review of {head} by {login} was dismissed (review {id}).",
    Why.PHRASE_WANTED: '{login} approved {head} (review {id}); the policy asks for the words "{phrase}" too.',
    Why.NOT_ALONE: '{login} wrote "{phrase}" with other words on the line, or quoted, or as code ({kind} {id}); it '
    "must stand alone on a line.",
    Why.EDITED: "The {kind} {id} of {login} was edited, and anyone with write permission can edit it; say it anew.",
    Why.BEFORE_PUSH: "The comment {id} of {login} is not later than the push of {head}; say it again.",
    Why.PUSH_UNKNOWN: "When {head} was pushed is not known, so that the comment {id} of {login} does not count; "
    "review the commit instead.",
    Why.NOT_ALLOWED: "{login} may not start CI here.",
    Why.BLOCKED_WARNING: "Our review of {head} is BLOCKED; the policy only warns of that.",
    Why.RUN_ACTIVE: "{workflow} is under way for {head} (run {id}).",
    Why.RUN_SUCCESSFUL: "{workflow} has passed for {head} (run {id}).",
    Why.RUN_WAITS: "{workflow} waits for approval for {head} (run {id}).",
    Why.RUN_FAILED: "{workflow} ended as {conclusion} for {head} (run {id}).",
    Why.RUN_NONE: "There is no run of {workflow} for {head}. Close and reopen the pull request to get one; a push "
    "gets one too, but voids the approval.",
    Why.RUN_TOO_OLD: "The run {id} of {workflow} for {head} is more than {days} days old and cannot be run again. "
    "Close and reopen the pull request to get a new one; a push gets one too, but voids the approval.",
    Why.RUN_BROKEN: "The run {id} of {workflow} for {head} did not start and cannot be run again; its file is "
    "wrong. Push a repair.",
    Why.MERGE_READY: "Everything that is required has passed for {head}.",
    Why.MERGE_OFF: "The policy leaves merging to people (ci.merge.automatic).",
    Why.MERGE_CLOSED: "The pull request is closed.",
    Why.MERGE_DRAFT: "The pull request is a draft.",
    Why.MERGE_UNQUALIFIED: "{head} is not qualified: {reason}",
    Why.MERGE_NOTHING_REQUIRED: "Nothing is required of {head}, so that nothing speaks for it; mark a job as "
    "required.",
    Why.MERGE_FAILED: "{job} did not pass for {head}: {outcome}.",
    Why.MERGE_WAITS: "{job} has no result for {head} yet.",
    Why.MERGE_BASE_MOVED: "{job} was run on the merge into {tested}, and the base is {base} now; run it again.",
    Why.MERGE_UNKNOWN: "Whether {head} conflicts with its base is not known yet.",
    Why.MERGE_HEAD_MOVED: "The head is no longer {head}; nothing was merged.",
    Why.MERGE_REFUSED: "The forge refuses to merge {head}: {problem}",
}
