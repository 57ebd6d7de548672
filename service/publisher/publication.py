"""From a round report to its effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reviewer.diff import Diff
from reviewer.model import Language, Outcome, RoundReport, State
from reviewer.redact import redact
from reviewer.report import check_run, inline_comments, render_review, render_round
from reviewer.report.escape import FORBIDDEN_PHRASES, block, guard
from reviewer.report.limit import COMMENT_LIMIT, clip
from reviewer.report.redacted import redacted
from reviewer.report.shown import place_of
from service.forge.base import Button, Check, PullState
from service.publisher.effects import (
    CHECK_NAME,
    CheckPost,
    Effect,
    Labels,
    PlacedComment,
    ResolveThreads,
    ReviewPost,
    RoundComment,
    RoundId,
)
from service.publisher.text import load_text

FULL_REVIEW = "review_full"
"""The identifier of the button that asks for a full review."""

# A review may later have to hold comments that found no place, and the note that it is superseded.
_REVIEW_RESERVE = 6_000
# A check's summary takes one character less than a comment.
_SUMMARY_LIMIT = COMMENT_LIMIT - 1
_BUTTONS = 3


@dataclass(frozen=True, slots=True)
class Posting:
    """What policy and server say about posting.

    `phrase` is said by LGTM reviews of models, "" for never; `forbidden` ones appear nowhere else. `labels` name the
    label of each verdict that has one. `blob_url` is what stands before `/<commit>/<path>`; `details_url` is where
    the check links to; `buttons` come after the check's own.
    """

    blocked_event: Literal["COMMENT", "REQUEST_CHANGES"] = "COMMENT"
    phrase: str = ""
    forbidden: tuple[str, ...] = FORBIDDEN_PHRASES
    labels: Mapping[Outcome, str] = field(default_factory=dict)
    blob_url: str = ""
    details_url: str = ""
    buttons: tuple[Button, ...] = ()


def effects_of(report: RoundReport, diff: Diff, pull: PullState, posting: Posting) -> tuple[Effect, ...]:
    """All that this round makes stand, in the order in which it is best brought about.

    The same report gives the same effects, so that nothing is posted for it again.
    """
    report = redacted(report.model_copy(update={"fates": ()}))
    outcome, head = report.verdict.outcome, report.pull.head_sha
    this_round = RoundId(repo=pull.repo, number=pull.number, head_sha=head, round_index=report.round_index)
    effects: list[Effect] = [
        RoundComment(
            repo=pull.repo,
            number=pull.number,
            body=render_round(report, blob_url=posting.blob_url, forbidden=posting.forbidden),
        ),
        ReviewPost(
            round=this_round,
            language=report.language,
            body=render_review(
                report,
                diff,
                phrase=posting.phrase,
                blob_url=posting.blob_url,
                forbidden=posting.forbidden,
                limit=COMMENT_LIMIT - _REVIEW_RESERVE,
            ),
            event=posting.blocked_event if outcome is Outcome.BLOCKED else "COMMENT",
            comments=_comments(report, diff, posting),
            dismiss=outcome is Outcome.LGTM,
        ),
        CheckPost(repo=pull.repo, check=_check(report, diff, posting)),
        ResolveThreads(
            round=this_round,
            fixed=tuple(one.id for one in report.closed if one.state is State.FIXED),
            still_open=tuple(
                one.id for one in (*report.blocking, *report.non_blocking) if one.state is State.OPEN
            ),
        ),
    ]
    if posting.labels:
        label = posting.labels.get(outcome)
        effects.append(
            Labels(
                repo=pull.repo,
                number=pull.number,
                add=(label,) if label else (),
                remove=tuple(name for name in posting.labels.values() if name != label),
            )
        )
    return tuple(effects)


def check_started(repo: str, head_sha: str, posting: Posting, language: Language) -> CheckPost:
    """The check while the round runs. Whoever sends it owes one of the others, whatever happens."""
    text = load_text(language)
    return CheckPost(
        repo=repo,
        check=Check(
            name=CHECK_NAME,
            head_sha=head_sha,
            status="in_progress",
            title=text("started_title"),
            summary=text("started_summary"),
            details_url=posting.details_url,
        ),
    )


def check_ended(
    repo: str,
    head_sha: str,
    posting: Posting,
    language: Language,
    reason: str = "",
) -> CheckPost:
    """The check of a round that gave no verdict: superseded by a newer head, or failed for `reason`."""
    text = load_text(language)
    title = text("failed_title" if reason else "superseded_title")
    return CheckPost(
        repo=repo,
        check=Check(
            name=CHECK_NAME,
            head_sha=head_sha,
            status="completed",
            conclusion="action_required" if reason else "cancelled",
            title=title,
            summary=guard(block(redact(reason)), posting.forbidden) or title,
            buttons=_buttons(posting, language) if reason else (),
            details_url=posting.details_url,
        ),
    )


def _comments(report: RoundReport, diff: Diff, posting: Posting) -> tuple[PlacedComment, ...]:
    places = {one.id: place_of(one) for one in (*report.blocking, *report.non_blocking)}
    return tuple(
        PlacedComment(comment=comment, place=places[comment.finding_id])
        for comment in inline_comments(report, diff, forbidden=posting.forbidden)
    )


def _check(report: RoundReport, diff: Diff, posting: Posting) -> Check:
    run = check_run(report, diff, forbidden=posting.forbidden)
    return Check(
        name=CHECK_NAME,
        head_sha=report.pull.head_sha,
        status="completed",
        conclusion=run.conclusion,
        title=run.title,
        summary=render_round(
            report, blob_url=posting.blob_url, forbidden=posting.forbidden, limit=_SUMMARY_LIMIT
        ),
        annotations=tuple(one for batch in run.batches for one in batch),
        buttons=_buttons(posting, report.language),
        details_url=posting.details_url,
    )


def _buttons(posting: Posting, language: Language) -> tuple[Button, ...]:
    text = load_text(language)
    full = Button(text("full_label"), text("full_description"), FULL_REVIEW)
    return tuple(
        Button(clip(one.label, 20), clip(one.description, 40), one.identifier)
        for one in (full, *posting.buttons)[:_BUTTONS]
    )
