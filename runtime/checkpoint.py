"""What a checkpoint holds: every tensor's Hugging Face name and shape, and how ranks share it."""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.config import FP8_BLOCK, ModelConfig
from runtime.parallel.shard import Shard, Split, part_of

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Expected:
    """One tensor of a checkpoint.

    Attributes:
        projection: a checkpoint may hold it as fp8, with scales.
        split: how ranks share it; None where each has all of it. (Of the head each has its rows of the vocabulary.)
    """

    shape: tuple[int, ...]
    projection: bool = False
    split: Split | None = None


def specification(config: ModelConfig) -> dict[str, Expected]:
    """Every tensor of a checkpoint by its name, scales left out."""
    hidden, head = config.hidden_size, config.head_dim
    tensors = {EMBEDDING: Expected((config.vocab_size, hidden)), NORM: Expected((hidden,))}
    if not config.tied_embedding:
        tensors[HEAD] = Expected((config.vocab_size, hidden))
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = Expected((hidden,))
        tensors[f"{at}.post_attention_layernorm.weight"] = Expected((hidden,))
        tensors[f"{at}.self_attn.q_norm.weight"] = Expected((head,))
        tensors[f"{at}.self_attn.k_norm.weight"] = Expected((head,))
        for name, heads, what in (
            ("q", config.q_heads, "query heads"),
            ("k", config.kv_heads, "key heads"),
            ("v", config.kv_heads, "value heads"),
        ):
            split = Split(0, heads, head, what, repeated=name != "q")
            tensors[f"{at}.self_attn.{name}_proj.weight"] = Expected((heads * head, hidden), True, split)
        split = Split(1, config.q_heads, head, "query heads")
        tensors[f"{at}.self_attn.o_proj.weight"] = Expected((hidden, config.q_heads * head), True, split)
        if config.experts is not None and config.has_experts(layer):
            tensors[f"{at}.mlp.gate.weight"] = Expected((config.experts.count, hidden))
            for expert in range(config.experts.count):
                tensors |= _mlp(f"{at}.mlp.experts.{expert}", hidden, config.experts.intermediate_size)
        else:
            tensors |= _mlp(f"{at}.mlp", hidden, config.intermediate_size)
    return tensors


def with_scales(tensors: Mapping[str, Expected], config: ModelConfig) -> dict[str, Expected]:
    """The same with the scales of an fp8 checkpoint."""
    everything = dict(tensors)
    for name, tensor in tensors.items() if config.fp8 else ():
        if tensor.projection:
            everything[f"{name}_scale_inv"] = Expected(tuple(-(-size // FP8_BLOCK) for size in tensor.shape))
    return everything


def require_divisible(config: ModelConfig, size: int) -> None:
    """Check that `size` ranks can share a model.

    Raises:
        ShardError: naming the first tensor that they cannot.
    """
    for name, tensor in specification(config).items():
        if tensor.split is not None:
            in_blocks = config.fp8 and tensor.projection
            for rank in range(size):
                length = tensor.shape[tensor.split.axis]
                part_of(name, length, tensor.split, Shard(rank, size), in_blocks=in_blocks)


def _mlp(at: str, hidden: int, inner: int) -> dict[str, Expected]:
    # Of experts too the inner width is shared, instead of dealing out experts: each rank then reads as much as the others
    # whatever the routing. At batch 1, eight experts out of 128 would on average leave one of two ranks with five.
    rows, columns = Split(0, inner, 1, "rows"), Split(1, inner, 1, "columns")
    return {
        f"{at}.gate_proj.weight": Expected((inner, hidden), True, rows),
        f"{at}.up_proj.weight": Expected((inner, hidden), True, rows),
        f"{at}.down_proj.weight": Expected((hidden, inner), True, columns),
    }
