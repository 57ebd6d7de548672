"""A forge without a network: pull requests are branches of a local git repository, all else stands in the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import TypeAdapter

from ci_dispatch.native import WorkflowRun
from reviewer.checkout.snapshot import GitCheckout
from reviewer.model import Side
from reviewer.report.inline import InlineComment
from reviewer.report.limit import COMMENT_LIMIT, size
from service.forge import local_tables as tables
from service.forge.base import (
    Check,
    Comment,
    Edited,
    ForgeError,
    PullState,
    Reaction,
    Review,
    ReviewEvent,
    ReviewState,
    Thread,
    User,
)
from service.forge.local_git import refusal, shows, span
from service.forge.local_pulls import LocalPulls, check_body, insert_row, refused, user
from service.store.dialect import insert

_STATES: dict[ReviewEvent, ReviewState] = {
    "COMMENT": "COMMENTED",
    "REQUEST_CHANGES": "CHANGES_REQUESTED",
    "APPROVE": "APPROVED",
}
_CHECK: TypeAdapter[Check] = TypeAdapter(Check)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing said on a pull request. `place` is `path:line`, or the path alone, of an inline comment; `state` is
    a review's, or `resolved` of an inline comment's thread; both are "" elsewhere. `thread` is the id of the inline
    comment that it answers, 0 for none."""

    kind: Literal["comment", "review", "inline"]
    id: int
    author: User
    at: datetime
    body: str
    state: str = ""
    place: str = ""
    thread: int = 0


class LocalForge(LocalPulls):
    """`service.forge.base.Forge`, with what a person needs who has no web page to go to."""

    # Pull requests

    def pulls_of(self, repo: str, sha: str) -> tuple[int, ...]:
        return tuple(pull.number for pull in self.open_pulls(repo) if pull.head_sha == sha)

    def checkout(self, pull: PullState, *, whole: bool = False) -> GitCheckout:
        return self.repository(pull.repo).checkout(pull.base_sha, pull.head_sha)

    def read_file(self, repo: str, ref: str, path: str) -> bytes | None:
        return self.repository(repo).read(ref, path)

    # The conversation

    def comments(self, repo: str, number: int, since: datetime | None = None) -> Iterator[Comment]:
        rows = self._rows(
            tables.comments, repo, number, *([tables.comments.c.updated_at >= since] if since else [])
        )
        return (_comment(row) for row in rows)

    def create_comment(self, repo: str, number: int, body: str) -> int:
        check_body(body)
        now = self._clock()
        with self._database.write() as connection:
            self.pull_row(connection, repo, number)
            return insert_row(
                connection, tables.comments,
                repo=repo, number=number, author=self._login, body=body, created_at=now, updated_at=now,
            )  # fmt: skip

    def edit_comment(self, repo: str, number: int, comment_id: int, body: str) -> bool:
        check_body(body)
        return self._update(tables.comments, comment_id, body=body, updated_at=self._clock())

    def react(self, repo: str, number: int, comment_id: int, reaction: Reaction) -> None:
        values = {"comment_id": comment_id, "author": self._login, "content": reaction}
        with self._database.write() as connection:
            known = sa.select(tables.comments.c.id).where(tables.comments.c.id == comment_id)
            if connection.execute(known).scalar() is None:
                raise ForgeError(f"{repo} has no comment {comment_id}", "", status=404)
            connection.execute(insert(connection, tables.reactions, values).on_conflict_do_nothing())

    # Reviews

    def reviews(self, repo: str, number: int) -> Iterator[Review]:
        return (
            Review(row.id, user(row.author), row.state, row.body, row.commit, row.submitted_at)
            for row in self._rows(tables.reviews, repo, number)
        )

    def create_review(
        self,
        repo: str,
        number: int,
        head_sha: str,
        body: str,
        event: ReviewEvent,
        comments: Sequence[InlineComment],
    ) -> int:
        if body or not comments:
            check_body(body)
        pull = self.pull(repo, number)
        if event != "COMMENT" and pull.author.login.lower() == self._login.lower():
            raise refused(f"{event} on the author's own pull request", "review it with COMMENT")
        self._check_places(pull, head_sha, comments)
        now = self._clock()
        with self._database.write() as connection:
            for comment in comments:
                self._insert_inline(connection, pull, head_sha, comment, now)
            return insert_row(
                connection, tables.reviews,
                repo=repo, number=number, author=self._login, state=_STATES[event], body=body,
                commit=head_sha, submitted_at=now,
            )  # fmt: skip

    def edit_review(self, repo: str, number: int, review_id: int, body: str) -> bool:
        check_body(body)
        with self._database.write() as connection:
            change = sa.update(tables.reviews).where(tables.reviews.c.id == review_id).values(body=body)
            if not connection.execute(change).rowcount:
                return False
            values = {"review_id": review_id}
            connection.execute(insert(connection, tables.edited_reviews, values).on_conflict_do_nothing())
            return True

    def dismiss_review(self, repo: str, number: int, review_id: int, message: str) -> bool:
        return self._update(tables.reviews, review_id, state="DISMISSED")

    def create_review_comment(self, repo: str, number: int, head_sha: str, comment: InlineComment) -> int:
        pull = self.pull(repo, number)
        self._check_places(pull, head_sha, [comment])
        with self._database.write() as connection:
            return self._insert_inline(connection, pull, head_sha, comment, self._clock())

    def review_comments(self, repo: str, number: int) -> Iterator[Comment]:
        return (_comment(row) for row in self._rows(tables.inline, repo, number))

    def threads(self, repo: str, number: int) -> Iterator[Thread]:
        pull = self.pull(repo, number)
        rows = self._rows(tables.inline, repo, number)
        for opener in (row for row in rows if not row.thread):
            said = [opener, *(row for row in rows if row.thread == opener.id)]
            yield Thread(
                id=str(opener.id),
                resolved=opener.resolved,
                outdated=self._outdated(pull, opener),
                comments=tuple((user(row.author), row.body) for row in said),
            )

    def resolve_thread(self, repo: str, thread_id: str) -> None:
        if not thread_id.isdecimal() or not self._update(tables.inline, int(thread_id), resolved=True):
            raise ForgeError(f"{repo} has no thread {thread_id}", "list the threads again", status=404)

    def set_labels(self, repo: str, number: int, add: Sequence[str], remove: Sequence[str]) -> None:
        with self._database.write() as connection:
            row = self.pull_row(connection, repo, number)
            kept = [name for name in row.labels if name not in remove and name not in add]
            change = sa.update(tables.pulls).where(tables.pulls.c.id == row.id).values(labels=[*kept, *add])
            connection.execute(change)

    def reactions(self, repo: str, number: int, comment_id: int) -> tuple[tuple[str, User], ...]:
        """What was said to a comment without words, and by whom."""
        wanted = sa.select(tables.reactions).where(tables.reactions.c.comment_id == comment_id)
        with self._database.read() as connection:
            rows = connection.execute(wanted.order_by(tables.reactions.c.id))
            return tuple((row.content, user(row.author)) for row in rows)

    def reply(self, repo: str, number: int, thread_id: str, body: str) -> int:
        """Answers in a thread of inline comments."""
        check_body(body)
        openers = [row for row in self._rows(tables.inline, repo, number) if not row.thread]
        opener = next((row for row in openers if str(row.id) == thread_id), None)
        if opener is None:
            raise ForgeError(
                f"{repo}#{number} has no thread {thread_id}", "list the threads again", status=404
            )
        now = self._clock()
        said = {
            "thread": opener.id,
            "author": self._login,
            "body": body,
            "created_at": now,
            "updated_at": now,
        }
        kept = {name: value for name, value in opener._mapping.items() if name != "id"}
        with self._database.write() as connection:
            return insert_row(connection, tables.inline, **{**kept, **said})

    def delete_comment(self, repo: str, number: int, comment_id: int) -> bool:
        return self._delete(tables.comments, comment_id)

    def delete_review_comment(self, repo: str, number: int, comment_id: int) -> bool:
        return self._delete(tables.inline, comment_id)

    def conversation(self, repo: str, number: int) -> tuple[Entry, ...]:
        """All that was said on a pull request, the oldest first."""
        entries = [
            Entry("comment", row.id, user(row.author), row.created_at, row.body)
            for row in self._rows(tables.comments, repo, number)
        ]
        entries += [
            Entry("review", row.id, user(row.author), row.submitted_at, row.body, row.state)
            for row in self._rows(tables.reviews, repo, number)
        ]
        entries += [
            Entry(
                "inline",
                row.id,
                user(row.author),
                row.created_at,
                row.body,
                "resolved" if row.resolved else "",
                f"{row.path}:{row.line}" if row.line else row.path,
                row.thread,
            )
            for row in self._rows(tables.inline, repo, number)
        ]
        return tuple(sorted(entries, key=lambda entry: entry.at))

    # Checks

    def find_check(self, repo: str, head_sha: str, name: str) -> int | None:
        wanted = (
            tables.checks.c.repo == repo,
            tables.checks.c.head_sha == head_sha,
            tables.checks.c.name == name,
            tables.checks.c.author == self._login,
        )
        newest = sa.select(sa.func.max(tables.checks.c.id)).where(*wanted)
        with self._database.read() as connection:
            found: int | None = connection.execute(newest).scalar()
        return found

    def create_check(self, repo: str, check: Check) -> int:
        _check_check(check)
        with self._database.write() as connection:
            return insert_row(
                connection, tables.checks,
                repo=repo, head_sha=check.head_sha, name=check.name, author=self._login,
                shown=_CHECK.dump_python(check, mode="json"), updated_at=self._clock(),
            )  # fmt: skip

    def update_check(self, repo: str, check_id: int, check: Check) -> bool:
        _check_check(check)
        shown = _CHECK.dump_python(check, mode="json")
        return self._update(tables.checks, check_id, shown=shown, updated_at=self._clock())

    def checks(self, repo: str, head_sha: str) -> tuple[Check, ...]:
        """All checks of a commit, the oldest first."""
        wanted = (tables.checks.c.repo == repo, tables.checks.c.head_sha == head_sha)
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(tables.checks.c.shown).where(*wanted).order_by(tables.checks.c.id)
            )
            return tuple(_CHECK.validate_python(row.shown) for row in rows)

    # CI: there is no workflow but ours, and every push is received.

    def edited(self, repo: str, number: int) -> Edited:
        comments = self._rows(tables.comments, repo, number)
        known = sa.select(tables.edited_reviews.c.review_id)
        reviews = self._rows(tables.reviews, repo, number, tables.reviews.c.id.in_(known))
        return Edited(
            comments=frozenset(row.id for row in comments if row.updated_at != row.created_at),
            reviews=frozenset(row.id for row in reviews),
        )

    def push_seen(self, repo: str, head_sha: str, branch: str) -> datetime | None:
        return None

    def workflow_runs(self, repo: str, head_sha: str) -> Iterator[WorkflowRun]:
        return iter(())

    def rerun_workflow(self, repo: str, run_id: int, failed_only: bool) -> None:
        raise _no_run(repo, run_id)

    def approve_workflow(self, repo: str, run_id: int) -> None:
        raise _no_run(repo, run_id)

    # Deliveries: nothing is sent, so nothing is lost on the way.

    def failed_deliveries(self, since: datetime) -> Iterator[str]:
        return iter(())

    def redeliver(self, guid: str) -> None:
        raise ForgeError(f"the local forge sent no delivery {guid}", "", status=404)

    def _check_places(self, pull: PullState, head_sha: str, comments: Sequence[InlineComment]) -> None:
        repository = self.repository(pull.repo)
        if head_sha != pull.head_sha and not repository.reaches(pull.head_sha, head_sha):
            raise refused(f"commit {head_sha} is not part of pull request {pull.number}", "review its head")
        if not comments:
            return
        diff = repository.diff(pull.base_sha, head_sha)
        for comment in comments:
            check_body(comment.body)
            if why := refusal(comment, diff):
                raise refused(f"pull request {pull.number}: {why}", "place the comment elsewhere")

    def _insert_inline(
        self, connection: sa.Connection, pull: PullState, commit: str, comment: InlineComment, now: datetime
    ) -> int:
        return insert_row(
            connection, tables.inline,
            repo=pull.repo, number=pull.number, thread=0, author=self._login, body=comment.body, commit=commit,
            path=comment.path, line=comment.line, side=comment.side.value, start_line=comment.start_line,
            start_side=comment.start_side.value if comment.start_side else None, resolved=False,
            created_at=now, updated_at=now,
        )  # fmt: skip

    def _outdated(self, pull: PullState, opener: sa.Row[Any]) -> bool:
        """Whether what the thread stands on has changed since."""
        repository = self.repository(pull.repo)
        diff = repository.diff(pull.base_sha, pull.head_sha)
        if opener.line is None:
            return diff.file(opener.path) is None
        if opener.side == Side.LEFT:
            return not shows(diff, opener.path, Side.LEFT, opener.line)
        start = opener.start_line if opener.start_side == Side.RIGHT else None
        lines = span(start, opener.line)
        return repository.changed_since(opener.commit, pull.head_sha, opener.path, lines)


def _comment(row: sa.Row[Any]) -> Comment:
    return Comment(row.id, user(row.author), row.body, row.created_at, row.updated_at)


def _no_run(repo: str, run_id: int) -> ForgeError:
    return ForgeError(f"{repo} is local and has no workflow run {run_id}", "set ci.mode: runner", status=404)


def _check_check(check: Check) -> None:
    if size(check.summary) >= COMMENT_LIMIT:
        raise refused(f"the summary of check {check.name} is too long", f"keep it under {COMMENT_LIMIT}")
    if (check.conclusion is not None) != (check.status == "completed"):
        raise refused(f"check {check.name} is {check.status} with conclusion {check.conclusion}", "give both")
    if len(check.buttons) > 3 or any(
        len(one.label) > 20 or len(one.description) > 40 or len(one.identifier) > 20 for one in check.buttons
    ):
        raise refused(f"check {check.name} has too many or too long buttons", "shorten them")
