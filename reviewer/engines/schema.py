"""JSON schemas in the narrower form that strict structured output demands."""

from __future__ import annotations

from typing import Any


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """`schema` as strict structured output demands it: every property required, none besides them, no defaults.

    None where it cannot be said so (an object of arbitrary keys, a value of any type). Lengths and bounds are left
    out, which strict endpoints may refuse: whoever reads the answer checks it against the whole schema anyway.
    """
    try:
        strict: dict[str, Any] = _strict(schema, schema.get("$defs", {}))
    except _NotStrict:
        return None
    return strict


class _NotStrict(Exception):
    pass


_KEPT = ("type", "enum", "const", "description", "$ref")


def _strict(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node and len(node) > 1:
        # Strict endpoints allow nothing beside a $ref: what it refers to takes its place.
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        return _strict({**target, **{key: node[key] for key in node if key != "$ref"}}, definitions)
    strict = {key: node[key] for key in _KEPT if key in node}
    if "anyOf" in node:
        strict["anyOf"] = [_strict(option, definitions) for option in node["anyOf"]]
    if "items" in node:
        strict["items"] = _strict(node["items"], definitions)
    if "properties" in node:
        strict["properties"] = {
            name: _strict(child, definitions) for name, child in node["properties"].items()
        }
        strict["required"] = list(node["properties"])
        strict["additionalProperties"] = False
    if "$defs" in node:
        strict["$defs"] = {name: _strict(child, definitions) for name, child in node["$defs"].items()}
    kind = strict.get("type")
    if (
        strict.keys() <= {"description"}
        or (kind == "object" and "properties" not in strict)
        or (kind == "array" and "items" not in strict)
    ):
        raise _NotStrict
    return strict
