"""What capturing costs: seconds for twenty buckets, and the memory that their graphs keep."""

import time
from dataclasses import dataclass

import torch

from runtime.bench.engines import BUCKETS, make_engine
from runtime.config import ModelConfig
from runtime.engine import Engine
from runtime.weights import Weights


@dataclass(frozen=True)
class CaptureFigures:
    """The captures of one engine.

    Attributes:
        first_s: seconds for all buckets in a process that has captured none of them, kernels built or not.
        warm_s: the same once more, by another engine: every kernel is loaded.
        pool_bytes: device memory of the pool that the graphs share.
    """

    backend: str
    buckets: tuple[int, ...]
    first_s: float
    warm_s: float
    pool_bytes: int


def measure(config: ModelConfig, weights: Weights, backend: str) -> CaptureFigures:
    """Capture `BUCKETS` in two engines, one after the other; on a GPU."""

    def engine() -> Engine:
        return make_engine(
            config,
            weights,
            backend,
            max_batch=max(BUCKETS),
            tokens=512,
            max_step_tokens=2048,
            buckets=BUCKETS,
            overlap=True,
        )

    first_s = _seconds(engine())
    torch.cuda.empty_cache()
    again = engine()
    warm_s = _seconds(again)
    assert again.graphs is not None
    graph = again.graphs.captured(max(BUCKETS))
    assert isinstance(graph, torch.cuda.CUDAGraph)
    return CaptureFigures(backend, BUCKETS, first_s, warm_s, pool_bytes(graph.pool()))


def pool_bytes(pool: tuple[int, int]) -> int:
    """Device memory that the allocator holds for one pool."""
    segments = torch.cuda.memory_snapshot()
    return sum(
        segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == tuple(pool)
    )


def _seconds(engine: Engine) -> float:
    assert engine.graphs is not None
    torch.cuda.synchronize()
    started = time.perf_counter()
    engine.graphs.capture()
    torch.cuda.synchronize()
    return time.perf_counter() - started
