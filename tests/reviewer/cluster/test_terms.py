from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reviewer.terms import split_terms


def terms(text: str) -> list[str]:
    return list(split_terms(text))


def test_identifiers_are_split_into_their_words() -> None:
    assert terms("`getUserName`") == terms("get_user_name") == terms("get user name")
    assert terms("HTTPServer2 parseJSON") == terms("http server 2 parse json")


def test_inflections_share_a_term() -> None:
    assert terms("leaking") == terms("leaks") == terms("leaked")


def test_stop_words_are_left_out() -> None:
    assert terms("the lock is in the way of a thread") == terms("lock way thread")


def test_chinese_terms_of_the_trade_are_their_english_terms() -> None:
    assert terms("死锁") == terms("deadlock")
    assert terms("存在内存泄漏") == ["存在", *terms("memory leak")]


def test_the_longest_chinese_term_wins() -> None:
    assert terms("半精度") == terms("half precision")
    assert terms("内存序") == terms("memory order")


def test_other_chinese_text_becomes_pairs_of_characters() -> None:
    assert terms("天地玄黄") == ["天地", "地玄", "玄黄"]


@given(st.text())
def test_any_text_yields_terms_that_are_not_empty(text: str) -> None:
    assert all(split_terms(text))
