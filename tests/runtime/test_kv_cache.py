"""Pages: shared, kept for their prefix, forgotten oldest first, never given twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv_cache import NULL_PAGE, OutOfPages, PagePool, PrefixKeys

PAGE = 4


def keys(tokens: list[int]) -> list[bytes]:
    made = PrefixKeys(PAGE)
    made.extend(tokens)
    return made.keys


def register(pool: PagePool, tokens: list[int], pages: list[int]) -> None:
    for key, page in zip(keys(tokens), pages, strict=False):
        pool.register_prefix(key, page)


def test_the_null_page_is_never_given() -> None:
    pool = PagePool(5, PAGE)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert NULL_PAGE == 0


def test_too_many_pages_are_refused_whole() -> None:
    pool = PagePool(5, PAGE)
    pool.allocate(3)
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 of 4 available"):
        pool.allocate(2)
    assert pool.available == 1


def test_a_page_released_twice_is_an_error() -> None:
    pool = PagePool(5, PAGE)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match=f"page {pages[0]}: released more often"):
        pool.release(pages)


def test_a_prefix_is_shared_page_by_page() -> None:
    pool = PagePool(9, PAGE)
    tokens = list(range(12))
    pages = pool.allocate(3)
    register(pool, tokens, pages)
    assert pool.take_prefix(keys(tokens)) == pages
    assert pool.take_prefix(keys([*tokens, 99])) == pages
    assert pool.take_prefix(keys([*tokens[:6], 99, 99, 99])) == pages[:1]
    assert pool.take_prefix(keys([99, *tokens[1:]])) == []


def test_half_a_page_is_no_prefix() -> None:
    pool = PagePool(9, PAGE)
    pages = pool.allocate(2)
    register(pool, list(range(6)), pages)
    assert pool.take_prefix(keys(list(range(10)))) == pages[:1]


def test_the_same_tokens_after_another_beginning_are_another_prefix() -> None:
    pool = PagePool(9, PAGE)
    pages = pool.allocate(2)
    register(pool, [1, 1, 1, 1, 2, 2, 2, 2], pages)
    assert pool.take_prefix(keys([3, 3, 3, 3, 2, 2, 2, 2, 5])) == []


def test_kept_pages_are_used_again_oldest_first_and_from_the_end_of_a_prefix() -> None:
    pool = PagePool(6, PAGE)
    old, new = pool.allocate(2), pool.allocate(2)
    register(pool, [1] * 8, old)
    register(pool, [2] * 8, new)
    pool.release(old)
    pool.release(new)
    assert pool.available == 5
    pool.allocate(2)  # the one that was never used, then the end of the old prefix
    assert pool.take_prefix(keys([1] * 9)) == old[:1]
    assert pool.take_prefix(keys([2] * 9)) == new


def test_a_page_that_someone_still_holds_is_not_forgotten() -> None:
    pool = PagePool(3, PAGE)
    pages = pool.allocate(2)
    register(pool, [1] * 8, pages)
    held = pool.take_prefix(keys([1] * 9))
    pool.release(pages)
    assert pool.available == 0
    pool.release(held)
    assert pool.available == 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 14), st.integers(0, 5)), max_size=60))
def test_pages_are_conserved_whatever_happens(steps: list[tuple[int, int, int]]) -> None:
    """Random admissions over three token streams and random ends: no page is held by two strangers, none is lost."""
    pool = PagePool(9, PAGE)
    alive: list[tuple[list[int], list[int]]] = []
    for stream, length, end in steps:
        tokens = [stream] * length
        shared = pool.take_prefix(keys(tokens))
        try:
            pages = [*shared, *pool.allocate(pool.pages_for(length) - len(shared))]
        except OutOfPages:
            pool.release(shared)
        else:
            register(pool, tokens, pages)
            alive.append((tokens, pages))
        if alive and end < len(alive):
            pool.release(alive.pop(end)[1])
        held: dict[int, list[int]] = {}
        for tokens, pages in alive:
            for number, page in enumerate(pages):
                content = tokens[: (number + 1) * PAGE]
                assert held.setdefault(page, content) == content
        assert pool.available == pool.capacity - len(held)
        assert NULL_PAGE not in held


def test_keys_of_a_growing_sequence_are_those_of_the_whole() -> None:
    growing = PrefixKeys(PAGE)
    tokens = list(range(19))
    for length in (3, 4, 5, 11, 12, 19):
        growing.extend(tokens[growing.tokens : length])
        assert growing.keys == keys(tokens[:length])
    assert len(growing.keys) == 4
