"""Decode steps at a model's shape: replayed, overlapped and eager, beside the bytes that a step must read."""

import ctypes
import statistics
import time
from dataclasses import dataclass, replace

import torch

from runtime.bench.engines import WARM, make_engine, random_prompts
from runtime.bench.twin import TorchTwin, captured
from runtime.config import ModelConfig
from runtime.engine import Engine
from runtime.graph import Captured
from runtime.weights import Weights

STEPS, EAGER_STEPS, WARM_STEPS = 60, 16, 4


@dataclass(frozen=True)
class DecodeFigures:
    """One batch size; times are milliseconds a step, medians.

    Attributes:
        step_ms: from one `Engine.step` to the next, the next step prepared while this one runs.
        serial_ms: the same without overlap.
        replay_ms: the graph alone, on the device.
        eager_ms: a step without graph and overlap.
        floor_ms: weights and cache read once at `bandwidth`.
        twin_ms: replay of the same step in plain torch, see `runtime.bench.twin`.
        nodes: of the captured graph.
    """

    batch: int
    context: int
    backend: str
    step_ms: float
    serial_ms: float
    replay_ms: float
    eager_ms: float
    floor_ms: float
    twin_ms: float
    nodes: int


def measure(
    config: ModelConfig, weights: Weights, batch: int, context: int, backend: str, bandwidth: float
) -> DecodeFigures:
    """Time decode steps of `batch` lanes with about `context` tokens each; `bandwidth` is in bytes a second.

    Engines serve `batch` requests whose length passes `context` in the middle of the measured steps.
    """
    serial = _decoding(config, weights, batch, context, backend, graph=True, overlap=False)
    before = step_ms(serial, STEPS // 2)
    assert serial.graphs is not None
    graph = serial.graphs.captured(batch)
    replay, nodes = _replay_ms(graph), node_count(graph)  # in the middle, at about `context` tokens
    serial_ms = (before + step_ms(serial, STEPS // 2)) / 2
    del serial, graph
    overlapped = _decoding(config, weights, batch, context, backend, graph=True, overlap=True)
    overlapped_ms = step_ms(overlapped, STEPS)
    del overlapped
    eager = _decoding(config, weights, batch, context, backend, graph=False, overlap=False)
    eager_ms = step_ms(eager, EAGER_STEPS)
    del eager
    return DecodeFigures(
        batch,
        context,
        backend,
        overlapped_ms,
        serial_ms,
        replay,
        eager_ms,
        floor_bytes(config, batch, context) / bandwidth * 1e3,
        _twin_ms(config, weights, batch, context),
        nodes,
    )


def step_ms(engine: Engine, steps: int) -> float:
    """Milliseconds from step to step of an engine whose every lane decodes, the median of `steps`."""
    samples = []
    for _ in range(WARM_STEPS):
        engine.step()
    for _ in range(steps):
        started = time.perf_counter()
        engine.step()
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples)


def floor_bytes(config: ModelConfig, batch: int, context: int) -> int:
    """Bytes that a decode step must read: every dense weight once, and the lanes' keys and values."""
    layer = config.hidden_size * (
        config.qkv_size + config.q_heads * config.head_dim + 3 * config.intermediate_size
    )
    weights = config.layers * layer + config.vocab_size * config.hidden_size
    cache = config.layers * 2 * config.kv_heads * config.head_dim * batch * context
    return (weights + cache) * config.dtype.itemsize


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


def _decoding(
    config: ModelConfig,
    weights: Weights,
    batch: int,
    context: int,
    backend: str,
    *,
    graph: bool,
    overlap: bool,
) -> Engine:
    """An engine whose `batch` lanes have all begun to decode, with steps enough before the first one ends."""
    prompt = max(1, context - STEPS // 2)
    new = 2 * STEPS
    engine = make_engine(
        config,
        weights,
        backend,
        max_batch=batch,
        tokens=prompt + new,
        max_step_tokens=batch * prompt,  # one step takes all prompts in, so that the lanes stay of one length
        buckets=(batch,) if graph else None,
        overlap=overlap,
    )
    requests = [
        engine.submit(ids, replace(WARM, max_tokens=new, seed=lane))
        for lane, ids in enumerate(random_prompts(config, batch, prompt, seed=0))
    ]
    while not all(request.tokens for request in requests):
        engine.step()
    return engine


@torch.inference_mode()
def _twin_ms(config: ModelConfig, weights: Weights, batch: int, context: int) -> float:
    return _replay_ms(captured(TorchTwin(config, weights, batch, context).step))


def _replay_ms(graph: Captured) -> float:
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(STEPS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)
