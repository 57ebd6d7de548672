"""Reviews, inline comments at the places that GitHub takes, and their threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reviewer.model import Side
from reviewer.report.inline import InlineComment
from service.forge.base import ForgeError, Thread, User
from service.forge.github.forge import GitHubForge
from tests.service.forge_github.connect import Connect
from tests.standin.github import GitHub, Pull, Repo

ME = User("whitesmoke[bot]", is_bot=True)


def at(
    line: int | None, body: str = "look here", *, side: Side = Side.RIGHT, start: int | None = None
) -> InlineComment:
    return InlineComment(
        finding_id="f1",
        path="a.py",
        body=body,
        line=line,
        side=side,
        start_line=start,
        start_side=side if start else None,
    )


@pytest.fixture
def pull(repo: Repo) -> Pull:
    text = "".join(f"line {number}\n" for number in range(1, 61)).replace("line 10\n", "changed\n")
    return repo.open_pull(files={"a.py": text})


def test_a_review_is_posted_whole(forge: GitHubForge, pull: Pull) -> None:
    comments = [at(10), at(10, side=Side.LEFT), at(11, start=9)]
    made = forge.create_review("acme/app", 1, pull.head_sha, "the review", "COMMENT", comments)
    (review,) = pull.reviews
    assert (review.id, review.state, review.body, review.commit) == (
        made,
        "COMMENTED",
        "the review",
        pull.head_sha,
    )
    places = [(one.line, one.side, one.start_line, one.start_side) for one in pull.inline_comments]
    assert places == [(10, "RIGHT", None, None), (10, "LEFT", None, None), (11, "RIGHT", 9, "RIGHT")]
    (seen,) = forge.reviews("acme/app", 1)
    assert (seen.id, seen.author, seen.state, seen.body, seen.commit) == (
        made, ME, "COMMENTED", "the review", pull.head_sha,
    )  # fmt: skip


def test_one_comment_out_of_place_refuses_the_review_and_leaves_nothing(
    forge: GitHubForge, pull: Pull
) -> None:
    with pytest.raises(ForgeError, match="Line could not be resolved") as refused:
        forge.create_review("acme/app", 1, pull.head_sha, "body", "COMMENT", [at(10), at(50)])
    assert (refused.value.status, refused.value.retry_after) == (422, None)
    assert pull.reviews == []


def test_a_comment_on_a_file_is_no_part_of_a_review(forge: GitHubForge, pull: Pull, hub: GitHub) -> None:
    with pytest.raises(ForgeError, match=r"acme/app#1.*a\.py") as refused:
        forge.create_review("acme/app", 1, pull.head_sha, "body", "COMMENT", [at(10), at(None)])
    assert refused.value.status == 422
    assert not [one for one in hub.requests if one.method == "POST" and "reviews" in one.path]


@pytest.mark.parametrize(
    ("comment", "place"),
    [
        (at(10), ("line", 10, None)),
        (at(12, start=8), ("line", 12, 8)),
        (at(None), ("file", None, None)),
    ],
)
def test_an_inline_comment_stands_by_itself(
    forge: GitHubForge, pull: Pull, comment: InlineComment, place: tuple[object, ...]
) -> None:
    made = forge.create_review_comment("acme/app", 1, pull.head_sha, comment)
    (seen,) = pull.inline_comments
    assert (seen.subject_type, seen.line, seen.start_line) == place
    assert pull.reviews[0].state == "COMMENTED"
    (read,) = forge.review_comments("acme/app", 1)
    assert (read.id, read.author, read.body) == (made, ME, "look here")


@pytest.mark.parametrize("comment", [at(50), replace(at(None), path="nowhere.py")])
def test_an_inline_comment_out_of_place_is_refused(
    forge: GitHubForge, pull: Pull, comment: InlineComment
) -> None:
    with pytest.raises(ForgeError) as refused:
        forge.create_review_comment("acme/app", 1, pull.head_sha, comment)
    assert (refused.value.status, refused.value.retry_after) == (422, None)


def test_a_review_is_edited_dismissed_and_told_gone(forge: GitHubForge, pull: Pull) -> None:
    made = forge.create_review("acme/app", 1, pull.head_sha, "body", "REQUEST_CHANGES", [])
    assert forge.edit_review("acme/app", 1, made, "superseded")
    assert not forge.edit_review("acme/app", 1, made + 1, "superseded")
    assert not forge.dismiss_review("acme/app", 1, made + 1, "never there")
    assert [one.body for one in pull.reviews] == ["superseded"]


def test_a_review_that_is_not_submitted_is_none(forge: GitHubForge, pull: Pull) -> None:
    forge._client.send("POST", "acme/app", "/pulls/1/reviews", {"body": "not yet"})
    assert [one.state for one in pull.reviews] == ["PENDING"]
    assert list(forge.reviews("acme/app", 1)) == []


def test_a_dismissed_review_is_read_as_dismissed(
    hub: GitHub, repo: Repo, pull: Pull, connect: Connect
) -> None:
    repo.grant("carol", "write")
    forge = connect.token(hub, "carol")
    made = forge.create_review("acme/app", 1, pull.head_sha, "body", "REQUEST_CHANGES", [])
    assert forge.dismiss_review("acme/app", 1, made, "fixed since")
    assert [one.state for one in pull.reviews] == ["DISMISSED"]
    assert [one.state for one in forge.reviews("acme/app", 1)] == ["DISMISSED"]


def test_threads_tell_who_spoke_and_are_resolved_twice_as_once(forge: GitHubForge, pull: Pull) -> None:
    forge.create_review_comment("acme/app", 1, pull.head_sha, at(10, "mine"))
    (comment,) = pull.inline_comments
    pull.reply("bob", comment, "I disagree")
    (thread,) = forge.threads("acme/app", 1)
    assert thread == Thread(thread.id, False, False, ((ME, "mine"), (User("bob"), "I disagree")))
    for _ in range(2):
        forge.resolve_thread("acme/app", thread.id)
    assert [one.resolved for one in forge.threads("acme/app", 1)] == [True]
    assert len(pull.reviews) == 2


def test_a_thread_on_a_line_that_is_gone_is_outdated(forge: GitHubForge, pull: Pull) -> None:
    pull.inline("bob", "a.py", 10, "here")
    pull.push({"a.py": "all new\n"})
    assert [one.outdated for one in forge.threads("acme/app", 1)] == [True]


def test_all_threads_and_all_their_comments_are_read(forge: GitHubForge, pull: Pull) -> None:
    long = pull.inline("bob", "a.py", 10, "opener")
    for number in range(160):
        pull.reply("carol", long, f"reply {number}")
    for number in range(60):
        pull.inline("bob", "a.py", 11, f"thread {number}")
    found = list(forge.threads("acme/app", 1))
    assert len(found) == 61
    said = [body for _, body in found[0].comments]
    assert said == ["opener", *(f"reply {number}" for number in range(160))]


def test_more_than_a_hundred_reviews_and_inline_comments_are_all_read(forge: GitHubForge, pull: Pull) -> None:
    for number in range(101):
        pull.inline("bob", "a.py", 10, f"inline {number}")
    assert len(list(forge.review_comments("acme/app", 1))) == 101
    assert len(list(forge.reviews("acme/app", 1))) == 101


def test_a_thread_that_is_gone_says_so(forge: GitHubForge, pull: Pull) -> None:
    with pytest.raises(ForgeError) as refused:
        forge.resolve_thread("acme/app", "PRRT_nothing")
    assert refused.value.status == 404
    with pytest.raises(ForgeError) as refused:
        list(forge.threads("acme/app", 99))
    assert (refused.value.status, refused.value.retry_after) == (404, None)
