import pytest

from quire.allocator import OutOfPages, PageAllocator


def test_the_lowest_free_page_comes_first():
    pages = PageAllocator(3)
    assert [pages.allocate(), pages.allocate()] == [0, 1]
    pages.release([0])
    assert pages.allocate() == 0


def test_an_empty_pool_says_so():
    pages = PageAllocator(1)
    pages.allocate()
    with pytest.raises(OutOfPages, match="all 1 pages are taken; release a request"):
        pages.allocate()


def test_a_page_released_twice_is_refused():
    pages = PageAllocator(2)
    page = pages.allocate()
    pages.release([page])
    with pytest.raises(ValueError, match="page 0 is not taken"):
        pages.release([page])
