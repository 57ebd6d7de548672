"""The part of GitHub's OpenAPI description that the stand-in serves, as JSON Schema."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.standin.github import corrections
from tests.standin.github.packages import cache_folder, installed

Json = dict[str, Any]

_FILE = "@octokit/openapi/generated/api.github.com.json"
BASE = "urn:github"


def load(routes: Iterable[str]) -> Json:
    """`operations` by route name and the `components` that they name. Cached by what is asked for and by this code."""
    wanted = sorted(routes)
    source = installed() / _FILE
    code = b"".join(Path(file).read_bytes() for file in (__file__, corrections.__file__))
    stamp = [source.stat().st_size, source.stat().st_mtime_ns, wanted]
    digest = hashlib.sha256(json.dumps(stamp).encode() + code).hexdigest()[:16]
    compact = cache_folder() / f"served-{digest}.json"
    if not compact.exists():
        made = extract(json.loads(source.read_text()), wanted)
        waiting = compact.with_suffix(f".{os.getpid()}")
        waiting.write_text(json.dumps(made, separators=(",", ":")))
        waiting.replace(compact)
    loaded: Json = json.loads(compact.read_text())
    return loaded


def extract(document: Json, routes: Iterable[str]) -> Json:
    corrections.correct(document)
    operations: Json = {}
    for name in routes:
        method, _, path = name.partition(" ")
        operation = document["paths"].get(path, {}).get(method.lower())
        if operation is None:
            continue
        operation = copy.deepcopy(operation)
        parameters = [
            _resolve(document, one)
            for one in [*document["paths"][path].get("parameters", []), *operation.get("parameters", [])]
        ]
        body = operation.get("requestBody", {}).get("content", {})
        operations[name] = {
            "parameters": [
                {key: one.get(key) for key in ("name", "in", "required", "schema")} for one in parameters
            ],
            "body": body.get("application/json", {}).get("schema"),
            "body_required": operation.get("requestBody", {}).get("required", False),
            "responses": {
                status: {
                    media: content.get("schema")
                    for media, content in _resolve(document, one).get("content", {}).items()
                }
                for status, one in operation["responses"].items()
            },
        }
    # A schema that others extend may not be closed.
    extended = {one["$ref"] for one in _inside_all_of(document["components"]["schemas"]) if "$ref" in one}
    schemas: Json = {}
    waiting = list(_references(operations))
    while waiting:
        reference = waiting.pop()
        name = reference.rpartition("/")[2]
        if name not in schemas:
            schemas[name] = document["components"]["schemas"][name]
            waiting += _references(schemas[name])
    closed = {
        name: _schema(one, close=f"#/components/schemas/{name}" not in extended)
        for name, one in schemas.items()
    }
    for operation in operations.values():
        operation["body"] = _schema(operation["body"], close=True)
        for one in operation["parameters"]:
            one["schema"] = _schema(one["schema"], close=False)
        operation["responses"] = {
            status: {media: _schema(schema, close=True) for media, schema in content.items()}
            for status, content in operation["responses"].items()
        }
    return {"operations": operations, "components": {"schemas": closed}}


def _resolve(document: Json, one: Json) -> Json:
    while "$ref" in one:
        target: Any = document
        for step in one["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        one = target
    return one


def _references(node: Any) -> Iterable[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            elif key not in ("example", "examples"):
                yield from _references(value)
    elif isinstance(node, list):
        for one in node:
            yield from _references(one)


def _inside_all_of(node: Any) -> Iterable[Json]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "allOf":
                yield from value
            yield from _inside_all_of(value)
    elif isinstance(node, list):
        for one in node:
            yield from _inside_all_of(one)


def _schema(node: Any, *, close: bool) -> Any:
    """OpenAPI 3.0 to JSON Schema: `nullable` becomes a type. Objects that list their properties take no others, so a
    misspelt one is found."""
    if isinstance(node, list):
        return [_schema(one, close=close) for one in node]
    if not isinstance(node, dict):
        return node
    made: Json = {}
    for key, value in node.items():
        if key in ("example", "examples", "description", "title", "deprecated") or key.startswith("x-"):
            continue
        if key == "nullable":
            continue
        if key == "$ref":
            made[key] = value.replace("#/", f"{BASE}#/", 1)
        elif key == "properties":
            made[key] = {name: _schema(one, close=True) for name, one in value.items()}
        elif key in ("enum", "default", "required", "const"):
            made[key] = value
        else:
            made[key] = _schema(value, close=close and key not in ("allOf", "anyOf", "oneOf"))
    if (
        close
        and "properties" in made
        and not {"additionalProperties", "allOf", "anyOf", "oneOf"} & made.keys()
    ):
        made["additionalProperties"] = False
    if node.get("nullable") and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if "enum" in made and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return made
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") else made
