"""PyGithub, an independent client, sees and changes pull requests of the stand-in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from github import Github, GithubException

from tests.standin.github import GitHub, Repo

Client = Callable[[str], Github]


def changed(line: int, text: str = "changed") -> str:
    return "".join(f"{text}\n" if number == line else f"line {number}\n" for number in range(1, 61))


def events(hub: GitHub) -> list[tuple[str, str | None]]:
    return [(one.event, one.action) for one in hub.deliveries]


def test_a_pull_request_is_shown_with_its_files_commits_and_mergeability(repo: Repo, client: Client) -> None:
    opened = repo.open_pull(
        author="ada", branch="topic", files={"a.py": changed(5), "c.py": "c\n"}, title="Two"
    )
    opened.push({"b.py": None})

    seen = client("bob").get_repo("acme/app").get_pull(1)

    assert (seen.title, seen.user.login, seen.state, seen.draft) == ("Two", "ada", "open", False)
    assert seen.head.sha == opened.head_sha
    assert seen.base.sha == repo.sha("main")
    assert seen.mergeable is True
    assert (seen.commits, seen.additions, seen.deletions, seen.changed_files) == (2, 2, 2, 3)
    files = {one.filename: one for one in seen.get_files()}
    assert {name: one.status for name, one in files.items()} == {
        "a.py": "modified",
        "b.py": "removed",
        "c.py": "added",
    }
    assert files["a.py"].patch.startswith("@@ -2,7 +2,7 @@")
    assert files["c.py"].patch == "@@ -0,0 +1 @@\n+c"
    assert [one.commit.message for one in seen.get_commits()] == ["Two", "more"]


def test_a_pull_request_that_conflicts_is_not_mergeable(repo: Repo, client: Client) -> None:
    repo.open_pull(files={"a.py": changed(5, "mine")})
    repo.push("main", {"a.py": changed(5, "theirs")})
    assert client("bob").get_repo("acme/app").get_pull(1).mergeable is False


def test_what_happens_on_the_base_branch_is_no_part_of_the_diff(repo: Repo, client: Client) -> None:
    repo.open_pull(files={"a.py": changed(5)})
    repo.push("main", {"b.py": "other\n"})
    seen = client("bob").get_repo("acme/app").get_pull(1)
    assert [one.filename for one in seen.get_files()] == ["a.py"]
    assert seen.base.sha == repo.sha("main")


def test_force_push_and_rebase_replace_the_head(hub: GitHub, repo: Repo, client: Client) -> None:
    hub.webhook("http://127.0.0.1:9/", "s")
    pull = repo.open_pull(files={"a.py": changed(5)})
    first = pull.head_sha
    second = pull.force_push({"a.py": changed(6)})
    repo.push("main", {"b.py": "other\n"})
    third = pull.rebase()

    seen = client("bob").get_repo("acme/app").get_pull(1)
    assert len({first, second, third}) == 3
    assert seen.head.sha == third
    assert seen.commits == 1
    assert [one.filename for one in seen.get_files()] == ["a.py"]
    synchronized = [one.payload for one in hub.deliveries if one.action == "synchronize"]
    assert [(one["before"], one["after"]) for one in synchronized] == [(first, second), (second, third)]
    assert [one.payload["forced"] for one in hub.deliveries if one.event == "push"] == [
        False,
        True,
        False,
        True,
    ]


def test_a_fork_lives_apart_and_its_head_is_in_the_base_repository(repo: Repo, client: Client) -> None:
    pull = repo.open_pull(author="eve", fork=True, files={"a.py": changed(5)})
    pull.push({"a.py": changed(6)})
    seen = client("bob").get_repo("acme/app").get_pull(1)
    assert seen.head.repo.full_name == "eve/app"
    assert seen.head.repo.fork
    assert repo.sha(seen.head.sha) == pull.head_sha
    assert [
        one.number for one in client("bob").get_repo("acme/app").get_commit(pull.head_sha).get_pulls()
    ] == [1]


def test_a_pull_request_outlives_the_fork_that_it_came_from(hub: GitHub, repo: Repo, client: Client) -> None:
    pull = repo.open_pull(author="eve", fork=True, files={"a.py": changed(5)})
    hub.repo("eve/app").delete()
    seen = client("bob").get_repo("acme/app").get_pull(1)
    assert seen.head.repo is None
    assert seen.head.sha == pull.head_sha


def test_each_change_of_a_pull_request_sends_its_event(hub: GitHub, repo: Repo) -> None:
    hub.webhook("http://127.0.0.1:9/", "s")
    repo.push("next", {"b.py": "next\n"})
    pull = repo.open_pull(files={"a.py": changed(5)}, draft=True)
    pull.ready()
    pull.to_draft()
    pull.label("urgent")
    pull.unlabel("urgent")
    pull.edit(title="Better")
    pull.edit(base="next")
    pull.close()
    pull.reopen()
    pull.ready()
    pull.merge()

    assert events(hub) == [
        ("push", None),
        ("push", None),
        ("pull_request", "opened"),
        ("pull_request", "ready_for_review"),
        ("pull_request", "converted_to_draft"),
        ("pull_request", "labeled"),
        ("pull_request", "unlabeled"),
        ("pull_request", "edited"),
        ("pull_request", "edited"),
        ("pull_request", "closed"),
        ("pull_request", "reopened"),
        ("pull_request", "ready_for_review"),
        ("pull_request", "closed"),
        ("push", None),
    ]
    edits = [one.payload["changes"] for one in hub.deliveries if one.action == "edited"]
    assert edits[0] == {"title": {"from": "A change"}}
    assert edits[1]["base"]["ref"] == {"from": "main"}
    assert hub.deliveries[-2].payload["pull_request"]["merged"] is True


def test_a_client_opens_edits_and_closes_a_pull_request(hub: GitHub, repo: Repo, client: Client) -> None:
    repo.push("topic", {"a.py": changed(5)})
    repo.grant("ada", "write")
    seen = client("ada").get_repo("acme/app").create_pull(base="main", head="topic", title="Mine", draft=True)
    assert seen.draft
    seen.edit(title="Ours", state="closed")
    assert (repo.pull(1).state.title, repo.pull(1).state.state) == ("Ours", "closed")


def test_comments_are_created_edited_deleted_and_reacted_to(repo: Repo, client: Client) -> None:
    pull = repo.open_pull(files={"a.py": changed(5)})
    asked = pull.comment("ada", "/review")
    seen = client("bob").get_repo("acme/app").get_pull(1)

    seen.get_issue_comment(asked.id).create_reaction("eyes")
    seen.get_issue_comment(asked.id).create_reaction("eyes")
    made = seen.create_issue_comment("hello")
    made.edit("hello again")

    assert [(one.user.login, one.content) for one in asked.reactions] == [("bob", "eyes")]
    assert [one.body for one in pull.comments] == ["/review", "hello again"]
    made.delete()
    assert [one.body for one in seen.get_issue_comments()] == ["/review"]


def test_a_comment_of_more_than_65536_characters_is_refused(repo: Repo, client: Client) -> None:
    pull = repo.open_pull(files={"a.py": changed(5)})
    seen = client("bob").get_repo("acme/app").get_pull(1)
    with pytest.raises(GithubException) as refused:
        seen.create_issue_comment("x" * 65537)
    assert refused.value.status == 422
    seen.create_issue_comment("\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 65536)
    assert len(pull.comments) == 1


def test_lists_come_in_pages_of_at_most_100(repo: Repo, client: Client) -> None:
    pull = repo.open_pull(files={"a.py": changed(5)})
    for number in range(205):
        pull.comment("ada", f"comment {number}")
    github = client("bob")
    github.per_page = 500
    before = len(repo.hub.requests)

    seen = [one.body for one in github.get_repo("acme/app").get_issue(1).get_comments()]

    assert seen == [f"comment {number}" for number in range(205)]
    lists = [one for one in repo.hub.requests[before:] if one.path.endswith("/comments")]
    assert [one.query.get("page", "1") for one in lists] == ["1", "2", "3"]


def test_comments_can_be_listed_since_a_time(hub: GitHub, repo: Repo, client: Client) -> None:
    pull = repo.open_pull(files={"a.py": changed(5)})
    pull.comment("ada", "old")
    hub.pass_time(60)
    since = hub.world.now()
    for number in range(40):
        pull.comment("ada", f"new {number}")
    seen = client("bob").get_repo("acme/app").get_issue(1)
    assert [one.body for one in seen.get_comments(since=since)] == [f"new {number}" for number in range(40)]


def test_comments_of_a_whole_repository_can_be_listed_since_a_time(
    hub: GitHub, repo: Repo, client: Client
) -> None:
    first, second = (repo.open_pull(branch=name, files={"a.py": changed(5)}) for name in ("one", "two"))
    first.comment("ada", "old")
    edited = first.comment("ada", "edited later")
    hub.pass_time(60)
    since = hub.world.now()
    second.comment("ada", "new")
    hub.pass_time(60)
    first.edit_comment(edited, "edited")
    seen = (
        client("bob").get_repo("acme/app").get_issues_comments(sort="updated", direction="desc", since=since)
    )
    assert [one.body for one in seen] == ["edited", "new"]


def test_labels_are_added_and_removed(repo: Repo, client: Client) -> None:
    pull = repo.open_pull(files={"a.py": changed(5)})
    repo.grant("bob", "triage")
    seen = client("bob").get_repo("acme/app").get_pull(1)
    seen.add_to_labels("blocked", "reviewed")
    seen.remove_from_labels("blocked")
    assert pull.labels == ["reviewed"]
    seen.set_labels("reviewed", "ready")
    assert pull.labels == ["reviewed", "ready"]
    pull.label("review/blocked now")
    seen.remove_from_labels("review/blocked now")
    assert pull.labels == ["reviewed", "ready"]
    with pytest.raises(GithubException, match="404"):
        seen.remove_from_labels("blocked")


def test_permissions_are_what_was_granted(repo: Repo, client: Client) -> None:
    for login, role in (("tom", "triage"), ("wendy", "write"), ("max", "maintain"), ("ann", "admin")):
        repo.grant(login, role)
    repo.hub.user("rita")
    seen = client("wendy").get_repo("acme/app")
    roles = {
        login: seen.get_collaborator_role_name(login) for login in ("rita", "tom", "wendy", "max", "ann")
    }
    assert roles == {"rita": "read", "tom": "triage", "wendy": "write", "max": "maintain", "ann": "admin"}
    assert seen.get_collaborator_permission("max") == "write"
    with pytest.raises(GithubException, match="404"):
        seen.get_collaborator_permission("nobody-ever")


def test_a_private_repository_is_hidden_from_strangers(hub: GitHub, client: Client) -> None:
    hub.create_repo("acme/secret", private=True).grant("ada", "read")
    assert client("ada").get_repo("acme/secret").private
    with pytest.raises(GithubException, match="404"):
        client("eve").get_repo("acme/secret")


def test_files_folders_commits_and_comparisons_are_read(repo: Repo, client: Client) -> None:
    pull = repo.open_pull(files={"d/e.py": "e\n", "a.py": changed(5)})
    seen = client("bob").get_repo("acme/app")
    file = seen.get_contents("d/e.py", ref=pull.head_sha)
    folder = seen.get_contents("d", ref="topic")
    assert not isinstance(file, list)
    assert file.decoded_content == b"e\n"
    assert isinstance(folder, list)
    assert [one.path for one in folder] == ["d/e.py"]
    with pytest.raises(GithubException, match="404"):
        seen.get_contents("d/e.py")
    compared = seen.compare("main", "topic")
    assert (compared.status, compared.ahead_by, [one.filename for one in compared.files]) == (
        "ahead",
        1,
        ["a.py", "d/e.py"],
    )
    assert seen.get_commit(pull.head_sha).stats.total == 3
    assert seen.get_branch("topic").commit.sha == pull.head_sha


def test_enterprise_serves_the_api_under_its_path() -> None:
    with GitHub(enterprise=True, check=False) as hub:
        hub.create_repo("acme/app")
        with Github(base_url=hub.api_url, retry=None) as seen:
            assert seen.get_repo("acme/app").url == f"{hub.html_url}/api/v3/repos/acme/app"
        with Github(base_url=hub.html_url, retry=None) as seen, pytest.raises(GithubException, match="404"):
            seen.get_repo("acme/app")
