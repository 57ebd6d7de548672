"""Checkpoints: packed as the kernels want them, refused tensor by tensor."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.config import ExpertsConfig, ModelConfig
from runtime.weights import (
    EMBEDDING,
    HEAD,
    Experts,
    WeightsError,
    load_embedding,
    load_weights,
    quantize_blocks,
    random_weights,
    specification,
)

CPU = torch.device("cpu")
DENSE = ModelConfig(
    vocab_size=96, hidden_size=64, intermediate_size=128, layers=2, q_heads=4, kv_heads=2, head_dim=32, max_length=512,
    norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e4}, dtype=torch.float32,
)  # fmt: skip
MIXED = replace(DENSE, experts=ExpertsConfig(4, 2, 32, normalize=True, dense_layers=frozenset({0})))
FP8 = replace(DENSE, fp8=True, q_heads=4, kv_heads=4)


def tensors(config: ModelConfig) -> dict[str, torch.Tensor]:
    """A checkpoint of the configuration: random, fp8 with scales where it says so."""
    generator = torch.Generator().manual_seed(1)
    made = {}
    for name, tensor in specification(config).items():
        value = torch.randn(tensor.shape, generator=generator)
        if config.fp8 and tensor.projection:
            made[name], made[f"{name}_scale_inv"] = quantize_blocks(value)
        else:
            made[name] = value
    return made


def saved(folder: Path, made: dict[str, torch.Tensor], shards: int = 1) -> Path:
    names = sorted(made)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        mine = names[shard::shards]
        save_file({name: made[name].contiguous() for name in mine}, folder / file)
        weight_map |= dict.fromkeys(mine, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
def test_projections_of_one_input_are_packed(tmp_path: Path, shards: int) -> None:
    made = tensors(DENSE)
    weights = load_weights(saved(tmp_path, made, shards), DENSE, CPU)
    at = "model.layers.1"
    expected = torch.cat([made[f"{at}.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(weights.layers[1].attention.qkv.weight, expected)
    expected = torch.cat([made[f"{at}.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    assert torch.equal(weights.layers[1].mlp.gate_up.weight, expected)
    assert torch.equal(weights.head, made[HEAD])


def test_experts_are_stacked_and_dense_layers_stay_dense(tmp_path: Path) -> None:
    made = tensors(MIXED)
    weights = load_weights(saved(tmp_path, made), MIXED, CPU)
    assert not isinstance(weights.layers[0].mlp, Experts)
    experts = weights.layers[1].mlp
    assert isinstance(experts, Experts)
    assert experts.gate_up.weight.shape == (4, 64, 64)
    assert torch.equal(experts.gate_up.weight[3, 32:], made["model.layers.1.mlp.experts.3.up_proj.weight"])
    assert torch.equal(experts.down.weight[2], made["model.layers.1.mlp.experts.2.down_proj.weight"])


def test_fp8_weights_keep_their_scales(tmp_path: Path) -> None:
    made = tensors(FP8)
    weights = load_weights(saved(tmp_path, made), FP8, CPU)
    qkv = weights.layers[0].attention.qkv
    assert qkv.weight.dtype == torch.float8_e4m3fn
    assert qkv.scale is not None
    assert qkv.scale.shape == (3, 1)
    name = "model.layers.0.self_attn.k_proj.weight"
    assert torch.equal(qkv.scale[1:2], made[f"{name}_scale_inv"])
    assert torch.equal(qkv.weight[128:256].float(), made[name].float())


def test_blocks_dequantize_within_half_a_step() -> None:
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(2))
    quantized, scale = quantize_blocks(weight)
    assert (quantized.shape, scale.shape) == ((200, 300), (2, 3))
    restored = quantized.float() * scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    # e4m3 has 3 bits of mantissa: half a step is 2^-4 of the value; below 2^-6 of the scale, 2^-10 of it.
    bound = (weight.abs() * 2**-4).maximum(scale.max() * 2**-10)
    assert bool(((restored - weight).abs() <= bound).all())


def test_a_tied_head_is_the_embedding_itself_saved_or_not(tmp_path: Path) -> None:
    config = replace(DENSE, tied_embedding=True)
    made = tensors(config)
    weights = load_weights(saved(tmp_path, made | {HEAD: made[EMBEDDING].clone()}), config, CPU)
    assert weights.head is weights.embedding


def test_the_embedding_alone(tmp_path: Path) -> None:
    made = tensors(DENSE)
    saved(tmp_path, {EMBEDDING: made[EMBEDDING]})
    assert torch.equal(load_embedding(tmp_path, DENSE, CPU), made[EMBEDDING])
    with pytest.raises(
        WeightsError, match=r"model\.embed_tokens\.weight: expected shape \[97, 64\], got \[96, 64\]"
    ):
        load_embedding(tmp_path, replace(DENSE, vocab_size=97), CPU)


def _without(made: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in made.items() if key != name}


NORM = "model.layers.1.self_attn.q_norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: _without(made, NORM), f"{NORM}: missing"),
        (
            lambda made: made | {"model.layers.2.extra": torch.ones(1)},
            r"model\.layers\.2\.extra: not part of this model",
        ),
        (lambda made: made | {NORM: torch.ones(31)}, rf"{NORM}: expected shape \[32\], got \[31\]"),
        (
            lambda made: made | {NORM: torch.ones(32, dtype=torch.int32)},
            rf"{NORM}: expected dtype .*, got torch\.int32",
        ),
    ],
)
def test_a_tensor_that_is_off_is_named(tmp_path: Path, change: object, message: str) -> None:
    saved(tmp_path, change(tensors(DENSE)))  # type: ignore[operator]
    with pytest.raises(WeightsError, match=message):
        load_weights(tmp_path, DENSE, CPU)


def test_an_fp8_projection_without_its_scale_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight_scale_inv"
    saved(tmp_path, _without(tensors(FP8), name))
    with pytest.raises(WeightsError, match=f"{name}: missing"):
        load_weights(tmp_path, FP8, CPU)


def test_files_that_are_none_or_broken_or_at_odds(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no \*\.safetensors files"):
        load_weights(tmp_path, DENSE, CPU)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(WeightsError, match=r"model\.safetensors: no safetensors file"):
        load_weights(tmp_path, DENSE, CPU)
    saved(tmp_path, tensors(DENSE))
    save_file({NORM: torch.ones(32)}, tmp_path / "more.safetensors")
    with pytest.raises(WeightsError, match=rf"more\.safetensors: {NORM}: also in model\.safetensors"):
        load_weights(tmp_path, DENSE, CPU)


def test_an_index_that_names_a_file_without_the_tensor(tmp_path: Path) -> None:
    saved(tmp_path, tensors(DENSE), shards=2)
    index = tmp_path / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"][NORM] = "model-00009-of-00009.safetensors"
    index.write_text(json.dumps(values))
    with pytest.raises(WeightsError, match=rf"{NORM}: missing from model-00009"):
        load_weights(tmp_path, DENSE, CPU)


def test_random_weights_are_those_of_their_seed() -> None:
    first, again, other = (random_weights(MIXED, seed, CPU) for seed in (3, 3, 4))
    assert torch.equal(first.layers[1].attention.qkv.weight, again.layers[1].attention.qkv.weight)
    assert not torch.equal(first.layers[1].attention.qkv.weight, other.layers[1].attention.qkv.weight)
    # Each tensor from its own name: another depth leaves what both have alone.
    shallow = random_weights(replace(MIXED, layers=1), 3, CPU)
    assert torch.equal(shallow.layers[0].mlp.down.weight, first.layers[0].mlp.down.weight)
    assert random_weights(FP8, 3, CPU).layers[0].mlp.down.weight.dtype == torch.float8_e4m3fn
