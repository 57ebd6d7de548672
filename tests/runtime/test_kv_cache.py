"""Pages: shared, kept for their prefix, forgotten oldest first, never given twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv_cache import NULL_PAGE, OutOfPages, PagePool

PAGE = 4


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


def test_a_prefix_is_shared_page_by_page_but_never_whole() -> None:
    pool = PagePool(9, PAGE)
    tokens = list(range(12))
    pages = pool.allocate(3)
    pool.register_prefix(tokens, pages)
    assert pool.take_prefix(tokens) == pages[:2]
    assert pool.take_prefix([*tokens, 99]) == pages
    assert pool.take_prefix([*tokens[:6], 99, 99, 99]) == pages[:1]
    assert pool.take_prefix([99, *tokens[1:]]) == []


def test_half_a_page_is_no_prefix() -> None:
    pool = PagePool(9, PAGE)
    pages = pool.allocate(2)
    pool.register_prefix(list(range(6)), pages)
    assert pool.take_prefix(list(range(10))) == pages[:1]


def test_the_same_tokens_after_another_beginning_are_another_prefix() -> None:
    pool = PagePool(9, PAGE)
    pages = pool.allocate(2)
    pool.register_prefix([1, 1, 1, 1, 2, 2, 2, 2], pages)
    assert pool.take_prefix([3, 3, 3, 3, 2, 2, 2, 2, 5]) == []


def test_kept_pages_are_used_again_oldest_first_and_from_the_end_of_a_prefix() -> None:
    pool = PagePool(6, PAGE)
    old, new = pool.allocate(2), pool.allocate(2)
    pool.register_prefix([1] * 8, old)
    pool.register_prefix([2] * 8, new)
    pool.release(old)
    pool.release(new)
    assert pool.available == 5
    pool.allocate(2)  # the one that was never used, then the end of the old prefix
    assert pool.take_prefix([1] * 9) == old[:1]
    assert pool.take_prefix([2] * 9) == new


def test_a_page_that_someone_still_holds_is_not_forgotten() -> None:
    pool = PagePool(3, PAGE)
    pages = pool.allocate(2)
    pool.register_prefix([1] * 8, pages)
    held = pool.take_prefix([1] * 9)
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
        shared = pool.take_prefix(tokens)
        try:
            pages = [*shared, *pool.allocate(pool.pages_for(length) - len(shared))]
        except OutOfPages:
            pool.release(shared)
        else:
            pool.register_prefix(tokens, pages)
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
