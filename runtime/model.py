"""The Qwen3 decoder, dense or mixture of experts: token ids to logits, keys and values into the cache on the way."""

from collections.abc import Mapping, Sequence

import torch

from kernels.rope_frequencies import cos_sin_table, inverse_frequencies
from runtime.attention import AttentionBackend, AttentionParameters
from runtime.attention.replanning import replan
from runtime.batch import StepInputs
from runtime.begin_step import LaneStart, begin_step
from runtime.config import ModelConfig
from runtime.ops import Ops
from runtime.rope import DecodeRope, PrefillRope, Rope
from runtime.weights import Experts, Layer, Weights


class Model:
    """A decoder's weights with the operations and the attention backend that run it."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, attention: AttentionBackend) -> None:
        self.config = config
        self.attention = attention
        self._weights = weights
        self._ops = ops
        frequencies, factor = inverse_frequencies(
            config.head_dim, config.rope["rope_theta"], config.rope, max_positions=config.max_length
        )
        self._cos_sin = cos_sin_table(frequencies, factor, config.max_length).to(weights.embedding.device)
        self._rope = self.decode_rope()

    @property
    def device(self) -> torch.device:
        return self._weights.embedding.device

    def decode_rope(self) -> DecodeRope:
        """A rotary operation for decode steps; each captured step needs one of its own."""
        return DecodeRope(self._ops, self._cos_sin, self.config.norm_eps)

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """See `runtime.contract.BufferHolder`: the weights whose move would go unseen, first and last."""
        return {"embedding": self._weights.embedding, "head": self._weights.head, "cos_sin": self._cos_sin}

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Token ids [tokens] -> [tokens, hidden]."""
        return torch.nn.functional.embedding(token_ids, self._weights.embedding)

    def begin(self, start: LaneStart) -> torch.Tensor:
        """As `embed`, for the lanes of a captured step; writes their table entries on the way."""
        return begin_step(start, self._weights.embedding)

    def __call__(
        self, inputs: StepInputs, caches: Sequence[torch.Tensor], x: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute a step; returns the logits of each lane's last token, `[batch, vocab]` in the model's dtype.

        Args:
            x: [tokens, hidden], the tokens' embeddings where they are not simply those of their ids.
        """
        rope: Rope
        if inputs.is_decode:
            rope = self._rope
            rope.prepare(inputs)
        else:
            rope = PrefillRope(self._ops, self._cos_sin, self.config.norm_eps, inputs)
        parameters = self.attention.plan(inputs)
        replan(self.attention, parameters, inputs)
        return self.compute(
            self.embed(inputs.token_ids) if x is None else x, inputs, caches, parameters, rope
        )

    def compute(
        self,
        x: torch.Tensor,
        inputs: StepInputs,
        caches: Sequence[torch.Tensor],
        parameters: AttentionParameters,
        rope: Rope,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """From embeddings [tokens, hidden] on: what a graph captures reads the arguments' buffers and the weights alone.

        The result goes to `logits` [batch, vocab] where that is given.
        """
        eps = self.config.norm_eps
        self.attention.refresh(parameters)
        live = _live_lanes(inputs) if self.config.experts is not None else None
        for layer, cache in zip(self._weights.layers, caches, strict=True):
            qkv = self._ops.norm_linear(x, layer.input_norm, eps, layer.attention.qkv)
            query = rope.run(qkv, cache, layer.attention)
            attended = self.attention.run(query, cache, parameters)
            x = self._ops.linear(attended.flatten(1), layer.attention.o, residual=x)
            x = self._mlp(x, layer, live)
        if inputs.last_tokens is not None:
            x = x[inputs.last_tokens]
        return self._ops.logits(x, self._weights.norm, eps, self._weights.head, logits)

    def _mlp(self, x: torch.Tensor, layer: Layer, live: torch.Tensor | None) -> torch.Tensor:
        eps = self.config.norm_eps
        if isinstance(layer.mlp, Experts):
            assert self.config.experts is not None
            norm, experts = layer.post_attention_norm, layer.mlp
            return self._ops.experts(x, norm, eps, experts, self.config.experts, live=live)
        inner = self._ops.norm_linear(x, layer.post_attention_norm, eps, layer.mlp.gate_up, silu_mul=True)
        return self._ops.linear(inner, layer.mlp.down, residual=x)


def _live_lanes(inputs: StepInputs) -> torch.Tensor | None:
    """How many lanes of a decode are no padding, int32 [1] on the device; None in a prefill, which has none."""
    if not inputs.is_decode:
        return None
    return (inputs.kv_lengths > 0).sum(0, keepdim=True, dtype=torch.int32)
