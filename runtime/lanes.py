"""The host's side of a decode step: which request has which lane, and what its fields and block table say.

A request keeps its lane from step to step, so that little changes: lengths, slots, and one table entry where a new page
begins. When others end or come, the lanes stay dense.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.contract import require_not_capturing
from runtime.kv_cache import NULL_PAGE
from runtime.request import Request

FEED = -1
"""Instead of a token id: the token that the step before drew for this row, which only the device knows."""
NOTHING = -1
"""No slot, row or table column."""
_UNKNOWN = -1

FIELDS: Mapping[str, torch.dtype] = {
    "seed": torch.int64,
    "slot": torch.int64,
    "sample_position": torch.int32,
    "token_id": torch.int32,
    "sequence_length": torch.int32,
    "kv_length": torch.int32,
    "row": torch.int32,
    "table_column": torch.int32,
    "table_page": torch.int32,
    "top_k": torch.int32,
    "temperature": torch.float32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "flags": torch.int32,
    "repetition_penalty": torch.float32,
    "presence_penalty": torch.float32,
    "frequency_penalty": torch.float32,
    "no_repeat_ngram": torch.int32,
    "min_tokens": torch.int32,
}
"""What a decode step knows of each lane."""

PROCESSOR_FIELDS = (
    "row", "flags", "repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram", "min_tokens",
)  # fmt: skip
"""In the order of `kernels.token_history.ProcessorLanes`."""


class LaneBlock:
    """A step's lanes in one piece of host memory: how many are live, then field after field.

    Attributes:
        memory: uint8, all of it; pinned if asked for.
        count: int32 [1], live lanes.
        fields: by name, [max_batch].
        columns: numpy views of `fields`.
    """

    def __init__(self, max_batch: int, *, pinned: bool = False) -> None:
        if pinned:
            require_not_capturing("a pinned block of lanes", torch.device("cuda"))
        header = 16
        sizes = [dtype.itemsize * max_batch for dtype in FIELDS.values()]
        self.memory = torch.zeros(header + sum(sizes), dtype=torch.uint8, pin_memory=pinned)
        self.bytes: npt.NDArray[np.uint8] = self.memory.numpy()
        self.count = self.memory[:4].view(torch.int32)
        pieces = self.memory[header:].split(sizes)
        self.fields = {
            name: piece.view(dtype) for (name, dtype), piece in zip(FIELDS.items(), pieces, strict=True)
        }
        self.columns: dict[str, npt.NDArray[Any]] = {
            name: field.numpy() for name, field in self.fields.items()
        }

    def describe(self, lane: int, request: Request) -> None:
        """Write what a request's lane keeps from step to step: its row and how its tokens are chosen."""
        sampling, processors = request.sampling, request.sampling.processors
        for name, value in (
            ("row", request.row),
            ("seed", request.seed),
            ("temperature", sampling.temperature),
            ("top_k", sampling.top_k),
            ("top_p", sampling.top_p),
            ("min_p", sampling.min_p),
            # What changes the choices of a search is applied where those are made.
            ("flags", 0 if request.in_search else processors.flags),
            ("repetition_penalty", processors.repetition_penalty),
            ("presence_penalty", processors.presence_penalty),
            ("frequency_penalty", processors.frequency_penalty),
            ("no_repeat_ngram", processors.no_repeat_ngram_size),
            ("min_tokens", processors.min_tokens),
        ):
            self.columns[name][lane] = value


@dataclass(frozen=True)
class TableChange:
    """Entries of the block tables to be written: flat places in [max_batch, max_pages], and the pages."""

    places: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int32]


class DecodeLanes:
    """Lanes of the decode steps over one set of stable buffers.

    Attributes:
        block: the lanes; the live ones are the first.
        tables: int32 [max_batch, max_pages], as the device has them once the step has begun.
        plain: no lane asks for more than its token: no log probabilities, no candidates of a search.
    """

    def __init__(self, max_batch: int, max_pages: int, page_size: int) -> None:
        self.block = LaneBlock(max_batch)
        self.tables = np.full((max_batch, max_pages), NULL_PAGE, np.int32)
        self.plain = True
        self._page_size = page_size
        self._requests: list[Request] = []
        self._asked: list[int] = []
        self._placed: list[int] = []
        self._starts_of_tables = np.arange(max_batch) * max_pages

    def arrange(self, requests: Sequence[Request]) -> tuple[Sequence[Request], TableChange | None]:
        """Give each request a lane and lay out its fields for one new token.

        Returns:
            The requests in the order of their lanes, and what of the block tables changes beside the lanes' own
            entries.
        """
        change = None
        asked = [request.generation for request in requests]
        if asked != self._asked:
            self._asked = asked
            change = self._place(requests)
        self._advance()
        return self._requests, change

    def forget(self) -> None:
        """Whatever the device has of lanes and tables, the next step writes all of it."""
        self._asked, self._placed, self._requests = [], [], []
        self.tables.fill(_UNKNOWN)

    def _advance(self) -> None:
        count = len(self._requests)
        columns = self.block.columns
        starts = np.fromiter([request.computed for request in self._requests], np.int32, count)
        pages, offsets = np.divmod(starts, self._page_size)
        columns["sequence_length"][:count] = starts
        starts += 1
        columns["kv_length"][:count] = starts
        columns["sample_position"][:count] = starts
        columns["token_id"][:count] = [
            FEED if request.pending else request.tokens[-1].id for request in self._requests
        ]
        columns["table_column"][:count] = NOTHING
        for lane in np.flatnonzero(offsets == 0).tolist():
            at = int(pages[lane])
            page = self._requests[lane].pages[at]
            if self.tables[lane, at] != page:
                self.tables[lane, at] = page
                columns["table_column"][lane] = at
                columns["table_page"][lane] = page
        held = self.tables.ravel()[self._starts_of_tables[:count] + pages]
        np.multiply(held, self._page_size, out=columns["slot"][:count], dtype=np.int64)
        columns["slot"][:count] += offsets
        self.block.count[0] = count

    def _place(self, requests: Sequence[Request]) -> TableChange | None:
        count = len(requests)
        self.plain = all(request.sampling.logprobs is None and not request.in_search for request in requests)
        coming = {request.generation: request for request in requests}
        # By the generation that a lane was written for: a request that started again has other pages and another row.
        lanes = [coming.pop(generation, None) for generation in self._placed[:count]]
        lanes += [None] * (count - len(lanes))
        new = iter(coming.values())
        changed = [lane for lane, request in enumerate(lanes) if request is None]
        for lane in changed:
            lanes[lane] = next(new)
        self._requests = [request for request in lanes if request is not None]
        self._placed = [request.generation for request in self._requests]
        for lane in changed:
            self.block.describe(lane, self._requests[lane])
        return self._write_tables([*changed, *range(count, len(self.tables))])

    def _write_tables(self, lanes: Sequence[int]) -> TableChange | None:
        """Bring these lanes' tables up to date; those without a request are cleared."""
        wanted = np.full((len(lanes), self.tables.shape[1]), NULL_PAGE, np.int32)
        for row, lane in zip(wanted, lanes, strict=True):
            if lane < len(self._requests):
                pages = self._requests[lane].pages
                row[: len(pages)] = pages
        rows, columns = np.nonzero(wanted != self.tables[lanes])
        self.tables[lanes] = wanted
        if not len(rows):
            return None
        places = np.asarray(lanes, np.int64)[rows] * self.tables.shape[1] + columns
        return TableChange(places, wanted[rows, columns])
