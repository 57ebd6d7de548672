"""Collectives, and a model computed in parts: equal logits on every rank, those of one process within rounding."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from runtime.batch import make_inputs
from runtime.kv_cache import allocate_cache
from runtime.parallel import nccl
from runtime.parallel.connect import DevicesError, require_devices
from runtime.parallel.gloo import GlooGroup
from runtime.parallel.group import Group, GroupError, Solo, side_by_side
from runtime.request import Request, SamplingParameters, Token
from runtime.scheduler import Chunk, Decode, Prefill
from tests.runtime.kit import CPU, PAGE_SIZE
from tests.runtime.parallel_kit import MODELS, source

T = TypeVar("T")


@contextmanager
def together(folder: Path, size: int = 2) -> Iterator[Callable[[Callable[[Group], T]], list[T]]]:
    """Ranks as threads of this process: computes something on each, over gloo, and gives what each has."""
    groups: list[Group | None] = [None] * size

    def on_each(work: Callable[[int], T]) -> list[T]:
        results: list[T | BaseException | None] = [None] * size

        def run(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a rank hangs"
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results  # type: ignore[return-value]  # none is an error

    def join(rank: int) -> None:
        groups[rank] = GlooGroup(rank, size, folder / "meeting")

    on_each(join)
    yield lambda work: on_each(lambda rank: work(groups[rank]))  # type: ignore[arg-type]
    for group in groups:
        assert group is not None
        group.close()


@pytest.mark.parametrize("size", [2, 3])
def test_sums_and_parts_are_the_same_on_every_rank(tmp_path: Path, size: int) -> None:
    def work(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.full((3, 4), 10.0**group.rank)
        given = group.all_reduce(x)
        assert given is x
        rows = group.all_gather(torch.arange(6.0).view(2, 3) + 10 * group.rank)
        group.barrier()
        return x, rows, group.all_gather(torch.tensor([[group.rank, 7]]))

    with together(tmp_path, size) as on_each:
        results = on_each(work)
    for total, rows, one in results:
        assert torch.equal(total, torch.full((3, 4), float("1" * size)))
        wanted = [
            [part * 10 + at for part in range(size) for at in range(start, start + 3)] for start in (0, 3)
        ]
        assert rows.tolist() == wanted
        assert one.tolist() == [[value for rank in range(size) for value in (rank, 7)]]


def test_a_barrier_waits_for_everybody(tmp_path: Path) -> None:
    come: list[int] = []

    def work(group: Group) -> int:
        if group.rank == 1:
            threading.Event().wait(0.3)
        come.append(group.rank)
        group.barrier()
        return len(come)

    with together(tmp_path) as on_each:
        assert on_each(work) == [2, 2]


def test_what_cannot_be_sent_in_one_piece_is_refused(tmp_path: Path) -> None:
    with together(tmp_path) as on_each:
        for name in ("all_reduce", "all_gather"):
            with pytest.raises(
                GroupError, match=r"expected a contiguous tensor, got strides \[1, 3\] of \[3, 2\]"
            ):
                on_each(lambda group, name=name: vars(type(group))[name](group, torch.zeros(2, 3).T))


def test_a_group_of_one_does_nothing() -> None:
    group, x = Solo(), torch.ones(2, 3)
    assert group.all_reduce(x) is x
    assert group.all_gather(x) is x
    group.barrier()
    group.abort()
    group.close()


def test_parts_of_a_single_row_are_not_copied() -> None:
    parts = torch.arange(6.0).view(2, 1, 3)
    assert side_by_side(parts).data_ptr() == parts.data_ptr()


@torch.inference_mode()
def logits_of(name: str, group: Group) -> torch.Tensor:
    """A prefill of two prompts and a decode step after it: [4, vocab]."""
    model, _ = source(MODELS[name]).model(CPU, group)
    caches = allocate_cache(model.config, 40, PAGE_SIZE, torch.float32, CPU)
    requests = [
        Request(str(number), prompt, SamplingParameters(), 0, row=number, pages=pages)
        for number, (prompt, pages) in enumerate(
            [((1, 2, 3), [1]), (tuple(range(40, 69)), list(range(2, 10)))]
        )
    ]
    last = torch.zeros(2, dtype=torch.int32)
    chunks = [Chunk(request, 0, len(request.prompt), samples=True) for request in requests]
    first = model(make_inputs(Prefill(chunks), PAGE_SIZE, last), caches)
    for request in requests:
        request.computed = len(request.prompt)
        request.tokens.append(Token(17))
    second = model(make_inputs(Decode(requests), PAGE_SIZE, last), caches)
    if group.size > 1:
        assert first.stride(0) % 8 == second.stride(0) % 8 == 0, "sampling reads rows that start on 16 bytes"
    return torch.cat([first, second])


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_equal_on_every_rank_and_those_of_one_process(tmp_path: Path, name: str) -> None:
    alone = logits_of(name, Solo())
    with together(tmp_path) as on_each:
        first, second = on_each(lambda group: logits_of(name, group))
    assert torch.equal(first, second)
    assert first.shape == alone.shape
    # Without experts all is float32: 2^-24 for each of some 20 sums, of up to 256 products and so sqrt(256) larger, in a row
    # of logits: 2^-24 * sqrt(20 * 256) is 4e-6. With experts in the last layer, each of a rank's two products and their
    # sum round to bf16, 2^-9 of the value, and so they do in one process: four roundings of independent errors are 2^-8
    # of what the experts add, which is no more than the row.
    bound = 1e-5 if "experts" not in name else 2.0**-8
    for ours, theirs in zip(first, alone, strict=True):
        assert float((ours - theirs).norm()) <= bound * float(theirs.norm())
    assert not torch.equal(first, alone), "the parts are summed in another order"


@pytest.mark.parametrize(
    ("environment", "value"),
    [
        ({}, "0"),
        ({"NCCL_NVLS_ENABLE": "0"}, "0"),
        ({"NCCL_NVLS_ENABLE": "1"}, "1"),
        ({"NCCL_NVLS_ENABLE": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}, "0"),
        ({"NCCL_NVLS_ENABLE": "1", "NVSHMEM_DISABLE_NVLS": "1"}, "0"),
        ({"NCCL_NVLS_ENABLE": "1", "NVSHMEM_DISABLE_NVLS": "0"}, "1"),
    ],
)
def test_multicast_stays_off_unless_the_environment_asks_for_it(
    environment: dict[str, str], value: str
) -> None:
    nccl.keep_multicast_off(environment)
    assert environment["NCCL_NVLS_ENABLE"] == value


def test_without_nccl_there_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    nccl._library.cache_clear()
    monkeypatch.setattr(nccl.ctypes, "CDLL", missing)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    with pytest.raises(GroupError, match=r"NCCL: libnccl.so.2: .*; install torch with CUDA"):
        nccl.unique_id()
    nccl._library.cache_clear()


def test_one_gpu_where_two_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    require_devices("cuda", 1)
    require_devices("cpu", 2)
    with pytest.raises(DevicesError, match="2 ranks: expected 2 GPUs, there are 1; ask for fewer ranks"):
        require_devices("cuda", 2)
