import numpy as np
import pytest

from quire.allocator import OutOfPages
from quire.cache import PagedCache


def rows(*numbers):
    return np.repeat(np.array(numbers, np.float32)[:, None], 2, axis=1)


def fill(cache, request_id, *numbers):
    for row in rows(*numbers):
        cache.append(request_id, row, -row)


@pytest.fixture
def cache():
    cache = PagedCache(num_pages=4, page_size=4, width=2, max_requests=2)
    cache.open("a")
    cache.open("b")
    return cache


def test_tokens_come_back_in_order_across_pages(cache):
    fill(cache, "a", 1, 2, 3, 4, 5, 6)
    keys, values = cache.read("a")
    assert (keys == rows(1, 2, 3, 4, 5, 6)).all()
    assert (values == -keys).all()


def test_requests_do_not_see_each_other(cache):
    fill(cache, "a", 1, 2, 3)
    fill(cache, "b", 7, 8, 9)
    assert (cache.read("a")[0] == rows(1, 2, 3)).all()
    assert (cache.read("b")[0] == rows(7, 8, 9)).all()


def test_released_pages_are_used_again(cache):
    fill(cache, "a", *range(16))
    assert cache.free_pages == 0
    with pytest.raises(OutOfPages):
        fill(cache, "b", 1, 2)
    cache.release("a")
    fill(cache, "b", 1, 2)
    assert cache.free_pages == 3


def test_a_request_cannot_be_opened_twice(cache):
    with pytest.raises(ValueError, match="already open"):
        cache.open("a")
