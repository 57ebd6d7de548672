"""A pull request's life on GitHub: webhooks in over HTTP, comments, reviews, checks and threads out through the API."""

from __future__ import annotations

from tests.kit.github_service import GitHubService
from tests.kit.rounds import BASE, HEAD, PATH, finding
from tests.standin.github import Pull


def test_an_opened_pull_request_gets_comment_review_inline_comment_and_check_run(
    github: GitHubService,
) -> None:
    pull = github.open()
    github.settle()

    (comment,) = github.comments(pull)
    assert f"PR #{pull.number} round 1 - BLOCKED(1)" in comment.body
    (review,) = github.reviews(pull)
    assert "Status: BLOCKING" in review.body
    assert (review.state, review.commit) == ("COMMENTED", pull.head_sha)
    (inline,) = github.inline(pull)
    assert (inline.path, inline.line, inline.review) == (PATH, 2, review)
    (check,) = github.checks(pull)
    assert (check.status, check.conclusion) == ("completed", "failure")
    assert [one["path"] for one in check.annotations] == [PATH]
    assert [one["identifier"] for one in check.actions] == ["review_full"]
    assert github.unsettled() == []


def test_three_rounds_edit_one_comment_among_more_than_a_hundred(github: GitHubService) -> None:
    """REVIEW.md 6."""
    pull = github.open()
    for number in range(105):
        pull.comment("ada", f"note {number}")
    github.settle()
    (first,) = github.comments(pull)
    heads = [pull.head_sha]
    for value in range(2):
        heads.append(pull.push({"README.md": f"A cache of {value} pages.\n"}))
        github.settle()

    (comment,) = github.comments(pull)
    assert comment.id == first.id
    assert pull.comments.index(comment) >= 100
    assert "round 3" in comment.body
    assert len(github.reviews(pull)) == 3
    assert len(github.inline(pull)) == 1
    assert [check.status for sha in heads for check in github.repo.checks(sha)] == ["completed"] * 3


def test_a_human_who_pastes_the_bots_marker_first_is_not_mistaken_for_the_bot(github: GitHubService) -> None:
    """REVIEW.md 7."""
    pull = github.open()
    github.settle()
    marker = github.comments(pull)[0].body.splitlines()[0]
    github.look(pull)
    second = github.open(branch="second")
    pasted = second.comment("mallory", marker.replace(f'"pull": {pull.number}', f'"pull": {second.number}'))
    github.settle()

    assert len(github.comments(second)) == 1
    assert pasted.body.startswith(marker[:10])
    assert "round 1" not in pasted.body
    github.look(second)


def test_the_same_head_again_posts_nothing_new(github: GitHubService) -> None:
    """REVIEW.md 8."""
    pull = github.open()
    github.settle()
    github.look(pull)
    pull.close()
    pull.reopen()
    github.settle()

    writes = [one for one in github.hub.overlooked() if "check run" not in one]
    assert writes == []
    assert len(github.reviews(pull)) == len(github.comments(pull)) == len(github.inline(pull)) == 1
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    assert len(github.model.engines[-1].requests) == 0


def test_the_same_delivery_twice_and_two_for_one_head_give_one_report(github: GitHubService) -> None:
    """REVIEW.md 9."""
    github.hub.hooks.duplicate(1, "pull_request")
    github.hub.hooks.duplicate(1, "pull_request", new_guid=True)
    pull = github.open()
    github.settle()
    opened = next(one for one in github.hub.deliveries if one.event == "pull_request")
    github.hub.hooks.redeliver(opened)
    github.settle()

    assert "round 1" in github.comments(pull)[0].body
    assert len(github.comments(pull)) == len(github.reviews(pull)) == len(github.checks(pull)) == 1
    assert len(github.inline(pull)) == 1


def test_webhooks_out_of_order_review_the_newest_head(github: GitHubService) -> None:
    github.hub.hooks.hold()
    pull = github.open()
    old = pull.head_sha
    pull.push({"README.md": "Pushed.\n"})
    github.hub.hooks.release(reversed)
    github.settle()

    (comment,) = github.comments(pull)
    assert pull.head_sha in comment.body
    assert [one.commit for one in github.reviews(pull)] == [pull.head_sha]
    assert github.repo.checks(old) == []
    github.look(pull)


def test_a_fix_resolves_the_thread_passes_the_check_and_marks_the_old_review(github: GitHubService) -> None:
    pull = github.open()
    github.settle()
    old = pull.head_sha
    github.model.findings, github.model.recheck = [], "fixed"
    pull.push({PATH: BASE[PATH] + "\n# checked\n"})
    github.settle()

    assert "LGTM" in github.comments(pull)[0].body
    first, second = github.reviews(pull)
    assert "uperseded" in first.body
    assert "Status: LGTM" in second.body
    (thread,) = pull.threads
    assert thread.resolved_by is not None
    assert thread.resolved_by.login.startswith("whitesmoke")
    assert [one.conclusion for one in github.checks(pull)] == ["success"]
    assert [one.conclusion for one in github.repo.checks(old)] == ["failure"]


class TestThreads:
    """REVIEW.md 20."""

    def fix(self, github: GitHubService, pull: Pull) -> None:
        github.model.findings, github.model.recheck = [], "fixed"
        pull.push({PATH: BASE[PATH] + "\n# checked\n"})
        github.settle()

    def test_one_in_which_a_human_replied_stays_open(self, github: GitHubService) -> None:
        pull = github.open()
        github.settle()
        pull.reply("ada", github.inline(pull)[0], "Why?")
        self.fix(github, pull)
        (thread,) = pull.threads
        assert thread.resolved_by is None
        assert "LGTM" in github.comments(pull)[0].body
        github.look(pull, *heads(pull))

    def test_one_that_a_human_opened_stays_open_though_it_is_outdated(self, github: GitHubService) -> None:
        pull = github.open()
        github.settle()
        mine = pull.inline("bob", PATH, 2, "I see it too.")
        self.fix(github, pull)
        resolved = [one.resolved_by is not None for one in pull.threads]
        assert mine.outdated
        assert resolved == [True, False]
        github.look(pull, *heads(pull))

    def test_one_that_is_still_open_stays_open_though_its_line_moved(self, github: GitHubService) -> None:
        pull = github.open()
        github.settle()
        pull.push({PATH: "# Pages.\n" + HEAD[PATH]})
        github.model.findings = [finding(line_start=3, line_end=3)]
        github.settle()
        (thread,) = pull.threads
        assert thread.resolved_by is None
        assert len(github.inline(pull)) == 1
        github.look(pull, *heads(pull))


def test_a_finding_outside_every_hunk_is_posted_near_with_its_real_place(github: GitHubService) -> None:
    """REVIEW.md 1."""
    lines = [f"def number_{one}():\n" for one in range(60)]
    github.repo.push("main", {"far.py": "".join(lines)})
    changed = [*lines[:2], "def another():\n", *lines[3:]]
    github.model.findings = [
        finding(),
        finding(
            "the last function has no body",
            path="far.py",
            line_start=51,
            line_end=51,
            quoted_code="def number_50():",
            body="The function at the end is not finished.",
            suggestion="",
        ),
    ]
    pull = github.open(files={PATH: HEAD[PATH], "far.py": "".join(changed)})
    github.settle()

    near, far = sorted(github.inline(pull), key=lambda one: one.path)
    assert (near.path, near.line) == (PATH, 2)
    assert far.path == "far.py"
    assert "far.py:51" in far.body
    (review,) = github.reviews(pull)
    assert "the last function has no body" in review.body
    github.look(pull)


def test_a_force_push_is_reviewed_against_the_new_head_alone(github: GitHubService) -> None:
    pull = github.open()
    github.settle()
    old = pull.head_sha
    pull.force_push({PATH: HEAD[PATH], "README.md": "A cache of pages, written in one launch.\n"})
    github.settle()

    (comment,) = github.comments(pull)
    assert "round 2" in comment.body
    assert [one.commit for one in github.reviews(pull)] == [old, pull.head_sha]
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    github.look(pull, old)


def test_a_rebase_that_changes_nothing_asks_no_model(github: GitHubService) -> None:
    """REVIEW.md 3."""
    pull = github.open()
    github.settle()
    old = pull.head_sha
    github.repo.push("main", {"other.py": "x = 1\n", "README.md": "A cache of many pages.\n"})
    github.model.recheck = "still_open"
    pull.rebase()
    github.settle()

    assert github.model.engines[-1].asked("discover") == []
    assert "BLOCKED(1)" in github.comments(pull)[0].body
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    github.look(pull, old)


def test_a_pull_request_from_a_fork_is_reviewed_as_any_other(github: GitHubService) -> None:
    pull = github.open(author="fay", fork=True)
    github.settle()
    first = pull.head_sha
    pull.push({"README.md": "More.\n"})
    github.settle()

    assert "round 2" in github.comments(pull)[0].body
    assert [one.conclusion for one in github.checks(pull)] == ["failure"]
    github.look(pull, first)


def test_a_fork_that_is_gone_does_not_keep_its_pull_request_from_review(github: GitHubService) -> None:
    github.hub.hooks.hold()
    pull = github.open(author="fay", fork=True)
    github.hub.repo("fay/cache").delete()
    github.hub.hooks.release()
    github.settle()
    assert "BLOCKED(1)" in github.comments(pull)[0].body
    github.look(pull)


def test_a_draft_waits_until_it_is_ready(github: GitHubService) -> None:
    pull = github.open(draft=True)
    github.settle()
    assert github.comments(pull) == []
    pull.ready()
    github.settle()
    assert "round 1" in github.comments(pull)[0].body
    github.look(pull)


def test_a_new_base_is_reviewed(github: GitHubService) -> None:
    github.repo.push("release", {"README.md": "Of another release.\n"})
    pull = github.open()
    github.settle()
    pull.edit(title="Another title")
    github.settle()
    assert "round 1" in github.comments(pull)[0].body
    before = len(github.model.engines)
    pull.edit(base="release")
    github.settle()
    assert len(github.model.engines) == before + 1
    assert len(github.comments(pull)) == 1
    github.look(pull)


def test_a_closed_pull_request_is_not_reviewed(github: GitHubService) -> None:
    github.hub.hooks.hold()
    pull = github.open()
    pull.close()
    github.hub.hooks.release()
    github.settle()
    assert github.comments(pull) == []
    github.look(pull)


def test_three_pushes_within_a_minute_make_one_round(github: GitHubService) -> None:
    """REVIEW.md 24."""
    pull = github.open()
    github.settle()
    first = pull.head_sha
    for value in range(3):
        pull.push({"README.md": f"A cache of {value} pages.\n"})
        github.hub.hooks.settle()
        github.clock.forward(15)
    github.settle()
    assert "round 2" in github.comments(pull)[0].body
    assert len(github.reviews(pull)) == 2
    github.look(pull, first)


class TestPolicy:
    def test_labels_follow_the_verdict(self, github: GitHubService) -> None:
        github.repo.push(
            "main", {".whitesmoke.yml": "service: {labels: {blocked: needs work, lgtm: ready/to-merge}}\n"}
        )
        pull = github.open()
        pull.label("bug")
        github.settle()
        assert sorted(pull.labels) == ["bug", "needs work"]
        first = pull.head_sha
        github.model.findings, github.model.recheck = [], "fixed"
        pull.push({PATH: BASE[PATH] + "\n# checked\n"})
        github.settle()
        assert sorted(pull.labels) == ["bug", "ready/to-merge"]
        github.look(pull, first)

    def test_a_label_asks_for_a_review_and_another_holds_it_back(self, github: GitHubService) -> None:
        github.repo.push(
            "main", {".whitesmoke.yml": "service: {triggers: {labels: [review me], skip_labels: [wip]}}\n"}
        )
        first = github.open()
        github.settle()
        assert "round 1" in github.comments(first)[0].body
        first.label("wip")
        held = first.push({"README.md": "Not yet.\n"})
        github.settle()
        assert github.repo.checks(held) == []
        first.label("review me")
        github.settle()
        assert "round 2" in github.comments(first)[0].body
        github.look(first, *heads(first))

    def test_changes_are_requested_and_the_request_dismissed_once_nothing_blocks(
        self, github: GitHubService
    ) -> None:
        github.repo.push("main", {".whitesmoke.yml": "service: {review_event: REQUEST_CHANGES}\n"})
        pull = github.open()
        github.settle()
        first = pull.head_sha
        assert [one.state for one in github.reviews(pull)] == ["CHANGES_REQUESTED"]
        github.model.findings, github.model.recheck = [], "fixed"
        pull.push({PATH: BASE[PATH] + "\n# checked\n"})
        github.settle()
        assert [one.state for one in github.reviews(pull)] == ["DISMISSED", "COMMENTED"]
        github.look(pull, first)

    def test_an_invalid_file_is_told_once_with_its_line(self, github: GitHubService) -> None:
        github.repo.push("main", {".whitesmoke.yml": "review:\n  repz: 3\n"})
        pull = github.open()
        github.settle()
        first = pull.head_sha
        pull.push({"README.md": "More.\n"})
        github.settle()
        told = [one.body for one in github.comments(pull) if ".whitesmoke.yml" in one.body]
        assert len(told) == 1
        assert ":2" in told[0]
        assert len(github.comments(pull)) == 2
        github.look(pull, first)

    def test_the_pull_requests_own_policy_counts_for_nothing(self, github: GitHubService) -> None:
        own = {PATH: HEAD[PATH], ".whitesmoke.yml": "review: {quorum: 5, reps: 5, language: zh}\n"}
        pull = github.open(files=own)
        github.settle()
        assert "round 1 - BLOCKED(1)" in github.comments(pull)[0].body
        github.look(pull)


def heads(pull: Pull) -> list[str]:
    """Every commit that one of our reviews was made on."""
    return [one.commit for one in pull.reviews]
