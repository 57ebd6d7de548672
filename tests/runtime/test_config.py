"""config.json: what is read, what is refused, each refusal naming file and key."""

import json
from pathlib import Path

import pytest
import torch

from runtime.config import ConfigError, read_config

DENSE = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "eos_token_id": 7, "dtype": "float32", "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [3],
}  # fmt: skip


def _write(folder: Path, **changes: object) -> Path:
    values = {key: value for key, value in (DENSE | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_dense_model(tmp_path: Path) -> None:
    config = read_config(_write(tmp_path))
    assert (config.layers, config.q_heads, config.kv_heads, config.head_dim, config.qkv_size) == (
        2,
        4,
        2,
        32,
        256,
    )
    assert (config.norm_eps, config.stop_ids, config.dtype) == (1e-5, {7}, torch.float32)
    assert config.tied_embedding
    assert not config.fp8
    assert config.experts is None


def test_a_mixture_of_experts_with_dense_layers(tmp_path: Path) -> None:
    config = read_config(_write(tmp_path, **EXPERTS, num_hidden_layers=6))
    assert config.experts is not None
    assert (config.experts.count, config.experts.per_token, config.experts.normalize) == (8, 2, True)
    assert [config.has_experts(layer) for layer in range(6)] == [False, True, False, False, False, True]


def test_transformers_5_writes_the_experts_under_another_name(tmp_path: Path) -> None:
    config = read_config(_write(tmp_path, **EXPERTS | {"num_experts": None, "num_local_experts": 16}))
    assert config.experts is not None
    assert config.experts.count == 16


@pytest.mark.parametrize(
    ("given", "rope"),
    [
        ({"rope_theta": 1e6}, {"rope_type": "default", "rope_theta": 1e6}),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
        ),
    ],
)
def test_rope_of_both_generations_of_files(
    tmp_path: Path, given: dict[str, object], rope: dict[str, object]
) -> None:
    assert read_config(_write(tmp_path, **given)).rope == rope


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type: expected qwen3 or qwen3_moe, got llama"),
        ({"hidden_size": None}, "hidden_size: expected a whole number above 0, got None"),
        ({"vocab_size": 0}, "vocab_size: expected a whole number above 0, got 0"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers: expected a whole number above 0, got 2"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 4 query heads, got 3"),
        ({"hidden_act": "gelu"}, "hidden_act: expected silu, got gelu"),
        ({"use_sliding_window": True}, "use_sliding_window: expected False, got True"),
        ({"dtype": "int8"}, "dtype: expected one of bfloat16, float16, float32, got int8"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            r"quantization_config: expected fp8 in blocks of \[128, 128\], got fp8 in blocks of \[64, 64\]",
        ),
        (EXPERTS | {"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most 8 experts, got 9"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
        read_config(_write(tmp_path, **changes))


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="no JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected an object, got list"):
        read_config(tmp_path)
