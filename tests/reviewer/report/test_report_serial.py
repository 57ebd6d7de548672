from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from reviewer.model import RoundReport
from reviewer.report import json_schema, to_json

PUBLISHED = Path(__file__).parents[3] / "docs" / "report.schema.json"


def test_the_published_schema_is_current() -> None:
    assert PUBLISHED.read_text("utf-8") == json_schema(), "run `make docs`"


def test_every_kept_round_validates_against_the_published_schema(reports: dict[str, RoundReport]) -> None:
    schema = json.loads(PUBLISHED.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for report in reports.values():
        assert [error.message for error in validator.iter_errors(json.loads(to_json(report)))] == []


def test_the_schema_refuses_what_is_not_a_report(reports: dict[str, RoundReport]) -> None:
    document = json.loads(to_json(reports["blocked"]))
    document["blocking"][0]["severity"] = "P4"
    assert not Draft202012Validator(json.loads(json_schema())).is_valid(document)


def test_json_is_stable_and_reads_back_as_the_same_report(reports: dict[str, RoundReport]) -> None:
    for report in reports.values():
        text = to_json(report)
        assert text == to_json(report)
        assert RoundReport.model_validate_json(text) == report
