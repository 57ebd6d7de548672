"""fp8 checkpoints equal Hugging Face transformers on the same weights dequantized, prefill and 64 decode steps.

Embedding, norms, router and head are not quantized, as in the fp8 checkpoints of Qwen3 on the hub.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.attention.reference import ReferenceAttention
from runtime.batch import StepInputs
from runtime.config import read_config
from runtime.engine import Engine, EngineOptions
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.request import SamplingParameters
from runtime.weights import WeightsError, load_weights

PEER = Path(__file__).with_name("peer.py")
CPU = torch.device("cpu")
NEW_TOKENS = 64
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], list(range(30, 71)), [200]]
DENSE = {
    "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
# The last layer alone has experts: what their rounding changes reaches no router and no cache, and stays within a bound.
EXPERTS = DENSE | {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "norm_topk_prob": True, "mlp_only_layers": [0],
}  # fmt: skip
MODELS = {"dense": DENSE, "experts": EXPERTS}
OPTIONS = EngineOptions(pages=64, page_size=8, max_step_tokens=64)


class Guided(Model):
    """Keeps every step's logits; with `path` int [lanes, steps] the engine is made to choose these tokens."""

    path: torch.Tensor | None = None

    def __call__(
        self, inputs: StepInputs, caches: Sequence[torch.Tensor], x: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = super().__call__(inputs, caches, x)
        self.seen = [*self.seen, logits] if inputs.is_decode else [logits]
        step = len(self.seen) - 1
        if self.path is None or step >= self.path.shape[1]:
            return logits
        return torch.zeros_like(logits).scatter_(1, self.path[: len(logits), step, None], 1.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of fp8 checkpoints with what transformers computes of them, from one process."""
    folder = tmp_path_factory.mktemp("fp8")
    request = {
        "seed": 12,
        "models": MODELS,
        "fp8": list(MODELS),
        "prompts": PROMPTS,
        "new_tokens": NEW_TOKENS,
    }
    done = subprocess.run(
        [sys.executable, str(PEER), str(folder)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def _served(folder: Path, path: torch.Tensor | None = None) -> tuple[torch.Tensor, list[list[int]]]:
    """Logits [lanes, steps, vocab] and the ids that the engine chose, the prompts served together."""
    config = read_config(folder)
    assert config.fp8
    model = Guided(config, load_weights(folder, config, CPU), ReferenceOps(), ReferenceAttention())
    model.path = path
    requests = Engine(model, OPTIONS).generate(
        PROMPTS, SamplingParameters(max_tokens=NEW_TOKENS, ignore_stop_ids=True)
    )
    return torch.stack(model.seen[:NEW_TOKENS], 1), [[token.id for token in one.tokens] for one in requests]


def _expected(saved: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What transformers has: logits [prompts, steps, vocab], and greedy ids [prompts, steps]."""
    kept = load_file(saved / f"{name}.expected")
    each = range(len(PROMPTS))
    return torch.stack([kept[f"steps.{i}"] for i in each]), torch.stack([kept[f"ids.{i}"] for i in each])


def test_a_dense_checkpoint_equals_transformers(saved: Path) -> None:
    logits, ids = _served(saved / "dense")
    expected, greedy = _expected(saved, "dense")
    assert ids == greedy.tolist()
    # The weights are the same to the bit; both compute in float32, sums of up to 384 products in another order through 2
    # layers: 2^-24 * sqrt(384) of values up to 10, some ten times over, stays below 1e-4.
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_with_experts_equals_transformers_within_its_activations_rounding(saved: Path) -> None:
    expected, greedy = _expected(saved, "experts")
    logits, ids = _served(saved / "experts", path=greedy)
    assert ids == greedy.tolist()
    # Experts round their input and the product of gate and up to e4m3, whose half step is at most 2^-4 of a value: two
    # independent errors, no more than sqrt(2) * 2^-4 of a logit row together.
    bound = 2**0.5 * 2**-4 * expected.norm(dim=-1)
    error = (logits - expected).norm(dim=-1)
    assert bool((error <= bound).all())
    # The likeliest token is transformers' wherever its lead is more than the error of two logits of this row.
    first, second = expected.topk(2).values.unbind(-1)
    typical = error / expected.shape[-1] ** 0.5
    clear = first - second > 4 * 2**0.5 * typical
    assert float(clear.double().mean()) > 0.6
    assert torch.equal(logits.argmax(-1)[clear], greedy[clear])


def _changed(saved: Path, folder: Path, name: str, change: object) -> Path:
    shutil.copytree(saved / "experts", folder)
    tensors = load_file(folder / "model.safetensors")
    tensor = tensors.pop(name)
    if change is not None:
        tensors[name] = change(tensor)  # type: ignore[operator]
    save_file(tensors, folder / "model.safetensors")
    return folder


QUERY = "model.layers.1.self_attn.q_proj.weight"
EXPERT = "model.layers.1.mlp.experts.5.down_proj.weight"
GATE = "model.layers.1.mlp.gate.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (f"{QUERY}_scale_inv", None, "missing"),
        (f"{EXPERT}_scale_inv", None, "missing"),
        (f"{QUERY}_scale_inv", lambda scale: scale[:1], r"expected shape \[2, 2\], got \[1, 2\]"),
        (f"{EXPERT}_scale_inv", lambda scale: scale.T.contiguous(), r"expected shape \[2, 1\], got \[1, 2\]"),
        (
            f"{EXPERT}_scale_inv",
            lambda scale: scale.int(),
            r"expected dtype .*torch\.float32, got torch\.int32",
        ),
        (
            QUERY,
            lambda weight: weight.bfloat16(),
            r"expected dtype torch\.float8_e4m3fn, got torch\.bfloat16",
        ),
        (
            EXPERT,
            lambda weight: weight.float().to(torch.float8_e5m2),
            r"expected dtype .*, got torch\.float8_e5m2",
        ),
        (
            GATE,
            lambda weight: weight.to(torch.float8_e4m3fn),
            r"expected dtype .*, got torch\.float8_e4m3fn",
        ),
    ],
)
def test_a_tensor_that_is_off_is_named(
    saved: Path, tmp_path: Path, name: str, change: object, message: str
) -> None:
    folder = _changed(saved, tmp_path / "bad", name, change)
    with pytest.raises(WeightsError, match=rf"{name}: {message}"):
        load_weights(folder, read_config(folder), CPU)


def test_scales_of_bfloat16_are_read_as_float32(saved: Path, tmp_path: Path) -> None:
    folder = _changed(saved, tmp_path / "bfloat16", f"{QUERY}_scale_inv", lambda scale: scale.bfloat16())
    scale = load_weights(folder, read_config(folder), CPU).layers[1].attention.qkv.scale
    kept = load_file(folder / "model.safetensors")[f"{QUERY}_scale_inv"]
    assert scale is not None
    assert scale.dtype == torch.float32
    assert torch.equal(scale[:2], kept.float())
