from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from reviewer.engines.base import Completion, Key, ToolCall
from reviewer.errors import LedgerError
from reviewer.ledger import Ledger
from reviewer.model import State
from reviewer.policy import ReviewPolicy
from reviewer.round import RoundResult
from service.forge.base import PullState
from service.policy import Policy
from service.store import findings, pulls, rounds
from service.store.database import Database
from service.store.errors import Conflict
from service.store.pulls import Pull
from service.store.rounds import RepOutputs
from tests.kit.rounds import answers, finding, review

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def remember(database: Database, state: PullState, now: datetime = NOW) -> Pull:
    with database.write() as connection:
        return pulls.remember(connection, "github", state, now)


@pytest.fixture(scope="module")
def result() -> RoundResult:
    """A round with one blocking finding."""
    return review(answers({"findings": [finding()]}), reps=3, agentic_reps=0)


def test_a_pull_request_is_stored_once_as_last_seen(database: Database, pull_state: PullState) -> None:
    first = remember(database, pull_state)
    moved = replace(pull_state, head_sha="2" * 40, title="lone \ud800 and \0", state="closed", merged=True)
    second = remember(database, moved, LATER)
    assert second.id == first.id
    assert (first.head_sha, first.state, first.merged, first.updated_at) == ("1" * 40, "open", False, NOW)
    assert (second.head_sha, second.state, second.merged, second.updated_at) == (
        "2" * 40, "closed", True, LATER,
    )  # fmt: skip
    assert second.title == "lone ? and \ufffd"
    with database.read() as connection:
        assert pulls.find(connection, "github", "acme/app", 7) == second
        assert pulls.get(connection, first.id) == second
        assert pulls.find(connection, "local", "acme/app", 7) is None
        with pytest.raises(Conflict, match="pull request row 99 is gone"):
            pulls.get(connection, 99)


def test_open_pull_requests_are_listed_by_number(database: Database, pull_state: PullState) -> None:
    for number, state in ((9, "open"), (7, "open"), (8, "closed")):
        remember(database, replace(pull_state, number=number, state=state))  # type: ignore[arg-type]
    with database.read() as connection:
        assert [pull.number for pull in pulls.open_pulls(connection, "github", "acme/app")] == [7, 9]
        assert pulls.open_pulls(connection, "github", "acme/other") == []


def test_the_ledger_comes_back_as_it_was_saved(
    database: Database, pull_state: PullState, result: RoundResult
) -> None:
    pull = remember(database, pull_state)
    with database.write() as connection:
        assert pulls.ledger(connection, pull) == Ledger()
        saved = pulls.save_ledger(connection, pull, result.ledger, NOW)
        assert pulls.ledger(connection, saved) == result.ledger
    assert saved.version == pull.version + 1
    assert remember(database, pull_state, LATER).version == saved.version


def test_of_two_that_read_the_same_ledger_only_one_may_write(
    database: Database, pull_state: PullState, result: RoundResult
) -> None:
    pull = remember(database, pull_state)
    with database.write() as connection:
        pulls.save_ledger(connection, pull, result.ledger, NOW)
    with database.write() as connection, pytest.raises(Conflict, match=r"ledger of acme/app#7 changed"):
        pulls.save_ledger(connection, pull, Ledger(), NOW)
    with database.read() as connection, pytest.raises(Conflict, match="read it again"):
        pulls.ledger(connection, pull)
    with database.read() as connection:
        assert pulls.ledger(connection, pulls.get(connection, pull.id)) == result.ledger


def test_a_ledger_of_another_version_is_named(database: Database, pull_state: PullState) -> None:
    pull = remember(database, pull_state)
    with database.write() as connection:
        connection.exec_driver_sql("""UPDATE pulls SET ledger = '{"schema_version": 9}'""")
        with pytest.raises(LedgerError, match=r"the ledger of acme/app#7 is not a ledger of this version"):
            pulls.ledger(connection, pull)


def test_the_last_good_policy_is_kept(database: Database, pull_state: PullState) -> None:
    pull = remember(database, pull_state)
    policy = Policy(review=ReviewPolicy(reps=4, ignore=("docs/**",)))
    with database.write() as connection:
        assert pulls.policy(connection, pull) is None
        pulls.save_policy(connection, pull, policy, "abc")
        assert pulls.policy(connection, pull) == policy
        assert pulls.get(connection, pull.id).policy_sha == "abc"


def test_findings_and_dismissals_follow_the_ledger(
    database: Database, pull_state: PullState, result: RoundResult
) -> None:
    pull = remember(database, pull_state)
    (known,) = result.ledger.findings.values()
    with database.write() as connection:
        pull = pulls.save_ledger(connection, pull, result.ledger, NOW)
        (row,) = findings.listed(connection, pull.id, State.OPEN)
        assert {name: row[name] for name in ("finding_id", "path", "line_start", "severity", "side")} == {
            "finding_id": known.id, "path": known.path, "line_start": 2, "severity": "P1", "side": "RIGHT",
        }  # fmt: skip
        assert (row["blocking"], row["support"], row["of"], row["title"]) == (True, 3, 3, known.title)

        dismissed = result.ledger.dismiss(known.id, "bob", "known and harmless")
        pull = pulls.save_ledger(connection, pull, dismissed, NOW)
        assert findings.listed(connection, pull.id, State.OPEN) == []
        assert [row["state"] for row in findings.listed(connection, pull.id)] == ["dismissed"]

        pull = pulls.save_ledger(connection, pull, dismissed.reopen(known.id), LATER)
        assert [row["state"] for row in findings.listed(connection, pull.id)] == ["open"]
        pull = pulls.save_ledger(connection, pull, dismissed, LATER)
        pulls.save_ledger(connection, pull, dismissed, LATER + timedelta(hours=1))
        told = [
            (one.author, one.dismissed_at, one.reopened_at) for one in findings.dismissed(connection, pull.id)
        ]
        assert told == [("bob", NOW, LATER), ("bob", LATER, None)]


def test_a_round_that_is_started_again_is_the_same_round(database: Database, pull_state: PullState) -> None:
    pull = remember(database, pull_state)
    with database.write() as connection:
        first = rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, NOW)
        again = rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, LATER)
        assert again == first
        assert rounds.start(connection, pull.id, 2, "1" * 40, "0" * 40, LATER).id != first.id
        assert rounds.start(connection, pull.id, 1, "2" * 40, "0" * 40, LATER).id != first.id
        assert rounds.report(connection, first.id) is None


def test_a_finished_round_keeps_its_report_and_what_it_cost(
    database: Database, pull_state: PullState, result: RoundResult
) -> None:
    pull = remember(database, pull_state)
    with database.write() as connection:
        begun = rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, NOW)
        rounds.finish(connection, begun.id, result.report, LATER)
        (done,) = rounds.of_pull(connection, pull.id, 5)
        assert (done.outcome, done.finished_at, done.cost_usd) == (
            "BLOCKED", LATER, result.report.kpi.cost_usd,
        )  # fmt: skip
        assert done.tokens == result.report.kpi.tokens_in + result.report.kpi.tokens_out > 0
        assert rounds.report(connection, begun.id) == result.report
        newer = rounds.start(connection, pull.id, 2, "2" * 40, "0" * 40, LATER)
        assert [one.id for one in rounds.of_pull(connection, pull.id, 1)] == [newer.id]


def test_a_round_that_was_killed_finds_the_completions_it_paid_for(
    database: Database, pull_state: PullState
) -> None:
    pull = remember(database, pull_state)
    key = Key("discover", 2, "shard", turn=1)
    call = ToolCall("c1", "grep", '{"pattern": "a\\u0000"}')
    paid = Completion("text \0 ü", tool_calls=(call,), tokens_in=10, cost_usd=0.5, finish="tool_calls")
    with database.write() as connection:
        outputs = RepOutputs(rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, NOW).id)
        assert outputs.get(connection, key, "v1") is None
        outputs.put(connection, key, "v1", paid, NOW)
        outputs.put(connection, key, "v1", Completion("a late duplicate"), LATER)

    with database.write() as connection:
        resumed = RepOutputs(rounds.start(connection, pull.id, 1, "1" * 40, "0" * 40, LATER).id)
        assert resumed.get(connection, key, "v1") == paid
        assert resumed.get(connection, key, "v2") is None
        for other in (
            replace(key, step="confirm"),
            replace(key, rep=1),
            replace(key, subject="other"),
            replace(key, turn=0),
            replace(key, attempt=1),
        ):
            assert resumed.get(connection, other, "v1") is None
        second = RepOutputs(rounds.start(connection, pull.id, 2, "1" * 40, "0" * 40, LATER).id)
        assert second.get(connection, key, "v1") is None
