"""Reads a YAML file into a pydantic model; every error names the file, the line and what was expected.

The reading is stricter than YAML: no tags, anchors or aliases, no key twice, one document, keys always text,
and only true/false, null and decimal numbers are anything but text. So a file from a pull request's base can
neither build objects nor grow when read, and `on`, `no` and `12:30` mean what they say.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from reviewer.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_PROBLEMS = 50

_NULLS = frozenset(("", "~", "null"))
_BOOLS = {"true": True, "false": False}
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18}|[0-9]{1,18})(?:e[-+]?[0-9]{1,3})?", re.I)

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

# Pydantic's "Input should be ...", "String should match ...", "Value should have ...".
_SHOULD = re.compile(r"\w+ should (be|have|match) ")
_VERBS = {"be": "", "have": "a value with ", "match": "text that matches "}

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Problem:
    line: int
    what: str
    remedy: str


@dataclass(slots=True)
class _Node:
    """One node of the file: its value, its line, and the nodes and key lines below it."""

    line: int
    value: Any
    children: dict[str | int, _Node] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)


class _Refused(Exception):
    def __init__(self, line: int, what: str, remedy: str) -> None:
        super().__init__(what)
        self.problem = _Problem(line, what, remedy)


def load(text: str, model: type[ModelT], name: str, *, context: Any = None) -> ModelT:
    """Parses `text` and validates it as `model`; `name` is the file's name in messages.

    `context` reaches the model's validators.

    Raises `ConfigError` with one line per problem: `name:line: where: what was expected, what was found; what to do`.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected UTF-8 text", "save the file as UTF-8") from None
    if size > MAX_BYTES:
        raise ConfigError(
            f"{name}: expected at most {MAX_BYTES} bytes, found {size}", "split the file or shorten its texts"
        )
    problems: list[_Problem] = []
    try:
        root = _compose(text, problems)
    except _Refused as refused:
        raise _error(name, [*problems, refused.problem]) from None
    try:
        instance = model.model_validate(root.value, context=context)
    except ValidationError as error:
        room = max(0, MAX_PROBLEMS - len(problems))
        schema = model.model_json_schema()
        details = error.errors(include_url=False)
        problems += [_describe(detail, root, schema) for detail in details[:room]]
        raise _error(name, problems, len(details[room:])) from None
    if problems:
        raise _error(name, problems)
    return instance


def _error(name: str, problems: Sequence[_Problem], more: int = 0) -> ConfigError:
    """One error of many lines; `more` problems were found and are only counted."""
    more += len(problems[MAX_PROBLEMS:])
    lines = [
        (f"{name}:{problem.line}: {problem.what}", problem.remedy)
        for problem in sorted(problems[:MAX_PROBLEMS], key=lambda problem: problem.line)
    ]
    if more:
        lines.append((f"{name}: and {more} more problems", "correct the first ones and check again"))
    *whole, (last, remedy) = lines
    return ConfigError("\n".join([*(f"{what}; {how}" for what, how in whole), last]), remedy)


def _compose(text: str, problems: list[_Problem]) -> _Node:
    """The file's one document as a tree of nodes. Events are read one by one, so what is refused costs nothing more."""
    events = yaml.parse(text, Loader=_Loader)
    try:
        next(events)
        start = next(events)
        if isinstance(start, yaml.StreamEndEvent):
            return _Node(1, None)
        root = _node(next(events), events, problems, 0)
        next(events)
        after = next(events)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        raise _Refused(line + 1, *_syntax(error, text.split("\n"), line)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = json.dumps(chr(error.character) if isinstance(error.character, int) else error.character)
        raise _Refused(line, f"expected printable text, found {character}", "remove the character") from None
    if not isinstance(after, yaml.StreamEndEvent):
        raise _Refused(_line(after), "expected one document, found a second", "keep one document in a file")
    return root


def _syntax(error: yaml.MarkedYAMLError, lines: Sequence[str], line: int) -> tuple[str, str]:
    at = lines[line] if line < len(lines) else ""
    if "\t" in at[: len(at) - len(at.lstrip())]:
        return "expected spaces as indentation, found a tab", "replace the tab with spaces"
    if "mapping values are not allowed" in (error.problem or ""):
        return "expected one value, found a second ': ' on the line", "put the value in quotes"
    return (
        f"expected valid YAML, found an error: {error.problem}",
        "mend the syntax at this line or just above it",
    )


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _node(event: Any, events: Iterator[Any], problems: list[_Problem], depth: int) -> _Node:
    line = _line(event)
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _Refused(line, "expected a plain value, found an anchor or alias", "write the value out")
    if event.tag is not None:
        raise _Refused(
            line, f"expected a plain value, found the tag {json.dumps(event.tag)}", "remove the tag"
        )
    if depth >= MAX_DEPTH:
        raise _Refused(line, f"expected at most {MAX_DEPTH} levels, found more", "flatten the file")
    if isinstance(event, yaml.ScalarEvent):
        return _Node(line, _scalar(event.value) if event.implicit[0] else event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[_Node] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_node(event, events, problems, depth + 1))
        return _Node(line, [item.value for item in items], dict(enumerate(items)))
    return _mapping(line, events, problems, depth)


def _mapping(line: int, events: Iterator[Any], problems: list[_Problem], depth: int) -> _Node:
    children: dict[str | int, _Node] = {}
    key_lines: dict[str, int] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key_line = _line(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise _Refused(key_line, "expected a key, found a list or mapping", "use plain text as the key")
        key = event.value
        child = _node(next(events), events, problems, depth + 1)
        if key in key_lines:
            what = f"expected each key once, found {json.dumps(key)} again (first on line {key_lines[key]})"
            problems.append(_Problem(key_line, what, "keep one of the two"))
            continue
        children[key], key_lines[key] = child, key_line
    return _Node(line, {key: child.value for key, child in children.items()}, children, key_lines)


def _scalar(value: str) -> str | int | float | bool | None:
    if value in _NULLS:
        return None
    if value in _BOOLS:
        return _BOOLS[value]
    if _INT.fullmatch(value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) else value


def _describe(detail: ErrorDetails, root: _Node, schema: dict[str, Any]) -> _Problem:
    """One pydantic error in the file's terms: the line of the deepest node on its path, and what was expected there."""
    kind, context, loc = detail["type"], detail.get("ctx", {}), detail["loc"]
    if kind == "extra_forbidden":
        return _unknown_key(loc, root, schema)
    if kind == "union_tag_invalid":
        loc = (*loc, context["discriminator"].strip("'"))
    node, line, where = _locate(loc, root)
    match kind:
        case "missing" | "union_tag_not_found":
            key = str(loc[-1]) if kind == "missing" else context["discriminator"].strip("'")
            return _Problem(line, f"{where}expected the key {key!r}, found none", f"add '{key}:'")
        case "enum" | "literal_error" | "union_tag_invalid":
            expected = context.get("expected") or context["expected_tags"]
            remedy = _suggest(str(node.value), re.findall(r"'([^']*)'", expected)) or "use one of them"
            return _Problem(line, f"{where}expected {expected}, found {_show(node.value)}", remedy)
    message, _, remedy = detail["msg"].removeprefix("Value error, ").partition("; ")
    expected = _EXPECTED.get(kind) or _SHOULD.sub(lambda should: _VERBS[should[1]], message)
    if expected != message:
        message = f"expected {expected}, found {_show(node.value)}"
    if not remedy:
        quotable = kind == "string_type" and isinstance(node.value, int | float)
        remedy = "put the value in quotes" if quotable else "correct the value"
    return _Problem(line, f"{where}{message}", remedy)


def _unknown_key(loc: Sequence[str | int], root: _Node, schema: dict[str, Any]) -> _Problem:
    key = str(loc[-1])
    parent, _, where = _locate(loc[:-1], root)
    schemas = [schema]
    for part in loc[:-1]:
        schemas = [below for each in _resolve(schemas, schema) for below in _below(each, part)]
    known = sorted({key for each in _resolve(schemas, schema) for key in each.get("properties", {})})
    what = f"{where}expected one of the keys {', '.join(known)}, found {json.dumps(key, ensure_ascii=False)}"
    return _Problem(parent.key_lines[key], what, _suggest(key, known) or "remove the key")


def _locate(loc: Sequence[str | int], root: _Node) -> tuple[_Node, int, str]:
    """The deepest node on the path, its line (its key's, where it has one), and the path as a prefix for messages."""
    node, line, path = root, root.line, ""
    for part in loc:
        if part not in node.children:
            continue  # the name of a union's branch, or a missing key
        child = node.children[part]
        if isinstance(part, int):
            line, path = child.line, f"{path}[{part}]"
        else:
            line, path = node.key_lines[part], f"{path}.{part}" if path else part
        node = child
    return node, line, f"{path}: " if path else ""


def _resolve(schemas: Sequence[dict[str, Any]], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON schemas with references followed and unions opened."""
    for schema in schemas:
        if "$ref" in schema:
            yield from _resolve([root["$defs"][schema["$ref"].rpartition("/")[2]]], root)
        elif "discriminator" not in schema:
            yield from _resolve(schema.get("anyOf", ()), root)
        yield schema


def _below(schema: dict[str, Any], part: str | int) -> Iterator[dict[str, Any]]:
    branches = schema.get("discriminator", {}).get("mapping", {})
    if part in branches:
        yield {"$ref": branches[part]}
    elif isinstance(part, int):
        yield from [schema["items"]] if "items" in schema else ()
    else:
        below = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
        yield from [below] if isinstance(below, dict) else ()


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _show(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case Mapping():
            return "a mapping"
        case list():
            return "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
