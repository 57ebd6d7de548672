"""GitHub fails: at every write, before and after its effect, for a while, by its limits, or by losing webhooks."""

from __future__ import annotations

from typing import Any

import pytest

from service.store.schema import outbox
from tests.kit.github_service import GitHubService
from tests.kit.rounds import BASE, HEAD, PATH, finding
from tests.standin.github import GitHub, Pull

POLICY = "service: {labels: {blocked: needs work, lgtm: ready}, review_event: REQUEST_CHANGES}\n"

WRITES = {
    "a new comment": "POST /repos/*/*/issues/*/comments",
    "an edited comment": "PATCH /repos/*/*/issues/comments/*",
    "a reaction": "POST /repos/*/*/issues/comments/*/reactions",
    "a new review": "POST /repos/*/*/pulls/*/reviews",
    "an edited review": "PUT /repos/*/*/pulls/*/reviews/*",
    "a dismissed review": "PUT /repos/*/*/pulls/*/reviews/*/dismissals",
    "a new check": "POST /repos/*/*/check-runs",
    "an updated check": "PATCH /repos/*/*/check-runs/*",
    "a label": "POST /repos/*/*/issues/*/labels",
    "a label taken away": "DELETE /repos/*/*/issues/*/labels/*",
    "a resolved thread": "POST /graphql",
}
FAULTS: dict[str, dict[str, Any]] = {
    "refused with 502": {"status": 502},
    "done but answered with 502": {"status": 502, "effect": True},
    "dropped before its effect": {"drop": "before"},
    "dropped after its effect": {"drop": "after"},
}


def live(github: GitHubService) -> Pull:
    """Blocked, fixed by a push, asked about: in which every kind of write occurs."""
    github.repo.push("main", {".whitesmoke.yml": POLICY})
    github.repo.grant("bob", "write")
    pull = github.open()
    github.settle()
    github.model.findings, github.model.recheck = [], "fixed"
    pull.push({PATH: BASE[PATH] + "\n# checked\n"})
    github.settle()
    pull.comment("bob", "/explain F1")
    github.settle()
    return pull


def assert_everything_stands_once(github: GitHubService, pull: Pull) -> None:
    report, answer = github.comments(pull)
    assert "round 2" in report.body
    assert "F1" in answer.body
    asked = next(one for one in pull.comments if one.body == "/explain F1")
    assert [one.content for one in asked.reactions] == ["+1"]
    first, second = github.reviews(pull)
    assert (first.state, "uperseded" in first.body) == ("DISMISSED", True)
    assert (second.state, "uperseded" in second.body) == ("COMMENTED", False)
    assert len(github.inline(pull)) == 1
    assert [one.resolved_by is not None for one in pull.threads] == [True]
    assert pull.labels == ["ready"]
    assert [(one.status, one.conclusion) for one in github.checks(pull)] == [("completed", "success")]
    assert [one.conclusion for one in github.repo.checks(first.commit)] == ["failure"]
    assert github.unsettled() == []


@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_answer_is_lost_is_not_made_twice(github: GitHubService, write: str) -> None:
    failure = github.hub.fail(WRITES[write], drop="after")
    pull = live(github)
    assert failure.hits == 1
    assert_everything_stands_once(github, pull)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_fails_again_and_again_is_made_once(
    github: GitHubService, write: str, fault: str
) -> None:
    failure = github.hub.fail(WRITES[write], times=4, **FAULTS[fault])
    pull = live(github)
    assert failure.hits >= 1
    assert_everything_stands_once(github, pull)


def test_no_write_is_missing_among_those_that_fail(github: GitHubService) -> None:
    failures = [github.hub.fail(pattern, times=0) for pattern in WRITES.values()]
    assert_everything_stands_once(github, live(github))
    writes = {
        f"{one.method} {one.path}"
        for one in github.hub.requests
        if one.method != "GET" and not one.path.endswith(("git-upload-pack", "access_tokens"))
    }
    unknown = [one for one in writes if not any(failure.matches(*one.split(" ", 1)) for failure in failures)]
    assert unknown == []


def test_what_happened_while_github_was_down_arrives_once_it_is_back(
    github: GitHubService, hub: GitHub
) -> None:
    down = hub.fail("* /**", 503, times=100_000)
    pull = github.open()
    pull.comment("acme", "/help")
    github.settle(600)
    assert down.hits > 0
    assert github.comments(pull) == []
    hub.heal()
    github.settle()

    bodies = [one.body for one in github.comments(pull)]
    assert len(bodies) == 2
    assert sum("round 1 - BLOCKED(1)" in body for body in bodies) == 1
    assert len(github.reviews(pull)) == len(github.inline(pull)) == 1
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    assert github.unsettled() == []


def test_github_going_down_for_hours_in_the_middle_of_a_round_loses_nothing(
    github: GitHubService, hub: GitHub
) -> None:
    pull = github.open()
    hub.fail("* /**", 503, times=100_000, skip=20)
    for _ in range(3):
        github.settle(7200)
    hub.heal()
    github.settle()
    assert len(github.comments(pull)) == len(github.reviews(pull)) == len(github.inline(pull)) == 1
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    assert github.unsettled() == []


def test_a_clone_that_fails_is_tried_again(github: GitHubService, hub: GitHub) -> None:
    failure = hub.fail("* /*/*/info/refs", 503, times=2)
    pull = github.open()
    github.settle()
    assert failure.hits == 2
    assert len(github.comments(pull)) == 1
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    assert github.unsettled() == []
    github.look(pull)


def test_the_rate_limit_puts_work_off_and_loses_nothing(github: GitHubService, hub: GitHub) -> None:
    throttled = hub.throttle("POST /repos/*/*/issues/*/comments", times=3, retry_after=0)
    pull = github.open()
    github.settle()
    assert throttled.hits == 3
    assert len(github.comments(pull)) == 1
    assert github.unsettled() == []
    github.look(pull)


def test_one_refused_inline_comment_takes_none_of_its_siblings_down(
    github: GitHubService, hub: GitHub
) -> None:
    """REVIEW.md 1: GitHub refuses a whole review for one comment."""
    github.model.findings = [
        finding(),
        finding(
            "read looks into another place than it is told",
            body="Readers get the value of the neighbour to the left: the function subtracts one.",
            category="api",
            line_start=7,
            line_end=7,
            quoted_code="return page[slot - 1]",
            suggestion="return page[slot]",
        ),
    ]
    hub.fail("POST /repos/*/*/pulls/*/reviews", 422, times=1)
    hub.fail("POST /repos/*/*/pulls/*/comments", 422, times=1)
    text = HEAD[PATH].replace("    return page[slot]\n", "    return page[slot - 1]\n")
    pull = github.open(files={PATH: text})
    github.settle()

    (review,) = github.reviews(pull)
    assert "Status: BLOCKING" in review.body
    placed = sorted((one.subject_type, one.line) for one in github.inline(pull))
    assert placed == [("file", None), ("line", 7)]
    assert github.unsettled() == []
    github.look(pull)


def test_an_inline_comment_that_is_refused_everywhere_stands_in_the_review(
    github: GitHubService, hub: GitHub
) -> None:
    hub.fail("POST /repos/*/*/pulls/*/reviews", 422, times=1)
    hub.fail("POST /repos/*/*/pulls/*/comments", 422, times=2)
    pull = github.open()
    github.settle()
    assert github.inline(pull) == []
    (review,) = github.reviews(pull)
    assert finding()["body"].split("`")[1] in review.body
    assert f"{PATH}:2" in review.body
    github.look(pull)


class TestLostWebhooks:
    def test_an_app_asks_for_them_again(self, github: GitHubService) -> None:
        github.hub.hooks.lose(1, "pull_request")
        pull = github.open()
        github.settle()
        assert github.comments(pull) == []
        github.reconcile()
        assert len(github.comments(pull)) == len(github.reviews(pull)) == 1
        github.reconcile()
        assert "round 1" in github.comments(pull)[0].body
        github.look(pull)

    def test_with_a_token_open_pull_requests_and_comments_are_looked_through(
        self, with_token: GitHubService
    ) -> None:
        with_token.hub.hooks.lose(2, "pull_request", "issue_comment")
        pull = with_token.open()
        pull.comment("acme", "/help")
        with_token.settle()
        assert with_token.comments(pull) == []
        with_token.reconcile()
        with_token.reconcile()
        bodies = [one.body for one in with_token.comments(pull)]
        assert len(bodies) == 2
        assert sum("round 1" in body for body in bodies) == 1
        with_token.look(pull)


class TestLargePullRequests:
    """REVIEW.md 11."""

    FILES = 310

    @pytest.mark.exhaustive
    def test_more_than_three_hundred_files_and_a_refused_diff_are_taken_from_git(
        self, github: GitHubService
    ) -> None:
        files = {PATH: HEAD[PATH]} | {
            f"generated/part_{number:03}.txt": f"part {number}\n" for number in range(self.FILES)
        }
        pull = github.open(files=files)
        github.settle()
        (comment,) = github.comments(pull)
        assert f'"full_files": {self.FILES + 1}' in comment.body
        assert "BLOCKED(1)" in comment.body
        assert len(github.inline(pull)) == 1
        github.look(pull)

    def test_a_diff_that_github_refuses_is_taken_from_git(self, github: GitHubService, hub: GitHub) -> None:
        hub.largest_diff(1)
        pull = github.open(files={PATH: HEAD[PATH], "README.md": "More pages.\n"})
        github.settle()
        assert '"full_files": 2' in github.comments(pull)[0].body
        assert not any("diff" in one.path for one in hub.requests)
        github.look(pull)

    def test_one_that_is_larger_than_the_policy_takes_is_told_so(self, github: GitHubService) -> None:
        """REVIEW.md 12."""
        github.repo.push("main", {".whitesmoke.yml": "service: {size: {files: 1}}\n"})
        pull = github.open(files={PATH: HEAD[PATH], "README.md": "More pages.\n"})
        github.settle()
        (told,) = github.comments(pull)
        assert "2" in told.body
        assert [one.conclusion for one in github.checks(pull)] == ["action_required"]
        assert github.reviews(pull) == []


def test_a_review_that_is_refused_for_good_keeps_nothing_going_for_ever(
    github: GitHubService, hub: GitHub
) -> None:
    hub.fail("POST /repos/*/*/pulls/*/reviews", 403, times=100_000)
    pull = github.open()
    for _ in range(10):
        github.settle(7200)
    with github.database.read() as connection:
        states = {row.kind: row.state for row in connection.execute(outbox.select())}
    github.look(pull)
    assert states["review"] == "dead"
    assert "ready" not in states.values()
    assert [one.status for one in github.checks(pull)] == ["completed"]
