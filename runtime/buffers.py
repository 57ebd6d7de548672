"""The stable memory that captured decode steps read: made once at the largest batch, sliced for each bucket.

A step's lanes travel as one packed block of rows, 64 bytes a lane, in one host-to-device copy; one `fused_copy` then
writes each field to its buffer and clears the lanes after the last live one. Of the block tables only what changed goes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.copy_plan import CopyPlan
from kernels.fused_copy import fused_copy, fused_copy_reference
from runtime.batch import HostStep, StepInputs
from runtime.kv_cache import NULL_PAGE
from runtime.request import Request
from runtime.sampler import LaneParameters

LANE = np.dtype(
    [
        ("seed", np.int64),
        ("slot", np.int64),
        ("sample_position", np.int64),
        ("token_id", np.int32),
        ("sequence_length", np.int32),
        ("kv_length", np.int32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("unused", np.int32, 3),
    ]
)
NO_SLOT = -1


class StableBuffers:
    """Every mutable input of a decode step, `[max_batch]` unless said otherwise.

    Attributes:
        block_tables: int32 [max_batch, max_pages].
        staging: uint8 [max_batch, 64], where the packed lanes arrive.
    """

    def __init__(self, max_batch: int, max_pages: int, device: torch.device) -> None:
        self.max_batch = max_batch
        self.max_pages = max_pages
        self.device = device
        self.token_ids = torch.zeros(max_batch, dtype=torch.int32, device=device)
        self.slots = torch.full((max_batch,), NO_SLOT, dtype=torch.int64, device=device)
        self.sequence_lengths = torch.zeros(max_batch, dtype=torch.int32, device=device)
        self.kv_lengths = torch.zeros(max_batch, dtype=torch.int32, device=device)
        self.block_tables = torch.full((max_batch, max_pages), NULL_PAGE, dtype=torch.int32, device=device)
        self.query_indptr = torch.arange(max_batch + 1, dtype=torch.int32, device=device)
        self.lanes = LaneParameters(
            torch.zeros(max_batch, dtype=torch.float32, device=device),
            torch.zeros(max_batch, dtype=torch.int32, device=device),
            torch.ones(max_batch, dtype=torch.float32, device=device),
            torch.zeros(max_batch, dtype=torch.float32, device=device),
            torch.zeros(max_batch, dtype=torch.int64, device=device),
            torch.zeros(max_batch, dtype=torch.int64, device=device),
        )
        self.staging = torch.zeros(max_batch, LANE.itemsize, dtype=torch.uint8, device=device)
        self._tables = np.full((max_batch, max_pages), NULL_PAGE, np.int32)

    def inputs(self, bucket: int) -> StepInputs:
        """The buffers as a decode step of `bucket` lanes reads them."""
        return StepInputs(
            token_ids=self.token_ids[:bucket],
            positions=self.sequence_lengths[:bucket],
            slots=self.slots[:bucket],
            query_indptr=self.query_indptr[: bucket + 1],
            sequence_lengths=self.sequence_lengths[:bucket],
            kv_lengths=self.kv_lengths[:bucket],
            block_tables=self.block_tables[:bucket],
            last_tokens=None,
            max_query_length=1,
            is_decode=True,
        )

    def lane_parameters(self, bucket: int) -> LaneParameters:
        """What sampling of `bucket` lanes reads."""
        return LaneParameters(*(tensor[:bucket] for tensor in vars(self.lanes).values()))

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """See `runtime.contract.BufferHolder`."""
        mine = {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return mine | {f"lanes.{name}": value for name, value in vars(self.lanes).items()}

    def mirror_plan(self, bucket: int, owned_lengths: torch.Tensor) -> CopyPlan:
        """What writes `bucket` lanes from the staging block; `owned_lengths` is the rotary operation's copy."""
        plan = CopyPlan()
        lanes = self.lanes
        for field, destination, padding in (
            ("token_id", self.token_ids, 0),
            ("slot", self.slots, NO_SLOT),
            ("sequence_length", self.sequence_lengths, 0),
            ("sequence_length", owned_lengths, 0),
            ("kv_length", self.kv_lengths, 0),
            ("temperature", lanes.temperature, 0.0),
            ("top_k", lanes.top_k, 0),
            ("top_p", lanes.top_p, 1.0),
            ("min_p", lanes.min_p, 0.0),
            ("seed", lanes.seeds, 0),
            ("sample_position", lanes.positions, 0),
        ):
            plan.mirror(destination[:bucket], self._staged(field, destination.dtype)[:bucket], padding)
        return plan

    def write(self, packed: torch.Tensor, batch: int, plan: CopyPlan) -> None:
        """Bring `batch` packed lanes (pinned host memory on a GPU) to the buffers of the plan's bucket."""
        self.staging[:batch].copy_(packed[:batch], non_blocking=True)
        (fused_copy if self.device.type == "cuda" else fused_copy_reference)(plan, batch)

    def write_tables(self, step: HostStep, bucket: int) -> int:
        """Bring what changed of the first `bucket` block tables; returns how many entries that were."""
        wanted = np.full((bucket, self.max_pages), NULL_PAGE, np.int32)
        wanted[: step.batch, : step.block_tables.shape[1]] = step.block_tables
        rows, columns = np.nonzero(wanted != self._tables[:bucket])
        if not len(rows):
            return 0
        places = torch.from_numpy(rows * self.max_pages + columns)
        pages = torch.from_numpy(wanted[rows, columns])
        if self.device.type == "cuda":
            places, pages = places.pin_memory(), pages.pin_memory()
        self.block_tables.view(-1).index_copy_(
            0, places.to(self.device, non_blocking=True), pages.to(self.device, non_blocking=True)
        )
        self._tables[:bucket] = wanted
        return len(rows)

    def _staged(self, field: str, dtype: torch.dtype) -> torch.Tensor:
        offset = LANE.fields[field][1]  # type: ignore[index]  # a structured dtype has fields
        return self.staging.view(dtype)[:, offset // dtype.itemsize]


class PackedLanes:
    """Host memory for one step's lanes: pinned where the device is a GPU, written through a numpy view."""

    def __init__(self, max_batch: int, device: torch.device) -> None:
        self.tensor = torch.zeros(
            max_batch, LANE.itemsize, dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self._rows: npt.NDArray[np.void] = self.tensor.numpy().view(LANE)[:, 0]

    def fill(self, step: HostStep, requests: Sequence[Request]) -> None:
        """Write a decode step's lanes."""
        rows = self._rows[: step.batch]
        rows["token_id"] = step.token_ids
        rows["slot"] = step.slots
        rows["sequence_length"] = step.sequence_lengths
        rows["kv_length"] = step.kv_lengths
        rows["sample_position"] = step.kv_lengths
        rows["seed"] = [request.seed for request in requests]
        for name in ("temperature", "top_k", "top_p", "min_p"):
            rows[name] = [request.sampling.__dict__[name] for request in requests]
