"""Pull requests, files, permissions and comments, read and written over HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from service.forge.base import ForgeError, Permission, User
from service.forge.github.forge import GitHubForge
from service.forge.github.read import read_pull
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Repo
from tests.standin.github.state import App


def test_an_app_is_its_bot(forge: GitHubForge, hub: GitHub) -> None:
    assert forge.me("acme/app") == User("whitesmoke[bot]", is_bot=True)
    forge.me("acme/app")
    assert [one.path for one in hub.requests] == ["/app"]


def test_a_token_is_its_user(hub: GitHub, repo: Repo, connect: Connect) -> None:
    assert connect.token(hub, "ada").me("acme/app") == User("ada", is_bot=False)


def test_a_pull_request_is_read_whole(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"}, title="Two", body=None, draft=True)
    pull.label("bug")
    seen = forge.pull("acme/app", pull.number)
    assert (seen.repo, seen.number, seen.title, seen.body) == ("acme/app", 1, "Two", "")
    assert (seen.author, seen.head_ref, seen.base_ref) == (User("ada"), "topic", "main")
    assert (seen.head_sha, seen.base_sha) == (pull.head_sha, repo.sha("main"))
    assert (seen.draft, seen.state, seen.merged, seen.labels) == (True, "open", False, ("bug",))
    assert not seen.is_fork


def test_a_merged_pull_request_is_closed_and_merged(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    pull.merge()
    seen = forge.pull("acme/app", pull.number)
    assert (seen.state, seen.merged) == ("closed", True)


def test_a_fork_is_one_also_where_it_and_its_owner_are_gone(forge: GitHubForge, repo: Repo) -> None:
    repo.open_pull(files={"a.py": "x\n"}, fork=True)
    seen = forge.pull("acme/app", 1)
    assert (seen.head_repo, seen.is_fork) == ("ada/app", True)
    # GitHub's description does not allow for these nulls, which GitHub sends.
    answer = forge._client.get("acme/app", "/pulls/1")
    answer["user"] = answer["head"]["repo"] = None
    seen = read_pull("acme/app", answer)
    assert (seen.head_repo, seen.is_fork, seen.author) == ("", True, User("ghost"))


def test_open_pull_requests_are_listed_oldest_first_over_all_pages(forge: GitHubForge, repo: Repo) -> None:
    repo.push("topic", {"a.py": "x\n"})
    for _ in range(102):
        repo.open_pull()
    repo.pull(1).close()
    assert [one.number for one in forge.open_pulls("acme/app")] == list(range(2, 103))


def test_the_pull_requests_of_a_head_include_those_from_forks(forge: GitHubForge, repo: Repo) -> None:
    own = repo.open_pull(files={"a.py": "x\n"})
    fork = repo.open_pull(author="eve", branch="other", files={"a.py": "y\n"}, fork=True)
    assert forge.pulls_of("acme/app", fork.head_sha) == (fork.number,)
    assert forge.pulls_of("acme/app", own.head_sha) == (own.number,)
    assert forge.pulls_of("acme/app", repo.sha("main")) == ()


def test_a_file_is_read_at_a_branch_or_commit(forge: GitHubForge, repo: Repo) -> None:
    repo.push("release/1.0", {"dir with space/ä#?.bin": b"\x00\xff\n"})
    path = "dir with space/ä#?.bin"
    assert forge.read_file("acme/app", "release/1.0", path) == b"\x00\xff\n"
    assert forge.read_file("acme/app", repo.sha("release/1.0"), path) == b"\x00\xff\n"
    assert forge.read_file("acme/app", "main", path) is None
    assert forge.read_file("acme/app", "main", "lib") is None
    assert forge.read_file("acme/app", "nowhere", "a.py") is None
    assert forge.read_file("acme/app", "HEAD", "b.py") == b"b\n"


def test_an_unchanged_file_costs_nothing_of_the_rate_limit(hub: GitHub, repo: Repo, connect: Connect) -> None:
    forge = connect.token(hub, "ada")
    token = forge._client.credentials.token("acme/app")
    assert forge.read_file("acme/app", "main", "b.py") == b"b\n"
    left = hub.requests_left(token)
    assert forge.read_file("acme/app", "main", "b.py") == b"b\n"
    assert hub.requests_left(token) == left
    repo.push("main", {"b.py": "new\n"})
    assert forge.read_file("acme/app", "main", "b.py") == b"new\n"


@pytest.mark.parametrize("role", ["none", "read", "triage", "write", "maintain", "admin"])
def test_a_permission_is_the_role(hub: GitHub, app: App, connect: Connect, role: str) -> None:
    private = hub.create_repo("acme/secret", private=True)
    private.grant("bob", role)
    assert connect.app(hub, app).permission("acme/secret", "bob") is Permission[role.upper()]


def test_nobody_has_no_permission(forge: GitHubForge) -> None:
    assert forge.permission("acme/app", "nobody") is Permission.NONE
    assert forge.permission("acme/app", "odd?login") is Permission.NONE


def test_more_than_a_hundred_comments_are_all_read(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    for number in range(205):
        pull.comment("bob", f"comment {number}")
    found = list(forge.comments("acme/app", pull.number))
    assert [one.body for one in found] == [f"comment {number}" for number in range(205)]
    assert found[0].author == User("bob")


def test_a_full_page_that_gets_a_second_one_is_not_taken_for_the_last(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    for number in range(100):
        pull.comment("bob", f"comment {number}")
    assert len(list(forge.comments("acme/app", pull.number))) == 100
    pull.comment("bob", "one more")
    assert len(list(forge.comments("acme/app", pull.number))) == 101


def test_comments_since_a_time_are_those_changed_since(hub: GitHub, forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    first = pull.comment("bob", "first")
    pull.comment("bob", "second")
    hub.pass_time(60)
    moment = first.created_at + timedelta(seconds=30)
    assert list(forge.comments("acme/app", pull.number, moment)) == []
    pull.edit_comment(first, "first, edited")
    assert [one.body for one in forge.comments("acme/app", pull.number, moment)] == ["first, edited"]


def test_a_comment_is_made_edited_and_told_gone(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    made = forge.create_comment("acme/app", pull.number, "hello")
    assert forge.edit_comment("acme/app", pull.number, made, "hi")
    (comment,) = pull.comments
    assert (comment.id, comment.body, comment.user.login) == (made, "hi", "whitesmoke[bot]")
    pull.delete_comment(comment, "acme")
    assert not forge.edit_comment("acme/app", pull.number, made, "again")


def test_reacting_twice_is_reacting_once(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    comment = pull.comment("bob", "/review")
    for _ in range(2):
        forge.react("acme/app", pull.number, comment.id, "eyes")
    assert [one.content for one in comment.reactions] == ["eyes"]


def test_labels_are_set_and_taken_away_also_where_they_are_not(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(files={"a.py": "x\n"})
    pull.label("c++")
    for _ in range(2):
        forge.set_labels("acme/app", pull.number, ["reviewed:lgtm"], ["c++", "never there"])
    assert pull.labels == ["reviewed:lgtm"]


@pytest.mark.parametrize(
    "name", ["acme", "acme/app/extra", "../app", "acme/..", "acme/a b", "acme/app?x=1", ""]
)
def test_what_is_no_repository_name_is_asked_for_nowhere(forge: GitHubForge, hub: GitHub, name: str) -> None:
    with pytest.raises(ForgeError):
        forge.pull(name, 1)
    assert not [one for one in hub.requests if "pulls" in one.path]


def test_a_private_repository_is_checked_out_with_the_installations_token(
    hub: GitHub, app: App, connect: Connect
) -> None:
    private = hub.create_repo("acme/private", private=True)
    private.open_pull(files={"a.py": "x\n"})
    forge = connect.app(hub, app)
    with forge.checkout(forge.pull("acme/private", 1)) as checkout:
        assert [file.path for file in checkout.diff.files] == ["a.py"]


def test_a_checkout_is_of_the_pull_request_and_its_failure_names_it(forge: GitHubForge, repo: Repo) -> None:
    pull = repo.open_pull(author="eve", files={"a.py": "x\n"}, fork=True)
    seen = forge.pull("acme/app", pull.number)
    with forge.checkout(seen) as checkout:
        assert (checkout.base_sha, checkout.head_sha) == (pull.base_sha, pull.head_sha)
    with pytest.raises(ForgeError, match="acme/app#1: 'nothing' is not a commit"):
        forge.checkout(replace(seen, head_sha="nothing"))
    with pytest.raises(ForgeError, match="not the name of a repository"):
        forge.checkout(replace(seen, repo="acme/../../etc"))


def test_a_disk_that_cannot_be_written_is_told(forge: GitHubForge, repo: Repo, connect: Connect) -> None:
    repo.open_pull(files={"a.py": "x\n"})
    seen = forge.pull("acme/app", 1)
    (connect.folder / "clones").write_text("in the way")
    with pytest.raises(
        ForgeError, match=r"acme/app#1 cannot be cloned to .*clones.*WHITESMOKE_DATA"
    ) as failed:
        forge.checkout(seen)
    assert failed.value.retry_after
