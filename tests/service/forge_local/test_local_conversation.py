from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from reviewer.model import Side
from reviewer.report.check import Annotation
from reviewer.report.inline import InlineComment
from reviewer.report.limit import COMMENT_LIMIT
from service.forge.base import Button, Check, ForgeError, User
from service.forge.local import LocalForge
from tests.kit.checkouts import Repo

REPO = "acme/cache"
BOT = User("whitesmoke[bot]", is_bot=True)


def on(
    line: int | None, side: Side = Side.RIGHT, start: int | None = None, path: str = "pages.txt"
) -> InlineComment:
    return InlineComment("F1", path, f"about line {line}", line, side, start, side if start else None)


def test_comments_are_made_edited_and_deleted(forge: LocalForge, ada: LocalForge) -> None:
    assert forge.me(REPO) == BOT
    first = forge.create_comment(REPO, 1, "one")
    ada.create_comment(REPO, 1, "two")
    assert forge.edit_comment(REPO, 1, first, "changed")
    assert [(one.author, one.body) for one in forge.comments(REPO, 1)] == [
        (BOT, "changed"),
        (User("ada"), "two"),
    ]
    edited = next(forge.comments(REPO, 1))
    assert edited.updated_at > edited.created_at
    assert ada.delete_comment(REPO, 1, first)
    assert not forge.edit_comment(REPO, 1, first, "again")
    assert not ada.delete_comment(REPO, 1, first)


def test_comments_since_a_moment_are_those_written_or_edited_then(forge: LocalForge, ada: LocalForge) -> None:
    old, _ = (ada.create_comment(REPO, 1, body) for body in ("old", "older"))
    now = max(one.updated_at for one in forge.comments(REPO, 1)) + timedelta(seconds=1)
    ada.create_comment(REPO, 1, "new")
    ada.edit_comment(REPO, 1, old, "old, edited")
    assert [one.body for one in forge.comments(REPO, 1, now)] == ["old, edited", "new"]
    assert list(forge.comments(REPO, 1, datetime(2030, 1, 1, tzinfo=UTC))) == []


@pytest.mark.parametrize("body", ["", "  \n", "x" * (COMMENT_LIMIT + 1), "😀" * (COMMENT_LIMIT // 2 + 1)])
def test_an_empty_or_too_long_text_is_refused(forge: LocalForge, ada: LocalForge, body: str) -> None:
    with pytest.raises(ForgeError) as caught:
        forge.create_comment(REPO, 1, body)
    assert (caught.value.status, caught.value.retry_after) == (422, None)
    with pytest.raises(ForgeError):
        forge.create_review(REPO, 1, forge.pull(REPO, 1).head_sha, body, "COMMENT", [])
    assert forge.conversation(REPO, 1) == ()
    forge.create_comment(REPO, 1, "x" * COMMENT_LIMIT)


def test_reacting_twice_is_once_and_to_nothing_an_error(forge: LocalForge, ada: LocalForge) -> None:
    comment = ada.create_comment(REPO, 1, "/review")
    forge.react(REPO, 1, comment, "eyes")
    forge.react(REPO, 1, comment, "eyes")
    forge.react(REPO, 1, comment, "rocket")
    assert forge.reactions(REPO, 1, comment) == (("eyes", BOT), ("rocket", BOT))
    with pytest.raises(ForgeError, match="no comment 99"):
        forge.react(REPO, 1, 99, "eyes")


def test_a_review_is_taken_whole_or_not_at_all(forge: LocalForge, ada: LocalForge) -> None:
    head = forge.pull(REPO, 1).head_sha
    with pytest.raises(ForgeError, match=r"line 20 of 'pages.txt' must be part of the diff") as caught:
        forge.create_review(REPO, 1, head, "review", "COMMENT", [on(10), on(20)])
    assert caught.value.status == 422
    assert forge.conversation(REPO, 1) == ()
    forge.create_review(REPO, 1, head, "review", "COMMENT", [on(10), on(None)])
    assert [(one.kind, one.place) for one in forge.conversation(REPO, 1)] == [
        ("review", ""),
        ("inline", "pages.txt:10"),
        ("inline", "pages.txt"),
    ]


def test_reviews_are_edited_and_dismissed(forge: LocalForge, ada: LocalForge) -> None:
    head = forge.pull(REPO, 1).head_sha
    review = forge.create_review(REPO, 1, head, "no", "REQUEST_CHANGES", [])
    assert forge.edit_review(REPO, 1, review, "no, because")
    assert forge.dismiss_review(REPO, 1, review, "fixed")
    (found,) = forge.reviews(REPO, 1)
    assert (found.id, found.author, found.state, found.body, found.commit) == (
        review, BOT, "DISMISSED", "no, because", head,
    )  # fmt: skip
    assert not forge.edit_review(REPO, 1, 99, "x")
    assert not forge.dismiss_review(REPO, 1, 99, "x")


@pytest.mark.parametrize("event", ["APPROVE", "REQUEST_CHANGES"])
def test_authors_only_comment_on_their_own_pull_request(ada: LocalForge, event: str) -> None:
    head = ada.pull(REPO, 1).head_sha
    with pytest.raises(ForgeError, match="own pull request") as caught:
        ada.create_review(REPO, 1, head, "mine", event, [])  # type: ignore[arg-type]
    assert caught.value.status == 422
    ada.create_review(REPO, 1, head, "mine", "COMMENT", [])


def test_a_commit_outside_the_pull_request_cannot_be_reviewed(
    forge: LocalForge, ada: LocalForge, repo: Repo
) -> None:
    old = forge.pull(REPO, 1).head_sha
    repo.commit({"new.txt": "more\n"})
    forge.create_review(REPO, 1, old, "an earlier commit", "COMMENT", [on(10)])
    repo.git("reset", "--quiet", "--hard", "HEAD~2")
    repo.commit({"pages.txt": "all new\n"})
    for commit in (old, "0" * 40):
        with pytest.raises(ForgeError, match="is not part of pull request 1"):
            forge.create_review(REPO, 1, commit, "gone", "COMMENT", [])


def test_threads_hold_their_replies_and_are_resolved(forge: LocalForge, ada: LocalForge) -> None:
    head = forge.pull(REPO, 1).head_sha
    for line in (10, 11):
        forge.create_review_comment(REPO, 1, head, on(line))
    first, second = forge.threads(REPO, 1)
    ada.reply(REPO, 1, first.id, "I disagree")
    forge.resolve_thread(REPO, second.id)
    first, second = forge.threads(REPO, 1)
    assert first.comments == ((BOT, "about line 10"), (User("ada"), "I disagree"))
    assert (first.resolved, second.resolved) == (False, True)
    assert [one.body for one in forge.review_comments(REPO, 1)] == [
        "about line 10",
        "about line 11",
        "I disagree",
    ]
    assert [(one.thread, one.state) for one in forge.conversation(REPO, 1)] == [
        (0, ""), (0, "resolved"), (int(first.id), ""),
    ]  # fmt: skip
    for missing in ("99", "x"):
        with pytest.raises(ForgeError, match=f"no thread {missing}"):
            forge.resolve_thread(REPO, missing)
        with pytest.raises(ForgeError, match=f"no thread {missing}"):
            ada.reply(REPO, 1, missing, "?")


@pytest.mark.parametrize(
    ("comment", "edit", "outdated"),
    [
        (on(10), {"line ten\n": "line x\n"}, True),
        (on(10), {"line 9\n": "line ix\n"}, False),
        (on(12, start=9), {"line 9\n": "line ix\n"}, True),
        (on(10), {"line 1\n": "one\nmore\n"}, False),
        (on(30, Side.LEFT), {"line 29\n": "line xxix\n"}, False),
        (on(30, Side.LEFT), {"line 29\n": "line 29\nline 30\n"}, True),
        (on(None), {"line 9\n": "line ix\n"}, False),
        (on(None), {"line ten\n": "line 10\n", "line 29\n": "line 29\nline 30\n"}, True),
    ],
)
def test_a_thread_is_outdated_once_what_it_stands_on_changes(
    forge: LocalForge,
    ada: LocalForge,
    repo: Repo,
    comment: InlineComment,
    edit: dict[str, str],
    outdated: bool,
) -> None:
    forge.create_review_comment(REPO, 1, forge.pull(REPO, 1).head_sha, comment)
    assert [one.outdated for one in forge.threads(REPO, 1)] == [False]
    text = (repo.folder / "pages.txt").read_text()
    for old, new in edit.items():
        text = text.replace(old, new)
    repo.commit({"pages.txt": text})
    assert [one.outdated for one in forge.threads(REPO, 1)] == [outdated]


def test_labels_are_set_once_each(forge: LocalForge, ada: LocalForge) -> None:
    forge.set_labels(REPO, 1, ["a", "b"], [])
    forge.set_labels(REPO, 1, ["b", "c"], ["a", "z"])
    assert sorted(forge.pull(REPO, 1).labels) == ["b", "c"]


def test_the_newest_own_check_of_a_name_is_found_and_stands_as_it_was_last_set(forge: LocalForge) -> None:
    head = "a" * 40
    notes = tuple(Annotation("a.py", n, n, "warning", "t", "m") for n in range(1, 121))
    assert forge.find_check(REPO, head, "review") is None
    forge.create_check(REPO, Check("review", head, "completed", "failure"))
    newest = forge.create_check(REPO, Check("review", head, "in_progress", buttons=(Button("a", "b", "c"),)))
    forge.as_user("other[bot]").create_check(REPO, Check("review", head, "queued"))
    assert forge.find_check(REPO, head, "review") == newest
    done = Check("review", head, "completed", "success", "title", "summary", annotations=notes)
    assert forge.update_check(REPO, newest, done)
    assert forge.checks(REPO, head)[1] == done
    assert not forge.update_check(REPO, 99, done)
    assert forge.find_check(REPO, head, "lint") is None


@pytest.mark.parametrize(
    "check",
    [
        Check("review", "a", "completed"),
        Check("review", "a", "in_progress", "success"),
        Check("review", "a", "queued", buttons=(Button("a", "b", "c"),) * 4),
        Check("review", "a", "queued", buttons=(Button("a" * 21, "b", "c"),)),
        Check("review", "a", "queued", buttons=(Button("a", "b" * 41, "c"),)),
        Check("review", "a", "queued", buttons=(Button("a", "b", "c" * 21),)),
        Check("review", "a", "completed", "success", summary="x" * COMMENT_LIMIT),
    ],
)
def test_a_check_that_github_would_refuse_is_refused(forge: LocalForge, check: Check) -> None:
    with pytest.raises(ForgeError) as caught:
        forge.create_check(REPO, check)
    assert caught.value.status == 422


def test_nothing_is_delivered_and_nothing_to_deliver_again(forge: LocalForge) -> None:
    assert list(forge.failed_deliveries(datetime(2026, 1, 1, tzinfo=UTC))) == []
    with pytest.raises(ForgeError):
        forge.redeliver("guid")


def test_text_from_anywhere_is_kept(forge: LocalForge, ada: LocalForge) -> None:
    ada.create_comment(REPO, 1, "NUL \0, half a pair \ud800, 中文 😀")
    assert [one.body for one in forge.comments(REPO, 1)] == ["NUL �, half a pair ?, 中文 😀"]
