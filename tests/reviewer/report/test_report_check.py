from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reviewer.diff import Diff
from reviewer.report import annotate, check_run

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("verdict", "conclusion"),
    [
        ({"outcome": "BLOCKED", "blocking": 1}, "failure"),
        ({"outcome": "INCONCLUSIVE"}, "action_required"),
        ({"outcome": "LGTM"}, "success"),
    ],
)
def test_a_verdict_is_never_neutral_or_skipped(
    diff: Diff, make_report: Make, verdict: dict[str, Any], conclusion: str
) -> None:
    assert check_run(make_report(verdict=verdict), diff).conclusion == conclusion


def test_annotations_come_in_batches_of_fifty(diff: Diff, make_report: Make, make_finding: Make) -> None:
    report = make_report(non_blocking=[make_finding(id=f"F{n}") for n in range(120)])
    assert [len(batch) for batch in check_run(report, diff).batches] == [50, 50, 20]
    assert check_run(make_report(), diff).batches == ()


def test_an_annotation_stands_on_the_lines_of_the_head(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    findings = [
        make_finding(line_start=900, line_end=901, blocking=True),
        make_finding(line_start=0, line_end=0, severity="P2"),
        make_finding(path="kv/old_name.py", side="LEFT", line_start=1, line_end=1, severity="P3"),
        make_finding(side="LEFT", line_start=41, line_end=41, severity="P3"),
    ]
    places = [
        (one.path, one.start_line, one.end_line, one.annotation_level)
        for one in annotate(make_report(non_blocking=findings), diff)
    ]
    assert places == [
        ("kv/pages.py", 900, 901, "failure"),
        ("kv/pages.py", 1, 1, "warning"),
        ("kv/new_name.py", 1, 1, "notice"),
        ("kv/pages.py", 1, 1, "notice"),
    ]


def test_an_annotation_keeps_to_the_limits_of_the_forge(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    giant = make_finding(title="t" * 1_000, body="语" * 60_000)
    (one,) = annotate(make_report(non_blocking=[giant]), diff)
    assert len(one.title) <= 255
    assert 60_000 < len(one.message.encode()) <= 64_000


def test_findings_of_earlier_rounds_are_annotated_too_but_refuted_ones_are_not(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    old, refuted = make_finding(recheck="still_open"), make_finding(state="refuted")
    report = make_report(round_index=3, non_blocking=[old, refuted])
    assert len(annotate(report, diff)) == 1


def test_a_message_holds_body_suggestion_and_why_it_does_not_block(
    diff: Diff, make_report: Make, make_finding: Make
) -> None:
    finding = make_finding(body="Late.\u202e", suggestion="Stop earlier.", demoted="said by one", title="End")
    (one,) = annotate(make_report(non_blocking=[finding]), diff)
    assert one.title == "[P1] End"
    assert one.message == "Late.⟨U+202E⟩\n\nSuggestion: Stop earlier.\n\ndoes not block: said by one"


def test_a_message_cannot_say_the_phrase(diff: Diff, make_report: Make, make_finding: Make) -> None:
    (one,) = annotate(
        make_report(non_blocking=[make_finding(title="LGTM ready to CI", body="lgtm ready to ci")]), diff
    )
    assert "ready to" in one.message
    assert "lgtm ready to ci" not in (one.title + one.message).lower()
