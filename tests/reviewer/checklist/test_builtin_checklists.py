"""The shipped checklists as data: enough items, both languages, nothing twice."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from reviewer.checklist import Checklist, Item, Text, load_builtin

CHECKLISTS = load_builtin()
ITEMS = {item.id: item for checklist in CHECKLISTS for item in checklist.items}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def texts(item: Item) -> list[Text]:
    detector = item.detector
    return [item.text, *([detector.title, detector.why, detector.fix] if detector else [])]


def test_at_least_112_items_in_the_five_checklists() -> None:
    assert [checklist.id for checklist in CHECKLISTS] == [
        "general",
        "python",
        "cuda_triton",
        "cuda_graphs",
        "cpp",
    ]
    assert sum(len(checklist.items) for checklist in CHECKLISTS) >= 112
    assert len(ITEMS) == sum(len(checklist.items) for checklist in CHECKLISTS)


def test_a_python_change_meets_at_least_108_items() -> None:
    assert len([*CHECKLISTS[0].items, *CHECKLISTS[1].items]) >= 108


@pytest.mark.parametrize("checklist", CHECKLISTS, ids=lambda checklist: checklist.id)
def test_ids_start_with_their_checklist(checklist: Checklist) -> None:
    assert {item.id.partition(".")[0] for item in checklist.items} == {checklist.id}


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.id)
def test_every_text_is_english_in_en_and_chinese_in_zh(item: Item) -> None:
    for text in texts(item):
        assert not CHINESE.search(text.en), text.en
        assert CHINESE.search(text.zh), text.zh
        assert not re.search(r"[\u4e00-\u9fff][,;:?!]|[,;:?!][\u4e00-\u9fff]", text.zh), text.zh


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.id)
def test_an_item_is_a_heading_and_a_clause(item: Item) -> None:
    assert re.fullmatch(r"[^:]{2,40}: [^:\s].{10,}[^.\s]", item.text.en), item.text.en
    assert re.fullmatch(r"[^：]{1,30}：.{4,}[^。]", item.text.zh), item.text.zh
    assert len(item.text.en) <= 120


@pytest.mark.parametrize("item", [item for item in ITEMS.values() if item.detector], ids=lambda item: item.id)
def test_a_detector_speaks_in_a_title_and_whole_sentences(item: Item) -> None:
    assert item.detector is not None
    assert not item.detector.title.en.endswith(".")
    assert not item.detector.title.zh.endswith("。")
    for text in (item.detector.why, item.detector.fix):
        assert text.en.endswith(".")
        assert text.zh.endswith("。")


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_]{3,}", text.lower())) - {
        "and",
        "the",
        "are",
        "not",
        "for",
        "with",
        "that",
        "its",
    }


def pairs_of_characters(text: str) -> set[str]:
    bare = re.sub(r"\W", "", text)
    return {bare[at : at + 2] for at in range(len(bare) - 1)}


def closest(sets: dict[str, set[str]]) -> tuple[float, str, str]:
    """The most alike pair by the share of common elements."""
    return max((len(a & b) / len(a | b), x, y) for (x, a), (y, b) in combinations(sets.items(), 2))


def test_no_item_repeats_another_in_either_language() -> None:
    english = closest({name: words(item.text.en) for name, item in ITEMS.items()})
    chinese = closest({name: pairs_of_characters(item.text.zh) for name, item in ITEMS.items()})
    assert english[0] < 0.4, english
    assert chinese[0] < 0.4, chinese


def test_no_detector_repeats_the_title_of_another() -> None:
    for language in ("en", "zh"):
        titles = [item.detector.title.say(language) for item in ITEMS.values() if item.detector]
        assert len(titles) == len(set(titles))


def test_the_measure_of_likeness_sees_a_repetition() -> None:
    item = ITEMS["general.retry-policy"].text.en
    reworded = "Retry policy: only repeatable operations are retried, with a bound, backoff and jitter"
    assert closest({"a": words(item), "b": words(reworded)})[0] > 0.4


def test_only_items_with_a_severe_cap_and_a_detector_may_block() -> None:
    blocking = [item for item in ITEMS.values() if item.blocking]
    assert blocking
    assert all(item.severity.can_block and item.detector for item in blocking)
