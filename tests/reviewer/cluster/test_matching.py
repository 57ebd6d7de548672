from __future__ import annotations

from collections.abc import Callable

import pytest

from reviewer import cluster as clustering
from reviewer.cluster import match
from reviewer.model import Finding, ReportedFinding
from reviewer.similarity import THRESHOLD

Make = Callable[..., Finding]

LEAK = ("Descriptor leak in `load`", "The file opened here is never closed.")
LEAK_REWORDED = ("`load` does not close its file", "Each call leaks a descriptor; use a with statement.")
TYPO = ("Typo in the log message", "It says recieved.")


def reported(finding: Finding) -> ReportedFinding:
    shared = finding.model_dump(exclude={"symbols", "rep"})
    return ReportedFinding(id="F1", **shared)


def test_a_reworded_finding_matches_its_earlier_report(finding: Make) -> None:
    old = [reported(finding(*TYPO)), reported(finding(*LEAK))]
    ((index, score),) = match([finding(*LEAK_REWORDED, line=43)], old)
    assert index == 1
    assert THRESHOLD <= score <= 1.0


def test_the_best_of_several_is_matched(finding: Make) -> None:
    old = [finding(*LEAK_REWORDED), finding(*LEAK)]
    assert match([finding(*LEAK)], old)[0][0] == 1
    assert match([finding(*LEAK)], old[::-1])[0][0] == 0


def test_of_equally_good_matches_the_first_is_taken(finding: Make) -> None:
    assert match([finding(*LEAK)], [finding(*LEAK), finding(*LEAK)])[0][0] == 0


def test_moved_lines_match_where_the_quoted_code_agrees(finding: Make) -> None:
    code = {"quoted_code": "handle = open(path)"}
    assert match([finding(*LEAK_REWORDED, line=80, **code)], [finding(*LEAK, line=41, **code)])[0][0] == 0
    assert match([finding(*LEAK_REWORDED, line=80)], [finding(*LEAK, line=41)])[0][0] is None


def test_a_file_with_too_many_findings_is_matched_in_the_order_of_lines(
    finding: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "LIMIT", 2)
    new, old = (
        [finding(*LEAK, line=1), finding(*LEAK, line=100)],
        [finding(*LEAK, line=101), finding(*LEAK, line=2)],
    )
    assert [index for index, _ in match(new, old)] == [1, 0]


def test_nothing_matches_across_files(finding: Make) -> None:
    assert match([finding(*LEAK)], [finding(*LEAK, path="other.py")]) == [(None, 0.0)]


def test_another_fault_of_the_line_is_no_match_but_its_likeness_is_told(finding: Make) -> None:
    ((index, score),) = match([finding(*TYPO)], [finding(*LEAK)])
    assert index is None
    assert 0.0 < score < THRESHOLD


def test_without_earlier_findings_nothing_matches(finding: Make) -> None:
    assert match([finding(*LEAK), finding(*TYPO)], []) == [(None, 0.0), (None, 0.0)]


def test_without_new_findings_there_is_nothing_to_match(finding: Make) -> None:
    assert match([], [finding(*LEAK)]) == []
