from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from reviewer.errors import ConfigError
from service.bench import pairs


@pytest.fixture(scope="module")
def result() -> pairs.PairsResult:
    return pairs.run()


def test_the_labelled_set_is_as_large_as_it_says() -> None:
    pulls = yaml.safe_load(pairs.DATA.read_text(encoding="utf-8"))["pulls"]
    groups = [group for pull in pulls for group in pull["groups"]]
    assert (len(pulls), len(groups), sum(len(group["findings"]) for group in groups)) == (8, 43, 114)


def test_every_pair_of_a_pull_request_is_counted_once_by_kind(result: pairs.PairsResult) -> None:
    assert {kind: count.pairs for kind, count in result.every.items()} == {
        "reworded": 44,
        "two languages": 49,
        "moved lines": 10,
        "one place": 67,
        "same words": 20,
        "same file": 346,
        "other file": 222,
    }


def test_precision_and_recall_do_not_fall(result: pairs.PairsResult) -> None:
    every, fresh = pairs.measure(result.every), pairs.measure(result.fresh)
    assert every.precision >= 0.96
    assert every.recall >= 0.89
    assert fresh.precision >= 0.86
    assert fresh.recall >= 0.76


@pytest.mark.parametrize("kind", ["same words", "same file", "other file"])
def test_different_places_never_join(result: pairs.PairsResult, kind: pairs.Kind) -> None:
    assert result.every[kind].pairs >= 20
    assert result.every[kind].joined == 0


def test_one_fault_on_moved_lines_always_joins(result: pairs.PairsResult) -> None:
    assert result.every["moved lines"].joined == result.every["moved lines"].pairs == 10


def test_one_fault_in_two_languages_mostly_joins(result: pairs.PairsResult) -> None:
    assert result.every["two languages"].joined >= 45


def test_the_report_lists_every_wrong_pair(result: pairs.PairsResult) -> None:
    together = sum(result.every[kind].pairs - result.every[kind].joined for kind in pairs.TOGETHER)
    apart = sum(result.every[kind].joined for kind in pairs.APART)
    assert pairs.render(result).count("\nwrong, ") == together + apart > 0


def test_json_holds_the_figures_of_both_parts(result: pairs.PairsResult) -> None:
    table = json.loads(pairs.render_json(result))
    for name, counts in (("all", result.every), ("fresh", result.fresh)):
        assert table[name]["recall"] == round(pairs.measure(counts).recall, 3)
        assert table[name]["kinds"]["reworded"]["pairs"] == counts["reworded"].pairs


def test_precision_and_recall_are_counted_over_pairs(tmp_path: Path) -> None:
    entry = {"path": "a.py", "line_start": 1, "line_end": 1, "category": "c", "body": ""}
    groups = [
        {
            "name": "one",
            "findings": [entry | {"title": "Lock is missing"}, entry | {"title": "Missing lock"}],
        },
        {"name": "two", "findings": [entry | {"title": "Lock missing"}, entry | {"title": "Zebra crossing"}]},
    ]
    path = tmp_path / "pairs.yaml"
    path.write_text(yaml.safe_dump({"pulls": [{"name": "p", "groups": groups}]}))
    counts = pairs.run(path).every
    assert (counts["reworded"].pairs, counts["reworded"].joined) == (2, 1)
    assert (counts["one place"].pairs, counts["one place"].joined) == (4, 2)
    assert pairs.measure(counts) == pairs.Figures(1 / 3, 1 / 2, 0.4)


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (
            "{path: a.py, line_start: 2, line_end: 1, category: c, title: t, body: b}",
            "line_end should not lie before",
        ),
        ("{path: a.py, line_start: 1, line_end: 1, category: c, title: '', body: b}", "title"),
        ("{path: a.py, line_start: 1, line_end: 1, category: c, title: t, body: b, lang: fr}", "lang"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, finding: str, said: str) -> None:
    path = tmp_path / "pairs.yaml"
    path.write_text(
        f"pulls:\n  - name: p\n    groups:\n      - name: g\n        findings:\n          - {finding}\n"
    )
    with pytest.raises(ConfigError, match=said) as caught:
        pairs.run(path)
    assert str(caught.value).startswith(f"{path}:6: ")


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml.*; name a readable file of labelled findings"):
        pairs.run(tmp_path / "absent.yaml")
