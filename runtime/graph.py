"""Captured decode steps: one graph a bucket of lanes, replayed over stable buffers, or a reason why not.

A replay is: one copy of packed lanes, one `fused_copy` to every mirror, changed table entries, the contract's check, the
graph. Buckets always include the largest batch; what does not fit goes eager and is counted with its reason.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.copy_plan import CopyPlan
from kernels.sampling_reference import Sampled
from runtime import sampler
from runtime.attention import AttentionParameters
from runtime.batch import HostStep
from runtime.buffers import PackedLanes, StableBuffers
from runtime.contract import Fingerprint, GraphContractError
from runtime.model import Model
from runtime.request import Request


@dataclass
class Outputs:
    """Where a captured step leaves its results: logits [bucket, vocab], drawn ids and status [bucket]."""

    logits: torch.Tensor
    ids: torch.Tensor
    status: torch.Tensor

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        return dict(vars(self))


class Captured(Protocol):
    """A captured computation."""

    def replay(self) -> None:
        """Run it again over the same memory."""
        ...


Computation = Callable[[], Outputs]
Capture = Callable[[Computation], tuple[Captured, Outputs]]


class CudaCapture:
    """Captures into CUDA graphs that share one memory pool; warms up on a side stream first, as capture asks."""

    def __init__(self) -> None:
        self._pool: tuple[int, int] | None = None

    def __call__(self, computation: Computation) -> tuple[Captured, Outputs]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            computation()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph(keep_graph=True)  # so that its nodes can be counted
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            outputs = computation()
        graph.instantiate()
        self._pool = graph.pool()
        return graph, outputs


@dataclass(frozen=True)
class HostCapture:
    """Stands in for a graph on a CPU: the same calls again, over the same memory, results included."""

    computation: Computation
    outputs: Outputs

    @classmethod
    def of(cls, computation: Computation) -> tuple[Captured, Outputs]:
        """Compute once, as a capture's warm-up does."""
        outputs = computation()
        return cls(computation, outputs), outputs

    def replay(self) -> None:
        for name, fresh in self.computation().graph_buffers().items():
            self.outputs.graph_buffers()[name].copy_(fresh)


@dataclass(frozen=True)
class _Step:
    """One bucket, captured."""

    graph: Captured
    plan: CopyPlan
    fingerprint: Fingerprint
    outputs: Outputs


@dataclass(frozen=True)
class _Parameters:
    """The tensors that an attention backend's parameters hold, whatever their class calls them."""

    parameters: AttentionParameters

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        return dict(_tensors("", self.parameters))


@dataclass(frozen=True)
class _Caches:
    caches: Sequence[torch.Tensor]

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        return {f"layer {index}": cache for index, cache in enumerate(self.caches)}


class DecodeGraphs:
    """The captured decode steps of one model.

    Args:
        buckets: lanes of each graph; the largest batch is added if it is not among them.
        max_batch: most lanes of a step.
        max_pages: widest block table.
    """

    def __init__(
        self,
        model: Model,
        caches: Sequence[torch.Tensor],
        buckets: Sequence[int],
        max_batch: int,
        max_pages: int,
    ) -> None:
        self.buckets = sorted({*(bucket for bucket in buckets if 0 < bucket <= max_batch), max_batch})
        self.eager = Counter[str]()
        self.replays = 0
        self._model = model
        self._caches = caches
        self._buffers = StableBuffers(max_batch, max_pages, model.device)
        self._packed = PackedLanes(max_batch, model.device)
        on_gpu = model.device.type == "cuda"
        self._capture: Capture = CudaCapture() if on_gpu else HostCapture.of
        self._steps: dict[int, _Step] = {}

    def capture(self) -> None:
        """Capture every bucket that is not yet, from the largest down, so that the smaller fit into its pool."""
        for bucket in reversed(self.buckets):
            self._step_of(bucket)

    def captured(self, bucket: int) -> Captured:
        """The graph of a captured bucket.

        Raises:
            KeyError: it was not captured yet.
        """
        return self._steps[bucket].graph

    def why_eager(self, step: HostStep) -> str | None:
        """Why a step cannot be replayed; None when it can."""
        if not step.is_decode:
            return "prefill"
        if step.batch > self._buffers.max_batch:
            return f"batch above {self._buffers.max_batch}"
        if step.block_tables.shape[1] > self._buffers.max_pages:
            return f"block table wider than {self._buffers.max_pages}"
        return None

    @torch.inference_mode()
    def run(self, step: HostStep, requests: Sequence[Request]) -> tuple[torch.Tensor, Sampled] | None:
        """Replay a decode step; its logits `[batch, vocab]` and drawn tokens, valid until the next one.

        Returns:
            None where the step has to be computed eagerly; `eager` counts why.

        Raises:
            GraphContractError: a buffer that the graph reads has moved or changed.
        """
        reason = self.why_eager(step)
        if reason is not None:
            self.eager[reason] += 1
            return None
        bucket = next(bucket for bucket in self.buckets if bucket >= step.batch)
        captured = self._step_of(bucket)
        self._packed.fill(step, requests)
        self._buffers.write(self._packed.tensor, step.batch, captured.plan)
        self._buffers.write_tables(step, bucket)
        captured.fingerprint.require_unchanged()
        captured.graph.replay()
        self.replays += 1
        outputs = captured.outputs
        return outputs.logits[: step.batch], Sampled(outputs.ids[: step.batch], outputs.status[: step.batch])

    def _step_of(self, bucket: int) -> _Step:
        """The bucket's step, captured now if it was not yet."""
        if bucket not in self._steps:
            self._steps[bucket] = self._capture_bucket(bucket)
        return self._steps[bucket]

    @torch.inference_mode()
    def _capture_bucket(self, bucket: int) -> _Step:
        if self._model.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise GraphContractError(f"bucket {bucket}: cannot be captured inside another capture")
        inputs = self._buffers.inputs(bucket)
        rope = self._model.decode_rope()
        rope.prepare(inputs)
        parameters = self._model.attention.plan(inputs)
        plan = self._buffers.mirror_plan(bucket, rope.sequence_lengths)
        # Capture runs the step: with every lane padding it writes to no page that anyone reads.
        self._buffers.write(self._packed.tensor, 0, plan)

        def compute() -> Outputs:
            logits = self._model.compute(inputs, self._caches, parameters, rope)
            drawn = sampler.draw(logits, self._buffers.lane_parameters(bucket))
            return Outputs(logits, drawn.ids, drawn.status)

        graph, outputs = self._capture(compute)
        holders = {
            "buffers": self._buffers,
            "rope": rope,
            self._model.attention.name: _Parameters(parameters),
            "cache": _Caches(self._caches),
            "model": self._model,
            "outputs": outputs,
        }
        return _Step(graph, plan, Fingerprint(holders), outputs)


def _tensors(prefix: str, value: object) -> list[tuple[str, torch.Tensor]]:
    """Tensors in a value's attributes, and theirs, by dotted name."""
    if isinstance(value, torch.Tensor):
        return [(prefix, value)]
    if not hasattr(value, "__dict__"):
        return []
    return [
        pair
        for name, inner in vars(value).items()
        for pair in _tensors(f"{prefix}.{name}".lstrip("."), inner)
    ]
