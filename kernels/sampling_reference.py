"""What `sampling` promises, in float64 and by sorting, on any device."""

from typing import NamedTuple

import torch

OK, HAS_NAN, NOTHING_LEFT, HAS_INFINITY = range(4)
LEAST_TEMPERATURE = 1e-5


class Sampled(NamedTuple):
    """Token ids, and what was wrong with each row (0: nothing)."""

    ids: torch.Tensor
    status: torch.Tensor


_WORD = 0xFFFFFFFF


def _multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Upper and lower 32 bits of a product, from pieces that int64 holds."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox_reference(vocabulary: int, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The random words [batch, vocabulary] that tokens draw, as int64."""
    blocks = torch.arange((vocabulary + 3) // 4, device=seeds.device).expand(len(seeds), -1)
    position = positions.to(torch.int64)[:, None]
    counter = [blocks, (position & _WORD).expand_as(blocks), ((position >> 32) & _WORD).expand_as(blocks)]
    counter.append(torch.zeros_like(blocks))
    key = [(seeds & _WORD)[:, None], ((seeds >> 32) & _WORD)[:, None]]
    for _ in range(10):
        high, low = _multiply(counter[0], 0xD2511F53)
        other_high, other_low = _multiply(counter[2], 0xCD9E8D57)
        counter = [other_high ^ counter[1] ^ key[0], other_low, high ^ counter[3] ^ key[1], low]
        key = [(key[0] + 0x9E3779B9) & _WORD, (key[1] + 0xBB67AE85) & _WORD]
    return torch.stack(counter, -1).flatten(1)[:, :vocabulary]


def kept_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
) -> torch.Tensor:
    """Which tokens of each row may be sampled, by sorting and float64; rows must have status 0."""
    x = logits.double()
    vocabulary = x.shape[1]
    largest = x.max(-1, keepdim=True).values
    weight = torch.exp((x - largest) / temperature.double()[:, None])
    ordered, order = x.sort(-1, descending=True)
    kept = x > float("-inf")
    if top_k is not None:
        k = torch.where((top_k > 0) & (top_k < vocabulary), top_k, vocabulary).to(torch.int64)
        kept &= x >= ordered.gather(1, k[:, None] - 1)
    if top_p is not None:
        running = torch.where(kept, weight, 0.0).gather(1, order)
        running = running.cumsum(-1) - running  # weight of what comes before in the order
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        place = torch.arange(vocabulary, device=x.device).expand_as(order)
        above = running.gather(1, torch.where(first, place, 0).cummax(-1).values)  # of strictly larger logits
        total = torch.where(kept, weight, 0.0).sum(-1, keepdim=True)
        p = top_p.double()[:, None]
        inside = torch.empty_like(kept).scatter(1, order, above < p * total)
        kept &= inside | (p >= 1) | (x == largest)
    if min_p is not None:
        kept &= weight >= min_p.double().clamp(max=1.0)[:, None]
    return kept


def sample_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
) -> Sampled:
    """In float64, from the same random words."""
    largest = logits.double().max(-1, keepdim=True).values
    status = torch.where(largest == float("inf"), HAS_INFINITY, 0)
    status = torch.where(largest == float("-inf"), NOTHING_LEFT, status)[:, 0]
    status = torch.where(logits.isnan().any(-1), HAS_NAN, status).to(torch.int32)
    usable = torch.where((status == OK)[:, None], logits, 0.0)
    greedy = ~(temperature >= LEAST_TEMPERATURE)
    warm = torch.where(greedy, 1.0, temperature)
    kept = kept_reference(usable, warm, top_k=top_k, top_p=top_p, min_p=min_p)
    words = philox_reference(logits.shape[1], seeds, positions).to(torch.float32)
    v = (words * 2.0**-32 + 2.0**-33).clamp(max=1 - 2.0**-24).double()
    score = usable.double() / warm.double()[:, None] - torch.log(-torch.log1p(-v))
    chosen = torch.where(kept, score, float("-inf")).argmax(-1)
    ids = torch.where(greedy, usable.double().argmax(-1), chosen)
    return Sampled(torch.where(status == OK, ids, 0), status)
