"""The local forge's pull requests: branches of a repository on disk, registered in the database."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import sqlalchemy as sa

from reviewer.errors import GitError
from reviewer.report.escape import PRODUCT
from reviewer.report.limit import COMMENT_LIMIT, size
from service.forge import local_tables as tables
from service.forge.base import ForgeError, MergeMethod, Permission, PullState, User
from service.forge.local_git import LocalRepository
from service.forge.local_merge import Conflict
from service.store.database import Database
from service.store.dialect import insert
from service.store.types import Clock, utc_now

BOT = f"{PRODUCT}[bot]"


class LocalPulls:
    """Pull requests of the repositories named in `folders`, and who may do what there.

    `owner` is who runs the process and may do everything. Whoever holds this acts as the bot; `as_user` gives it
    another face. A login that ends in `[bot]` is a bot's.
    """

    def __init__(
        self, database: Database, folders: Mapping[str, Path], *, owner: str, clock: Clock = utc_now
    ) -> None:
        self._database = database
        self._repositories = {name: LocalRepository(folder) for name, folder in folders.items()}
        self._owner = owner
        self._clock = clock
        self._login = BOT

    def as_user(self, login: str) -> Self:
        """The same forge for someone else."""
        other = copy.copy(self)
        other._login = login
        return other

    def me(self, repo: str) -> User:
        return user(self._login)

    def pull(self, repo: str, number: int) -> PullState:
        with self._database.read() as connection:
            row = self.pull_row(connection, repo, number)
        return self._state(row)

    def open_pulls(self, repo: str) -> Iterator[PullState]:
        self.repository(repo)
        wanted = (tables.pulls.c.repo == repo, tables.pulls.c.state == "open")
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(tables.pulls).where(*wanted).order_by(tables.pulls.c.number)
            ).all()
        return (self._state(row) for row in rows)

    def open_pull(
        self,
        repo: str,
        head_ref: str,
        base_ref: str,
        *,
        title: str = "",
        body: str = "",
        draft: bool = False,
    ) -> PullState:
        """Asks that branch `head_ref` be taken into `base_ref`; the title is the head's subject where none is given.

        The open pull request of the same two branches is returned as it is. Raises `ForgeError` where a branch is
        missing.
        """
        repository = self.repository(repo)
        head, base = (self._branch(repo, ref) for ref in (head_ref, base_ref))
        title = title or repository.subject(head)
        columns = tables.pulls.c
        same = (columns.repo == repo, columns.head_ref == head_ref, columns.base_ref == base_ref)
        with self._database.write() as connection:
            row = connection.execute(sa.select(columns.number).where(*same, columns.state == "open")).first()
            if row is None:
                last = sa.select(sa.func.max(columns.number)).where(columns.repo == repo)
                number = (connection.execute(last).scalar() or 0) + 1
                insert_row(
                    connection, tables.pulls,
                    repo=repo, number=number, title=title, body=body, author=self._login,
                    head_ref=head_ref, base_ref=base_ref, head_sha=head, base_sha=base, draft=draft,
                    state="open", labels=[], created_at=self._clock(),
                )  # fmt: skip
            else:
                number = row.number
        return self.pull(repo, number)

    def change_pull(
        self,
        repo: str,
        number: int,
        *,
        title: str | None = None,
        body: str | None = None,
        draft: bool | None = None,
        state: Literal["open", "closed"] | None = None,
        base_ref: str | None = None,
    ) -> PullState:
        """Changes what is given. A pull request counts as merged where it is closed and its base holds its head."""
        asked = {"title": title, "body": body, "draft": draft, "state": state, "base_ref": base_ref}
        pull = self.pull(repo, number)
        values = {key: value for key, value in asked.items() if value is not None}
        if base_ref is not None:
            values["base_sha"] = self._branch(repo, base_ref)
        with self._database.write() as connection:
            change = sa.update(tables.pulls).where(
                tables.pulls.c.repo == repo, tables.pulls.c.number == number
            )
            connection.execute(change.values(head_sha=pull.head_sha, **values))
        return self.pull(repo, number)

    def mergeable(self, repo: str, number: int) -> bool | None:
        pull = self.pull(repo, number)
        if pull.state != "open":
            return None
        return not self.repository(repo).conflicts(pull.base_sha, pull.head_sha)

    def merge(self, repo: str, number: int, head_sha: str, method: MergeMethod) -> str:
        """A merge whose record was lost is found: what the base has already is merged as it stands."""
        pull = self.pull(repo, number)
        name = f"{repo}#{number}"
        if pull.head_sha != head_sha:
            raise ForgeError(
                f"the head of {name} is no longer {head_sha[:12]}", "look at it again", status=409
            )
        if pull.state != "open" or pull.draft:
            is_what = "a draft" if pull.state == "open" else "closed"
            raise ForgeError(f"{name} is {is_what}", "", status=405)
        if method == "rebase":
            raise ForgeError(
                f"{name}: the local forge rebases nothing", "set ci.merge.method: squash or merge", status=405
            )
        title = " ".join(pull.title.split())
        message = f"{title} (#{number})" if method == "squash" else f"Merge pull request #{number}: {title}"
        now = self._clock()
        try:
            made = self.repository(repo).merge(
                pull.base_ref, pull.base_sha, head_sha, method, message, self._login, now
            )
        except Conflict as error:
            raise ForgeError(f"{name} conflicts with {pull.base_ref}", "rebase it", status=405) from error
        except GitError as error:
            raise ForgeError(f"{name} cannot be merged: {error.problem}", error.remedy) from error
        with self._database.write() as connection:
            row = {"repo": repo, "number": number, "commit": made, "merged_at": now}
            connection.execute(insert(connection, tables.merges, row).on_conflict_do_nothing())
            closed = sa.update(tables.pulls).where(
                tables.pulls.c.repo == repo, tables.pulls.c.number == number
            )
            connection.execute(closed.values(state="closed", head_sha=head_sha))
        return made

    def grant(self, repo: str, login: str, permission: Permission) -> None:
        values = {"repo": repo, "login": login.lower(), "permission": int(permission)}
        with self._database.write() as connection:
            connection.execute(
                insert(connection, tables.permissions, values).on_conflict_do_update(
                    index_elements=["repo", "login"], set_={"permission": int(permission)}
                )
            )

    def permission(self, repo: str, login: str) -> Permission:
        """What `grant` said; everyone else may read, as in a public repository."""
        if login.lower() == self._owner.lower():
            return Permission.ADMIN
        wanted = (tables.permissions.c.repo == repo, tables.permissions.c.login == login.lower())
        with self._database.read() as connection:
            found = connection.execute(sa.select(tables.permissions.c.permission).where(*wanted)).scalar()
        return Permission.READ if found is None else Permission(found)

    def repository(self, repo: str) -> LocalRepository:
        found = self._repositories.get(repo)
        if found is None:
            known = ", ".join(self._repositories) or "none"
            raise ForgeError(f"there is no local repository {repo!r}", f"known ones: {known}", status=404)
        return found

    def _state(self, row: sa.Row[Any]) -> PullState:
        """A closed pull request stays as it was when it was closed; so does one whose branch is gone."""
        repository = self.repository(row.repo)
        head, base = repository.tips(row.head_ref, row.base_ref)
        is_open = row.state == "open"
        head_sha = head if is_open and head else row.head_sha
        base_sha = base if is_open and base else row.base_sha
        if (head_sha, base_sha) != (row.head_sha, row.base_sha):
            self._update(tables.pulls, row.id, head_sha=head_sha, base_sha=base_sha)
        return PullState(
            repo=row.repo,
            number=row.number,
            title=row.title,
            body=row.body,
            author=user(row.author),
            head_sha=head_sha,
            head_ref=row.head_ref,
            head_repo=row.repo if head else "",
            base_ref=row.base_ref,
            base_sha=base_sha,
            draft=row.draft,
            state=row.state,
            merged=not is_open
            and (self._has_merged(row) or (base is not None and repository.reaches(base, head_sha))),
            labels=tuple(row.labels),
        )

    def _has_merged(self, row: sa.Row[Any]) -> bool:
        merges = tables.merges.c
        known = sa.select(merges.id).where(merges.repo == row.repo, merges.number == row.number)
        with self._database.read() as connection:
            return connection.execute(known).first() is not None

    def pull_row(self, connection: sa.Connection, repo: str, number: int) -> sa.Row[Any]:
        self.repository(repo)
        wanted = sa.select(tables.pulls).where(tables.pulls.c.repo == repo, tables.pulls.c.number == number)
        row = connection.execute(wanted).one_or_none()
        if row is None:
            raise ForgeError(f"{repo} has no pull request {number}", "open one first", status=404)
        return row

    def _rows(self, table: sa.Table, repo: str, number: int, *more: Any) -> Sequence[sa.Row[Any]]:
        wanted = sa.select(table).where(table.c.repo == repo, table.c.number == number, *more)
        with self._database.read() as connection:
            self.pull_row(connection, repo, number)
            return connection.execute(wanted.order_by(table.c.id)).all()

    def _update(self, table: sa.Table, row_id: int, **values: Any) -> bool:
        with self._database.write() as connection:
            done = connection.execute(sa.update(table).where(table.c.id == row_id).values(**values))
            return done.rowcount > 0

    def _delete(self, table: sa.Table, row_id: int) -> bool:
        with self._database.write() as connection:
            return connection.execute(sa.delete(table).where(table.c.id == row_id)).rowcount > 0

    def _branch(self, repo: str, ref: str) -> str:
        (tip,) = self.repository(repo).tips(ref)
        if tip is None:
            raise refused(f"{repo} has no branch {ref!r}", "commit to it first")
        return tip


def user(login: str) -> User:
    return User(login, is_bot=login.endswith("[bot]"))


def insert_row(connection: sa.Connection, table: sa.Table, **values: Any) -> int:
    row_id: int = connection.execute(sa.insert(table).values(**values).returning(table.c.id)).scalar_one()
    return row_id


def refused(problem: str, remedy: str) -> ForgeError:
    return ForgeError(problem, remedy, status=422)


def check_body(body: str) -> None:
    if not body.strip():
        raise refused("the text is empty", "say something")
    if size(body) > COMMENT_LIMIT:
        raise refused(f"the text is {size(body)} characters long", f"keep it within {COMMENT_LIMIT}")
