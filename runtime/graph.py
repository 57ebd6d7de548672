"""Captured decode steps: one graph a bucket of lanes, replayed over stable buffers, or a reason why not.

A replay is: the lanes written to a slot of the ring, changed table entries, the backend's own metadata, the contract's
check, the graph. The graph itself begins with one `fused_copy` that brings the lanes from the slot to every mirror, and
ends with one that takes the tokens back; so each slot has a graph of its own, and between two replays the device has
nothing to do but to start. Buckets always include the largest batch; what does not fit goes eager and is counted with its
reason.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.fused_copy import fused_copy, fused_copy_reference
from kernels.token_history import TokenHistory
from runtime import sampler
from runtime.attention import AttentionParameters
from runtime.attention.replanning import replan
from runtime.batch import StepInputs
from runtime.buffers import StableBuffers
from runtime.capture import Capture, Captured, CudaCapture, HostCapture, Outputs
from runtime.clock import NO_CLOCK, Clock
from runtime.contract import Fingerprint, GraphContractError
from runtime.lanes import DecodeLanes
from runtime.model import Model
from runtime.request import Request
from runtime.ring import Ring, Slot
from runtime.rope import DecodeRope
from runtime.scheduler import Decode, StepPlan


@dataclass(frozen=True)
class Launched:
    """A step given to the device; its results are there once what follows on the stream can run.

    Attributes:
        requests: one a lane, those that sample.
        logits: [lanes, vocab], valid until the next step.
        ids: int32 [lanes], as `logits`.
        plain: no lane is known to ask for more than its token.
    """

    requests: Sequence[Request]
    logits: torch.Tensor
    ids: torch.Tensor
    plain: bool = False


@dataclass(frozen=True)
class _Step:
    """One bucket with one slot, captured."""

    graph: Captured
    inputs: StepInputs
    parameters: AttentionParameters
    fingerprint: Fingerprint
    outputs: Outputs


class _Parameters:
    """The tensors that an attention backend's parameters hold, whatever their class calls them."""

    def __init__(self, parameters: AttentionParameters) -> None:
        self._parameters = parameters
        self._paths = {".".join(path): path for path in _paths_to_tensors(parameters)}

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        found = {}
        for name, path in self._paths.items():
            value: Any = self._parameters
            for step in path:
                value = vars(value).get(step)
            found[name] = value
        return found


class _Caches:
    def __init__(self, caches: Sequence[torch.Tensor]) -> None:
        self._caches = caches
        self._names = [f"layer {index}" for index in range(len(caches))]

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        return dict(zip(self._names, self._caches, strict=True))


class DecodeGraphs:
    """The captured decode steps of one model.

    Args:
        buckets: lanes of each graph; the largest batch is added if it is not among them.
        max_batch: most lanes of a step.
        max_pages: widest block table.
        history: the device's state of sequences.
        ring: the host's memory of steps.

    Attributes:
        eager: steps that could not be replayed, by reason.
        hits: replays by bucket.
        live_lanes: lanes of all replays; `padding_lanes` those that filled up their buckets.
    """

    def __init__(
        self,
        model: Model,
        caches: Sequence[torch.Tensor],
        buckets: Sequence[int],
        max_batch: int,
        max_pages: int,
        history: TokenHistory,
        ring: Ring,
    ) -> None:
        self.buckets = sorted({*(bucket for bucket in buckets if 0 < bucket <= max_batch), max_batch})
        self.eager = Counter[str]()
        self.hits = Counter[int]()
        self.live_lanes = 0
        self.padding_lanes = 0
        self.clock: Clock = NO_CLOCK
        self._model = model
        self._caches = caches
        self._history = history
        self._ring = ring
        self._buffers = StableBuffers(
            max_batch, max_pages, model.config.vocab_size, model.config.dtype, model.device
        )
        self._lanes = DecodeLanes(max_batch, max_pages, caches[0].shape[3])
        on_gpu = model.device.type == "cuda"
        self._capture: Capture = CudaCapture() if on_gpu else HostCapture.of
        self._copy = fused_copy if on_gpu else fused_copy_reference
        self._steps: dict[int, Sequence[_Step]] = {}

    def capture(self) -> None:
        """Capture every bucket that is not yet, from the largest down, so that the smaller fit into its pool."""
        for bucket in reversed(self.buckets):
            self._steps_of(bucket)

    def captured(self, bucket: int, slot: int = 0) -> Captured:
        """The graph of a captured bucket with one of the ring's slots.

        Raises:
            KeyError: it was not captured yet.
        """
        return self._steps[bucket][slot].graph

    def why_eager(self, plan: StepPlan) -> str | None:
        """Why a step cannot be replayed; None when it can."""
        if not isinstance(plan, Decode):
            return "prefill"
        if len(plan.requests) > self._buffers.max_batch:
            return f"batch above {self._buffers.max_batch}"
        if max([len(request.pages) for request in plan.requests]) > self._buffers.max_pages:
            return f"block table wider than {self._buffers.max_pages}"
        return None

    @torch.inference_mode()
    def launch(self, plan: StepPlan, slot: Slot) -> Launched | None:
        """Replay a decode step with the lanes' records in `slot`; its tokens come back there too.

        Returns:
            None where the step has to be computed eagerly; `eager` counts why.

        Raises:
            GraphContractError: a buffer that the graph reads has moved or changed; nothing is replayed.
        """
        reason = self.why_eager(plan)
        if reason is not None or not isinstance(plan, Decode):
            self.eager[str(reason)] += 1
            return None
        count = len(plan.requests)
        bucket = next(bucket for bucket in self.buckets if bucket >= count)
        step = self._steps_of(bucket)[slot.index]
        try:
            requests = self._prepare(step, plan.requests, slot, bucket)
        except GraphContractError:
            self._lanes.forget()  # the device did not get what the lanes say that it has
            raise
        step.graph.replay()
        self.clock.mark("replay")
        self.hits[bucket] += 1
        self.live_lanes += count
        self.padding_lanes += bucket - count
        outputs = step.outputs
        return Launched(requests, outputs.logits[:count], outputs.drawn[0, :count], self._lanes.plain)

    def _prepare(self, step: _Step, asked: Sequence[Request], slot: Slot, bucket: int) -> Sequence[Request]:
        """Everything before the replay; the requests in the order of their lanes."""
        requests, change = self._lanes.arrange(asked)
        slot.block.bytes[:] = self._lanes.block.bytes
        lengths, count = self._buffers.host_kv_lengths, len(requests)
        lengths[:count] = slot.block.columns["kv_length"][:count]
        lengths[count:bucket] = 0
        self.clock.mark("lay out")
        if change is not None:
            self._buffers.write_tables(change)
        replan(self._model.attention, step.parameters, step.inputs)
        self.clock.mark("copy")
        step.fingerprint.require_unchanged()
        self.clock.mark("check")
        return requests

    def _steps_of(self, bucket: int) -> Sequence[_Step]:
        """The bucket's steps, one a slot, captured now if they were not yet."""
        if bucket not in self._steps:
            self._steps[bucket] = self._capture_bucket(bucket)
        return self._steps[bucket]

    @torch.inference_mode()
    def _capture_bucket(self, bucket: int) -> Sequence[_Step]:
        inputs = self._buffers.inputs(bucket)
        rope = self._model.decode_rope()
        rope.prepare(inputs)
        self._buffers.host_kv_lengths[:bucket] = 0
        parameters = self._model.attention.plan(inputs)
        replan(self._model.attention, parameters, inputs)
        return [self._capture_slot(bucket, slot, inputs, parameters, rope) for slot in self._ring.slots]

    def _capture_slot(
        self, bucket: int, slot: Slot, inputs: StepInputs, parameters: AttentionParameters, rope: DecodeRope
    ) -> _Step:
        arrival = self._buffers.plan_arrival(bucket, slot.block, rope.sequence_lengths)
        back = self._buffers.plan_return(bucket, slot.drawn)
        start = self._buffers.start(bucket, self._history)
        lanes = self._buffers.lane_parameters(bucket)

        def compute() -> Outputs:
            self._copy(arrival)
            x = self._model.begin(start)
            logits = self._buffers.logits[:bucket]
            self._model.compute(x, inputs, self._caches, parameters, rope, logits)
            sampler.draw(logits, lanes, self._history, self._buffers.drawn)
            self._copy(back)
            return Outputs(logits, self._buffers.drawn)

        # Capture runs the step once: with every lane padding it writes to no page or row that anyone reads. Tokens that
        # an earlier step left in the slot may still be unread.
        slot.done.synchronize()
        unread = slot.drawn.clone()
        slot.block.count[0] = 0
        graph, outputs = self._capture(compute)
        slot.drawn.copy_(unread)
        holders = {
            "buffers": self._buffers,
            "history": self._history,
            "rope": rope,
            self._model.attention.name: _Parameters(parameters),
            "cache": _Caches(self._caches),
            "model": self._model,
            "slot": slot,
            "outputs": outputs,
        }
        return _Step(graph, inputs, parameters, Fingerprint(holders), outputs)


def _paths_to_tensors(value: object) -> Iterator[tuple[str, ...]]:
    """Names of the attributes that lead to each tensor that a value holds, directly or in an attribute's attributes."""
    for name, inner in vars(value).items():
        if isinstance(inner, torch.Tensor):
            yield (name,)
        elif hasattr(inner, "__dict__"):
            yield from ((name, *path) for path in _paths_to_tensors(inner))
