"""The stand-in as tests speak to it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.standin.github.auth import create_app, issue_token
from tests.standin.github.contract import Contract
from tests.standin.github.failures import Drop, Failure
from tests.standin.github.gitstore import Files, GitStore
from tests.standin.github.handles import Repo
from tests.standin.github.hooks import Delivery, Hook, Hooks
from tests.standin.github.overlooked import unseen
from tests.standin.github.payloads import Announcer
from tests.standin.github.server import Request, Server
from tests.standin.github.state import App, Installation, Repository, User, World

PERMISSIONS = {
    "actions": "write",
    "checks": "write",
    "contents": "read",
    "issues": "write",
    "pull_requests": "write",
    "statuses": "write",
}
EVENTS = (
    "check_run",
    "check_suite",
    "issue_comment",
    "pull_request",
    "pull_request_review",
    "pull_request_review_comment",
    "push",
    "workflow_run",
)


class GitHub:
    """A GitHub of one's own, at `api_url`, from construction to `close`.

        with GitHub() as hub:
            repo = hub.create_repo("acme/app", files={"a.py": "x = 1\\n"})
            pull = repo.open_pull(author="ada", branch="topic", files={"a.py": "x = 2\\n"}, title="Two")
            ... a client works against hub.api_url with hub.token("bob") ...
            assert pull.comments[0].body == "hello"

    `enterprise` puts the API under /api/v3, as GitHub Enterprise Server does. `check` holds everything against
    GitHub's description, which needs npm once; `finish` raises for what a client did wrong or a test overlooked.
    """

    def __init__(self, *, enterprise: bool = False, check: bool = True) -> None:
        self.world = World()
        self.hooks = Hooks(self.world)
        self.contract = Contract(enabled=check)
        prefix = "/api/v3" if enterprise else ""
        self._server = Server(self.world, self.hooks, self.contract, prefix)
        self.api_url = self.world.api_url = self._server.url + prefix
        self.html_url = self.world.html_url = self._server.url
        self._announcer = Announcer(self.world, self.hooks, self.contract)
        self.world.emit = self._announcer
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.hooks.close()
        self._server.stop()
        self.world.folder.cleanup()

    # Who there is

    def user(self, login: str, *, bot: bool = False) -> User:
        with self.world.lock:
            return self.world.user(login, "Bot" if bot else "User")

    def token(self, login: str) -> str:
        """A personal access token."""
        with self.world.lock:
            return issue_token(self.world, self.world.user(login)).value

    def create_app(
        self,
        slug: str = "whitesmoke",
        *,
        owner: str = "acme",
        permissions: dict[str, str] = PERMISSIONS,
        events: Sequence[str] = EVENTS,
    ) -> App:
        """An app with a key pair: `id`, `private_key` (PEM), `bot`. Install it with `install`."""
        with self.world.lock:
            return create_app(self.world, slug, owner, dict(permissions), tuple(events))

    def install(self, app: App, account: str) -> Installation:
        """On all repositories of an account."""
        with self.world.lock:
            made = Installation(self.world.next_id(), app, self.world.user(account), self.world.now())
            self.world.installations.append(made)
            self._announcer.installation("created", made)
            return made

    # Repositories

    def create_repo(
        self, name: str, files: Files | None = None, *, private: bool = False, default_branch: str = "main"
    ) -> Repo:
        """`owner/name` with one commit."""
        with self.world.lock:
            owner, _, short = name.partition("/")
            git = GitStore.create(self.world.folder_for(name))
            git.run("symbolic-ref", "HEAD", f"refs/heads/{default_branch}")
            made = Repository(
                id=self.world.next_id(),
                owner=self.world.user(owner),
                name=short,
                git=git,
                private=private,
                default_branch=default_branch,
                created_at=self.world.now(),
            )
            self.world.repos[name.lower()] = made
            git.commit(
                default_branch,
                files or {"README.md": f"{short}\n"},
                "first",
                owner,
                self.world.now(),
                parent=None,
            )
            return Repo(self, made)

    def repo(self, name: str) -> Repo:
        return Repo(self, self.world.repos[name.lower()])

    # Webhooks

    def webhook(self, url: str, secret: str, *, app: App | None = None, repo: Repo | None = None) -> Hook:
        """Sends events there: an app's, or one repository's (all repositories' where neither is given)."""
        return self.hooks.subscribe(url, secret, app, repo.state if repo else None)

    @property
    def deliveries(self) -> list[Delivery]:
        return list(self.hooks.deliveries)

    # What goes wrong, and what passes

    def fail(
        self,
        pattern: str,
        status: int = 0,
        times: int = 1,
        *,
        skip: int = 0,
        drop: Drop | None = None,
        effect: bool = False,
        delay: float = 0.0,
        message: str = "",
        headers: dict[str, str] | None = None,
    ) -> Failure:
        """See `Failure`; `hits` of what is returned counts how often it struck."""
        made = Failure(pattern, status, times, skip, drop, effect, delay, message, headers or {})
        return self._server.failures.add(made)

    def throttle(self, pattern: str = "* /**", times: int = 1, *, retry_after: int = 1) -> Failure:
        """The secondary rate limit."""
        message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        return self.fail(pattern, 403, times, message=message, headers={"Retry-After": str(retry_after)})

    def leave_requests(self, remaining: int, *, resets_in: float = 3600) -> None:
        """The primary rate limit: every token has so many requests left."""
        with self.world.lock:
            self._server.limits.leave(remaining, resets_in)

    def requests_left(self, token: str) -> int:
        with self.world.lock:
            return self._server.limits.left(token)

    def heal(self) -> None:
        """Turns all failure switches off."""
        self._server.failures.clear()

    def largest_diff(self, files: int) -> None:
        """The diff media type answers 406 above so many files (300)."""
        self._server.switches.largest_diff = files

    def know_mergeability(self, known: bool) -> None:
        """Otherwise `mergeable` is null, as while GitHub is still finding out."""
        self._server.switches.mergeability_known = known

    def pass_time(self, seconds: float) -> None:
        """Moves this GitHub's clock on: tokens expire, limits reset."""
        with self.world.lock:
            self.world.pass_time(seconds)

    # What happened

    @property
    def requests(self) -> list[Request]:
        return list(self._server.requests)

    def overlooked(self) -> list[str]:
        """What clients left or changed and the test did not look at since."""
        with self.world.lock:
            return [one for repo in self.world.repos.values() for one in unseen(repo)]

    def finish(self) -> None:
        """Raises AssertionError for violations of GitHub's description and for what was overlooked."""
        problems = [f"against GitHub's description: {one}" for one in self.contract.violations]
        problems += [f"overlooked: {one}" for one in self.overlooked()]
        assert not problems, "\n".join(problems)
