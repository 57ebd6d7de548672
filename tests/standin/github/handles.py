"""Repositories and pull requests as tests speak of them. Looking at a comment, review or check marks it as seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from tests.standin.github.actions import checks, comments, pulls, reviews, runs
from tests.standin.github.gitstore import Files
from tests.standin.github.patch import Side
from tests.standin.github.state import (
    CheckRun,
    CommitStatus,
    IssueComment,
    Posted,
    PullRequest,
    Repository,
    Review,
    ReviewComment,
    Thread,
    WorkflowRun,
)

if TYPE_CHECKING:
    from tests.standin.github.hub import GitHub

Some = TypeVar("Some", bound=Posted)


def _look(found: Iterable[Some]) -> list[Some]:
    shown = list(found)
    for one in shown:
        one.seen = True
    return shown


class Repo:
    def __init__(self, hub: GitHub, state: Repository) -> None:
        self.hub = hub
        self.state = state
        self.world = hub.world

    @property
    def name(self) -> str:
        return self.state.full_name

    @property
    def clone_url(self) -> str:
        return f"{self.hub.html_url}/{self.name}.git"

    def grant(self, login: str, role: str) -> None:
        """`role` is none, read, triage, write, maintain or admin."""
        with self.world.lock:
            self.world.user(login)
            self.state.roles[login.lower()] = role

    def sha(self, revision: str) -> str:
        found = self.state.git.resolve(revision)
        assert found, f"{self.name} has no {revision}"
        return found

    def push(self, branch: str, files: Files, *, author: str = "", message: str = "change") -> str:
        """One commit on top of a branch, or on top of the default branch where the branch is new."""
        with self.world.lock:
            user = self.world.user(author or self.state.owner.login)
            parent = self.state.git.resolve(branch) or self.state.git.resolve(self.state.default_branch)
            sha = pulls.push(self.world, self.state, branch, files, message, user, parent)
            checks.request_suites(self.world, self.state, sha, branch, user)
            return sha

    def fork(self, owner: str) -> Repo:
        with self.world.lock:
            name = f"{owner}/{self.state.name}"
            made = Repository(
                id=self.world.next_id(),
                owner=self.world.user(owner),
                name=self.state.name,
                git=self.state.git.fork(self.world.folder_for(name)),
                private=self.state.private,
                default_branch=self.state.default_branch,
                created_at=self.world.now(),
                parent=self.state,
            )
            self.world.repos[name.lower()] = made
            return Repo(self.hub, made)

    def delete(self) -> None:
        """Pull requests that came from here stay, without a head repository."""
        with self.world.lock:
            del self.world.repos[self.name.lower()]
            for pull in self.world.pulls():
                if pull.head_repo is self.state:
                    pull.head_repo = None

    def open_pull(
        self,
        *,
        author: str = "ada",
        branch: str = "topic",
        files: Files | None = None,
        title: str = "A change",
        body: str | None = "",
        base: str = "",
        draft: bool = False,
        fork: bool = False,
    ) -> Pull:
        """Commits `files` to `branch`, of the author's fork if `fork`, and opens a pull request of it."""
        with self.world.lock:
            base = base or self.state.default_branch
            head = self
            if fork:
                known = self.world.repos.get(f"{author}/{self.state.name}".lower())
                head = Repo(self.hub, known) if known else self.fork(author)
            elif self.state.role(self.world.user(author)) in ("none", "read"):
                self.grant(author, "write")
            if files is not None:
                parent = head.state.git.resolve(branch) or self.sha(base)
                user = self.world.user(author)
                sha = pulls.push(self.world, head.state, branch, files, title, user, parent)
                checks.request_suites(self.world, head.state, sha, branch, user)
            made = pulls.open_pull(
                self.world,
                self.state,
                head.state,
                branch,
                base,
                self.world.user(author),
                title,
                body,
                draft=draft,
            )
            return Pull(self, made)

    def pull(self, number: int) -> Pull:
        return Pull(self, self.state.pulls[number])

    # Checks

    def checks(self, sha: str) -> list[CheckRun]:
        """Check runs of a commit, oldest first."""
        with self.world.lock:
            return _look(run for one in self.state.suites if one.head_sha == sha for run in one.runs)

    def statuses(self, sha: str) -> list[CommitStatus]:
        """The newest commit status of each context; older ones count as seen too."""
        with self.world.lock:
            _look(one for one in self.state.statuses if one.sha == sha)
            return checks.latest_statuses(self.state, sha)

    def rerequest(self, run: CheckRun, by: str) -> None:
        with self.world.lock:
            checks.rerequest_run(self.world, self.state, run, self.world.user(by))

    def rerequest_suite(self, run: CheckRun, by: str) -> None:
        """ "Re-run all checks" of the suite that a run is in."""
        with self.world.lock:
            checks.rerequest_suite(self.world, self.state, run.suite, self.world.user(by))

    def press(self, run: CheckRun, identifier: str, by: str) -> None:
        """A button of a check run."""
        with self.world.lock:
            checks.press(self.world, self.state, run, self.world.user(by), identifier)

    # Workflow runs

    def workflow_run(
        self,
        name: str,
        sha: str,
        *,
        actor: str = "ada",
        event: str = "pull_request",
        status: str = "completed",
        conclusion: str | None = "success",
    ) -> WorkflowRun:
        with self.world.lock:
            app = next((one for one in self.world.apps.values() if one.slug == "github-actions"), None)
            app = app or self.hub.create_app("github-actions", owner="github", events=())
            pull = next((one for one in self.state.pulls.values() if one.head_sha == sha), None)
            return runs.create(
                self.world,
                self.state,
                app,
                name,
                sha,
                pull.head_ref if pull else self.state.default_branch,
                self.world.user(actor),
                event=event,
                status=status,
                conclusion=conclusion,
                head_repo=pull.head_repo if pull else None,
            )

    def finish_run(self, run: WorkflowRun, conclusion: str = "success") -> None:
        with self.world.lock:
            runs.finish(self.world, self.state, run, conclusion)


class Pull:
    def __init__(self, repo: Repo, state: PullRequest) -> None:
        self.repo = repo
        self.state = state
        self.world = repo.world

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def head_sha(self) -> str:
        return self.state.head_sha

    @property
    def base_sha(self) -> str:
        return self.state.base_sha

    @property
    def labels(self) -> list[str]:
        return list(self.state.labels)

    # The branch

    def push(self, files: Files, *, message: str = "more", by: str = "") -> str:
        """One more commit; gives the new head."""
        return self._put(files, message, by, self.state.head_sha)

    def force_push(self, files: Files, *, onto: str = "", message: str = "again", by: str = "") -> str:
        """Replaces all commits by one of these files, on top of `onto` or of where the branch began."""
        git = self.repo.state.git
        parent = git.resolve(onto) if onto else git.merge_base(self.state.base_sha, self.state.head_sha)
        return self._put(files, message, by, parent)

    def rebase(self, *, by: str = "") -> str:
        """The same change, as one commit on top of the base branch."""
        with self.world.lock:
            head_repo, user = self._head(), self._user(by)
            git = self.repo.state.git
            onto = self.repo.sha(self.state.base_ref)
            tree = git.merge_tree(onto, self.state.head_sha)
            assert tree, "the rebase conflicts"
            message = git.describe(self.state.head_sha)["message"]
            sha = git.commit_tree(tree, [onto], message, user.login, self.world.now())
            before = self.state.head_sha
            head_repo.git.take(git, sha, f"refs/heads/{self.state.head_ref}")
            pulls.moved(self.world, head_repo, self.state.head_ref, before, sha, user)
            checks.request_suites(self.world, head_repo, sha, self.state.head_ref, user)
            return sha

    def _put(self, files: Files, message: str, by: str, parent: str | None) -> str:
        with self.world.lock:
            head_repo, user = self._head(), self._user(by)
            if parent and head_repo.git is not self.repo.state.git:
                head_repo.git.take(self.repo.state.git, parent, "refs/standin/parent")
            ref = self.state.head_ref
            sha = pulls.push(self.world, head_repo, ref, files, message, user, parent)
            checks.request_suites(self.world, head_repo, sha, ref, user)
            return sha

    def _head(self) -> Repository:
        assert self.state.head_repo is not None, "the head repository is gone"
        return self.state.head_repo

    def _user(self, login: str) -> Any:
        return self.world.user(login) if login else self.state.user

    # The conversation

    def comment(self, login: str, body: str) -> IssueComment:
        with self.world.lock:
            return comments.create(self.world, self.state, self.world.user(login), body)

    def edit_comment(self, comment: IssueComment, body: str, *, by: str = "") -> None:
        with self.world.lock:
            user = self.world.user(by) if by else comment.user
            comments.edit(self.world, self.state, comment, user, body)

    def delete_comment(self, comment: IssueComment, by: str) -> None:
        with self.world.lock:
            comments.delete(self.world, self.state, comment, self.world.user(by))

    def review(self, login: str, state: str, *, body: str = "", commit: str = "") -> Review:
        """`state` is APPROVED, CHANGES_REQUESTED or COMMENTED."""
        with self.world.lock:
            user = self.world.user(login)
            return reviews.submit(self.world, self.state, user, state, body, commit or self.head_sha)

    def edit_review(self, review: Review, body: str, *, by: str = "") -> None:
        with self.world.lock:
            user = self.world.user(by) if by else review.user
            reviews.edit(self.world, self.state, review, user, body)

    def dismiss(self, review: Review, by: str) -> None:
        with self.world.lock:
            reviews.dismiss(self.world, self.state, review, self.world.user(by))

    def inline(self, login: str, path: str, line: int, body: str, *, side: Side = "RIGHT") -> ReviewComment:
        with self.world.lock:
            wanted = {"path": path, "line": line, "side": side}
            place = reviews.locate(self.state, self.head_sha, wanted)
            return reviews.comment(self.world, self.state, self.world.user(login), place, body, self.head_sha)

    def reply(self, login: str, to: ReviewComment, body: str) -> ReviewComment:
        with self.world.lock:
            return reviews.reply(self.world, self.state, to, self.world.user(login), body)

    # The request

    def edit(
        self, *, title: str | None = None, body: str | None = None, base: str | None = None, by: str = ""
    ) -> None:
        with self.world.lock:
            pulls.edit(self.world, self.state, self._user(by), title=title, body=body, base=base)

    def label(self, name: str, *, by: str = "") -> None:
        with self.world.lock:
            pulls.add_label(self.world, self.state, self._user(by), name)

    def unlabel(self, name: str, *, by: str = "") -> None:
        with self.world.lock:
            pulls.remove_label(self.world, self.state, self._user(by), name)

    def ready(self, *, by: str = "") -> None:
        with self.world.lock:
            pulls.set_draft(self.world, self.state, self._user(by), False)

    def to_draft(self, *, by: str = "") -> None:
        with self.world.lock:
            pulls.set_draft(self.world, self.state, self._user(by), True)

    def close(self, *, by: str = "") -> None:
        with self.world.lock:
            pulls.close(self.world, self.state, self._user(by))

    def reopen(self, *, by: str = "") -> None:
        with self.world.lock:
            pulls.reopen(self.world, self.state, self._user(by))

    def merge(self, *, by: str = "") -> None:
        with self.world.lock:
            pulls.close(self.world, self.state, self._user(by), merge="merge")

    # What stands there

    @property
    def comments(self) -> list[IssueComment]:
        with self.world.lock:
            return _look(self.state.comments)

    @property
    def reviews(self) -> list[Review]:
        with self.world.lock:
            return _look(self.state.reviews)

    @property
    def inline_comments(self) -> list[ReviewComment]:
        with self.world.lock:
            return _look(self.state.review_comments())

    @property
    def threads(self) -> list[Thread]:
        with self.world.lock:
            _look(self.state.review_comments())
            return list(self.state.threads)

    @property
    def checks(self) -> list[CheckRun]:
        """Check runs of the head."""
        return self.repo.checks(self.head_sha)

    @property
    def statuses(self) -> list[CommitStatus]:
        return self.repo.statuses(self.head_sha)
