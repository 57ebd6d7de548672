from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from reviewer import answers
from reviewer.engines.schema import strict_schema

MODELS = [
    answers.DiscoverAnswer,
    answers.MergeAnswer,
    answers.RecheckAnswer,
    answers.DedupAnswer,
    answers.FactCheckAnswer,
]


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    yield schema
    children = [
        *schema.get("properties", {}).values(),
        *schema.get("$defs", {}).values(),
        *schema.get("anyOf", []),
    ]
    for child in [*children, schema["items"]] if "items" in schema else children:
        yield from nodes(child)


@pytest.mark.parametrize("model", MODELS)
def test_every_answer_of_the_round_has_a_strict_schema(model: type[BaseModel]) -> None:
    strict = strict_schema(model.model_json_schema())
    assert strict is not None
    jsonschema.Draft202012Validator.check_schema(strict)
    found = list(nodes(strict))
    assert any("properties" in node for node in found)
    for node in found:
        assert node.keys() <= {
            *("type", "enum", "const", "description", "$ref", "anyOf", "items", "$defs"),
            *("properties", "required", "additionalProperties"),
        }
        if "properties" in node:
            assert node["required"] == list(node["properties"])
            assert node["additionalProperties"] is False
        if "$ref" in node:
            assert node.keys() == {"$ref"}


def test_what_satisfies_the_strict_schema_parses_and_a_missing_key_does_not_satisfy_it() -> None:
    strict = strict_schema(answers.DiscoverAnswer.model_json_schema())
    finding = {
        "path": "a.py",
        "line_start": 1,
        "line_end": 2,
        "side": "LEFT",
        "severity": "P1",
        "category": "x",
        "title": "t",
        "body": "b",
        "suggestion": "",
        "quoted_code": "",
        "symbols": ["f"],
        "checklist_ids": [],
    }
    answer = {"findings": [finding], "checklist": [], "strengths": ["s"]}
    jsonschema.validate(answer, strict)
    answers.DiscoverAnswer.model_validate(answer)
    with pytest.raises(jsonschema.ValidationError, match="strengths"):
        jsonschema.validate({"findings": [], "checklist": []}, strict)
    with pytest.raises(jsonschema.ValidationError, match="SIDEWAYS"):
        jsonschema.validate({**answer, "findings": [{**finding, "side": "SIDEWAYS"}]}, strict)


def test_a_description_beside_a_reference_survives() -> None:
    strict = strict_schema(answers.DiscoverAnswer.model_json_schema())
    assert strict is not None
    side = strict["$defs"]["FindingDraft"]["properties"]["side"]
    assert side["description"] == "RIGHT: the new file; LEFT: the old one"
    assert side["enum"] == ["LEFT", "RIGHT"]


@pytest.mark.parametrize(
    "loose",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array"},
        {},
        {"description": "anything"},
    ],
)
def test_what_strict_output_cannot_say_has_no_strict_schema(loose: dict[str, Any]) -> None:
    assert strict_schema({"type": "object", "properties": {"x": loose}}) is None
    assert strict_schema({"type": "array", "items": loose}) is None
