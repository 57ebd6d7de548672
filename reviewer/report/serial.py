"""The whole report as JSON, and the schema by which others may read it."""

from __future__ import annotations

import json

from reviewer.model import RoundReport
from reviewer.report.redacted import redacted


def to_json(report: RoundReport) -> str:
    """Every fact of the round, keys in the model's order, ending in a newline; described by `json_schema`."""
    return redacted(report).model_dump_json(indent=2) + "\n"


def json_schema() -> str:
    """The JSON schema (draft 2020-12) of `to_json`'s text, as published in docs/report.schema.json."""
    schema = RoundReport.model_json_schema(mode="serialization")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
