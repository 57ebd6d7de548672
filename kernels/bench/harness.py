"""Timing of kernels: inside a graph, over inputs that are warm or beyond the cache, beside this GPU's own copy speed.

A call's time is that of a graph of at least 50 dependent calls over their number, the median of several replays.
Cold figures rotate through input sets that together exceed the second-level cache four times, so that none is
still there when its turn comes. Inputs are random: kernels can run faster on zeros.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels import target

CALLS_PER_GRAPH = 50
REPLAYS = 11
REPLAYS_OF_A_LONG_GRAPH, LONG_US = 3, 1e5
MAX_SETS = 256
ROTATED_BYTES = 4
"""How many times the second-level cache the rotated inputs exceed."""

Inputs = Any


@dataclass(frozen=True)
class Row:
    """One line of the benchmark: an operation at a shape.

    Attributes:
        operation: public function's name.
        shape: what distinguishes the row, for a reader.
        make_inputs: seed -> a fresh set of random inputs, outputs included where the function takes them.
        run: the call that is timed.
        bytes_moved: bytes that the call must read and write, each once.
        input_bytes: size of one set, which decides how many are rotated.
        flops: floating-point operations, where arithmetic bounds the time.
        peers: name -> a call on the same inputs, or a reason (str) why it is not here.
        hot: also time one set again and again, as for small sizes.
        outside: also time calls outside a graph, where what the host does for each counts.
        target: what the row has to reach, in words.
        met: decides it from the figures.
    """

    operation: str
    shape: str
    make_inputs: Callable[[int], Inputs]
    run: Callable[[Inputs], object]
    bytes_moved: int
    input_bytes: int
    flops: int = 0
    peers: Mapping[str, Callable[[Inputs], object] | str] = field(default_factory=dict)
    hot: bool = False
    outside: bool = False
    target: str = ""
    met: Callable[["Figures"], bool] | None = None


@dataclass(frozen=True)
class Figures:
    """What was measured of a row; times are microseconds a call.

    Attributes:
        us: cold, inside a graph.
        hot_us: warm, inside a graph; None where not asked for.
        outside_us: warm, outside a graph, calls back to back; None where not asked for.
        floor_us: bytes_moved at the measured copy bandwidth.
        of_copy: floor over time, the share of copy bandwidth reached (a share of 1).
        tflops: 0 where the row counts none.
        peers: name -> microseconds, or why there is no figure.
    """

    us: float
    hot_us: float | None
    outside_us: float | None
    floor_us: float
    of_copy: float
    tflops: float
    peers: dict[str, float | str]

    def ratio(self, peer: str) -> float:
        """The peer's time over ours: above 1 we are faster; infinite where the peer has no figure."""
        figure = self.peers.get(peer)
        return figure / self.us if isinstance(figure, float) else float("inf")


def measure(row: Row, copy_bandwidth: float, *, with_peers: bool) -> Figures:
    """Time a row; `copy_bandwidth` is in bytes a second."""
    count = max(1, min(MAX_SETS, -(-ROTATED_BYTES * target.current().l2_bytes // max(1, row.input_bytes))))
    sets = [row.make_inputs(seed) for seed in range(count)]
    us = graph_us(row.run, sets)
    hot_us = graph_us(row.run, sets[:1]) if row.hot else None
    outside_us = host_us(row.run, sets[0]) if row.outside else None
    peers: dict[str, float | str] = {}
    if with_peers:
        # torch.compile keeps to eager, without a word, after the eighth shape of one function.
        torch._dynamo.reset()
    for name, peer in row.peers.items() if with_peers else ():
        peers[name] = peer if isinstance(peer, str) else _peer_us(peer, sets)
    floor_us = row.bytes_moved / copy_bandwidth * 1e6
    return Figures(us, hot_us, outside_us, floor_us, floor_us / us, row.flops / us / 1e6, peers)


def graph_us(call: Callable[[Inputs], object], sets: Sequence[Inputs]) -> float:
    """Microseconds a call of `call`, captured over the sets in turn."""
    calls = max(CALLS_PER_GRAPH, len(sets))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # Every set: some libraries plan for inputs when they first meet them, which must not be captured.
        for inputs in sets:
            call(inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(calls):
            call(sets[index % len(sets)])
    return _replay_us(graph) / calls


def host_us(call: Callable[[Inputs], object], inputs: Inputs, calls: int = 200) -> float:
    """Microseconds a call outside a graph, launch cost included, back to back; the median of several runs."""
    call(inputs)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            call(inputs)
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(samples)


def copy_bandwidth(size: int = 4 << 30) -> float:
    """Bytes a second, read plus written, of a device-to-device copy of `size` bytes through torch.

    Launched one by one: inside a graph such a copy is left to a copy engine, which reaches two thirds of what the
    multiprocessors do.
    """
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    destination = torch.empty_like(source)
    return 2 * size / (host_us(lambda _: destination.copy_(source), None, calls=10) * 1e-6)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    samples: list[float] = []
    while len(samples) < (REPLAYS_OF_A_LONG_GRAPH if samples and samples[0] > LONG_US else REPLAYS):
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return statistics.median(samples)


def _peer_us(peer: Callable[[Inputs], object], sets: Sequence[Inputs]) -> float | str:
    try:
        return graph_us(peer, sets)
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way; the row says how
        torch.cuda.synchronize()
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
