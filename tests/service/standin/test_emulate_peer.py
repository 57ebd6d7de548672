"""The same conversation, by PyGithub, with the stand-in and with an independent GitHub emulator: both answer alike."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from github import Auth, Github, GithubException
from github.Repository import Repository

from tests.standin.github import GitHub
from tests.standin.github.packages import installed

_SCRIPT = """
import { createEmulator } from 'emulate'
const github = await createEmulator({ service: 'github', port: Number(process.argv[1]), seed: {
  tokens: { owner_token: { login: 'acme', scopes: ['repo'] }, guest_token: { login: 'bob', scopes: ['repo'] } },
  github: { users: [{ login: 'acme' }, { login: 'bob' }],
            repos: [{ owner: 'acme', name: 'app', auto_init: true }] } } })
console.log(JSON.stringify({ url: github.url }))
process.stdin.on('end', () => process.exit(0)).resume()
"""


@contextlib.contextmanager
def emulator(modules: Path) -> Iterator[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [node, "--input-type=module", "--eval", _SCRIPT, str(port)]
    with subprocess.Popen(
        command, cwd=modules.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            line = process.stdout.readline()
            assert line, "the emulator did not start"
            yield str(json.loads(line)["url"])
        finally:
            process.kill()


def client(url: str, token: str) -> Github:
    return Github(
        auth=Auth.Token(token), base_url=url, retry=None, seconds_between_requests=0, seconds_between_writes=0
    )


def conversation(owner: Repository, guest: Repository) -> list[Any]:
    """A pull request from opening to closing; gives what was seen on the way."""
    seen: list[Any] = []
    pull = owner.create_pull(base="main", head="topic", title="A change", body="Why")
    seen.append(
        (pull.state, pull.draft, pull.user.login, pull.head.ref, pull.base.ref, pull.title, pull.body)
    )
    theirs = guest.get_pull(pull.number)
    seen.append([one.number for one in guest.get_pulls()])

    made = theirs.create_issue_comment("first")
    made.edit("first, edited")
    pull.create_issue_comment("second")
    seen.append([(one.user.login, one.body) for one in theirs.get_issue_comments()])

    theirs.create_review(body="Round 1", event="COMMENT")
    approved = theirs.create_review(body="", event="APPROVE")
    seen.append([(one.user.login, one.state, one.body) for one in pull.get_reviews()])
    pull.get_review(approved.id).dismiss("changed since")
    seen.append([one.state for one in pull.get_reviews()])

    pull.add_to_labels("reviewed")
    seen.append([one.name for one in pull.get_labels()])
    pull.remove_from_labels("reviewed")
    seen.append([one.name for one in pull.get_labels()])

    seen.append(owner.get_collaborator_permission("acme"))
    for missing in (lambda: guest.get_pull(99), lambda: guest.get_issue(pull.number).get_comment(99)):
        with pytest.raises(GithubException) as refused:
            missing()
        seen.append(refused.value.status)

    pull.edit(title="Better")
    pull.edit(state="closed")
    seen.append([(one.title, one.state) for one in guest.get_pulls(state="all")])
    return seen


def test_the_stand_in_and_the_emulator_hold_the_same_conversation(hub: GitHub) -> None:
    home = hub.create_repo("acme/app")
    home.push("topic", {"README.md": "changed\n"})
    tokens = [hub.token("acme"), hub.token("bob")]
    ours = conversation(*(client(hub.api_url, token).get_repo("acme/app") for token in tokens))
    pull = home.pull(1)
    assert len(pull.comments) == len(pull.reviews) == 2

    with emulator(installed()) as url:
        owner, guest = (client(url, token).get_repo("acme/app") for token in ("owner_token", "guest_token"))
        owner.create_git_ref("refs/heads/topic", owner.get_branch("main").commit.sha)
        owner.create_file("b.py", "add", "b\n", branch="topic")
        theirs = conversation(owner, guest)

    assert theirs == ours
