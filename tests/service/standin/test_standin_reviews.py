"""Reviews, and GitHub's rules about where inline comments may stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from github import Github, GithubException
from github.PullRequest import PullRequest

from tests.standin.github import GitHub, Pull
from tests.standin.github.render.base import node_id

Client = Callable[[str], Github]

# Two hunks: lines 1-9 (4 replaced, 6 removed) and 48-53 (an addition after 50).
BASE = [f"line {number}" for number in range(1, 61)]
HEAD = [*BASE[:3], "four", BASE[4], *BASE[6:50], "new", *BASE[50:]]


@pytest.fixture
def pull(hub: GitHub) -> Pull:
    repo = hub.create_repo("acme/app", files={"a.py": "\n".join(BASE) + "\n", "b.bin": b"\0\1"})
    repo.grant("bob", "write")
    return repo.open_pull(files={"a.py": "\n".join(HEAD) + "\n", "b.bin": b"\0\2"})


@pytest.fixture
def seen(pull: Pull, client: Client) -> PullRequest:
    return client("bob").get_repo("acme/app").get_pull(1)


def review(
    seen: PullRequest, *comments: dict[str, Any], event: str = "COMMENT", body: str = "Round 1"
) -> Any:
    return seen.create_review(
        body=body, event=event, comments=[{"path": "a.py", "body": "x", **one} for one in comments]
    )


@pytest.mark.parametrize(
    ("place", "hunk_end"),
    [
        ({"line": 4, "side": "RIGHT"}, "+four"),
        ({"line": 4}, "+four"),
        ({"line": 4, "side": "LEFT"}, "-line 4"),
        ({"line": 2, "side": "RIGHT"}, " line 2"),
        ({"line": 50, "side": "RIGHT"}, "+new"),
        ({"line": 5, "side": "RIGHT", "start_line": 4, "start_side": "RIGHT"}, " line 5"),
        ({"line": 6, "side": "LEFT", "start_line": 4, "start_side": "RIGHT"}, "-line 6"),
        ({"line": 4, "side": "RIGHT", "start_line": 4, "start_side": "LEFT"}, "+four"),
    ],
)
def test_a_comment_stands_on_a_line_that_the_diff_shows(
    pull: Pull, seen: PullRequest, place: dict[str, Any], hunk_end: str
) -> None:
    review(seen, place)
    [made] = pull.inline_comments
    assert (made.line, made.side) == (place["line"], place.get("side", "RIGHT"))
    assert made.diff_hunk.split("\n")[-1] == hunk_end
    assert [one.state for one in pull.reviews] == ["COMMENTED"]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ({"line": 12, "side": "RIGHT"}, "Line could not be resolved"),
        ({"line": 30, "side": "RIGHT"}, "Line could not be resolved"),
        ({"line": 2, "side": "LEFT"}, "Line could not be resolved"),
        ({"line": 5, "side": "LEFT"}, "Line could not be resolved"),
        (
            {"line": 50, "side": "RIGHT", "start_line": 4},
            "Start line must be part of the same hunk as the line",
        ),
        ({"line": 4, "start_line": 5}, "Start line must precede the end line"),
        ({"line": 4, "start_line": 4}, "Start line must precede the end line"),
        ({"line": 50, "start_line": 30}, "Start line could not be resolved"),
        ({"path": "nowhere.py", "line": 4}, "Path could not be resolved"),
        ({"path": "b.bin", "line": 1}, "Line could not be resolved"),
        ({"position": 0}, "Position could not be resolved"),
        ({"line": 4, "body": " "}, "Body can not be blank"),
    ],
)
def test_one_comment_out_of_place_takes_the_whole_review_down(
    pull: Pull, seen: PullRequest, place: dict[str, Any], problem: str
) -> None:
    with pytest.raises(GithubException) as refused:
        review(seen, {"line": 4}, place)
    assert refused.value.status == 422
    assert refused.value.data["errors"] == [problem]
    assert pull.reviews == []
    assert pull.inline_comments == []


def test_a_single_comment_out_of_place_is_refused_and_one_in_place_is_not(
    pull: Pull, seen: PullRequest, hub: GitHub
) -> None:
    commit = seen.base.repo.get_commit(pull.head_sha)
    with pytest.raises(GithubException) as refused:
        seen.create_review_comment("x", commit, "a.py", line=30, side="RIGHT")
    assert refused.value.data["errors"][0]["field"] == "pull_request_review_thread.line"
    seen.create_review_comment(
        "on a line", commit, "a.py", line=5, side="RIGHT", start_line=4, start_side="RIGHT"
    )
    seen.create_review_comment("on the file", commit, "b.bin", subject_type="file")
    assert [(one.body, one.subject_type, one.line) for one in pull.inline_comments] == [
        ("on a line", "line", 5),
        ("on the file", "file", None),
    ]
    # The envelope of a single comment is a review of its own.
    assert [(one.state, one.body) for one in pull.reviews] == [("COMMENTED", "")] * 2


def test_a_commit_outside_the_pull_request_is_refused(pull: Pull, seen: PullRequest) -> None:
    with pytest.raises(GithubException, match="422"):
        seen.create_review(seen.base.repo.get_commit(pull.base_sha), "Round 1", "COMMENT")


def test_an_earlier_head_is_placed_by_its_own_diff_even_after_a_force_push(
    pull: Pull, seen: PullRequest
) -> None:
    old = pull.head_sha
    pull.force_push({"a.py": "\n".join([*BASE, "last"]) + "\n"})
    seen.create_review(
        seen.base.repo.get_commit(old), "Round 1", "COMMENT", [{"path": "a.py", "body": "x", "line": 4}]
    )
    assert pull.reviews[0].commit == old
    assert pull.inline_comments[0].line == 4


@pytest.mark.parametrize("event", ["APPROVE", "REQUEST_CHANGES"])
def test_nobody_approves_or_blocks_their_own_pull_request(pull: Pull, client: Client, event: str) -> None:
    seen = client("ada").get_repo("acme/app").get_pull(1)
    with pytest.raises(GithubException, match="your own pull request"):
        review(seen, event=event)
    assert pull.reviews == []


def test_a_review_without_words_is_refused(pull: Pull, seen: PullRequest) -> None:
    with pytest.raises(GithubException, match="blank"):
        review(seen, body=" ")
    with pytest.raises(GithubException, match="too long"):
        review(seen, body="x" * 65537)
    assert pull.reviews == []


def test_only_a_verdict_can_be_dismissed(pull: Pull, seen: PullRequest, client: Client) -> None:
    review(seen, event="REQUEST_CHANGES")
    review(seen)
    first, second = seen.get_reviews()
    with pytest.raises(GithubException, match="Can not dismiss a commented"):
        second.dismiss("fixed")
    with pytest.raises(GithubException, match="403"):
        client("eve").get_repo("acme/app").get_pull(1).get_review(first.id).dismiss("mine")
    first.dismiss("fixed")
    first.edit("superseded")
    assert [(one.state, one.body) for one in pull.reviews] == [
        ("DISMISSED", "superseded"),
        ("COMMENTED", "Round 1"),
    ]


def test_a_pending_review_is_its_authors_alone_until_submitted(
    hub: GitHub, pull: Pull, seen: PullRequest, client: Client
) -> None:
    hub.webhook("http://127.0.0.1:9/", "s")
    pending = seen.create_review(body="soon", comments=[{"path": "a.py", "body": "x", "line": 4}])
    other = client("eve").get_repo("acme/app").get_pull(1)
    assert pending.state == "PENDING"
    assert [list(other.get_reviews()), list(other.get_review_comments())] == [[], []]
    assert hub.deliveries == []
    seen.base.repo.requester.requestJsonAndCheck(
        "POST", f"{pending.pull_request_url}/reviews/{pending.id}/events", input={"event": "COMMENT"}
    )
    assert [one.body for one in other.get_reviews()] == ["soon"]
    assert pull.reviews
    assert pull.inline_comments


def test_a_push_outdates_the_comments_whose_lines_it_changes_and_moves_the_others(
    pull: Pull, seen: PullRequest
) -> None:
    review(seen, {"line": 4, "body": "changed next"}, {"line": 50, "body": "moved next"})
    changed = ["first", *HEAD[:3], "four!", *HEAD[4:]]
    pull.push({"a.py": "\n".join(changed) + "\n"})
    shown = {one.body: (one.line, one.original_line) for one in seen.get_review_comments()}
    assert shown == {"changed next": (None, 4), "moved next": (51, 50)}
    assert [one.outdated for one in pull.inline_comments] == [True, False]
    assert len(pull.reviews) == 1


def test_replies_join_the_thread_and_comments_are_edited_and_deleted(pull: Pull, seen: PullRequest) -> None:
    review(seen, {"line": 4})
    [first] = seen.get_review_comments()
    reply = seen.create_review_comment_reply(first.id, "why?")
    first.edit("because")
    assert reply.in_reply_to_id == first.id
    assert [[one.body for one in thread.comments] for thread in pull.threads] == [["because", "why?"]]
    reply.delete()
    assert [one.body for one in seen.get_review_comments()] == ["because"]
    assert [one.body for one in seen.get_single_review_comments(first.pull_request_review_id)] == ["because"]
    assert len(pull.reviews) == 2


def test_reviews_and_inline_comments_send_their_events(hub: GitHub, pull: Pull, seen: PullRequest) -> None:
    hub.webhook("http://127.0.0.1:9/", "s")
    review(seen, {"line": 4})
    approved = pull.review("carol", "APPROVED", body="fine")
    pull.dismiss(approved, "bob")
    pull.reply("carol", pull.inline_comments[0], "why?")
    assert [(one.event, one.action) for one in hub.deliveries] == [
        ("pull_request_review", "submitted"),
        ("pull_request_review_comment", "created"),
        ("pull_request_review", "submitted"),
        ("pull_request_review", "dismissed"),
        ("pull_request_review", "submitted"),
        ("pull_request_review_comment", "created"),
    ]
    assert hub.deliveries[2].payload["review"]["state"] == "approved"
    assert len(pull.reviews) == 3


def test_threads_are_listed_and_resolved_by_graphql(
    hub: GitHub, repo_bot: Callable[[], Github], pull: Pull
) -> None:
    bot = repo_bot()
    seen = bot.get_repo("acme/app").get_pull(1)
    review(seen, {"line": 4}, {"line": 50})
    query = """query($owner: String!, $name: String!, $number: Int!, $after: String) {
      repository(owner: $owner, name: $name) { pullRequest(number: $number) {
        reviewThreads(first: 1, after: $after) {
          pageInfo { hasNextPage endCursor } totalCount
          nodes { id isResolved isOutdated comments(first: 10) { nodes { author { __typename login } body databaseId } } }
    } } } }"""
    variables = {"owner": "acme", "name": "app", "number": 1}
    found, after = [], None
    while True:
        _, answer = bot.requester.graphql_query(query, {**variables, "after": after})
        threads = answer["data"]["repository"]["pullRequest"]["reviewThreads"]
        found += threads["nodes"]
        after = threads["pageInfo"]["endCursor"]
        if not threads["pageInfo"]["hasNextPage"]:
            break
    assert [one["isResolved"] for one in found] == [False, False]
    # GraphQL names an app's user without the ending that REST gives it.
    assert found[0]["comments"]["nodes"][0]["author"] == {"__typename": "Bot", "login": "whitesmoke"}
    assert seen.get_review_comments()[0].user.login == "whitesmoke[bot]"

    bot.requester.graphql_query(
        "mutation($id: ID!) { resolveReviewThread(input: {threadId: $id}) { thread { isResolved } } }",
        {"id": found[1]["id"]},
    )
    assert [one.resolved_by is not None for one in pull.threads] == [False, True]
    assert pull.reviews


def test_a_graphql_query_that_github_would_not_understand_is_a_violation(
    hub: GitHub, client: Client, pull: Pull
) -> None:
    with pytest.raises(GithubException):
        client("bob").requester.graphql_query("query { viewer { loginn } }", {})
    assert hub.contract.violations == [
        "GraphQL: Cannot query field 'loginn' on type 'User'. Did you mean 'login'?"
    ]
    hub.contract.violations.clear()


@pytest.fixture
def repo_bot(hub: GitHub, as_app: Callable[..., Github], pull: Pull) -> Callable[[], Github]:
    def made() -> Github:
        app = hub.create_app()
        hub.install(app, "acme")
        return as_app(app)

    return made


def test_a_thread_is_not_resolved_by_a_stranger(hub: GitHub, pull: Pull, client: Client) -> None:
    pull.inline("bob", "a.py", 4, "x")
    identifier = node_id("PRRT", pull.threads[0].id)
    mutation = "mutation($id: ID!) { resolveReviewThread(input: {threadId: $id}) { thread { isResolved } } }"
    with pytest.raises(GithubException, match="not accessible"):
        client("eve").requester.graphql_query(mutation, {"id": identifier})
    assert pull.threads[0].resolved_by is None
