"""Each rank's part of a checkpoint: together they are the whole, no more of it is read, what cannot be divided is named."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.checkpoint import EMBEDDING, require_divisible, specification
from runtime.config import ExpertsConfig, ModelConfig
from runtime.parallel.shard import Shard, ShardError, Split, local_config, part_of, pieces_of
from runtime.weights import (
    Experts,
    Linear,
    Mlp,
    Weights,
    WeightsError,
    load_weights,
    placeholder_weights,
    quantize_blocks,
    random_weights,
)
from tests.runtime.parallel_kit import DENSE, FP8, MODELS

CPU = torch.device("cpu")
RANKS = [Shard(0, 2), Shard(1, 2)]


def saved(folder: Path, config: ModelConfig) -> Path:
    generator = torch.Generator().manual_seed(1)
    made = {}
    for name, tensor in specification(config).items():
        value = torch.randn(tensor.shape, generator=generator)
        if config.fp8 and tensor.projection:
            made[name], made[f"{name}_scale_inv"] = quantize_blocks(value)
        else:
            made[name] = value
    save_file(made, folder / "model.safetensors")
    return folder


def tensors(weights: Weights) -> list[torch.Tensor]:
    found = [weights.embedding, weights.norm, weights.head]
    for layer in weights.layers:
        found += [layer.input_norm, layer.attention.q_norm, layer.post_attention_norm]
        linears = [layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down]
        for linear in linears:
            found += [linear.weight] if linear.scale is None else [linear.weight, linear.scale]
    return found


def joined(parts: list[Linear], axis: int, packed: tuple[int, ...] = (1,)) -> list[torch.Tensor]:
    """Weight and scale of a projection from its parts; `packed` are the relative sizes of what lies packed in it."""
    found = []
    for tensors_of in zip(*([part.weight, part.scale] for part in parts), strict=True):
        if tensors_of[0] is None:
            continue
        units = tensors_of[0].shape[axis] // sum(packed)
        pieces = [tensor.float().split([units * size for size in packed], axis) for tensor in tensors_of]
        found.append(torch.cat([torch.cat(same, axis) for same in zip(*pieces, strict=True)], axis))
    return found


def same(got: list[torch.Tensor], want: Linear) -> bool:
    whole = [tensor.float() for tensor in (want.weight, want.scale) if tensor is not None]
    return all(torch.equal(ours, theirs) for ours, theirs in zip(got, whole, strict=True))


@pytest.mark.parametrize("name", ["dense", "experts", "fp8", "fp8 experts"])
def test_the_parts_of_all_ranks_are_the_whole(tmp_path: Path, name: str) -> None:
    config = MODELS[name]
    folder = saved(tmp_path, config)
    whole = load_weights(folder, config, CPU)
    parts = [load_weights(folder, config, CPU, shard) for shard in RANKS]
    heads = (config.q_heads // config.kv_heads, 1, 1)
    for number, layer in enumerate(whole.layers):
        attention = [part.layers[number].attention for part in parts]
        assert same(joined([one.qkv for one in attention], 0, heads), layer.attention.qkv)
        assert same(joined([one.o for one in attention], 1), layer.attention.o)
        mlps = [part.layers[number].mlp for part in parts]
        stacked = int(isinstance(layer.mlp, Experts))
        assert isinstance(layer.mlp, Experts | Mlp)
        assert same(joined([one.gate_up for one in mlps], stacked, (1, 1)), layer.mlp.gate_up)
        assert same(joined([one.down for one in mlps], stacked + 1), layer.mlp.down)
        if isinstance(layer.mlp, Experts):
            assert all(torch.equal(one.router, layer.mlp.router) for one in mlps)  # type: ignore[union-attr]
    rows = torch.cat([part.head for part in parts])
    assert torch.equal(rows[: config.vocab_size], whole.head)
    assert not rows[config.vocab_size :].any()
    assert all(torch.equal(part.embedding, whole.embedding) for part in parts)


@pytest.mark.parametrize("name", ["dense", "fp8 experts"])
def test_drawn_weights_are_parts_of_the_same_model(name: str) -> None:
    config = MODELS[name]
    whole, parts = random_weights(config, 3, CPU), [random_weights(config, 3, CPU, shard) for shard in RANKS]
    assert same(joined([part.layers[1].mlp.down for part in parts], len(whole.layers[1].mlp.down.weight.shape) - 1),
                whole.layers[1].mlp.down)  # fmt: skip
    assert torch.equal(torch.cat([part.head for part in parts])[: config.vocab_size], whole.head)
    for tensor in tensors(parts[0]):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize, "the rest is kept too"


def test_key_and_value_heads_fewer_than_ranks_are_on_several() -> None:
    config = replace(DENSE, kv_heads=2)
    whole = random_weights(config, 3, CPU)
    dim = config.head_dim
    for rank in range(4):
        qkv = random_weights(config, 3, CPU, Shard(rank, 4)).layers[0].attention.qkv.weight
        assert local_config(config, Shard(rank, 4)).kv_heads == 1
        _, keys, values = whole.layers[0].attention.qkv.weight.split([4 * dim, 2 * dim, 2 * dim])
        # Query head `rank` reads key and value head rank // 2.
        mine = slice(rank // 2 * dim, (rank // 2 + 1) * dim)
        assert torch.equal(qkv[:dim], whole.layers[0].attention.qkv.weight[rank * dim : (rank + 1) * dim])
        assert torch.equal(qkv[dim:], torch.cat([keys[mine], values[mine]]))


def test_a_tied_head_is_the_ranks_rows_of_the_embedding() -> None:
    config = replace(DENSE, vocab_size=320, tied_embedding=True)
    weights = random_weights(config, 3, CPU, Shard(1, 2))
    assert weights.head.data_ptr() == weights.embedding[160:].data_ptr()
    assert weights.head.shape == (160, config.hidden_size)


@pytest.mark.parametrize("vocab", [1, 8, 9, 300, 301, 320])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_row_of_the_vocabulary_is_on_one_rank(vocab: int, size: int) -> None:
    parts = [Shard(rank, size).rows_of_vocabulary(vocab) for rank in range(size)]
    assert [row for first, end, _ in parts for row in range(first, end)] == list(range(vocab))
    assert {rows % 8 for *_, rows in parts} == {0}
    assert len({rows for *_, rows in parts}) == 1
    assert all(end - first <= rows for first, end, rows in parts)


def test_no_more_than_the_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what ranks share, slices alone, half of the bytes; nothing keeps the rest of a tensor alive."""
    from runtime import weights as module

    config = replace(FP8, tied_embedding=True)
    folder = saved(tmp_path, config)
    read: dict[str, int] = {}
    opened = module.safe_open

    class Slice:
        def __init__(self, name: str, inner: object) -> None:
            self._name, self._inner = name, inner

        def get_shape(self) -> list[int]:
            return self._inner.get_shape()  # type: ignore[attr-defined,no-any-return]

        def __getitem__(self, index: object) -> torch.Tensor:
            tensor = self._inner[index]  # type: ignore[index]
            read[self._name] = tensor.numel()
            return tensor  # type: ignore[no-any-return]

    class File:
        def __init__(self, *arguments: object) -> None:
            self._inner = opened(*arguments)

        def get_slice(self, name: str) -> Slice:
            return Slice(name, self._inner.get_slice(name))

        def get_tensor(self, name: str) -> torch.Tensor:
            tensor = self._inner.get_tensor(name)
            read[name] = tensor.numel()
            return tensor  # type: ignore[no-any-return]

    names = list(module._files(folder).items())
    monkeypatch.setattr(module, "_files", lambda _: dict(names))
    monkeypatch.setattr(module, "safe_open", File)
    made = load_weights(folder, config, CPU, Shard(1, 2))
    shapes = {name: tensor.shape.numel() for name, tensor in _whole(config).items()}
    for name, elements in shapes.items():
        halves = name.endswith("_proj.weight")
        assert read[name] == (elements // 2 if halves else elements), name
        if halves:
            assert read[f"{name}_scale_inv"] == -(-elements // 2 // 128**2), name
    for tensor in tensors(made):
        if tensor.dtype == torch.float8_e4m3fn:
            assert tensor.untyped_storage().nbytes() == tensor.numel()


def _whole(config: ModelConfig) -> dict[str, torch.Tensor]:
    return {name: torch.empty(one.shape, device="meta") for name, one in specification(config).items()}


AT = "model.layers.0"


@pytest.mark.parametrize(
    ("config", "size", "message"),
    [
        (
            DENSE,
            3,
            rf"{AT}\.self_attn\.q_proj\.weight: expected a multiple of 3 query heads for 3 ranks, got 4",
        ),
        (
            replace(DENSE, q_heads=6, kv_heads=3),
            2,
            rf"{AT}\.self_attn\.k_proj\.weight: expected a multiple of 2, or a divisor of 2 key heads for 2 ranks, got 3",
        ),
        (
            replace(DENSE, intermediate_size=65),
            2,
            rf"{AT}\.mlp\.gate_proj\.weight: expected a multiple of 2 rows",
        ),
        (
            replace(FP8, kv_heads=2, head_dim=64),
            2,
            rf"{AT}\.self_attn\.k_proj\.weight: 2 ranks would cut an fp8 block of 128 at 64 of 128",
        ),
        (
            replace(FP8, experts=ExpertsConfig(4, 2, 384, normalize=True)),
            2,
            rf"{AT}\.mlp\.experts\.0\.gate_proj\.weight: 2 ranks would cut an fp8 block of 128 at 192 of 384",
        ),
    ],
)
def test_what_cannot_be_divided_is_named(
    tmp_path: Path, config: ModelConfig, size: int, message: str
) -> None:
    with pytest.raises(ShardError, match=message):
        require_divisible(config, size)
    for rank in range(size):
        with pytest.raises(ShardError, match=message):
            random_weights(config, 0, CPU, Shard(rank, size))
    if config.fp8:
        return
    with pytest.raises(ShardError, match=message):
        load_weights(saved(tmp_path, config), config, CPU, Shard(0, size))


def test_a_rank_that_there_is_not_is_refused() -> None:
    with pytest.raises(ShardError, match="rank: expected 0 to 1, got 2"):
        Shard(2, 2)
    with pytest.raises(ShardError, match="x: expected a multiple of 3 heads for 3 ranks, got 4"):
        pieces_of("x", Split(0, 4, 1, "heads"), Shard(0, 3))


def test_blocks_are_cut_nowhere_but_at_the_end_of_a_tensor() -> None:
    """The last block of a tensor may be partial, and is whole on the rank that has it."""
    split = Split(0, 2, 128, "rows")
    assert part_of("x", 256, split, Shard(1, 2), in_blocks=True).blocks.index == (slice(1, 2),)
    odd = Split(1, 1, 200, "rows", repeated=True)
    assert part_of("x", 200, odd, Shard(1, 2), in_blocks=True).blocks.index == (slice(None), slice(0, 2))


def test_a_part_of_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, DENSE)
    with pytest.raises(WeightsError, match=rf"{EMBEDDING}: expected shape \[333, 32\], got \[301, 32\]"):
        load_weights(folder, replace(DENSE, vocab_size=333), CPU, Shard(0, 2))


def test_placeholders_have_the_shapes_and_are_alike_where_ranks_share_them() -> None:
    config = MODELS["fp8 experts"]
    real = [random_weights(config, 3, CPU, shard) for shard in RANKS]
    fast = [placeholder_weights(config, 3, CPU, shard) for shard in RANKS]
    for ours, theirs in zip(fast, real, strict=True):
        for made, wanted in zip(tensors(ours), tensors(theirs), strict=True):
            assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    assert torch.equal(fast[0].layers[1].mlp.router, fast[1].layers[1].mlp.router)  # type: ignore[union-attr]
    assert not torch.equal(
        fast[0].layers[0].attention.o.weight.float(), fast[1].layers[0].attention.o.weight.float()
    )
    down = fast[0].layers[1].mlp.down
    assert down.scale is not None
    values = down.weight.float() * down.scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    assert 0.9 < float(values.std()) * 256**0.5 < 1.1
