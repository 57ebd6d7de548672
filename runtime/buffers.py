"""The stable memory that captured decode steps read: made once at the largest batch, sliced for each bucket.

A step's lanes lie in one slot of the ring; one `fused_copy`, the graph's first node, brings each field from there to its
buffer and clears the lanes after the last live one. Of the block tables only what changed goes.
"""

from collections.abc import Mapping

import numpy as np
import torch

from kernels.copy_plan import CopyPlan
from kernels.token_history import ProcessorLanes, TokenHistory
from runtime.batch import StepInputs, to_device
from runtime.begin_step import LaneStart
from runtime.contract import require_not_capturing
from runtime.kv_cache import NULL_PAGE
from runtime.lanes import FIELDS, NOTHING, PROCESSOR_FIELDS, LaneBlock, TableChange
from runtime.sampler import LaneParameters

_NEUTRAL = {"slot": NOTHING, "row": NOTHING, "table_column": NOTHING, "top_p": 1.0, "repetition_penalty": 1.0}
"""What a padding lane holds, where that is not 0."""


class StableBuffers:
    """Every mutable input of a decode step; each of `runtime.lanes.FIELDS` is a tensor `[max_batch]`.

    Attributes:
        fields: by name.
        block_tables: int32 [max_batch, max_pages].
        query_indptr: int32 [max_batch + 1], always counting up by one.
        drawn: int32 [2, max_batch], the step's tokens and their status.
        logits: [max_batch, vocab] of the model's dtype, rows on 16 bytes: what every graph ends with, one after the other.
        host_kv_lengths: int32 [max_batch] in host memory, for backends that plan there.
    """

    def __init__(
        self, max_batch: int, max_pages: int, vocab_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_not_capturing("stable buffers", device)
        self.max_batch = max_batch
        self.max_pages = max_pages
        self.device = device
        self.fields = {
            name: torch.full((max_batch,), _NEUTRAL.get(name, 0), dtype=dtype, device=device)
            for name, dtype in FIELDS.items()
        }
        self.block_tables = torch.full((max_batch, max_pages), NULL_PAGE, dtype=torch.int32, device=device)
        self.query_indptr = torch.arange(max_batch + 1, dtype=torch.int32, device=device)
        self.drawn = torch.zeros(2, max_batch, dtype=torch.int32, device=device)
        self.logits = torch.zeros(max_batch, -(-vocab_size // 8) * 8, dtype=dtype, device=device)[
            :, :vocab_size
        ]
        self.host_kv_lengths = np.zeros(max_batch, np.int32)

    def inputs(self, bucket: int) -> StepInputs:
        """The buffers as a decode step of `bucket` lanes reads them."""
        lengths = self.fields["sequence_length"][:bucket]
        return StepInputs(
            token_ids=self.fields["token_id"][:bucket],
            positions=lengths,
            slots=self.fields["slot"][:bucket],
            query_indptr=self.query_indptr[: bucket + 1],
            sequence_lengths=lengths,
            kv_lengths=self.fields["kv_length"][:bucket],
            block_tables=self.block_tables[:bucket],
            last_tokens=None,
            max_query_length=1,
            is_decode=True,
            host_kv_lengths=self.host_kv_lengths[:bucket],
        )

    def start(self, bucket: int, history: TokenHistory) -> LaneStart:
        """What the start of a step of `bucket` lanes reads."""
        names = ("token_id", "row", "table_column", "table_page")
        token_ids, rows, columns, pages = (self.fields[name][:bucket] for name in names)
        return LaneStart(token_ids, rows, history.last_ids, columns, pages, self.block_tables[:bucket])

    def lane_parameters(self, bucket: int) -> LaneParameters:
        """What sampling of `bucket` lanes reads."""
        field = {name: tensor[:bucket] for name, tensor in self.fields.items()}
        return LaneParameters(
            field["temperature"], field["top_k"], field["top_p"], field["min_p"], field["seed"], field["sample_position"],
            ProcessorLanes(*(field[name] for name in PROCESSOR_FIELDS)),
        )  # fmt: skip

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """See `runtime.contract.BufferHolder`."""
        others = {
            "block_tables": self.block_tables,
            "query_indptr": self.query_indptr,
            "drawn": self.drawn,
            "logits": self.logits,
        }
        return others | self.fields

    def plan_arrival(self, bucket: int, block: LaneBlock, owned_lengths: torch.Tensor) -> CopyPlan:
        """What brings `bucket` lanes from a slot; `owned_lengths` is the rotary operation's copy."""
        plan = CopyPlan()
        for name, destination in (*self.fields.items(), ("sequence_length", owned_lengths)):
            source, padding = block.fields[name][:bucket], _NEUTRAL.get(name, 0)
            plan.mirror(destination[:bucket], source, padding, count=block.count)
        return plan

    def plan_return(self, bucket: int, drawn: torch.Tensor) -> CopyPlan:
        """What takes the tokens of `bucket` lanes to a slot."""
        plan = CopyPlan(self.device)
        plan.copy(drawn[:, :bucket], self.drawn[:, :bucket])
        return plan

    def write_tables(self, change: TableChange) -> None:
        """Bring changed entries of the block tables."""
        places = to_device(change.places, self.device)
        self.block_tables.view(-1).index_copy_(0, places, to_device(change.pages, self.device))
