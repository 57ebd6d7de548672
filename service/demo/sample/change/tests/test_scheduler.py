import pytest

from quire.cache import PagedCache
from quire.request import Request
from quire.scheduler import Scheduler
from quire.toy import ToyModel


def run(requests, num_pages=32, page_size=16, max_running=4, page_format="float32"):
    cache = PagedCache(num_pages, page_size, 2, max_running, page_format)
    scheduler = Scheduler(cache, ToyModel(width=2), max_running)
    for request in requests:
        scheduler.submit(request)
    finished = []
    while scheduler.waiting or scheduler.running:
        finished += scheduler.step()
    assert cache.free_pages == num_pages
    return {request.id: request.output for request in finished}


def test_a_batch_gives_what_each_request_gives_alone():
    prompts = {"a": [1, 2, 3], "b": [4, 5], "c": [6, 7, 8, 9, 10, 11]}
    alone = {name: run([Request(name, prompt, 3)])[name] for name, prompt in prompts.items()}
    assert run([Request(name, prompt, 3) for name, prompt in prompts.items()]) == alone


def test_int8_pages_give_the_same_outputs():
    requests = [("a", [1, 2, 3]), ("b", [4, 5]), ("c", [6, 7, 8, 9, 10, 11])]
    exact = run([Request(name, prompt, 3) for name, prompt in requests])
    assert run([Request(name, prompt, 3) for name, prompt in requests], page_format="int8") == exact


def test_requests_beyond_max_running_wait_their_turn():
    outputs = run([Request(str(n), [n, n + 1], 2) for n in range(9)], max_running=2)
    assert len(outputs) == 9


def test_a_request_larger_than_the_cache_is_refused():
    with pytest.raises(ValueError, match="needs 5 pages; the cache has 2"):
        run([Request("a", list(range(16)), 1)], num_pages=2, page_size=4)
