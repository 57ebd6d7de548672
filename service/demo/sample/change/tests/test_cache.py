import numpy as np
import pytest

from quire.allocator import OutOfPages
from quire.cache import PagedCache, Write


def rows(*numbers):
    return np.repeat(np.array(numbers, np.float32)[:, None], 2, axis=1)


def fill(cache, request_id, *numbers):
    cache.append_batch([Write(request_id, rows(*numbers), -rows(*numbers))])


@pytest.fixture(params=["float32", "int8"])
def cache(request):
    cache = PagedCache(num_pages=4, page_size=4, width=2, max_requests=2, page_format=request.param)
    cache.open("a")
    cache.open("b")
    return cache


def test_tokens_come_back_in_order_across_pages(cache):
    fill(cache, "a", 1, 2, 3, 4, 5, 6)
    keys, values = cache.read("a")
    np.testing.assert_allclose(keys, rows(1, 2, 3, 4, 5, 6), rtol=1e-6)
    np.testing.assert_allclose(values, -keys, rtol=1e-6)


def test_requests_do_not_see_each_other(cache):
    a, b = rows(1, 2, 3), rows(7, 8, 9, 10, 11, 12)
    cache.append_batch([Write("a", a, a), Write("b", b, b)])
    np.testing.assert_allclose(cache.read("a")[0], a, rtol=1e-6)
    np.testing.assert_allclose(cache.read("b")[0], b, rtol=1e-6)


def test_released_pages_are_used_again(cache):
    fill(cache, "a", *range(16))
    assert cache.free_pages == 0
    with pytest.raises(OutOfPages):
        fill(cache, "b", 1, 2)
    cache.release("a")
    fill(cache, "b", 1, 2)
    assert cache.free_pages == 3


def test_an_empty_batch_writes_nothing(cache):
    cache.append_batch([])
    assert cache.free_pages == 4


def test_a_request_cannot_be_opened_twice(cache):
    with pytest.raises(ValueError, match="already open"):
        cache.open("a")
