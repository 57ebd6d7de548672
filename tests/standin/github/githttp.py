"""Git's smart HTTP protocol for reading: `git upload-pack` behind two addresses."""

from __future__ import annotations

import gzip
import re

from tests.standin.github.answer import Answer, Refused
from tests.standin.github.auth import Actor
from tests.standin.github.state import World

_PATH = re.compile(
    r"^/(?P<name>[^/]+/[^/]+?)(?:\.git)?/(?P<what>info/refs|git-upload-pack|git-receive-pack)$"
)


def is_git(path: str) -> bool:
    return _PATH.match(path) is not None


def serve(
    world: World,
    actor: Actor,
    method: str,
    path: str,
    query: dict[str, str],
    headers: dict[str, str],
    body: bytes,
) -> Answer:
    match = _PATH.match(path)
    assert match
    repo = world.repos.get(match["name"].lower())
    if repo is None or not actor.may_see(repo):
        # A client that gave no name is asked for one, whether or not there is such a repository.
        if actor.token is None:
            raise Refused(401, "Repository not found.", headers={"WWW-Authenticate": 'Basic realm="GitHub"'})
        raise Refused(404, "Repository not found.")
    if actor.installation and repo.private and not actor.has_permission(repo, ("contents:read",)):
        raise Refused(403, "Write access to repository not granted.")
    service = query.get("service", "git-upload-pack")
    if service != "git-upload-pack" or match["what"] == "git-receive-pack":
        raise Refused(403, "The stand-in takes no pushes: use its Repo.push.")
    environment = {"GIT_PROTOCOL": headers["git-protocol"]} if "git-protocol" in headers else {}
    no_cache = {"Cache-Control": "no-cache, max-age=0, must-revalidate"}
    if match["what"] == "info/refs":
        done = repo.git.process(["upload-pack", "--stateless-rpc", "--advertise-refs", "."], b"", environment)
        # Protocol 2 needs no announcement of the service, and does not mind it.
        head = b"001e# service=git-upload-pack\n0000"
        return Answer(200, head + done.stdout, no_cache, "application/x-git-upload-pack-advertisement")
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    done = repo.git.process(["upload-pack", "--stateless-rpc", "."], body, environment)
    return Answer(200, done.stdout, no_cache, "application/x-git-upload-pack-result")
