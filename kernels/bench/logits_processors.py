"""Benchmark rows of the logits processors: lanes that ask for nothing, and lanes that ask for everything."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.bench.harness import Figures, Row
from kernels.logits_processors import process_logits, record_tokens
from kernels.token_history import ProcessorLanes, TokenHistory, load_row

VOCABULARY = 151936
NEUTRAL = (1.0, 0.0, 0.0, 0, 0)
PENALTIES = (1.1, 0.5, 0.2, 0, 0)
EVERYTHING = (1.1, 0.5, 0.2, 3, 2000)
"""Repetition, presence and frequency penalty, size of n-grams, min_tokens; the last with 20 biases a lane as well."""


class _Inputs:
    """One set: logits, lanes and their history, half of it prompt; tokens as common as in text."""

    def __init__(
        self,
        batch: int,
        length: int,
        values: tuple[float, float, float, int, int],
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        drawn = torch.randn(batch, VOCABULARY, generator=generator, device="cuda") * 3
        self.logits = drawn.to(dtype)
        self.tokens = (
            torch.rand(batch, length, generator=generator, device="cuda", dtype=torch.float64) ** 4
            * VOCABULARY
        ).long()
        self.generated = self.tokens[:, length // 2 :]
        # Recording goes on for every call of the measurement, and stays below the most.
        self.history = TokenHistory(batch, VOCABULARY, length + 4096, "cuda")
        for row, ids in enumerate(self.tokens.tolist()):
            bias = dict.fromkeys(ids[:20], 1.0) if values == EVERYTHING else {}
            load_row(self.history, row, ids[: length // 2], ids[length // 2 :], bias, [0, 1])

        def fill(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((batch,), value, dtype=dtype, device="cuda")

        self.lanes = ProcessorLanes(
            torch.arange(batch, dtype=torch.int32, device="cuda"),
            fill(int(values != NEUTRAL), torch.int32),
            *(fill(value, torch.float32) for value in values[:3]),
            *(fill(value, torch.int32) for value in values[3:]),
        )
        self.ids = torch.randint(VOCABULARY, (batch,), generator=generator, device="cuda")


def _process(inputs: _Inputs) -> None:
    process_logits(inputs.logits, inputs.lanes, inputs.history)


def _record(inputs: _Inputs) -> None:
    record_tokens(inputs.ids, inputs.lanes.rows, inputs.lanes.flags, inputs.history)


def _gather_scatter(inputs: _Inputs) -> torch.Tensor:
    """The penalties as generation libraries write them; n-grams they find on the host, and so not here."""
    repetition, presence, frequency, _, _ = PENALTIES
    scores = inputs.logits.float()
    seen = scores.gather(1, inputs.tokens)
    seen = torch.where(seen < 0, seen * repetition, seen / repetition)
    scores = scores.scatter(1, inputs.tokens, seen)
    ones = torch.ones_like(inputs.generated, dtype=torch.float32)
    counts = torch.zeros_like(scores).scatter_add_(1, inputs.generated, ones)
    return scores - frequency * counts - presence * (counts > 0)


def _within(limit: float, figures: Figures) -> bool:
    return figures.us <= limit


def rows() -> Iterator[Row]:
    for batch in (64, 1):
        neutral = partial(_Inputs, batch, 16, NEUTRAL, torch.bfloat16)
        for operation, run in (("process_logits", _process), ("record_tokens", _record)):
            yield Row(
                operation=operation,
                shape=f"{batch} lanes, neutral",
                make_inputs=neutral,
                run=run,
                bytes_moved=16 * batch,
                input_bytes=64 << 20,
                hot=True,
                target="at most 1.5 us",
                met=partial(_within, 1.5),
            )
        for length in (1000, 8000, 32000) if batch == 64 else (1000,):
            for name, values in (("penalties", PENALTIES), ("all processors", EVERYTHING)):
                # An entry and a word read of each token, its logit read and written.
                moved = batch * length * (4 + 4 + 2 * 2)
                yield Row(
                    operation="process_logits",
                    shape=f"{batch} lanes of {length} tokens, {VOCABULARY} bfloat16, {name}",
                    make_inputs=partial(_Inputs, batch, length, values, torch.bfloat16),
                    run=_process,
                    bytes_moved=moved,
                    input_bytes=6 * batch * VOCABULARY,
                    hot=True,
                    peers={"torch gather/scatter": _gather_scatter},
                )
        yield Row(
            operation="record_tokens",
            shape=f"{batch} lanes of 1000 tokens",
            make_inputs=partial(_Inputs, batch, 1000, EVERYTHING, torch.bfloat16),
            run=_record,
            bytes_moved=batch * 40,
            input_bytes=6 * batch * VOCABULARY,
            hot=True,
        )
