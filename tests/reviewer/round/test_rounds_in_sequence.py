"""What later rounds do with what earlier ones found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reviewer.checkout.snapshot import open_range
from reviewer.errors import LedgerError
from reviewer.ledger import Ledger
from reviewer.model import Outcome, Recheck, State
from tests.kit.checkouts import MemoryCheckout, Repo
from tests.kit.rounds import BASE, HEAD, PATH, answers, finding, review

FILES = {name: f"def {name}(n):\n    return n\n" for name in ("alpha", "beta", "gamma")}
THREE_BASE = {f"{name}.py": text for name, text in FILES.items()}
WRONG = {name: f"def {name}(n):\n    return n - {shift}  # {name}\n" for shift, name in enumerate(FILES, 1)}
THREE_HEAD = {f"{name}.py": text for name, text in WRONG.items()}
TITLES = {
    "alpha": "alpha loses the last element of its input",
    "beta": "Off by two: the budget in beta is overdrawn",
    "gamma": "Requests in gamma starve because the counter is decremented thrice",
}


def about(name: str) -> dict[str, Any]:
    return finding(
        TITLES[name],
        path=f"{name}.py",
        quoted_code=WRONG[name].splitlines()[1].strip(),
        body=f"See {name}.",
        suggestion="",
    )


def first_round() -> Ledger:
    def discover(rep: int) -> Any:
        return {"findings": [about(name) for name in FILES]}

    result = review(answers(discover), base=THREE_BASE, head=THREE_HEAD)
    assert str(result.report.verdict) == "BLOCKED(3)"
    return result.ledger


def test_a_push_that_fixes_one_of_three_leaves_two_that_still_block() -> None:
    """REVIEW.md 4: round 1 finds A, B, C; a push fixes A; B and C still block."""
    ledger = first_round()
    mended = {**THREE_HEAD, "alpha.py": THREE_BASE["alpha.py"] + "\n# mended\n"}

    def script(request: Any) -> Any:
        if request.key.step == "recheck":
            gone = "alpha.py" in request.messages[-1].content
            return {"answer": "fixed" if gone else "still_open", "evidence": "looked"}
        return {"findings": []}

    engine = answers()
    engine._script = script
    report = review(engine, base=THREE_BASE, head=mended, ledger=ledger).report

    assert str(report.verdict) == "BLOCKED(2)"
    assert [one.path for one in report.closed] == ["alpha.py"]
    assert report.kpi.recheck.model_dump() == {
        "fixed": 1,
        "still_open": 2,
        "cannot_substantiate": 0,
        "fail": 0,
    }
    assert report.kpi.delta_files == 1
    assert report.kpi.blocking_on_unchanged == 2


@pytest.mark.parametrize(
    ("recheck", "outcome", "blocks"),
    [
        (lambda rep: {"answer": "fixed"} if rep < 3 else {"answer": "still_open"}, Recheck.FIXED, False),
        (lambda rep: {"answer": "fixed"} if rep < 2 else {"answer": "still_open"}, Recheck.STILL_OPEN, True),
        (lambda rep: {"answer": "cannot_substantiate"}, Recheck.CANNOT_SUBSTANTIATE, True),
        (lambda rep: "I cannot say", Recheck.FAIL, True),
    ],
)
def test_a_carried_blocker_blocks_until_a_quorum_of_rechecks_says_fixed(
    recheck: Any, outcome: Recheck, blocks: bool
) -> None:
    first = review(answers(lambda rep: {"findings": [finding()]}))
    head = {**HEAD, "README.md": "A cache of pages, and more.\n"}
    engine = answers(recheck=recheck)
    report = review(engine, head=head, ledger=first.ledger).report

    assert len({key.rep for key in engine.asked("recheck")}) == 5
    (blocker,) = (*report.blocking, *report.closed)
    assert (blocker.recheck, blocker.blocking and blocker in report.blocking) == (outcome, blocks)
    assert report.verdict.outcome is (Outcome.BLOCKED if blocks else Outcome.LGTM)


def test_finding_ids_stay_stable_across_rounds_line_shifts_and_rewording() -> None:
    """REVIEW.md 5."""
    first = review(answers(lambda rep: {"findings": [finding()]}))
    (blocker,) = first.report.blocking
    shifted = {**HEAD, PATH: '"""Pages."""\n\nimport os\n\n\n' + HEAD[PATH]}
    reworded = finding(
        "The value lands in the slot after the requested one",
        line_start=7,
        line_end=7,
        body="`slot + 1` is off by one.",
    )
    second = review(answers(lambda rep: {"findings": [reworded]}), head=shifted, ledger=first.ledger).report

    (again,) = second.blocking
    assert (again.id, again.line_start, again.first_round, again.last_round) == (blocker.id, 7, 1, 2)
    assert (second.kpi.merged, second.kpi.new_findings) == (1, 0)


def test_a_finding_keeps_its_id_when_its_file_is_renamed_between_rounds(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit(BASE)
    repo.git("switch", "--quiet", "-c", "pull")
    repo.commit(HEAD)
    with open_range(repo.folder, "main", "pull") as checkout:
        first = review(answers(lambda rep: {"findings": [finding()]}), checkout=checkout)
    repo.git("mv", PATH, "cache/slots.py")
    repo.commit({})
    with open_range(repo.folder, "main", "pull") as checkout:
        renamed = answers(lambda rep: {"findings": [finding(path="cache/slots.py")]})
        second = review(renamed, checkout=checkout, ledger=first.ledger).report

    (again,) = second.blocking
    assert (again.id, again.path, again.first_round) == ("F1", "cache/slots.py", 1)


def test_the_same_head_again_reprints_its_round_and_asks_nothing() -> None:
    first = review(answers(lambda rep: {"findings": [finding()]}))
    engine = answers()
    again = review(engine, ledger=first.ledger)

    assert again.reprinted
    assert again.report == first.report
    assert engine.requests == []


def test_full_makes_a_new_round_of_the_same_head_over_all_files() -> None:
    first = review(answers())
    again = review(answers(), ledger=first.ledger, full=True).report
    assert (again.round_index, again.kpi.delta_files) == (2, 1)


def test_a_head_that_changes_nothing_costs_nothing_and_keeps_its_blockers() -> None:
    first = review(answers(lambda rep: {"findings": [finding()]}))
    engine = answers()
    rebased = MemoryCheckout({**BASE, "other.py": "x = 1\n"}, {**HEAD, "other.py": "x = 1\n"})
    report = review(engine, checkout=rebased, ledger=first.ledger).report

    assert engine.requests == []
    assert (report.kpi.delta_files, report.kpi.shards, report.kpi.coverage) == (0, 0, 1.0)
    assert str(report.verdict) == "BLOCKED(1)"
    assert report.kpi.blocking_on_unchanged == 1


def test_a_regression_of_a_fixed_finding_comes_back_under_its_id() -> None:
    first = review(answers(lambda rep: {"findings": [finding()]}))
    fixed = review(
        answers(recheck={"answer": "fixed"}), head={**BASE, "README.md": "x\n"}, ledger=first.ledger
    )
    assert [one.state for one in fixed.report.closed] == [State.FIXED]
    back = review(answers(lambda rep: {"findings": [finding()]}), ledger=fixed.ledger).report
    assert [one.id for one in back.blocking] == [first.report.blocking[0].id]


def test_a_file_that_too_few_reps_answered_on_stays_in_the_delta() -> None:
    from reviewer.engines.base import CompletionFailed

    lost = review(answers(lambda rep: CompletionFailed("timeout", "late") if rep < 3 else {"findings": []}))
    engine = answers()
    head = {**HEAD, "README.md": "More words.\n"}
    report = review(engine, head=head, ledger=lost.ledger).report
    assert report.kpi.delta_files == 2


class TestDismissal:
    def test_a_dismissed_finding_no_longer_blocks_now_or_when_it_is_found_again(self) -> None:
        first = review(answers(lambda rep: {"findings": [finding()]}))
        ledger = first.ledger.dismiss("F1", "maintainer", "the slot is one-based here")

        assert ledger.last is not None
        assert str(ledger.last.verdict) == "LGTM"
        head = {**HEAD, PATH: HEAD[PATH] + "\n# more\n"}
        report = review(answers(lambda rep: {"findings": [finding()]}), head=head, ledger=ledger).report
        assert report.verdict.outcome is Outcome.LGTM
        (closed,) = report.closed
        assert closed.demoted == "dismissed by maintainer: the slot is one-based here"
        assert {fate.outcome for fate in report.fates} == {"dismissed"}

    def test_reopening_takes_it_back(self) -> None:
        first = review(answers(lambda rep: {"findings": [finding()]}))
        ledger = first.ledger.dismiss("F1", "maintainer", "no").reopen("F1")
        assert ledger.last == first.report

    def test_a_doubt_that_the_blocker_hid_is_the_verdict_once_it_is_dismissed(self) -> None:
        from reviewer.engines.base import CompletionFailed

        def discover(rep: int) -> Any:
            mild = about("beta") | {
                "path": PATH,
                "quoted_code": "return slot",
                "line_start": 3,
                "line_end": 3,
            }
            if rep == 4:
                return CompletionFailed("timeout", "late")
            return {"findings": [finding()] if rep else [finding(), mild]}

        def script(request: Any) -> Any:
            if request.key.step == "discover":
                return discover(request.key.rep)
            if request.key.step == "confirm":
                return CompletionFailed("timeout", "late")
            return {"verdict": "hold"} if request.key.step == "fact_check" else "?"

        engine = answers()
        engine._script = script
        first = review(engine)
        assert str(first.report.verdict) == "BLOCKED(1)"
        after = first.ledger.dismiss(first.report.blocking[0].id, "maintainer", "known").last
        assert after is not None
        assert after.verdict.outcome is Outcome.INCONCLUSIVE

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda ledger: ledger.dismiss("F9", "me", "no"), "no finding F9"),
            (lambda ledger: ledger.dismiss("F1", "me", " "), "has no reason"),
            (lambda ledger: ledger.reopen("F1"), "finding F1 is open"),
        ],
    )
    def test_what_cannot_be_dismissed_or_reopened_is_an_error(self, call: Any, words: str) -> None:
        ledger = review(answers(lambda rep: {"findings": [finding()]})).ledger
        with pytest.raises(LedgerError, match=words):
            call(ledger)


def test_a_ledger_survives_its_file() -> None:
    ledger = first_round()
    assert Ledger.from_json(ledger.to_json(), "ledger.json") == ledger


def test_a_file_that_is_no_ledger_is_refused_by_name() -> None:
    with pytest.raises(LedgerError, match=r"x\.json is not a ledger of this version: rounds"):
        Ledger.from_json('{"rounds": "many"}', "x.json")
