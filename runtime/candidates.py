"""The likeliest next tokens of each beam of a step's searches, computed behind the step and read once it has run."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.logits_processors import process_logits
from kernels.logits_processors_reference import process_logits_reference
from kernels.token_history import ProcessorLanes, TokenHistory
from runtime.batch import to_device
from runtime.groups import Group
from runtime.lanes import PROCESSOR_FIELDS, LaneBlock
from runtime.request import Request
from runtime.sampler import load_history, to_host


class Candidates:
    """As Hugging Face has it: log probabilities in float32, changed by the request's processors, not normalised again."""

    def __init__(
        self, logits: torch.Tensor, lanes: Sequence[tuple[int, Request]], history: TokenHistory
    ) -> None:
        """`lanes` of `logits` [lanes, vocab] that belong to searches, with the beam that each is."""
        places: dict[Group, dict[int, int]] = {}
        for row, (_, request) in enumerate(lanes):
            assert request.group is not None
            places.setdefault(request.group, {})[request.group.members.index(request)] = row
        self._rows = [
            (group, group.attempt, [rows[beam] for beam in sorted(rows)]) for group, rows in places.items()
        ]
        chosen = to_device(np.array([lane for lane, _ in lanes], np.int64), logits.device)
        vocab = logits.shape[1]
        scores = logits.new_empty(len(lanes), -(-vocab // 4) * 4, dtype=torch.float32)[:, :vocab]
        scores.copy_(torch.log_softmax(logits.index_select(0, chosen).float(), -1))
        requests = [request for _, request in lanes]
        if any(request.sampling.processors.flags for request in requests):
            _process(scores, requests, history)
        most = max(group.search.candidates_per_row for group in places if group.search is not None)
        best, ids = scores.topk(most)
        self._best, self._ids = to_host(best), to_host(ids)

    @classmethod
    def asked(
        cls, logits: torch.Tensor, requests: Sequence[Request], history: TokenHistory
    ) -> "Candidates | None":
        """For the requests of the lanes; None where none of them is a beam."""
        lanes = [(lane, request) for lane, request in enumerate(requests) if request.in_search]
        return cls(logits, lanes, history) if lanes else None

    def read(self) -> Iterator[tuple[Group, npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Each search that is still the one it was, with ids and log probabilities [beams, candidates]; the step has run."""
        for group, attempt, rows in self._rows:
            if group.attempt == attempt:
                yield group, self._ids[rows].numpy(), self._best[rows].numpy()


def _process(scores: torch.Tensor, requests: Sequence[Request], history: TokenHistory) -> None:
    """Apply the requests' processors; their rows are told what each beam has become."""
    device = scores.device
    block = LaneBlock(len(requests), pinned=device.type == "cuda")
    for lane, request in enumerate(requests):
        block.describe(lane, request)
        block.columns["flags"][lane] = request.sampling.processors.flags
        if request.sampling.processors.flags:
            assert request.group is not None
            load_history(history, request, request.group.stop_ids)
    lanes = ProcessorLanes(*(block.fields[name].to(device, non_blocking=True) for name in PROCESSOR_FIELDS))
    (process_logits if scores.is_cuda else process_logits_reference)(scores, lanes, history)
