"""What every rank makes its part of a model from."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.attention.select import make_attention
from runtime.checkpoint import NORM
from runtime.config import ModelConfig
from runtime.engine import EngineOptions
from runtime.kernel_ops import KernelOps
from runtime.model import Model
from runtime.ops import Ops, ReferenceOps
from runtime.parallel.group import Group
from runtime.parallel.ops import ShardedOps
from runtime.parallel.shard import Shard, local_config
from runtime.weights import Experts, Weights


class WeightsSource(Protocol):
    """Gives the weights of a shard: `functools.partial(load_weights, folder)`, say. It can be pickled."""

    def __call__(self, *, config: ModelConfig, device: torch.device, shard: Shard) -> Weights: ...


@dataclass(frozen=True)
class EngineSource:
    """An engine to be, whole; it can be pickled.

    Attributes:
        attention: see `runtime.attention.select`; on a CPU there is the reference alone.
    """

    config: ModelConfig
    options: EngineOptions
    weights: WeightsSource
    attention: str = "xqa"

    def model(self, device: torch.device, group: Group) -> tuple[Model, dict[str, str]]:
        """This rank's part of the model, and digests of tensors that all ranks have alike, by name.

        Raises:
            ShardError: so many ranks cannot share the model.
            WeightsError: a checkpoint is not what its configuration says.
        """
        shard = Shard(group.rank, group.size)
        config = local_config(self.config, shard)
        weights = self.weights(config=self.config, device=device, shard=shard)
        on_gpu = device.type == "cuda"
        ops: Ops = KernelOps(device) if on_gpu else ReferenceOps()
        if group.size > 1:
            ops = ShardedOps(ops, group, config.vocab_size)
        kind = self.attention if on_gpu else "reference"
        options = self.options
        attention = make_attention(kind, config, options.max_batch, options.page_size, device)
        return Model(config, weights, ops, attention), _digests(weights)


def _digests(weights: Weights) -> dict[str, str]:
    """Of norms and routers, which are small and whole on every rank: another checkpoint has others."""
    tensors = {NORM: weights.norm}
    for number, layer in enumerate(weights.layers):
        at = f"model.layers.{number}"
        tensors[f"{at}.input_layernorm.weight"] = layer.input_norm
        if isinstance(layer.mlp, Experts):
            tensors[f"{at}.mlp.gate.weight"] = layer.mlp.router
    return {
        name: hashlib.sha256(tensor.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in tensors.items()
    }
