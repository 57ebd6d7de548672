"""What a model is, read from a Hugging Face folder's config.json: Qwen3, dense and mixture of experts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
FP8_BLOCK = 128


class ConfigError(ValueError):
    """config.json is missing, or says something that this engine cannot run; the message names the key."""


@dataclass(frozen=True)
class ExpertsConfig:
    """The mixture-of-experts layers of a model.

    Attributes:
        count: experts of a layer.
        per_token: how many of them each token uses.
        intermediate_size: width inside one expert.
        normalize: whether the weights of the chosen experts are scaled to sum to 1.
        sparse_step: every which layer has experts (1: all).
        dense_layers: layers that have none whatever the step says.
    """

    count: int
    per_token: int
    intermediate_size: int
    normalize: bool
    sparse_step: int = 1
    dense_layers: frozenset[int] = frozenset()

    def at(self, layer: int) -> bool:
        """Whether `layer` has experts."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Qwen3 decoder. Sizes are in elements, lengths in tokens.

    Attributes:
        rope: Hugging Face's `rope_parameters`: `rope_type`, `rope_theta` and what the type needs.
        experts: None for a dense model.
        fp8: weights are e4m3 with one float32 scale (`weight_scale_inv`) for each 128 x 128 block.
        stop_ids: token ids that end a sequence.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    norm_eps: float
    rope: Mapping[str, Any]
    tied_embedding: bool = False
    experts: ExpertsConfig | None = None
    fp8: bool = False
    dtype: torch.dtype = torch.bfloat16
    stop_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def qkv_size(self) -> int:
        """Width of the packed query, key and value projection."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and self.experts.at(layer)


def read_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`.

    Raises:
        ConfigError: no such file, no JSON, a key missing, or a model this engine does not run.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; a model folder holds config.json and *.safetensors"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: no JSON: {error}") from None
    return _Reader(path, values).config()


class _Reader:
    def __init__(self, path: Path, values: Any) -> None:
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: expected an object, got {type(values).__name__}")
        self._path = path
        self._values: dict[str, Any] = values

    def config(self) -> ModelConfig:
        self._refuse_what_is_not_run()
        q_heads, kv_heads = self._size("num_attention_heads"), self._size("num_key_value_heads")
        if q_heads % kv_heads:
            raise self._error(
                "num_key_value_heads", f"expected a divisor of {q_heads} query heads, got {kv_heads}"
            )
        hidden_size = self._size("hidden_size")
        return ModelConfig(
            vocab_size=self._size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=self._size("intermediate_size"),
            layers=self._size("num_hidden_layers"),
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=self._size("head_dim", hidden_size // q_heads),
            max_length=self._size("max_position_embeddings"),
            norm_eps=float(self._values.get("rms_norm_eps", 1e-6)),
            rope=self._rope(),
            tied_embedding=bool(self._values.get("tie_word_embeddings", False)),
            experts=self._experts(),
            fp8=self._fp8(),
            dtype=self._dtype(),
            stop_ids=self._stop_ids(),
        )

    def _refuse_what_is_not_run(self) -> None:
        kind = self._values.get("model_type")
        if kind not in ("qwen3", "qwen3_moe"):
            raise self._error("model_type", f"expected qwen3 or qwen3_moe, got {kind}")
        for key, accepted in (
            ("hidden_act", "silu"),
            ("attention_bias", False),
            ("use_sliding_window", False),
        ):
            if self._values.get(key, accepted) != accepted:
                raise self._error(key, f"expected {accepted}, got {self._values[key]}")

    def _rope(self) -> dict[str, Any]:
        # Transformers 5 writes `rope_parameters`; what was saved before has `rope_theta` beside `rope_scaling`.
        given = self._values.get("rope_parameters") or self._values.get("rope_scaling") or {}
        if not isinstance(given, dict):
            raise self._error("rope_parameters", f"expected an object, got {given}")
        rope = {"rope_theta": float(self._values.get("rope_theta", 10000.0)), **given}
        rope.setdefault("rope_type", rope.pop("type", "default"))
        return rope

    def _experts(self) -> ExpertsConfig | None:
        if self._values["model_type"] != "qwen3_moe":
            return None
        count = self._size("num_experts", self._values.get("num_local_experts"))
        per_token = self._size("num_experts_per_tok")
        if per_token > count:
            raise self._error("num_experts_per_tok", f"expected at most {count} experts, got {per_token}")
        return ExpertsConfig(
            count,
            per_token,
            self._size("moe_intermediate_size"),
            bool(self._values.get("norm_topk_prob", False)),
            self._size("decoder_sparse_step", 1),
            frozenset(self._values.get("mlp_only_layers") or ()),
        )

    def _fp8(self) -> bool:
        quantization = self._values.get("quantization_config")
        if not quantization:
            return False
        method, block = quantization.get("quant_method"), quantization.get("weight_block_size")
        if method != "fp8" or block != [FP8_BLOCK, FP8_BLOCK]:
            raise self._error(
                "quantization_config",
                f"expected fp8 in blocks of [128, 128], got {method} in blocks of {block}",
            )
        return True

    def _dtype(self) -> torch.dtype:
        name = self._values.get("dtype") or self._values.get("torch_dtype") or "bfloat16"
        if name not in DTYPES:
            raise self._error("dtype", f"expected one of {', '.join(DTYPES)}, got {name}")
        return DTYPES[name]

    def _stop_ids(self) -> frozenset[int]:
        given = self._values.get("eos_token_id")
        if given is None:
            return frozenset()
        return frozenset(given) if isinstance(given, list) else frozenset({given})

    def _size(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._error(key, f"expected a whole number above 0, got {value}")
        return value

    def _error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self._path}: {key}: {what}")
