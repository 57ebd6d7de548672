"""Small models for the runtime's tests, on whatever device there is."""

import importlib.util
from dataclasses import replace

import torch

from runtime.attention.select import make_attention
from runtime.config import ModelConfig
from runtime.kernel_ops import KernelOps
from runtime.model import Model
from runtime.ops import ReferenceOps
from runtime.weights import Weights, random_weights

CPU = torch.device("cpu")
PAGE_SIZE = 4
CONFIG = ModelConfig(
    vocab_size=300, hidden_size=32, intermediate_size=64, layers=2, q_heads=4, kv_heads=2, head_dim=16, max_length=128,
    norm_eps=1e-6, rope={"rope_type": "default", "rope_theta": 1e4}, dtype=torch.float32,
)  # fmt: skip
GPU_CONFIG = replace(CONFIG, hidden_size=256, intermediate_size=512, head_dim=128, dtype=torch.bfloat16)


def config_for(device: torch.device) -> ModelConfig:
    return GPU_CONFIG if device.type == "cuda" else CONFIG


def make_model(
    config: ModelConfig, weights: Weights, backend: str = "reference", max_batch: int = 128
) -> Model:
    """A model of `weights`, by the kernels and `backend` on a GPU, by the references on a CPU."""
    device = weights.embedding.device
    on_cpu = device.type == "cpu"
    attention = make_attention("reference" if on_cpu else backend, config, max_batch, PAGE_SIZE, device)
    return Model(config, weights, ReferenceOps() if on_cpu else KernelOps(device), attention)


def backends(device: torch.device) -> list[str]:
    """The attention backends that run on a device, those of optional packages where they are installed."""
    if device.type == "cpu":
        return ["reference"]
    return ["triton", "xqa", *(["flashinfer"] if importlib.util.find_spec("flashinfer") else [])]


def weights_for(device: torch.device, seed: int = 5) -> Weights:
    return random_weights(config_for(device), seed, device)
