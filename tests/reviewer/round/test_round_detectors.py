"""Detectors in a round: alone without a model, as evidence beside one."""

from __future__ import annotations

from typing import Any

from reviewer.checklist import Item, load_builtin
from reviewer.model import Answer, Outcome, Recheck
from tests.kit.rounds import answers, finding, review

ITEMS: list[Item] = [item for checklist in load_builtin(["python", "general"]) for item in checklist.items]
BASE = {"app.py": "x = 1\n"}
ALWAYS_TRUE = 'def check(value):\n    assert (value > 0, "positive")\n'
DEFAULT = "def load(path, cache={}):\n    return cache[path]\n"


def test_with_no_model_a_detector_under_a_blocking_item_blocks() -> None:
    report = review(None, base=BASE, head={**BASE, "check.py": ALWAYS_TRUE}, items=ITEMS).report
    (blocker,) = report.blocking
    assert blocker.checklist_ids == ("python.assertion-always-true",)
    assert (report.verdict.outcome, report.verdict.detectors_only) == (Outcome.BLOCKED, True)
    assert (blocker.support, blocker.of, blocker.fact_check) == (0, 0, None)


def test_with_no_model_a_clean_change_is_lgtm_by_detectors_only() -> None:
    report = review(None, base=BASE, head={"app.py": "x = 2\n"}, items=ITEMS).report
    assert str(report.verdict) == "LGTM (detectors only)"
    assert (report.kpi.reps, report.kpi.model, report.kpi.coverage) == (0, "none", 0.0)


def test_a_detector_under_an_item_that_does_not_block_is_reported_without_blocking() -> None:
    report = review(None, base=BASE, head={**BASE, "load.py": DEFAULT}, items=ITEMS).report
    assert report.blocking == ()
    assert [one.source for one in report.non_blocking] == ["ruff:B006"]


def test_lines_that_the_change_does_not_touch_are_not_reported() -> None:
    base = {"load.py": DEFAULT + "\n\nx = 1\n"}
    report = review(None, base=base, head={"load.py": DEFAULT + "\n\nx = 2\n"}, items=ITEMS).report
    assert report.fates == ()


def said(title: str, **fields: Any) -> Any:
    one = finding(
        title,
        path="load.py",
        line_start=1,
        line_end=1,
        quoted_code="def load(path, cache={}):",
        body="All calls share the one dict.",
        severity="P2",
        **fields,
    )
    return lambda rep: {"findings": [one] if rep < 3 else []}


def test_with_a_model_a_detector_is_evidence_for_the_finding_that_says_the_same() -> None:
    engine = answers(said("load has a mutable default", checklist_ids=["python.mutable-default"]))
    report = review(engine, base=BASE, head={**BASE, "load.py": DEFAULT}, items=ITEMS).report
    (found,) = report.non_blocking
    assert (found.support, found.of, found.source) == (3, 5, "model")
    assert [fate.reason for fate in report.fates if fate.raw.rep < 0] == [f"evidence for {found.id}"]
    assert (report.kpi.clusters, report.kpi.detector_findings) == (1, 1)


def test_a_detectors_finding_that_is_gone_is_fixed_by_machine() -> None:
    first = review(None, base=BASE, head={**BASE, "load.py": DEFAULT}, items=ITEMS)
    mended = DEFAULT.replace("cache={}", "cache")
    second = review(
        None, base=BASE, head={**BASE, "load.py": mended}, items=ITEMS, ledger=first.ledger
    ).report
    assert [one.recheck for one in second.closed] == [Recheck.FIXED]
    assert second.kpi.recheck.fixed == 1


def test_a_detectors_finding_keeps_its_id_while_lines_move() -> None:
    first = review(None, base=BASE, head={**BASE, "load.py": DEFAULT}, items=ITEMS)
    moved = {**BASE, "load.py": "import os\n\n\n" + DEFAULT}
    second = review(None, base=BASE, head=moved, items=ITEMS, ledger=first.ledger).report
    known = {one.id for one in first.report.non_blocking}
    assert known <= {one.id for one in second.non_blocking}
    assert second.kpi.merged == 1


class TestChecklist:
    def test_a_reported_finding_fails_its_items_and_one_finding_may_fail_several(self) -> None:
        both = ["python.mutable-default", "general.state-invariants"]
        engine = answers(said("load has a mutable default", checklist_ids=both))
        report = review(engine, base=BASE, head={**BASE, "load.py": DEFAULT}, items=ITEMS).report
        failed = {one.id: one.findings for one in report.checklist if one.answer is Answer.FAIL}
        assert failed == dict.fromkeys(both, (report.non_blocking[0].id,))

    def test_items_are_answered_by_votes_and_counted(self) -> None:
        votes = {"general.state-invariants": "pass", "python.mutable-default": "unsure"}

        def discover(rep: int) -> Any:
            checklist = [{"id": id_, "answer": answer, "evidence": "seen"} for id_, answer in votes.items()]
            return {"findings": [], "checklist": checklist}

        report = review(answers(discover), base=BASE, head={"app.py": "x = 2\n"}, items=ITEMS).report
        by_id = {one.id: one for one in report.checklist}
        assert by_id["general.state-invariants"].answer is Answer.PASS
        assert by_id["python.mutable-default"].answer is Answer.UNSURE
        assert by_id["python.mutable-default"].evidence == "seen"
        counted = report.kpi.checklist
        assert counted.total == len(report.checklist) > 50
        assert counted.unsure == sum(one.answer is Answer.UNSURE for one in report.checklist)

    def test_a_quorum_of_fails_without_a_finding_fails_the_item(self) -> None:
        def discover(rep: int) -> Any:
            failed = {"id": "general.state-invariants", "answer": "fail", "evidence": "app.py:1"}
            return {"findings": [], "checklist": [failed] if rep < 3 else []}

        report = review(answers(discover), base=BASE, head={"app.py": "x = 2\n"}, items=ITEMS).report
        (failed,) = [one for one in report.checklist if one.answer is Answer.FAIL]
        assert (failed.id, failed.evidence) == ("general.state-invariants", "app.py:1")

    def test_an_item_caps_the_severity_of_what_is_found_under_it(self) -> None:
        severe = said("load has a mutable default", checklist_ids=["python.mutable-default"])(0)["findings"][
            0
        ]
        severe["severity"] = "P0"
        engine = answers(lambda rep: {"findings": [severe]})
        report = review(engine, base=BASE, head={**BASE, "load.py": DEFAULT}, items=ITEMS).report
        (found,) = report.non_blocking
        cap = next(item.severity for item in ITEMS if item.id == "python.mutable-default")
        assert found.severity is cap
