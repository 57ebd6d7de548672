"""A model's tensors: read from safetensors, checked one by one, or drawn from a seed; all of them, or a rank's part.

Projections that a layer applies to one input are one tensor here (`qkv`, `gate_up`), as the kernels want them; on disk
they are Hugging Face's separate ones. Of a rank's part no more is read than the part.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from runtime.checkpoint import EMBEDDING, HEAD, NORM, Expected, specification, with_scales
from runtime.config import FP8_BLOCK, ModelConfig
from runtime.parallel.shard import WHOLE, Part, Shard, filled_rows, part_of

FP8 = torch.float8_e4m3fn


class WeightsError(ValueError):
    """A folder's tensors are not those of its configuration; the message names the tensor."""


@dataclass(frozen=True)
class Linear:
    """A projection `[out, in]`, or a stack of them `[experts, out, in]`.

    Attributes:
        scale: None, or for e4m3 weights float32 `[..., out / 128, in / 128]`: what a block is multiplied by.
    """

    weight: torch.Tensor
    scale: torch.Tensor | None = None


@dataclass(frozen=True)
class Attention:
    """`qkv` packs query, key and value rows in this order; norms are over one head."""

    qkv: Linear
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    o: Linear


@dataclass(frozen=True)
class Mlp:
    """`gate_up` packs the gate's rows, then the up projection's."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Experts:
    """`router` `[experts, hidden]`; the projections are stacks over the experts."""

    router: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Layer:
    input_norm: torch.Tensor
    attention: Attention
    post_attention_norm: torch.Tensor
    mlp: Mlp | Experts


@dataclass(frozen=True)
class Weights:
    """`head` is `embedding` itself where the two are tied, or the rank's rows of it."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor


Source = Callable[[str, Expected], Linear]


def load_weights(folder: Path, config: ModelConfig, device: torch.device, shard: Shard = WHOLE) -> Weights:
    """Read a model's tensors onto `device`, in the configuration's dtype (scales stay float32, fp8 stays fp8).

    Args:
        config: of the whole model.
        shard: the part to read.

    Raises:
        WeightsError: a tensor is missing, extra, of another shape or dtype, or a file is no safetensors.
        ShardError: a tensor cannot be divided so.
    """
    files = _files(folder)
    expected = with_scales(specification(config), config)
    _compare(folder, set(files), set(expected), config)
    with _Reader(files) as read:

        def source(name: str, tensor: Expected) -> Linear:
            part = _part(name, tensor, config, shard)
            if not (config.fp8 and tensor.projection):
                floats = (config.dtype, *_FLOATS)
                return Linear(read(name, tensor.shape, floats, part).to(device, config.dtype))
            scale_name = f"{name}_scale_inv"
            weight = read(name, tensor.shape, (FP8,), part)
            scale = read(scale_name, expected[scale_name].shape, _FLOATS, part and part.blocks)
            return Linear(weight.to(device), scale.to(device, torch.float32))

        return _assemble(config, source, shard)


def load_embedding(folder: Path, config: ModelConfig, device: torch.device) -> torch.Tensor:
    """Read the embedding `[vocab, hidden]` alone, as whoever prepares input embeddings needs it.

    Raises:
        WeightsError: as `load_weights`, of this tensor alone.
    """
    files = _files(folder)
    if EMBEDDING not in files:
        raise WeightsError(f"{folder}: {EMBEDDING}: missing")
    with _Reader({EMBEDDING: files[EMBEDDING]}) as read:
        return read(EMBEDDING, (config.vocab_size, config.hidden_size), _FLOATS).to(device, config.dtype)


def random_weights(config: ModelConfig, seed: int, device: torch.device, shard: Shard = WHOLE) -> Weights:
    """Weights drawn from `seed`: the same on every machine, each tensor from its own name, a rank's part of the same.

    Norms are about 1; projections keep the variance of what goes through them, so that depth neither dies nor explodes.

    Raises:
        ShardError: a tensor cannot be divided so.
    """

    def source(name: str, tensor: Expected) -> Linear:
        part = _part(name, tensor, config, shard)
        drawn = _draw(name, tensor.shape, seed)
        if not (config.fp8 and tensor.projection):
            return Linear(_cut(drawn, part).to(config.dtype).to(device))
        weight, scale = quantize_blocks(drawn)
        return Linear(_cut(weight, part).to(device), _cut(scale, part and part.blocks).to(device))

    return _assemble(config, source, shard)


def placeholder_weights(
    config: ModelConfig, seed: int, device: torch.device, shard: Shard = WHOLE
) -> Weights:
    """Random weights of a large model in seconds, for timing alone: drawn on `device`, another device draws others.

    What ranks share is equal on equal devices; the parts are no parts of one model.

    Raises:
        ShardError: a tensor cannot be divided so.
    """

    def source(name: str, tensor: Expected) -> Linear:
        part = _part(name, tensor, config, shard)
        shape = tensor.shape if part is None else part.shape(tensor.shape)
        own = name if part is None else f"{shard.rank} {name}"
        drawn = partial(_draw, own, shape, seed, device, tensor.shape[-1])
        if not (config.fp8 and tensor.projection):
            return Linear(drawn(dtype=config.dtype))
        blocks = [-(-size // FP8_BLOCK) for size in shape]
        # e4m3 reaches 448: normal values times 64 lose nothing at either end.
        weight = drawn(dtype=torch.float32).mul_(64 * math.sqrt(tensor.shape[-1])).to(FP8)
        scale = torch.full(blocks, 1 / 64 / math.sqrt(tensor.shape[-1]), device=device)
        return Linear(weight, scale)

    return _assemble(config, source, shard)


def quantize_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[out, in]` -> e4m3 weights and float32 scales of 128 x 128 blocks (the last ones may be partial)."""
    rows, columns = (-(-size // FP8_BLOCK) for size in weight.shape)
    padded = torch.zeros(rows * FP8_BLOCK, columns * FP8_BLOCK)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.unflatten(0, (rows, FP8_BLOCK)).unflatten(2, (columns, FP8_BLOCK))
    scale = blocks.abs().amax((1, 3)).clamp_min(1e-12) / torch.finfo(FP8).max
    quantized = (blocks / scale[:, None, :, None]).to(FP8).flatten(2, 3).flatten(0, 1)
    return quantized[: weight.shape[0], : weight.shape[1]].contiguous(), scale


def _part(name: str, tensor: Expected, config: ModelConfig, shard: Shard) -> Part | None:
    """What of a tensor a rank has; None for all of it."""
    if shard.size == 1:
        return None
    if name == HEAD:
        first, end, _ = shard.rows_of_vocabulary(config.vocab_size)
        return Part(0, first, end)
    if tensor.split is None:
        return None
    in_blocks = config.fp8 and tensor.projection
    return part_of(name, tensor.shape[tensor.split.axis], tensor.split, shard, in_blocks=in_blocks)


def _cut(tensor: torch.Tensor, part: Part | None) -> torch.Tensor:
    """A copy of the part, so that the whole is not kept for it."""
    return tensor if part is None else tensor[part.index].clone(memory_format=torch.contiguous_format)


def _assemble(config: ModelConfig, source: Source, shard: Shard) -> Weights:
    tensors = specification(config)

    def plain(name: str) -> torch.Tensor:
        return source(name, tensors[name]).weight

    def packed(at: str, *names: str) -> Linear:
        return _pack(
            [source(name, tensors[name]) for name in (f"{at}.{part}_proj.weight" for part in names)], at
        )

    def mlp(at: str) -> Mlp:
        return Mlp(packed(at, "gate", "up"), packed(at, "down"))

    def layer(index: int) -> Layer:
        at = f"model.layers.{index}"
        attention = Attention(
            packed(f"{at}.self_attn", "q", "k", "v"),
            plain(f"{at}.self_attn.q_norm.weight"),
            plain(f"{at}.self_attn.k_norm.weight"),
            packed(f"{at}.self_attn", "o"),
        )
        inner: Mlp | Experts
        if config.experts is not None and config.has_experts(index):
            each = [mlp(f"{at}.mlp.experts.{expert}") for expert in range(config.experts.count)]
            inner = Experts(
                plain(f"{at}.mlp.gate.weight"),
                _stack([one.gate_up for one in each]),
                _stack([one.down for one in each]),
            )
        else:
            inner = mlp(f"{at}.mlp")
        return Layer(
            plain(f"{at}.input_layernorm.weight"),
            attention,
            plain(f"{at}.post_attention_layernorm.weight"),
            inner,
        )

    embedding = plain(EMBEDDING)
    layers = tuple(layer(index) for index in range(config.layers))
    norm = plain(NORM)
    if shard.size == 1:
        return Weights(embedding, layers, norm, embedding if config.tied_embedding else plain(HEAD))
    first, end, rows = shard.rows_of_vocabulary(config.vocab_size)
    head = embedding[first:end] if config.tied_embedding else plain(HEAD)
    return Weights(embedding, layers, norm, filled_rows(head, rows))


def _pack(parts: list[Linear], at: str) -> Linear:
    weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
    scales = [part.scale for part in parts if part.scale is not None]
    if not scales:
        return Linear(weight)
    ragged = [part.weight.shape[0] for part in parts[:-1] if part.weight.shape[0] % FP8_BLOCK]
    if ragged:
        raise WeightsError(f"{at}: expected fp8 projections of a multiple of 128 rows, got {ragged[0]}")
    return Linear(weight, torch.cat(scales))


def _stack(parts: list[Linear]) -> Linear:
    scales = [part.scale for part in parts if part.scale is not None]
    return Linear(torch.stack([part.weight for part in parts]), torch.stack(scales) if scales else None)


def _draw(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    device: torch.device | None = None,
    width: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """A tensor from its name and the seed; `width` is what a projection sums over, by default its last dimension."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator(device or "cpu").manual_seed(int.from_bytes(digest[:7], "little"))
    normal = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    if len(shape) == 1:
        return 1 + 0.1 * normal
    return normal / math.sqrt(width or shape[-1])


_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class _Reader:
    """Opens each file once and checks what it gives."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open: dict[Path, safe_open] = {}

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.clear()

    def __call__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtypes: tuple[torch.dtype, ...],
        part: Part | None = None,
    ) -> torch.Tensor:
        """The tensor, or a part of it; `shape` is of the whole."""
        path = self._files[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, "pt")
            held = self._open[path].get_slice(name)
            if (got := held.get_shape()) != list(shape):
                raise WeightsError(f"{path}: {name}: expected shape {list(shape)}, got {got}")
            tensor: torch.Tensor = (
                self._open[path].get_tensor(name) if part is None else held[part.index].contiguous()
            )
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: {name}: cannot be read: {error}") from None
        if tensor.dtype not in dtypes:
            wanted = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
            raise WeightsError(f"{path}: {name}: expected dtype {wanted}, got {tensor.dtype}")
        return tensor


def _files(folder: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it, by the index where there is one."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"{folder}: no *.safetensors files")
    found: dict[str, Path] = {}
    for path in paths:
        for name in _names(path):
            if name in found:
                raise WeightsError(f"{path}: {name}: also in {found[name].name}")
            found[name] = path
    index = folder / "model.safetensors.index.json"
    if index.exists():
        for name, file in json.loads(index.read_text()).get("weight_map", {}).items():
            if name not in found or found[name].name != file:
                raise WeightsError(f"{folder}: {name}: missing from {file}, where {index.name} has it")
    return found


def _names(path: Path) -> Iterator[str]:
    try:
        with safe_open(path, "pt") as file:
            yield from file.keys()
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: no safetensors file: {error}") from None


def _compare(folder: Path, found: set[str], expected: set[str], config: ModelConfig) -> None:
    missing, extra = expected - found, found - expected
    if config.tied_embedding:
        extra.discard(HEAD)  # saved by some although it is the embedding
    for kind, names in (("missing", missing), ("not part of this model", extra)):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise WeightsError(f"{folder}: {min(names)}: {kind}{more}")
