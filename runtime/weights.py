"""A model's tensors: read from safetensors, checked one by one, or drawn from a seed.

Projections that a layer applies to one input are one tensor here (`qkv`, `gate_up`), as the kernels want them; on disk
they are Hugging Face's separate ones.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from runtime.config import FP8_BLOCK, ModelConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
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
    """`head` is `embedding` itself where the two are tied."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True)
class Expected:
    """One tensor of a checkpoint: its shape, and whether it is a projection (which a checkpoint may hold as fp8)."""

    shape: tuple[int, ...]
    projection: bool = False


Source = Callable[[str, Expected], Linear]


def load_weights(folder: Path, config: ModelConfig, device: torch.device) -> Weights:
    """Read a model's tensors onto `device`, in the configuration's dtype (scales stay float32, fp8 stays fp8).

    Raises:
        WeightsError: a tensor is missing, extra, of another shape or dtype, or a file is no safetensors.
    """
    files = _files(folder)
    expected = _with_scales(specification(config), config)
    _compare(folder, set(files), set(expected), config)
    with _Reader(files) as read:

        def source(name: str, tensor: Expected) -> Linear:
            if not (config.fp8 and tensor.projection):
                return Linear(read(name, tensor.shape, (config.dtype, *_FLOATS)).to(device, config.dtype))
            scale_name = f"{name}_scale_inv"
            weight = read(name, tensor.shape, (FP8,))
            scale = read(scale_name, expected[scale_name].shape, _FLOATS)
            return Linear(weight.to(device), scale.to(device, torch.float32))

        return _assemble(config, source)


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


def random_weights(config: ModelConfig, seed: int, device: torch.device) -> Weights:
    """Weights drawn from `seed`: the same on every machine, each tensor from its own name.

    Norms are about 1; projections keep the variance of what goes through them, so that depth neither dies nor explodes.
    """

    def source(name: str, tensor: Expected) -> Linear:
        drawn = _draw(name, tensor, seed)
        if not (config.fp8 and tensor.projection):
            return Linear(drawn.to(config.dtype).to(device))
        weight, scale = quantize_blocks(drawn)
        return Linear(weight.to(device), scale.to(device))

    return _assemble(config, source)


def specification(config: ModelConfig) -> dict[str, Expected]:
    """Every tensor of a checkpoint by its Hugging Face name, scales left out."""
    hidden, wide = config.hidden_size, config.q_heads * config.head_dim
    narrow = config.kv_heads * config.head_dim
    tensors = {EMBEDDING: Expected((config.vocab_size, hidden)), "model.norm.weight": Expected((hidden,))}
    if not config.tied_embedding:
        tensors[HEAD] = Expected((config.vocab_size, hidden))
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = Expected((hidden,))
        tensors[f"{at}.post_attention_layernorm.weight"] = Expected((hidden,))
        tensors[f"{at}.self_attn.q_norm.weight"] = Expected((config.head_dim,))
        tensors[f"{at}.self_attn.k_norm.weight"] = Expected((config.head_dim,))
        for name, shape in (
            ("q", (wide, hidden)),
            ("k", (narrow, hidden)),
            ("v", (narrow, hidden)),
            ("o", (hidden, wide)),
        ):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = Expected(shape, projection=True)
        if config.experts is not None and config.has_experts(layer):
            tensors[f"{at}.mlp.gate.weight"] = Expected((config.experts.count, hidden))
            for expert in range(config.experts.count):
                tensors |= _mlp(f"{at}.mlp.experts.{expert}", hidden, config.experts.intermediate_size)
        else:
            tensors |= _mlp(f"{at}.mlp", hidden, config.intermediate_size)
    return tensors


def quantize_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[out, in]` -> e4m3 weights and float32 scales of 128 x 128 blocks (the last ones may be partial)."""
    rows, columns = (-(-size // FP8_BLOCK) for size in weight.shape)
    padded = torch.zeros(rows * FP8_BLOCK, columns * FP8_BLOCK)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.unflatten(0, (rows, FP8_BLOCK)).unflatten(2, (columns, FP8_BLOCK))
    scale = blocks.abs().amax((1, 3)).clamp_min(1e-12) / torch.finfo(FP8).max
    quantized = (blocks / scale[:, None, :, None]).to(FP8).flatten(2, 3).flatten(0, 1)
    return quantized[: weight.shape[0], : weight.shape[1]].contiguous(), scale


def _mlp(at: str, hidden: int, inner: int) -> dict[str, Expected]:
    return {
        f"{at}.gate_proj.weight": Expected((inner, hidden), projection=True),
        f"{at}.up_proj.weight": Expected((inner, hidden), projection=True),
        f"{at}.down_proj.weight": Expected((hidden, inner), projection=True),
    }


def _with_scales(tensors: Mapping[str, Expected], config: ModelConfig) -> dict[str, Expected]:
    everything = dict(tensors)
    for name, tensor in tensors.items() if config.fp8 else ():
        if tensor.projection:
            everything[f"{name}_scale_inv"] = Expected(tuple(-(-size // FP8_BLOCK) for size in tensor.shape))
    return everything


def _assemble(config: ModelConfig, source: Source) -> Weights:
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
    return Weights(
        embedding,
        tuple(layer(index) for index in range(config.layers)),
        plain("model.norm.weight"),
        embedding if config.tied_embedding else plain(HEAD),
    )


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


def _draw(name: str, tensor: Expected, seed: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    normal = torch.randn(tensor.shape, generator=generator)
    if len(tensor.shape) == 1:
        return 1 + 0.1 * normal
    return normal / math.sqrt(tensor.shape[-1])


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

    def __call__(self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> torch.Tensor:
        path = self._files[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, "pt")
            tensor: torch.Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: {name}: cannot be read: {error}") from None
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{path}: {name}: expected shape {list(shape)}, got {list(tensor.shape)}")
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
