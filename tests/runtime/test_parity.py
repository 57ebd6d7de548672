"""Logits and greedy ids equal Hugging Face transformers', in float32 on a CPU, prefill and 64 decode steps."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from runtime.attention.reference import ReferenceAttention
from runtime.batch import StepInputs
from runtime.config import read_config
from runtime.engine import Engine, EngineOptions
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.request import SamplingParameters
from runtime.weights import Experts, load_weights

PEER = Path(__file__).with_name("peer.py")
CPU = torch.device("cpu")
NEW_TOKENS = 64
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], list(range(30, 71)), [200]]
DENSE = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS = DENSE | {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "mlp_only_layers": [1],
}  # fmt: skip
MODELS = {
    "dense": DENSE,
    "tied, in shards": DENSE | {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "yarn": DENSE
    | {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "experts": EXPERTS | {"norm_topk_prob": True},
    "experts, weights as they come": EXPERTS
    | {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": []},
}


class Recording(Model):
    """Keeps the logits of the first step, which prefills every prompt."""

    prefilled: torch.Tensor | None = None

    def __call__(
        self, inputs: StepInputs, caches: Sequence[torch.Tensor], x: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = super().__call__(inputs, caches, x)
        if self.prefilled is None:
            self.prefilled = logits
        return logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of model folders with what transformers computes of them: one process for all, its start is slow."""
    folder = tmp_path_factory.mktemp("models")
    request = {"seed": 11, "models": MODELS, "prompts": PROMPTS, "new_tokens": NEW_TOKENS}
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


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(name: str, saved: Path) -> None:
    expected = load_file(saved / f"{name}.expected")
    config = read_config(saved / name)
    model = Recording(config, load_weights(saved / name, config, CPU), ReferenceOps(), ReferenceAttention())
    engine = Engine(model, EngineOptions(pages=64, page_size=8, max_step_tokens=64))
    requests = engine.generate(PROMPTS, SamplingParameters(max_tokens=NEW_TOKENS, ignore_stop_ids=True))
    for index, one in enumerate(requests):
        assert [token.id for token in one.tokens] == expected[f"ids.{index}"].tolist()
        # Both compute in float32, and logits are below 1: the last sum, of 64 products in another order, is off by
        # sqrt(64) * 2^-24 or 5e-7, and what comes through 3 layers by as much. One rounding to bf16 anywhere is 1e-5.
        assert model.prefilled is not None
        torch.testing.assert_close(model.prefilled[index], expected[f"logits.{index}"][-1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_the_models_hold_what_their_names_say(name: str, saved: Path) -> None:
    config = read_config(saved / name)
    layers = load_weights(saved / name, config, CPU).layers
    with_experts = {"experts": [0, 2], "experts, weights as they come": [1]}.get(name, [])
    assert [at for at, layer in enumerate(layers) if isinstance(layer.mlp, Experts)] == with_experts
    assert (config.experts is not None and config.experts.normalize) == (name == "experts")
    assert config.tied_embedding == name.startswith("tied")
    assert (len(list((saved / name).glob("*.safetensors"))) > 1) == name.endswith("in shards")
    assert config.rope["rope_type"] == ("yarn" if name == "yarn" else "default")
