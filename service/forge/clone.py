"""One partial clone of a remote repository, and what is fetched into it.

A clone is bare. Commits and trees are all there, contents only of what a review reads. Its own configuration names
no remote, so that no command but the fetches here can reach the network; where to fetch from, and the password, are
in the environment of these fetches and never in an argument or a file.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from reviewer.checkout.git import Git, TimedOut
from reviewer.checkout.objects import list_tree
from reviewer.errors import GitError
from service.forge.base import ForgeError

_FETCH_SECONDS = 900.0
_BATCH = 2_000
_RETRY_SECONDS = 60.0

_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = true
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""

# What a network needs that is not open to all.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED_ON = (*_PROXIES, *map(str.upper, _PROXIES), "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR")

_UNKNOWN = re.compile(r"not our ref|couldn't find remote ref|unadvertised object")
_DENIED = re.compile(r"Authentication failed|could not read Username|returned error: 40[134]|' not found")
_UNREACHABLE = re.compile(
    r"unable to access|remote error|RPC failed|hung up|early EOF|unexpected disconnect|Connection (reset|refused)"
)
_FULL = re.compile("No space left on device|Disk quota exceeded")


class Damaged(GitError):
    """The clone itself does not work, whatever the remote says."""


class _Unknown(GitError):
    """The remote does not have what was asked for by name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a repository is cloned from. `url` is http or https, without credentials; `password` is asked for anew
    before each fetch, as it may not last for long."""

    url: str
    user: str
    password: Callable[[], str] = field(repr=False)


class Clone:
    """`place` is the folder of the bare repository; it need not exist."""

    def __init__(self, place: Path, source: Source) -> None:
        self.place = place
        self.source = source
        self._git = Git(place, place)

    def fetch(self, name: str, base: str, head: str, budget: int | None) -> None:
        """Both commits with their history, the contents of what differs between head and merge base, and about
        `budget` bytes of what else the head holds; None fetches all contents of the three.

        Raises `Damaged` where the clone must be made anew, and `ForgeError` for what the remote refuses.
        """
        self._prepare()
        if not (self._has(base) and self._has(head)):
            self._fetch_commits(name, base, head)
        found = self._git.run("merge-base", base, head)
        if found.code > 1:
            raise Damaged(f"git cannot find the merge base: {found.complaint}", "")
        if found.code == 0:
            left = found.out.decode().strip()
            if budget is None:
                self._fetch_all(left, base, head)
            else:
                self._fetch_contents(left, head, budget)

    def _prepare(self) -> None:
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._git.out("init", "--quiet", "--bare", "--template=")
        except GitError as error:
            raise Damaged(error.problem, error.remedy) from error
        config = self.place / "config"
        if config.read_text(errors="replace") != _CONFIG:
            config.write_text(_CONFIG)
        for left in self.place.glob("objects/pack/tmp_*"):
            # Of a fetch that was killed; the caller lets one fetch run at a time.
            left.unlink(missing_ok=True)

    def _has(self, commit: str) -> bool:
        return self._git.run("cat-file", "-e", f"{commit}^{{commit}}").code == 0

    def _fetch_commits(self, name: str, base: str, head: str) -> None:
        # Named, because the next fetch offers what is named and gets the difference alone.
        kept = f"refs/whitesmoke/{name}"
        try:
            self._remote(f"+{base}:{kept}/base", f"+{head}:{kept}/head")
        except _Unknown as error:
            raise ForgeError(
                f"{self.source.url} does not have commit {base[:12]} or {head[:12]} any more",
                "push the branch again",
                status=404,
            ) from error

    def _fetch_contents(self, base: str, head: str, budget: int) -> None:
        before, after = (self._contents(commit) for commit in (base, head))
        for batch in _split(self._missing(before ^ after)):
            self._fetch_objects(batch)
        start = size = self._packed()
        for batch in _split(self._missing(after & before)):
            if size - start >= budget:
                break
            self._fetch_objects(batch)
            size = self._packed()
        self._index()

    def _fetch_all(self, *commits: str) -> None:
        contents = map(self._contents, commits)
        for batch in _split(self._missing(set[str]().union(*contents))):
            self._fetch_objects(batch)
        self._index()

    def _fetch_objects(self, names: Sequence[str]) -> None:
        try:
            self._remote("--stdin", names=names)
        except _Unknown as error:
            raise Damaged(error.problem, error.remedy) from error
        if self._missing(names):
            # A pack that is already there is not written again, not even where it cannot be read.
            raise Damaged("what was fetched cannot be read", "")

    def _contents(self, commit: str) -> set[str]:
        """The names of all blobs in the commit's tree."""
        try:
            nodes = list_tree(self._git, commit, "-r")
            return {node.object_id for node in nodes if node.kind in ("file", "symlink")}
        except GitError as error:
            raise Damaged(error.problem, error.remedy) from error

    def _missing(self, names: Iterable[str]) -> list[str]:
        asked = "".join(f"{name}\n" for name in sorted(names)).encode()
        result = self._git.run("cat-file", "--batch-check", stdin=asked)
        if result.code:
            raise Damaged(f"git cannot look for objects: {result.complaint}", "")
        answers = result.out.decode().splitlines()
        return [answer.split()[0] for answer in answers if answer.endswith(" missing")]

    def _packed(self) -> int:
        return sum(pack.stat().st_size for pack in self.place.glob("objects/pack/*.pack"))

    def _index(self) -> None:
        """One index over all packs, of which each fetch adds some. Packs are never deleted: someone may read them."""
        self._git.run("multi-pack-index", "write")

    def _remote(self, *what: str, names: Sequence[str] = ()) -> None:
        """Fetches refspecs, or the objects of these names (with `--stdin`)."""
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none")
        # What is asked for by name is known to be missing, so that there is nothing to negotiate.
        settings = {"fetch.negotiationAlgorithm": "noop"} if names else {}
        asked = "".join(f"{name}\n" for name in names).encode()
        try:
            result = self._git.run(
                "fetch", *options, *([*what, "origin"] if names else ["origin", *what]),
                stdin=asked,
                env=self._environment(settings),
                timeout=_FETCH_SECONDS,
            )  # fmt: skip
        except TimedOut as error:
            raise ForgeError(
                f"fetching {self.source.url} took more than {_FETCH_SECONDS:.0f} s",
                "it is tried again",
                retry_after=_RETRY_SECONDS,
            ) from error
        if result.code:
            raise self._failure(result.err, result.complaint)

    def _failure(self, said: str, complaint: str) -> GitError | ForgeError:
        url = self.source.url
        if _UNKNOWN.search(said):
            return _Unknown(f"{url} lacks an object: {complaint}", "")
        if _DENIED.search(said):
            remedy = "check that the repository exists and that the App or token has Contents: read there"
            return ForgeError(f"{url} cannot be cloned: {complaint}", remedy, status=403)
        if _FULL.search(said):
            remedy = "free space, or set a lower WHITESMOKE_DISK_LIMIT_MB"
            return ForgeError(f"{url} cannot be cloned: the disk is full", remedy, retry_after=_RETRY_SECONDS)
        if _UNREACHABLE.search(said):
            return ForgeError(
                f"{url} cannot be fetched: {complaint}", "it is tried again", retry_after=_RETRY_SECONDS
            )
        return Damaged(f"fetching {url} failed: {complaint}", "")

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        url = self.source.url
        secret = base64.b64encode(f"{self.source.user}:{self.source.password()}".encode()).decode()
        settings = {
            "remote.origin.url": url,
            "remote.origin.promisor": "true",
            "remote.origin.partialclonefilter": "blob:none",
            f"http.{url}.extraHeader": f"Authorization: Basic {secret}",
            # The password is for this host alone.
            "http.followRedirects": "false",
            "http.lowSpeedLimit": "1000",
            "http.lowSpeedTime": "60",
            "credential.helper": "",
            "fetch.recurseSubmodules": "false",
            **more,
        }
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment["GIT_ALLOW_PROTOCOL"] = urlsplit(url).scheme
        environment["GIT_CONFIG_COUNT"] = str(len(settings))
        for index, (key, value) in enumerate(settings.items()):
            environment[f"GIT_CONFIG_KEY_{index}"] = key
            environment[f"GIT_CONFIG_VALUE_{index}"] = value
        return environment


def _split(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[start : start + _BATCH] for start in range(0, len(names), _BATCH))
