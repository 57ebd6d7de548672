"""Which part of each tensor a rank has: whole heads, columns or rows dealt out in order, fp8 blocks left whole."""

from dataclasses import dataclass, replace

import torch

from runtime.config import FP8_BLOCK, ModelConfig

VOCABULARY_MULTIPLE = 8
"""Rows of a rank's part of the head: what it computes then starts each row of logits on 16 bytes."""


class ShardError(ValueError):
    """A tensor cannot be divided among so many ranks; the message names it."""


@dataclass(frozen=True)
class Shard:
    """The part of rank `rank` among `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ShardError(f"rank: expected 0 to {self.size - 1}, got {self.rank}")

    def rows_of_vocabulary(self, vocab_size: int) -> tuple[int, int, int]:
        """First and end row of the rank's part of the head, and how many rows it has once filled up with zeros.

        All ranks have equally many; of the last ones, some or all may be filling.
        """
        rows = -(-vocab_size // (self.size * VOCABULARY_MULTIPLE)) * VOCABULARY_MULTIPLE
        first = min(self.rank * rows, vocab_size)
        return first, min(first + rows, vocab_size), rows


WHOLE = Shard()


@dataclass(frozen=True)
class Split:
    """How ranks share a tensor: `pieces` along `axis`, each rank as many, a piece never cut.

    Attributes:
        unit: elements of a piece along the axis.
        what: what a piece is, for an error.
        repeated: where ranks are more than pieces, several have the same one; else that is an error.
    """

    axis: int
    pieces: int
    unit: int
    what: str
    repeated: bool = False


@dataclass(frozen=True)
class Part:
    """Elements `start` to `stop` along `axis`."""

    axis: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[slice, ...]:
        return (*(slice(None) for _ in range(self.axis)), slice(self.start, self.stop))

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The part's shape, of a tensor whose shape is `whole`."""
        return (*whole[: self.axis], self.stop - self.start, *whole[self.axis + 1 :])

    @property
    def blocks(self) -> "Part":
        """The same of the scales of a tensor in fp8 blocks."""
        return Part(self.axis, self.start // FP8_BLOCK, -(-self.stop // FP8_BLOCK))


def part_of(name: str, length: int, split: Split, shard: Shard, *, in_blocks: bool) -> Part:
    """A rank's part of the tensor `name`.

    Args:
        length: of the tensor along the axis.
        in_blocks: the tensor has a scale for each 128 x 128 block, which must stay whole.

    Raises:
        ShardError: ranks cannot have equally many pieces, or a block would be cut.
    """
    first, count = pieces_of(name, split, shard)
    start, stop = first * split.unit, (first + count) * split.unit
    if in_blocks:
        cut = next((edge for edge in (start, stop) if edge % FP8_BLOCK and edge != length), None)
        if cut is not None:
            raise ShardError(
                f"{name}: {shard.size} ranks would cut an fp8 block of {FP8_BLOCK} at {cut} of {length}; use fewer ranks"
            )
    return Part(split.axis, start, stop)


def pieces_of(name: str, split: Split, shard: Shard) -> tuple[int, int]:
    """The first of a rank's pieces, and how many it has.

    Raises:
        ShardError: ranks cannot have equally many.
    """
    if split.pieces % shard.size == 0:
        count = split.pieces // shard.size
        return shard.rank * count, count
    if split.repeated and shard.size % split.pieces == 0:
        return shard.rank * split.pieces // shard.size, 1
    expected = f"a multiple of {shard.size}" + (f", or a divisor of {shard.size}" if split.repeated else "")
    raise ShardError(f"{name}: expected {expected} {split.what} for {shard.size} ranks, got {split.pieces}")


def local_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    """The model as a rank computes it: its heads, its widths of what is inside a layer.

    Raises:
        ShardError: heads cannot be divided.
    """
    queries = Split(0, config.q_heads, 1, "query heads")
    keys = Split(0, config.kv_heads, 1, "key and value heads", repeated=True)
    experts = config.experts
    if experts is not None:
        experts = replace(experts, intermediate_size=experts.intermediate_size // shard.size)
    return replace(
        config,
        q_heads=pieces_of("num_attention_heads", queries, shard)[1],
        kv_heads=pieces_of("num_key_value_heads", keys, shard)[1],
        intermediate_size=config.intermediate_size // shard.size,
        experts=experts,
    )


def filled_rows(part: torch.Tensor, rows: int) -> torch.Tensor:
    """A rank's rows of the head with rows of zeros after them, `rows` in all."""
    missing = rows - part.shape[0]
    return torch.cat([part, part.new_zeros(missing, part.shape[1])]) if missing else part
