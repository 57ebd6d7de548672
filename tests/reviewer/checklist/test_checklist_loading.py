"""Reading checklists: what is refused and with which words, what applies to which paths, and severity caps."""

from __future__ import annotations

import pytest

from reviewer.checklist import BUILTIN, applicable, cap, load_builtin, load_text, paths_of
from reviewer.errors import ConfigError
from reviewer.model import Severity

GOOD = """\
checklist: ours
name: {en: Ours, zh: 自定}
sections:
  - id: O.1
    name: {en: Rules, zh: 规则}
    items:
      - id: ours.first
        text: {en: "First: a rule", zh: 第一：规则}
        applies_to: ["*.py", "!test_*.py"]
        severity: P1
        blocking: true
        detector:
          kind: ruff
          rules: [B006]
          title: {en: Bad, zh: 错误}
          why: {en: Because., zh: 原因。}
          fix: {en: Mend., zh: 修复。}
      - id: ours.second
        text: {en: "Second: a rule", zh: 第二：规则}
        severity: P3
"""


def problem(old: str, new: str) -> str:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        load_text(GOOD.replace(old, new), "ours.yaml")
    return str(caught.value)


def test_a_good_file_loads() -> None:
    checklist = load_text(GOOD, "ours.yaml")
    first, second = checklist.items
    assert (checklist.id, first.checklist.zh, first.section.en, first.section.zh) == (
        "ours",
        "自定",
        "O.1 Rules",
        "O.1 规则",
    )
    assert first.detector is not None
    assert second.applies_to == ("**",)
    assert second.text.say("zh") == "第二：规则"
    assert second.text.say("en") == "Second: a rule"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "        severity: P3",
            "        severty: P3\n        severity: P3",
            "ours.yaml:20: sections[0].items[1]: expected one of the keys applies_to, blocking, detector, id, severity, text,"
            " found \"severty\"; did you mean 'severity'?",
        ),
        (
            "severity: P3",
            "severity: high",
            "ours.yaml:20: sections[0].items[1].severity: expected 'P0', 'P1', 'P2' or 'P3', found \"high\"; use one of them",
        ),
        (
            ", zh: 第二：规则}",
            "}",
            "ours.yaml:19: sections[0].items[1].text: expected the key 'zh', found none; add 'zh:'",
        ),
        (
            "zh: 第二：规则}",
            "zh: }",
            "ours.yaml:19: sections[0].items[1].text.zh: expected text, found nothing; correct the value",
        ),
        (
            "id: ours.second",
            "id: ours.first",
            "ours.yaml:18: sections[0].items[1].id: expected each id once, found 'ours.first' again; choose another id",
        ),
        (
            "        severity: P3",
            "        severity: P3\n        severity: P2",
            'ours.yaml:21: expected each key once, found "severity" again (first on line 20); keep one of the two',
        ),
        (
            '"!test_*.py"',
            '"[z-a]"',
            None,
        ),
        (
            '"!test_*.py"',
            '""',
            "ours.yaml:9: sections[0].items[0].applies_to[1]: an empty glob matches nothing; correct the value",
        ),
        (
            "kind: ruff",
            "kind: rufff",
            "ours.yaml:13: sections[0].items[0].detector.kind: expected 'ruff', 'bandit', 'ast_grep', 'own', found \"rufff\";"
            " did you mean 'ruff'?",
        ),
        (
            "[B006]",
            "[b006]",
            "ours.yaml:14: sections[0].items[0].detector.rules[0]: expected text that matches pattern '^[A-Z]+[0-9]+$',"
            ' found "b006"; correct the value',
        ),
        (
            "          kind: ruff",
            "\t  kind: ruff",
            "ours.yaml:13: expected spaces as indentation, found a tab; replace the tab with spaces",
        ),
        (
            "id: O.1",
            "id: 6.1",
            "ours.yaml:4: sections[0].id: expected text, found 6.1; put the value in quotes",
        ),
        (
            "        severity: P3",
            "        severity: P3\n        blocking: true",
            "ours.yaml:18: sections[0].items[1]: expected a detector and severity P0 or P1 beside 'blocking: true';"
            " set 'blocking: false'",
        ),
        (
            "blocking: true",
            "blocking: maybe",
            'ours.yaml:11: sections[0].items[0].blocking: expected true or false, found "maybe"; correct the value',
        ),
    ],
)
def test_wrong_yaml_names_file_line_and_what_was_expected(old: str, new: str, message: str | None) -> None:
    said = problem(old, new)
    if message is None:
        assert said.startswith("ours.yaml:9: sections[0].items[0].applies_to[1]: ")
        assert "is not a valid glob" in said
    else:
        assert said == message


def test_an_unknown_check_of_our_own_is_refused_with_the_known_ones() -> None:
    said = problem("kind: ruff\n          rules: [B006]", "kind: own\n          rules: [no-such-check]")
    assert said.startswith(
        "ours.yaml:14: sections[0].items[0].detector.rules[0]: expected a known check, found 'no-such-check'"
    )
    assert "float-equality" in said


def test_all_problems_are_named_at_once_in_the_order_of_lines() -> None:
    said = problem("severity: P1", "severity: P9\n        extra: 1").split("\n")
    assert [line.split(": ")[0] for line in said] == ["ours.yaml:10", "ours.yaml:11"]


def test_an_id_of_another_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ours.yaml:7: .*'ours.first' again"):
        load_text(GOOD, "ours.yaml", taken={"ours.first"})


def test_a_custom_checklist_may_not_take_an_id_of_the_builtin_ones() -> None:
    taken = {item.id for checklist in load_builtin() for item in checklist.items}
    with pytest.raises(ConfigError, match=r"more.yaml:18: .*'general.edge-cases' again"):
        load_text(GOOD.replace("ours.second", "general.edge-cases"), "more.yaml", taken)


def test_builtin_checklists_are_chosen_by_name_and_in_that_order() -> None:
    assert tuple(checklist.id for checklist in load_builtin()) == BUILTIN
    assert [checklist.id for checklist in load_builtin(["cpp", "general", "cpp"])] == ["cpp", "general"]


def test_an_unknown_builtin_name_says_which_exist() -> None:
    with pytest.raises(ConfigError, match="checklist 'pyhton' does not exist; use one of: general, python"):
        load_builtin(["pyhton"])


def test_items_apply_by_path_and_a_negated_glob_takes_paths_out() -> None:
    first, second = items = load_text(GOOD, "ours.yaml").items
    assert applicable(items, ["src/a.py"]) == (first, second)
    assert applicable(items, ["src/test_a.py", "README.md"]) == (second,)
    assert applicable(items, []) == ()
    assert list(paths_of(first, ["b.py", "test_b.py", "c.md"])) == ["b.py"]


def test_native_items_apply_to_native_code_only() -> None:
    items = [item for checklist in load_builtin() for item in checklist.items]
    applied = {item.id.partition(".")[0] for item in applicable(items, ["src/a.py"])}
    assert applied == {"general", "python"}
    assert {item.id.partition(".")[0] for item in applicable(items, ["csrc/a.cu"])} >= {"cuda_triton", "cpp"}
    assert "cuda_graphs" in {
        item.id.partition(".")[0] for item in applicable(items, ["engine/graph_runner.py"])
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [(Severity.P0, Severity.P1), (Severity.P1, Severity.P1), (Severity.P2, Severity.P2)],
)
def test_a_finding_is_no_worse_than_the_worst_its_items_allow(said: Severity, expected: Severity) -> None:
    items = load_text(GOOD, "ours.yaml").items
    assert cap(said, items) is expected


def test_without_items_severity_is_left_as_it_is() -> None:
    assert cap(Severity.P0, []) is Severity.P0
