"""What a decode step is captured into: a CUDA graph, or on a CPU the same calls once more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.contract import GraphContractError, require_not_capturing


@dataclass
class Outputs:
    """Where a captured step leaves its results, until the next one runs: graphs share this memory.

    Attributes:
        logits: [bucket, vocab].
        drawn: int32 [2, max_batch]: ids, then status.
    """

    logits: torch.Tensor
    drawn: torch.Tensor

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        return {"logits": self.logits, "drawn": self.drawn}


class Captured(Protocol):
    """A captured computation."""

    def replay(self) -> None:
        """Run it again over the same memory."""
        ...


Computation = Callable[[], Outputs]
Capture = Callable[[Computation], tuple[Captured, Outputs]]


class CudaCapture:
    """Captures into CUDA graphs that share one memory pool; warms up on a side stream first, as capture asks.

    The warm-up has run when it returns: a capture begins with a wait for the device. What a step does that cannot be
    captured is a GraphContractError.
    """

    def __init__(self) -> None:
        self._pool: tuple[int, int] | None = None

    def __call__(self, computation: Computation) -> tuple[Captured, Outputs]:
        require_not_capturing("another capture", torch.device("cuda"))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            computation()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph(keep_graph=True)  # so that its nodes can be counted
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                outputs = computation()
        except RuntimeError as error:
            if isinstance(error, GraphContractError):
                raise
            reason = str(error).partition("\n")[0]
            raise GraphContractError(
                f"the step cannot be captured: {reason}; a captured step may not pin memory, wait, or read from the device"
            ) from error
        graph.instantiate()
        self._pool = graph.pool()
        return graph, outputs


@dataclass(frozen=True)
class HostCapture:
    """Stands in for a graph on a CPU: the same calls again, over the same memory, results included."""

    computation: Computation

    @classmethod
    def of(cls, computation: Computation) -> tuple[Captured, Outputs]:
        """Compute once, as a capture's warm-up does."""
        outputs = computation()
        return cls(computation), outputs

    def replay(self) -> None:
        self.computation()
