"""Every item with a detector: one snippet that must fire, on the lines it marks, and one that must not."""

from __future__ import annotations

from typing import Any

from reviewer.checklist import AstGrepDetector, Item
from reviewer.detectors.checks import CHECKS
from reviewer.detectors.run import DetectorRun


def test_the_bad_snippet_fires_on_exactly_the_marked_lines(
    case: Any, run_over_cases: dict[str, DetectorRun], all_items: dict[str, Item]
) -> None:
    found = findings_of(case, run_over_cases["fires"])
    assert case.marked
    assert {finding.line_start for finding in found} == case.marked
    for finding in found:
        item = all_items[case.item]
        assert finding.severity is item.severity
        assert finding.rep == -1
        if finding.quoted_code:
            assert finding.quoted_code.split("\n")[0] == case.fires.split("\n")[finding.line_start - 1]


def test_the_good_snippet_is_left_alone(case: Any, run_over_cases: dict[str, DetectorRun]) -> None:
    assert [finding.line_start for finding in findings_of(case, run_over_cases["quiet"])] == []
    assert case.item in run_over_cases["quiet"].ran


def test_at_least_forty_items_have_detectors_and_each_has_both_snippets(
    all_items: dict[str, Item], all_cases: dict[str, Any]
) -> None:
    assert len(all_items) >= 40
    assert all_items.keys() == all_cases.keys()
    assert all(case.fires.strip() and case.quiet.strip() for case in all_cases.values())


def test_every_rule_of_every_detector_is_seen_to_fire(
    case: Any, run_over_cases: dict[str, DetectorRun], all_items: dict[str, Item]
) -> None:
    detector = all_items[case.item].detector
    assert detector is not None
    expected = {case.item} if isinstance(detector, AstGrepDetector) else set(detector.rules)
    seen = {finding.source.partition(":")[2] for finding in findings_of(case, run_over_cases["fires"])}
    assert seen == expected


def test_every_own_check_is_bound_to_an_item_and_no_rule_to_two(all_items: dict[str, Item]) -> None:
    bound = [
        f"{item.detector.kind}:{rule}"
        for item in all_items.values()
        if item.detector is not None and not isinstance(item.detector, AstGrepDetector)
        for rule in item.detector.rules
    ]
    assert len(bound) == len(set(bound))
    assert {rule.removeprefix("own:") for rule in bound if rule.startswith("own:")} == CHECKS.keys()


def findings_of(case: Any, run: DetectorRun) -> list[Any]:
    path = f"{case.item}/{case.path}"
    return [
        finding for finding in run.findings if finding.path == path and case.item in finding.checklist_ids
    ]
