"""The peer of a decode step: the same model in plain torch, its cache contiguous, inside a graph captured by hand."""

from collections.abc import Callable

import torch
from torch.nn import functional

from kernels.rope_frequencies import cos_sin_table, inverse_frequencies
from runtime.config import ModelConfig
from runtime.weights import Mlp, Weights


class TorchTwin:
    """One token for each of `batch` lanes that hold `context` tokens, this one included; sampled as an engine samples."""

    def __init__(self, config: ModelConfig, weights: Weights, batch: int, context: int) -> None:
        device = weights.embedding.device
        self._config = config
        self._weights = weights
        shape = (config.layers, 2, batch, config.kv_heads, context, config.head_dim)
        self._cache = torch.randn(shape, device=device, dtype=config.dtype)
        self._ids = torch.randint(config.vocab_size, (batch,), device=device)
        self._position = torch.full((batch,), context - 1, device=device)
        frequencies, factor = inverse_frequencies(
            config.head_dim, config.rope["rope_theta"], config.rope, max_positions=config.max_length
        )
        self._cos_sin = cos_sin_table(frequencies, factor, config.max_length).to(device, config.dtype)

    def step(self) -> torch.Tensor:
        """The lanes' next tokens."""
        config, batch = self._config, self._ids.shape[0]
        size = [config.q_heads, config.kv_heads, config.kv_heads]
        cos, sin = self._cos_sin[self._position][:, None].chunk(2, -1)
        x = functional.embedding(self._ids, self._weights.embedding)
        for layer, cache in zip(self._weights.layers, self._cache, strict=True):
            normed = self._norm(x, layer.input_norm)
            heads = functional.linear(normed, layer.attention.qkv.weight).view(batch, -1, config.head_dim)
            q, k, v = heads.split(size, 1)
            q = _rotate(self._norm(q, layer.attention.q_norm), cos, sin)
            k = _rotate(self._norm(k, layer.attention.k_norm), cos, sin)
            cache[0][:, :, -1] = k
            cache[1][:, :, -1] = v
            attended = functional.scaled_dot_product_attention(
                q[:, :, None], cache[0], cache[1], enable_gqa=True
            )
            x = x + functional.linear(attended.flatten(1), layer.attention.o.weight)
            assert isinstance(layer.mlp, Mlp)
            gate, up = functional.linear(
                self._norm(x, layer.post_attention_norm), layer.mlp.gate_up.weight
            ).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer.mlp.down.weight)
        return _sample(functional.linear(self._norm(x, self._weights.norm), self._weights.head))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._config.norm_eps)


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of `step`, warmed up."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _sample(
    logits: torch.Tensor, temperature: float = 0.8, top_k: int = 50, top_p: float = 0.9
) -> torch.Tensor:
    """torch.topk, top-p among what it found, and an exponential race."""
    values, places = (logits.float() / temperature).topk(top_k)
    probabilities = values.softmax(-1)
    kept = probabilities.cumsum(-1) - probabilities < top_p
    race = torch.where(kept, probabilities, 0) / torch.empty_like(probabilities).exponential_()
    return places.gather(1, race.argmax(-1, keepdim=True))
