"""Random sequences and lanes for the tests of the logits processors."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from kernels.token_history import ProcessorLanes, TokenHistory, load_row

Process = Callable[[torch.Tensor, ProcessorLanes, TokenHistory], None]
Record = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, TokenHistory], None]

LANE_TYPES = {
    "rows": torch.int32,
    "flags": torch.int32,
    "repetition_penalty": torch.float32,
    "presence_penalty": torch.float32,
    "frequency_penalty": torch.float32,
    "no_repeat_ngram": torch.int32,
    "min_tokens": torch.int32,
}
NEUTRAL = {
    "flags": 1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram": 0,
    "min_tokens": 0,
}


def make_lanes(
    device: torch.device, rows: Sequence[int], **values: float | Sequence[float]
) -> ProcessorLanes:
    """Lanes of these rows, neutral but for `values`: one for all, or one a lane."""
    filled = {"rows": rows} | NEUTRAL | values
    return ProcessorLanes(
        **{
            name: torch.tensor(
                list(value) if isinstance(value, Sequence) else [value] * len(rows),
                dtype=LANE_TYPES[name],
                device=device,
            )
            for name, value in filled.items()
        }
    )


def run_one(
    process: Process,
    device: torch.device,
    logits: Sequence[float],
    prompt: Sequence[int],
    generated: Sequence[int] = (),
    bias: Mapping[int, float] | None = None,
    stop_ids: Collection[int] = (),
    **values: float,
) -> list[float]:
    """The logits of one lane of a small vocabulary, processed."""
    history = TokenHistory(2, len(logits), 64, device)
    load_row(history, 1, prompt, generated, bias, stop_ids)
    scores = torch.tensor([logits], device=device)
    process(scores, make_lanes(device, [1], **values), history)
    return scores[0].tolist()


def draw_ids(generator: torch.Generator, count: int, vocabulary: int) -> list[int]:
    """Token ids of which small ones come often, as in text."""
    drawn = torch.rand(count, generator=generator, device=generator.device)
    return (drawn**3 * vocabulary).long().tolist()


def draw_logits(
    generator: torch.Generator, batch: int, vocabulary: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Random logits whose rows are strided where the vocabulary is no multiple of 8."""
    padded = torch.randn(batch, -(-vocabulary // 8) * 8, generator=generator, device=generator.device)
    return (padded * 5).to(dtype)[:, :vocabulary]


def fill_history(
    generator: torch.Generator, rows: int, vocabulary: int, lengths: Sequence[int], spare: int = 8
) -> TokenHistory:
    """A history whose row i has lengths[i % n] tokens, a third of them generated, with biases and stop ids."""
    history = TokenHistory(rows, vocabulary, max(lengths) + spare, generator.device)
    for row in range(rows):
        length = lengths[row % len(lengths)]
        ids = draw_ids(generator, length, vocabulary)
        prompt = length - length // 3
        biased = sorted(set(draw_ids(generator, 300, vocabulary)))[: 300 if row % 2 else 3]
        bias = {token: float(place % 7 - 3) for place, token in enumerate(biased)}
        bias[biased[0]] = float("-inf")
        load_row(history, row, ids[:prompt], ids[prompt:], bias, set(draw_ids(generator, 16, vocabulary)))
    return history


def clone(history: TokenHistory) -> TokenHistory:
    """The same state in tensors of its own."""
    copy = TokenHistory(history.rows, history.vocabulary, history.max_length, history.record.device)
    for name, tensor in copy.graph_buffers().items():
        tensor.copy_(history.graph_buffers()[name])
    return copy


def assert_same(actual: TokenHistory, expected: TokenHistory) -> None:
    """The last ids, the counts and, as far as they count, the records of all rows are equal."""
    assert torch.equal(actual.last_ids, expected.last_ids)
    assert torch.equal(actual.counts, expected.counts)
    assert torch.equal(actual.lengths, expected.lengths)
    unused = torch.arange(actual.max_length, device=actual.record.device) >= actual.lengths[:, None]
    ours, theirs = actual.record.clone(), expected.record.clone()
    for record, history in ((ours, actual), (theirs, expected)):
        record[:, -history.max_length :].masked_fill_(unused, 0)
    assert torch.equal(ours, theirs)
