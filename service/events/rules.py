"""From a delivery to what it asks for: every rule of when the service acts, and on whose word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ci_dispatch.policy import CiPolicy
from ci_dispatch.said import says_phrase
from reviewer.policy import POLICY_FILE
from service.events.commands import parse_commands
from service.events.intents import (
    ButtonPressed,
    ChecksEnded,
    DraftChanged,
    HeadChanged,
    Ignored,
    InstallationChanged,
    Intent,
    PhraseSaid,
    PolicyChanged,
    PullClosed,
    Reason,
    Recheck,
    ReviewDismissed,
    ReviewRequested,
    ReviewSubmitted,
    RunCommand,
)
from service.events.payloads import (
    App,
    CheckButton,
    CheckRunEvent,
    CheckSuiteEvent,
    CommentObject,
    InstallationEvent,
    InstallationRepositories,
    InstalledRepository,
    IssueCommentEvent,
    Label,
    Payload,
    Ping,
    Pull,
    PullEdited,
    PullEvent,
    PullLabeled,
    PullPushed,
    PullReference,
    PushEvent,
    Repository,
    ReviewCommentEvent,
    ReviewEvent,
    Unused,
)
from service.events.policy import ServicePolicy
from service.forge.base import User

_BRANCH = "refs/heads/"
_COMMITS_IN_PUSH = 2048


@dataclass(frozen=True, slots=True)
class Context:
    """Who we are (`app_id` with App authentication only), and the policy in force on the pull request.

    `ci` is None where the policy has not been read yet: any comment may then be the phrase.
    """

    me: str
    app_id: int | None = None
    policy: ServicePolicy = field(default_factory=ServicePolicy)
    ci: CiPolicy | None = field(default_factory=CiPolicy)

    def is_me(self, user: User) -> bool:
        return user.login.casefold() == self.me.casefold()


def decide(payload: Payload, context: Context) -> tuple[Intent, ...]:
    """What a delivery asks for, in order; never nothing, as `Ignored` says why."""
    match payload:
        case Unused(event=event, action=action):
            return (Ignored(reason=f"nothing depends on {event} {action}".rstrip()),)
        case Ping():
            return (Ignored(reason="ping"),)
        case PullEvent():
            return _pull(payload, context)
        case ReviewEvent():
            return (_review(payload, context),)
        case IssueCommentEvent():
            if payload.issue.pull_request is None:
                return (Ignored(reason="a comment on an issue"),)
            return _comment(payload, payload.issue.number, payload.comment, context, inline=False)
        case ReviewCommentEvent():
            return _comment(payload, payload.pull_request.number, payload.comment, context, inline=True)
        case CheckRunEvent():
            return (_check_run(payload, context),)
        case CheckSuiteEvent():
            return (_check_suite(payload, context),)
        case PushEvent():
            return (_push(payload),)
        case InstallationEvent() | InstallationRepositories():
            return (_installation(payload),)
    raise TypeError(f"no rule for {type(payload).__name__}")


def _pull(payload: PullEvent, context: Context) -> tuple[Intent, ...]:
    repo, number, sha = payload.repo, payload.pull_request.number, payload.pull_request.head.sha

    def request(reason: Reason, *, debounce: bool = False) -> Intent:
        if why := _left_alone(payload.pull_request, context.policy):
            return Ignored(reason=why)
        return ReviewRequested(repo=repo, number=number, head_sha=sha, reason=reason, debounce=debounce)

    head = HeadChanged(repo=repo, number=number, head_sha=sha, at=payload.pull_request.updated_at)
    match payload.action:
        case "opened":
            return head, request("opened")
        case "reopened":
            return head, request("reopened")
        case "ready_for_review":
            return DraftChanged(repo=repo, number=number, draft=False), request("ready")
        case "converted_to_draft":
            return (DraftChanged(repo=repo, number=number, draft=True),)
        case "closed":
            return (PullClosed(repo=repo, number=number, merged=bool(payload.pull_request.merged)),)
    match payload:
        case PullPushed(before=before):
            return head.model_copy(update={"supersedes": before}), request("pushed", debounce=True)
        case PullEdited():
            if payload.changes.base is None:
                return (Ignored(reason="the base is the same as before"),)
            # Who changes the base often pushes a rebase right after.
            return (request("base_changed", debounce=True),)
        case PullLabeled():
            return (_label(payload, context, request),)
    raise TypeError(f"no rule for pull_request {payload.action}")


def _label(payload: PullLabeled, context: Context, request: Callable[[Reason], Intent]) -> Intent:
    """Only people's labels count: ours say verdicts, and those of other bots could make a circle with ours."""
    by, triggers = payload.sender.user, context.policy.triggers
    if by.is_bot or context.is_me(by):
        return Ignored(reason=f"{by.login} is a bot: its labels ask for nothing")
    if payload.action == "unlabeled":
        if _among((payload.label,), triggers.skip_labels):
            return request("unlabeled")
        return Ignored(reason="the label held no review back")
    if not _among((payload.label,), triggers.labels):
        return Ignored(reason="the label asks for nothing")
    pull = payload.pull_request
    if pull.state != "open":
        return Ignored(reason="the pull request is closed")
    return ReviewRequested(repo=payload.repo, number=pull.number, head_sha=pull.head.sha, reason="labeled")


def _left_alone(pull: Pull, policy: ServicePolicy) -> str:
    """Why a pull request is not reviewed unasked; "" where it is."""
    triggers = policy.triggers
    if pull.state != "open":
        return "the pull request is closed"
    if not triggers.automatic:
        return "policy: reviews are started by command or label"
    if pull.draft and not triggers.drafts:
        return "policy: drafts wait until they are ready"
    if pull.user.user.is_bot and not triggers.bots:
        return "policy: pull requests of bots are left alone"
    if label := _among(pull.labels, triggers.skip_labels):
        return f"policy: the label {label!r} holds reviews back"
    return ""


def _among(labels: Sequence[Label], names: Sequence[str]) -> str:
    """The first label whose name is one of `names`, as forges compare them: whatever the case."""
    known = {name.casefold() for name in names}
    return next((label.name for label in labels if label.name.casefold() in known), "")


def _review(payload: ReviewEvent, context: Context) -> Intent:
    review, author = payload.review, payload.review.user.user
    if context.is_me(author):
        return Ignored(reason="our own review")
    if payload.action == "edited":
        return Ignored(reason="an edited review says nothing new")
    if payload.action == "dismissed":
        return ReviewDismissed(
            repo=payload.repo,
            number=payload.pull_request.number,
            review_id=review.id,
            author=author,
            commit=review.commit_id,
        )
    return ReviewSubmitted(
        repo=payload.repo,
        number=payload.pull_request.number,
        review_id=review.id,
        author=author,
        state=review.state,
        commit=review.commit_id,
    )


def _comment(
    payload: IssueCommentEvent | ReviewCommentEvent,
    number: int,
    comment: CommentObject,
    context: Context,
    *,
    inline: bool,
) -> tuple[Intent, ...]:
    """Only a comment's author's own words at its creation count: maintainers can edit the comments of others."""
    author = comment.user.user
    if payload.action != "created":
        return (Ignored(reason=f"a comment {payload.action} runs no command"),)
    if context.is_me(author) or _is_ours(comment.performed_via_github_app, context):
        return (Ignored(reason="our own comment"),)
    said = () if inline else _phrase(payload.repo, number, comment, context)
    for one in (author, payload.sender.user):
        if one.is_bot:
            return said or (Ignored(reason=f"{one.login} is a bot: it commands nothing"),)
    commands = tuple(
        RunCommand(
            repo=payload.repo,
            number=number,
            comment_id=comment.id,
            inline=inline,
            index=index,
            author=author,
            command=command,
        )
        for index, command in enumerate(parse_commands(comment.body or ""))
    )
    return (*commands, *said) or (Ignored(reason="a comment without commands"),)


def _phrase(repo: str, number: int, comment: CommentObject, context: Context) -> tuple[PhraseSaid, ...]:
    ci = context.ci
    if ci is not None and (ci.mode == "off" or not says_phrase(comment.body or "", ci.gate.phrase)):
        return ()
    return (PhraseSaid(repo=repo, number=number, comment_id=comment.id, author=comment.user.user),)


def _check_run(payload: CheckRunEvent, context: Context) -> Intent:
    check, by = payload.check_run, payload.sender.user
    if why := _not_pressed(check.app, by, context):
        return Ignored(reason=why)
    pulls = _pulls(check.pull_requests, payload.repository)
    if isinstance(payload, CheckButton):
        return ButtonPressed(
            repo=payload.repo,
            head_sha=check.head_sha,
            check_run_id=check.id,
            name=check.name,
            identifier=payload.requested_action.identifier,
            pulls=pulls,
            by=by,
        )
    return Recheck(
        repo=payload.repo, head_sha=check.head_sha, check_run_id=check.id, name=check.name, pulls=pulls, by=by
    )


def _check_suite(payload: CheckSuiteEvent, context: Context) -> Intent:
    suite, by = payload.check_suite, payload.sender.user
    if payload.action == "requested":
        return Ignored(reason="a new check suite: the pull request's own event starts its review")
    if payload.action == "completed":
        if _is_ours(suite.app, context):
            return Ignored(reason="our own checks")
        return ChecksEnded(repo=payload.repo, head_sha=suite.head_sha)
    if why := _not_pressed(suite.app, by, context):
        return Ignored(reason=why)
    return Recheck(
        repo=payload.repo,
        head_sha=suite.head_sha,
        check_run_id=None,
        name="",
        pulls=_pulls(suite.pull_requests, payload.repository),
        by=by,
    )


def _not_pressed(app: App | None, by: User, context: Context) -> str:
    """Why this is not a person's press of a button of ours; "" where it is."""
    if not _is_ours(app, context):
        return "another app's check"
    if by.is_bot or context.is_me(by):
        return f"{by.login} is a bot: it asks for no check"
    return ""


def _is_ours(app: App | None, context: Context) -> bool:
    return app is not None and app.id == context.app_id


def _pulls(references: Sequence[PullReference], repository: Repository) -> tuple[int, ...]:
    """Numbers of the pull requests of this repository: GitHub also lists those that its branch has elsewhere."""
    return tuple(one.number for one in references if one.base.repo.id == repository.id)


def _push(payload: PushEvent) -> Intent:
    if not payload.ref.startswith(_BRANCH) or payload.deleted:
        return Ignored(reason="no branch was pushed to")
    touched = {path for one in payload.commits for path in (*one.added, *one.modified, *one.removed)}
    # A force push also takes commits away, and a long list may have lost its oldest.
    if POLICY_FILE in touched or payload.forced or len(payload.commits) >= _COMMITS_IN_PUSH:
        branch = payload.ref.removeprefix(_BRANCH)
        default = branch == payload.repository.default_branch
        return PolicyChanged(repo=payload.repository.full_name, branch=branch, default=default)
    return Ignored(reason=f"the push leaves {POLICY_FILE} as it was")


def _installation(payload: InstallationEvent | InstallationRepositories) -> Intent:
    added: Sequence[InstalledRepository]
    removed: Sequence[InstalledRepository] = ()
    active = True
    if isinstance(payload, InstallationRepositories):
        added, removed = payload.repositories_added, payload.repositories_removed
    elif payload.action in ("deleted", "suspend"):
        added, removed, active = (), payload.repositories, False
    else:
        added = payload.repositories
    return InstallationChanged(
        installation_id=payload.installation.id,
        active=active,
        added=tuple(one.full_name for one in added),
        removed=tuple(one.full_name for one in removed),
    )
