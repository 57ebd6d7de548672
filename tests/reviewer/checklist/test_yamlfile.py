"""The YAML reader: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from reviewer import yamlfile
from reviewer.errors import ConfigError


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Cat(Model):
    kind: Literal["cat"]
    lives: int = 9


class Dog(Model):
    kind: Literal["dog"]
    tricks: tuple[str, ...] = ()


class Home(Model):
    name: str = ""
    size: float = 0.0
    open: bool = False
    note: str | None = None
    pets: tuple[Annotated[Cat | Dog, Field(discriminator="kind")], ...] = ()
    rooms: dict[str, int] = {}

    @field_validator("name")
    @classmethod
    def _not_taken(cls, name: str, info: ValidationInfo) -> str:
        if info.context and name in info.context:
            raise ValueError(f"the name {name!r} is taken; choose another")
        return name


def load(text: str) -> Home:
    return yamlfile.load(text, Home, "home.yaml")


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return str(caught.value)


def test_a_file_becomes_a_model() -> None:
    home = load(
        "name: Ada\nsize: 3.5\nopen: true\nnote: ~\npets:\n  - {kind: cat}\n  - kind: dog\n    tricks: [sit]\nrooms: {a: 1}\n"
    )
    assert home == Home(
        name="Ada",
        size=3.5,
        open=True,
        pets=(Cat(kind="cat"), Dog(kind="dog", tricks=("sit",))),
        rooms={"a": 1},
    )


@pytest.mark.parametrize("word", ["on", "no", "yes", "12:30", "2024-01-01", "0x10", "1_000", "<<", "NaN"])
def test_words_that_yaml_would_turn_into_something_else_stay_text(word: str) -> None:
    assert load(f"name: {word}").name == word


def test_quotes_make_text_of_anything() -> None:
    assert load("name: '3.5'").name == "3.5"
    assert load('name: "true"').name == "true"
    assert load("name: |\n  a\n  b\n").name == "a\nb\n"


def test_keys_are_text_even_when_they_look_like_numbers() -> None:
    assert load("rooms: {1: 2, on: 3, 1.0: 4}").rooms == {"1": 2, "on": 3, "1.0": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae: x", "home.yaml:1: expected one of the keys name, note, open, pets, rooms, size, found \"nmae\"; did you mean 'name'?"),
        ("name: x\n\n\nzzzz: 1", "home.yaml:4: expected one of the keys name, note, open, pets, rooms, size, found \"zzzz\"; remove the key"),
        ("pets:\n  - kind: cat\n    lifes: 3", "home.yaml:3: pets[0]: expected one of the keys kind, lives, found \"lifes\"; did you mean 'lives'?"),
        ("pets:\n  - kind: cow", "home.yaml:2: pets[0].kind: expected 'cat', 'dog', found \"cow\"; use one of them"),
        ("pets:\n  - lives: 3", "home.yaml:2: pets[0]: expected the key 'kind', found none; add 'kind:'"),
        ("name: 3", "home.yaml:1: name: expected text, found 3; put the value in quotes"),
        ("name: [a]", "home.yaml:1: name: expected text, found a list; correct the value"),
        ("size: big", 'home.yaml:1: size: expected a number, found "big"; correct the value'),
        ("rooms:\n  hall:\n    wide", 'home.yaml:2: rooms.hall: expected a whole number, found "wide"; correct the value'),
        ("pets: {}", "home.yaml:1: pets: expected a list, found a mapping; correct the value"),
        ("pets:\n  - - 1", "home.yaml:2: pets[0]: expected a mapping, found a list; correct the value"),
        ("", "home.yaml:1: expected a mapping, found nothing; correct the value"),
        ("- a", "home.yaml:1: expected a mapping, found a list; correct the value"),
        ("name: a\nname: b", 'home.yaml:2: expected each key once, found "name" again (first on line 1); keep one of the two'),
        ("name: &x a\nnote: *x", "home.yaml:1: expected a plain value, found an anchor or alias; write the value out"),
        ("name: *x", "home.yaml:1: expected a plain value, found an anchor or alias; write the value out"),
        ("name: !!python/name:os.system", 'home.yaml:1: expected a plain value, found the tag "tag:yaml.org,2002:python/name:os.system"; remove the tag'),
        ("? [a]\n: b", "home.yaml:1: expected a key, found a list or mapping; use plain text as the key"),
        ("a: 1\n---\nb: 2", "home.yaml:2: expected one document, found a second; keep one document in a file"),
        ("name:\n\tx: 1", "home.yaml:2: expected spaces as indentation, found a tab; replace the tab with spaces"),
        ("name: a: b", "home.yaml:1: expected one value, found a second ': ' on the line; put the value in quotes"),
        ("name: [a\nnote: b", "home.yaml:2: expected valid YAML, found an error: did not find expected ',' or ']'; mend the syntax at this line or just above it"),
        ("name: a\nnote: \x07", 'home.yaml:2: expected printable text, found "\\u0007"; remove the character'),
        ("name: \ud800", "home.yaml: expected UTF-8 text; save the file as UTF-8"),
    ],
)  # fmt: skip
def test_a_problem_names_file_line_what_was_expected_and_found_and_what_to_do(
    text: str, message: str
) -> None:
    assert problem(text) == message


def test_problem_and_remedy_are_apart_and_the_first_line_stands_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        load("nmae: x\nsize: big")
    assert caught.value.remedy == "correct the value"
    assert caught.value.problem.split("\n")[0].endswith("did you mean 'name'?")
    assert str(caught.value) == f"{caught.value.problem}; {caught.value.remedy}"


def test_duplicate_keys_are_named_beside_other_problems() -> None:
    assert [line.split(" ")[0] for line in problem("name: a\nname: b\nsize: big").split("\n")] == [
        "home.yaml:2:",
        "home.yaml:3:",
    ]


def test_thousands_of_problems_are_cut_to_a_readable_number() -> None:
    lines = problem("\n".join(f"k{number}: 1" for number in range(2000))).split("\n")
    assert len(lines) == yamlfile.MAX_PROBLEMS + 1
    assert "and 1950 more problems" in lines[-1]


def test_a_validators_own_words_keep_their_remedy_and_gain_the_line() -> None:
    with pytest.raises(ConfigError) as caught:
        yamlfile.load("size: 1\nname: Bob", Home, "home.yaml", context={"Bob"})
    assert str(caught.value) == "home.yaml:2: name: the name 'Bob' is taken; choose another"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [*{p}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)),
        "[" * 500_000,
        "- " * 400_000,
        "{a: " * 200_000,
        "name: " + "9" * 900_000 + "\nx: ",
        "size: " + "1:" * 400_000 + "1",
        "rooms: {a: 1e" + "9" * 900_000 + "}",
        "name: '" + "x" * 2_000_000 + "'",
        "? " * 400_000,
        "".join(f"k{number}: [1]\n" for number in range(60_000)),
    ],
    ids=["laughs", "flow", "block", "maps", "digits", "sexagesimal", "exponent", "large", "keys", "many"],
)  # fmt: skip
def test_a_hostile_file_is_cheap_to_refuse(text: str) -> None:
    start = time.process_time()
    problem(text)
    assert time.process_time() - start < 3.0


def test_just_the_permitted_depth_is_read() -> None:
    deep = "[" * yamlfile.MAX_DEPTH + "]" * yamlfile.MAX_DEPTH
    assert "expected a mapping, found a list" in problem(deep)
    assert f"at most {yamlfile.MAX_DEPTH} levels" in problem(f"[{deep}]")


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | PRINTABLE


class Any_(BaseModel):
    model_config = ConfigDict(extra="allow")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        PRINTABLE,
        st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3), max_leaves=8),
        max_size=4,
    )
)  # fmt: skip
def test_what_a_safe_dump_writes_is_read_back_unchanged(data: dict[str, object]) -> None:
    text = yaml.dump(data, Dumper=Plain, allow_unicode=True)
    assert yamlfile.load(text, Any_, "x.yaml").model_extra == data


class Plain(yaml.SafeDumper):
    """Writes no aliases, which the reader refuses, and quotes all text: PyYAML leaves 1E3 bare."""

    def ignore_aliases(self, data: object) -> bool:
        return True


Plain.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab: -\n[]{},'\"|>&*!#%@`?\t01.", max_size=60))
def test_any_text_is_read_or_refused_with_the_file_named(text: str) -> None:
    try:
        load(text)
    except ConfigError as error:
        lines = str(error).split("\n")
    else:
        return
    assert all(line.startswith("home.yaml:") for line in lines)
