"""A pull request's life as its people see it: deliveries in, comments, reviews and checks out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from service.forge.base import Permission
from service.forge.local_events import pull_event
from service.store.schema import work
from service.worker.lanes import work_off
from service.worker.reconciler import reconcile
from service.worker.station import QUICK_LANE, REVIEW
from tests.kit.checkouts import Repo
from tests.kit.engines import ScriptedEngine
from tests.kit.rounds import BASE, HEAD, PATH, answers, finding
from tests.kit.service import NAME, Service


def check_of(service: Service, number: int) -> Any:
    head = service.forge.pull(NAME, number).head_sha
    (check,) = [one for one in service.forge.checks(NAME, head) if one.name == "whitesmoke/review"]
    return check


def test_an_opened_pull_request_gets_comment_review_inline_comment_and_check(service: Service) -> None:
    number = service.open()
    service.settle()

    (comment,) = service.said(number)
    assert "PR #1 round 1 - BLOCKED(1)" in comment.body
    (review,) = service.said(number, "review")
    assert "Status: BLOCKING" in review.body
    (inline,) = service.said(number, "inline")
    assert inline.place == f"{PATH}:2"
    check = check_of(service, number)
    assert (check.status, check.conclusion) == ("completed", "failure")
    assert service.delivery_states() == [("done", "")]


def test_the_same_delivery_twice_and_two_deliveries_for_one_head_give_one_report(service: Service) -> None:
    """REVIEW.md 9."""
    number = service.open()
    state = service.forge.pull(NAME, number)
    payload = pull_event("opened", state, state.author)
    service.deliver("pull_request", payload, guid="guid-1")
    service.deliver("pull_request", payload, guid="another")
    service.settle()
    service.deliver("pull_request", payload, guid="much later")
    service.settle()

    assert [len(service.said(number, kind)) for kind in ("comment", "review", "inline")] == [1, 1, 1]


def test_three_pushes_within_a_minute_make_one_round(service: Service, repo: Repo) -> None:
    """REVIEW.md 24."""
    number = service.open()
    service.settle()
    for value in range(3):
        repo.commit({"README.md": f"A cache of {value} pages.\n"})
        service.push(number)
        service.clock.forward(15)
    service.settle()
    (comment,) = service.said(number)
    assert "round 2" in comment.body
    assert len(service.said(number, "review")) == 2


def test_three_rounds_edit_one_comment(service: Service, repo: Repo) -> None:
    """REVIEW.md 6."""
    number = service.open()
    service.settle()
    (first,) = service.said(number)
    for value in range(2):
        repo.commit({"README.md": f"A cache of {value} pages.\n"})
        service.push(number)
        service.settle()
    (comment,) = service.said(number)
    assert comment.id == first.id
    assert "round 3" in comment.body


def test_earlier_reviews_say_that_they_are_superseded_and_findings_are_not_posted_inline_again(
    service: Service, repo: Repo
) -> None:
    number = service.open()
    service.settle()
    repo.commit({"README.md": "More.\n"})
    service.push(number)
    service.settle()
    old, new = service.said(number, "review")
    assert "uperseded" in old.body
    assert "uperseded" not in new.body
    assert len(service.said(number, "inline")) == 1


def test_a_fix_closes_the_finding_and_its_thread_and_passes_the_check(service_with: Any, repo: Repo) -> None:
    def script() -> ScriptedEngine:
        def discover(rep: int) -> Any:
            faulty = "slot + 1" in (repo.folder / PATH).read_text()
            return {"findings": [finding()] if faulty else []}

        return answers(discover, recheck={"answer": "fixed", "evidence": "it stores at slot"})

    service = service_with(script)
    number = service.open()
    service.settle()
    repo.commit({PATH: BASE[PATH] + "\n# checked\n"})
    service.push(number)
    service.settle()

    assert "LGTM" in service.said(number)[0].body
    assert check_of(service, number).conclusion == "success"
    (inline,) = service.said(number, "inline")
    assert inline.state == "resolved"


def test_a_closed_pull_request_is_not_reviewed(service: Service) -> None:
    number = service.open()
    state = service.forge.change_pull(NAME, number, state="closed")
    service.deliver("pull_request", pull_event("closed", state, state.author))
    service.settle()
    assert service.forge.conversation(NAME, number) == ()


def test_a_head_that_moves_while_its_round_runs_is_superseded_and_the_new_one_reviewed(
    service_with: Any, repo: Repo
) -> None:
    moved: list[str] = []

    def script() -> ScriptedEngine:
        engine = answers(lambda rep: {"findings": [finding()]})

        def answer(request: Any) -> Any:
            if not moved:
                moved.append(repo.commit({"README.md": "Pushed meanwhile.\n"}))
                service.push(number)
            return {"findings": []}

        engine._script = answer
        return engine

    service = service_with(script)
    number = service.open()
    old = service.forge.pull(NAME, number).head_sha
    service.settle()

    (comment,) = service.said(number)
    assert moved[0] in comment.body
    assert [one.status for one in service.forge.checks(NAME, old)] == ["completed"]
    assert check_of(service, number).conclusion == "success"


class TestPolicy:
    def commit_policy(self, repo: Repo, text: str) -> None:
        repo.git("switch", "--quiet", "main")
        repo.commit({".whitesmoke.yml": text})
        repo.git("switch", "--quiet", "pull")

    def test_an_invalid_policy_is_reported_once_with_its_line_and_the_defaults_hold(
        self, service: Service, repo: Repo
    ) -> None:
        self.commit_policy(repo, "review:\n  repz: 3\n")
        number = service.open()
        service.settle()
        repo.commit({"README.md": "More.\n"})
        service.push(number)
        service.settle()
        told = [one.body for one in service.said(number) if ".whitesmoke.yml" in one.body]
        assert len(told) == 1
        assert ":2" in told[0]
        assert "reps" in told[0]
        assert any("round 2" in one.body for one in service.said(number))

    def test_the_policys_language_and_labels_are_used(self, service: Service, repo: Repo) -> None:
        self.commit_policy(
            repo, "review: {language: zh}\nservice: {labels: {blocked: needs-work, lgtm: ready}}\n"
        )
        number = service.open()
        service.settle()
        assert "第 1 轮" in service.said(number)[0].body
        assert service.forge.pull(NAME, number).labels == ("needs-work",)

    def test_a_day_whose_budget_is_spent_is_said_once_and_reviews_nothing_more(
        self, service: Service, repo: Repo
    ) -> None:
        """REVIEW.md 25."""
        self.commit_policy(repo, "service: {budget: {tokens_per_day: 10}}\n")
        number = service.open()
        service.settle()
        for value in range(2):
            repo.commit({"README.md": f"{value}\n"})
            service.push(number)
            service.settle(60)
        told = [one.body for one in service.said(number) if "tokens" in one.body and "10" in one.body]
        assert len([one for one in told if "round" not in one]) == 1
        check = check_of(service, number)
        assert (check.status, check.conclusion) == ("completed", "action_required")


class TestCommands:
    def test_review_full_reads_everything_again(self, service: Service) -> None:
        number = service.open()
        service.settle()
        service.say(number, "owner", "/review full")
        service.settle()
        assert any("round 2" in one.body for one in service.said(number))

    def test_dismissing_lifts_the_verdict_and_is_told(self, service: Service) -> None:
        number = service.open()
        service.settle()
        service.say(number, "owner", "/dismiss F1 the slot is one-based")
        service.settle()
        report, answer = service.said(number)
        assert "LGTM" in report.body
        assert "dismissed" in answer.body
        assert check_of(service, number).conclusion == "success"

    def test_authors_may_not_dismiss_blockers_of_their_own_pull_request(self, service: Service) -> None:
        number = service.open(author="owner")
        service.settle()
        service.say(number, "owner", "/dismiss F1 no")
        service.settle()
        report, answer = service.said(number)
        assert "BLOCKED(1)" in report.body
        assert "may not dismiss" in answer.body

    def test_people_without_the_permission_are_refused(self, service: Service) -> None:
        service.forge.grant(NAME, "eve", Permission.READ)
        number = service.open()
        service.settle()
        service.say(number, "eve", "/dismiss F1 no")
        service.settle()
        assert "BLOCKED(1)" in service.said(number)[0].body
        assert "may not do that" in service.said(number)[1].body

    @pytest.mark.parametrize("login", ["whitesmoke[bot]", "renovate[bot]"])
    def test_the_bot_never_answers_itself_or_another_bot(self, service: Service, login: str) -> None:
        """REVIEW.md 17."""
        number = service.open()
        service.settle()
        before = len(service.said(number))
        service.say(number, login, "/help")
        service.settle()
        extra = 1 if login == "whitesmoke[bot]" else 0
        assert len(service.said(number)) == before + extra

    def test_a_comment_delivered_twice_is_answered_once(self, service: Service) -> None:
        number = service.open()
        service.settle()
        service.say(number, "owner", "/help")
        service.settle()
        from service.forge.local_events import comment_event

        comment = next(one for one in service.forge.comments(NAME, number) if one.body == "/help")
        service.deliver("issue_comment", comment_event(service.forge.pull(NAME, number), comment))
        service.settle()
        assert len(service.said(number)) == 2


def test_a_push_leaves_a_full_review_that_waits_a_full_one(service: Service) -> None:
    number = service.open()
    service.say(number, "owner", "/review full")
    work_off(service.station, QUICK_LANE)
    service.push(number)
    work_off(service.station, QUICK_LANE)
    with service.database.read() as connection:
        rows = connection.execute(sa.select(work).where(work.c.kind == REVIEW)).all()
    assert [row.payload["full"] for row in rows if row.state == "ready"] == [True]


class TestReconciler:
    def reconcile(self, service: Service) -> None:
        reconcile(service.station, [NAME], service.clock() - timedelta(days=1))
        service.settle()

    def test_a_pull_request_whose_delivery_was_lost_is_found_and_reviewed(self, service: Service) -> None:
        number = service.forge.as_user("ada").open_pull(NAME, "pull", "main").number
        self.reconcile(service)
        assert len(service.said(number)) == 1

    def test_a_reviewed_head_is_not_reviewed_again(self, service: Service) -> None:
        number = service.open()
        service.settle()
        self.reconcile(service)
        assert "round 1" in service.said(number)[0].body

    @pytest.mark.parametrize("runs", [False, True])
    def test_a_review_that_waits_or_runs_is_left_as_it_is(self, service: Service, runs: bool) -> None:
        """Asked for again, it would have all its attempts once more, and a round that kills its worker would never end."""
        number = service.open()
        service.say(number, "owner", "/review full")
        work_off(service.station, QUICK_LANE)
        if runs:
            with service.database.write() as connection:
                assert service.station.work.claim(connection, (REVIEW,), "ada", 60) is not None
        before = self.rows(service)
        assert [(row.payload["full"], row.attempts) for row in before] == [(True, int(runs))]
        service.clock.forward(1)
        reconcile(service.station, [NAME], service.clock() - timedelta(days=1))
        assert self.rows(service) == before

    def rows(self, service: Service) -> Any:
        with service.database.read() as connection:
            return connection.execute(sa.select(work).where(work.c.kind == REVIEW)).all()

    def test_a_command_whose_delivery_was_lost_runs_once(self, service: Service) -> None:
        number = service.open()
        service.settle()
        service.forge.as_user("owner").create_comment(NAME, number, "/help")
        self.reconcile(service)
        self.reconcile(service)
        assert len(service.said(number)) == 2


def test_events_that_mean_nothing_and_bodies_that_cannot_be_read_are_settled(service: Service) -> None:
    service.deliver("star", {"action": "created"})
    service.deliver("pull_request", {"action": "opened"})
    service.settle()
    assert [state for state, _ in service.delivery_states()] == ["ignored", "failed"]


def test_a_human_who_pastes_the_bots_marker_first_is_not_mistaken_for_the_bot(service: Service) -> None:
    """REVIEW.md 7."""
    number = service.open()
    service.settle()
    marker = service.said(number)[0].body.splitlines()[0]
    service.repo.git("switch", "--quiet", "-c", "second", "main")
    service.repo.commit(HEAD)
    second = service.forge.as_user("ada").open_pull(NAME, "second", "main").number
    service.forge.as_user("mallory").create_comment(
        NAME, second, marker.replace('"pull": 1', f'"pull": {second}')
    )
    state = service.forge.pull(NAME, second)
    service.deliver("pull_request", pull_event("opened", state, state.author))
    service.settle()
    assert len(service.said(second)) == 1
