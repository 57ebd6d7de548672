"""Decode steps at a model's shape: captured and eager, beside the bytes that a step must read."""

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runtime.attention.kernels import TableAttention, TritonAttention
from runtime.batch import HostStep, host_step, to_device
from runtime.bench.twin import TorchTwin, captured
from runtime.config import ModelConfig
from runtime.graph import Captured, DecodeGraphs
from runtime.kernel_ops import KernelOps
from runtime.kv_cache import allocate_cache
from runtime.model import Model
from runtime.request import Request, SamplingParameters, Token
from runtime.scheduler import Chunk, StepPlan
from runtime.weights import Weights

PAGE_SIZE = 16
STEPS = 60
BACKENDS = {"triton": TritonAttention, "xqa": TableAttention}
WARM = SamplingParameters(temperature=0.8, top_k=50, top_p=0.9, max_tokens=1)

# Qwen3-0.6B, as its config.json has it.
QWEN3_06B = ModelConfig(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, layers=28, q_heads=16, kv_heads=8, head_dim=128,
    max_length=4096, norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e6}, tied_embedding=True,
)  # fmt: skip


@dataclass(frozen=True)
class DecodeFigures:
    """One batch size; times are milliseconds a step, medians.

    Attributes:
        step_ms: a whole step as an engine makes it: packed lanes, mirrors, replay, the sampled ids on the host.
        replay_ms: the graph alone, on the device.
        eager_ms: the same step without a graph.
        floor_ms: weights and cache read once at `bandwidth`.
        twin_ms: replay of the same step in plain torch, see `runtime.bench.twin`.
        nodes: of the captured graph.
        capture_s: to capture it, kernels already compiled.
    """

    batch: int
    backend: str
    step_ms: float
    replay_ms: float
    eager_ms: float
    floor_ms: float
    twin_ms: float
    nodes: int
    capture_s: float


def measure(
    config: ModelConfig, weights: Weights, batch: int, context: int, backend: str, bandwidth: float
) -> DecodeFigures:
    """Time decode steps of `batch` lanes with `context` tokens each; `bandwidth` is in bytes a second."""
    device = weights.embedding.device
    attention = BACKENDS[backend](config, batch, PAGE_SIZE, device)
    model = Model(config, weights, KernelOps(device), attention)
    requests = _requests(batch, context)
    pages = 1 + sum(len(request.pages) for request in requests)
    caches = allocate_cache(config, pages, PAGE_SIZE, config.dtype, device)
    for cache in caches:
        cache.normal_()
    step = host_step(
        StepPlan(tuple(Chunk(one, one.computed, 1, samples=True) for one in requests), is_decode=True),
        PAGE_SIZE,
    )
    max_pages = config.max_length // PAGE_SIZE
    DecodeGraphs(model, caches, (batch,), batch, max_pages).run(step, requests)  # compiles what is not yet
    started = time.perf_counter()
    graphs = DecodeGraphs(model, caches, (batch,), batch, max_pages)
    graphs.capture()
    torch.cuda.synchronize()
    capture_s = time.perf_counter() - started
    with torch.inference_mode():
        eager_ms = _median_ms(lambda: model(to_device(step, device), caches).argmax(-1).tolist(), STEPS // 4)
    step_ms = _median_ms(lambda: _whole_step(graphs, step, requests), STEPS)
    graph = graphs.captured(batch)
    return DecodeFigures(
        batch,
        backend,
        step_ms,
        _replay_ms(graph),
        eager_ms,
        floor_bytes(config, batch, context) / bandwidth * 1e3,
        _twin_ms(config, weights, batch, context),
        node_count(graph),
        capture_s,
    )


def floor_bytes(config: ModelConfig, batch: int, context: int) -> int:
    """Bytes that a decode step must read: every dense weight once, and the lanes' keys and values."""
    layer = config.hidden_size * (
        config.qkv_size + config.q_heads * config.head_dim + 3 * config.intermediate_size
    )
    weights = config.layers * layer + config.vocab_size * config.hidden_size
    cache = config.layers * 2 * config.kv_heads * config.head_dim * batch * context
    return (weights + cache) * config.dtype.itemsize


@torch.inference_mode()
def _twin_ms(config: ModelConfig, weights: Weights, batch: int, context: int) -> float:
    return _replay_ms(captured(TorchTwin(config, weights, batch, context).step))


def node_count(graph: Captured) -> int:
    """Nodes of a captured CUDA graph.

    Raises:
        RuntimeError: the CUDA runtime refuses to say.
    """
    assert isinstance(graph, torch.cuda.CUDAGraph)
    assert torch.version.cuda is not None
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
    count = ctypes.c_size_t()
    if code := runtime.cudaGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count)):
        raise RuntimeError(f"cudaGraphGetNodes: CUDA error {code}")
    return count.value


def _requests(batch: int, context: int) -> list[Request]:
    held = -(-context // PAGE_SIZE)
    order = (torch.randperm(batch * held) + 1).tolist()
    made = []
    for lane in range(batch):
        request = Request(str(lane), (1,) * (context - 1), WARM, seed=lane)
        request.tokens.append(Token(lane % 1000))
        request.computed = context - 1
        request.pages = order[lane * held : (lane + 1) * held]
        made.append(request)
    return made


def _whole_step(graphs: DecodeGraphs, step: HostStep, requests: Sequence[Request]) -> list[int]:
    result = graphs.run(step, requests)
    assert result is not None
    return result[1].ids.tolist()


def _replay_ms(graph: Captured) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(STEPS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)


def _median_ms(call: Callable[[], object], repeats: int) -> float:
    call()
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples)
