"""What the logits processors know of each sequence: its tokens, how often each was generated, its biases and stop ids.

A sequence has a row, fixed while it lives. The device state of all rows is three tensors, made once:

    last_ids  int32 [rows]                  the newest token, which the next step embeds
    counts    int32 [rows, vocabulary]      a word a token: times generated (bits 0-21), one plus the place of its bias
                                            (bits 22-30), whether the prompt has it (bit 31)
    record    int32 [rows, WIDTH + length]  length, prompt length, number of biases and of stop ids; at STOP_IDS,
                                            BIAS_IDS, BIAS_VALUES (float32 bits) and ENTRIES what these count

An entry is a token of the sequence, prompt first, its sign bit set where the token appears for the first time: going
through the entries with that bit set visits each distinct token once, and no list of them is kept.

`load_row` and `copy_rows` are called outside graphs. They are ordered on the current stream and do not synchronise.

Errors: ValueError naming the argument, the expected and the actual property; nothing is written.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

MAX_BIAS = 300
MAX_STOP = 16

# Columns of a record.
LENGTH, PROMPT_LENGTH, BIAS_COUNT, STOP_COUNT = range(4)
STOP_IDS, BIAS_IDS, BIAS_VALUES, ENTRIES = 16, 32, 336, 640
assert STOP_IDS + MAX_STOP <= BIAS_IDS
assert BIAS_IDS + MAX_BIAS <= BIAS_VALUES
assert BIAS_VALUES + MAX_BIAS <= ENTRIES

# Parts of a count and of an entry.
GENERATED = (1 << 22) - 1
BIAS_SHIFT, BIAS_PLACE = 22, 511
IN_PROMPT = FIRST = -(1 << 31)
TOKEN = (1 << 31) - 1


class TokenHistory:
    """The state of `rows` sequences of up to `max_length` tokens, prompt included; see the module.

    Memory: 4 bytes a row and token of the vocabulary, 4 a row and token of the length.
    """

    def __init__(self, rows: int, vocabulary: int, max_length: int, device: torch.device | str) -> None:
        for name, value, most in (
            ("rows", rows, 1 << 20),
            ("vocabulary", vocabulary, TOKEN),
            ("max_length", max_length, GENERATED),
        ):
            if not 0 < value <= most:
                raise ValueError(f"{name}: expected 1 to {most}, got {value}")
        self.rows = rows
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.last_ids = torch.zeros(rows, dtype=torch.int32, device=device)
        self.counts = torch.zeros(rows, vocabulary, dtype=torch.int32, device=device)
        self.record = torch.zeros(rows, ENTRIES + max_length, dtype=torch.int32, device=device)

    @property
    def lengths(self) -> torch.Tensor:
        """int32 [rows], a view: tokens recorded, prompt and generated."""
        return self.record[:, LENGTH]

    @property
    def prompt_lengths(self) -> torch.Tensor:
        """int32 [rows], a view."""
        return self.record[:, PROMPT_LENGTH]

    @property
    def entries(self) -> torch.Tensor:
        """int32 [rows, max_length], a view; see the module."""
        return self.record[:, ENTRIES:]

    def tokens(self, row: int) -> torch.Tensor:
        """int64 [length]: the tokens of a sequence; waits for the device."""
        return (self.entries[row, : int(self.lengths[row])] & TOKEN).long()

    def graph_buffers(self) -> Mapping[str, torch.Tensor]:
        """The tensors that a captured step reads and writes, by name."""
        return {"last_ids": self.last_ids, "counts": self.counts, "record": self.record}


@dataclass(frozen=True)
class ProcessorLanes:
    """What the processors read of each lane of a step, `[batch]` and contiguous on the device.

    Attributes:
        rows: int32, the lane's row of the history; negative for a padding lane, which touches nothing.
        flags: int32, 0 where none of what follows applies and nothing needs recording.
        repetition_penalty: float32 above 0; off at 1.
        presence_penalty: float32; off at 0.
        frequency_penalty: float32; off at 0.
        no_repeat_ngram: int32; off at 0.
        min_tokens: int32; off at 0.
    """

    rows: torch.Tensor
    flags: torch.Tensor
    repetition_penalty: torch.Tensor
    presence_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    no_repeat_ngram: torch.Tensor
    min_tokens: torch.Tensor


def load_row(
    history: TokenHistory,
    row: int,
    prompt: Sequence[int],
    generated: Sequence[int] = (),
    bias: Mapping[int, float] | None = None,
    stop_ids: Collection[int] = (),
) -> None:
    """Give a row to a sequence: one that begins, or one that starts again after it was preempted.

    Whatever the row held is gone. `bias` maps token ids to what is added to their logits, -inf to ban them; `stop_ids`
    end the sequence, and are banned while fewer than min_tokens are generated.
    """
    _require_row("row", row, history)
    tokens = np.concatenate([_ids("prompt", prompt, history), _ids("generated", generated, history)])
    if len(tokens) > history.max_length:
        raise ValueError(
            f"prompt: expected at most {history.max_length} tokens with those generated, got {len(tokens)}"
        )
    bias_ids, bias_values = _checked_bias(bias or {}, history)
    stops = _ids("stop_ids", sorted(stop_ids), history)
    if len(stops) > MAX_STOP:
        raise ValueError(f"stop_ids: expected at most {MAX_STOP}, got {len(stops)}")

    distinct, first, place = np.unique(
        np.concatenate([tokens, bias_ids]), return_index=True, return_inverse=True
    )
    words = np.zeros(len(distinct), np.int32)
    words[place[: len(prompt)]] = IN_PROMPT
    np.add.at(words, place[len(prompt) : len(tokens)], 1)
    words[place[len(tokens) :]] |= np.arange(1, len(bias_ids) + 1, dtype=np.int32) << BIAS_SHIFT

    device = history.record.device
    width, many = ENTRIES + len(tokens), len(distinct)
    staged = torch.zeros(width + 2 * many + 1, dtype=torch.int32, pin_memory=device.type == "cuda")
    host = staged.numpy()
    host[[LENGTH, PROMPT_LENGTH, BIAS_COUNT, STOP_COUNT]] = (
        len(tokens),
        len(prompt),
        len(bias_ids),
        len(stops),
    )
    host[STOP_IDS : STOP_IDS + len(stops)] = stops
    host[BIAS_IDS : BIAS_IDS + len(bias_ids)] = bias_ids
    host[BIAS_VALUES : BIAS_VALUES + len(bias_ids)] = bias_values.view(np.int32)
    host[ENTRIES:width] = tokens
    host[ENTRIES + first[first < len(tokens)]] |= FIRST
    host[width : width + many] = distinct
    host[width + many : width + 2 * many] = words
    host[-1] = tokens[-1] if len(tokens) else 0

    arrived = staged.to(device, non_blocking=True)
    history.record[row, :width].copy_(arrived[:width])
    history.counts[row].zero_().scatter_(
        0, arrived[width : width + many].long(), arrived[width + many : width + 2 * many]
    )
    history.last_ids[row : row + 1].copy_(arrived[-1:])


def copy_rows(history: TokenHistory, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Make row `destinations[i]` what row `sources[i]` is, for all i at once: every source is read before any write.

    Sources may repeat, destinations may not. The tensors stay where they are.
    """
    if len(sources) != len(destinations):
        raise ValueError(f"destinations: expected {len(sources)} rows as in sources, got {len(destinations)}")
    for name, given in (("sources", sources), ("destinations", destinations)):
        for row in given:
            _require_row(name, row, history)
    if len(set(destinations)) != len(destinations):
        raise ValueError(f"destinations: expected distinct rows, got {list(destinations)}")
    if not sources:
        return
    device = history.record.device
    rows = torch.tensor([[*sources], [*destinations]], pin_memory=device.type == "cuda")
    reads, writes = rows.to(device, non_blocking=True)
    for state in history.graph_buffers().values():
        state.index_copy_(0, writes, state.index_select(0, reads))


def _require_row(name: str, row: int, history: TokenHistory) -> None:
    if not 0 <= row < history.rows:
        raise ValueError(f"{name}: expected a row from 0 to {history.rows - 1}, got {row}")


def _ids(name: str, ids: Sequence[int], history: TokenHistory) -> npt.NDArray[np.int32]:
    given = np.asarray(ids, np.int64)
    outside = given[(given < 0) | (given >= history.vocabulary)]
    if len(outside):
        raise ValueError(f"{name}: expected token ids from 0 to {history.vocabulary - 1}, got {outside[0]}")
    return given.astype(np.int32)


def _checked_bias(
    bias: Mapping[int, float], history: TokenHistory
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    if len(bias) > MAX_BIAS:
        raise ValueError(f"bias: expected at most {MAX_BIAS} tokens, got {len(bias)}")
    values = np.fromiter(bias.values(), np.float32, len(bias))
    if np.isnan(values).any() or (values == np.inf).any():
        raise ValueError(f"bias: expected finite numbers or -inf, got {values[~(values < np.inf)][0]}")
    return _ids("bias", [*bias], history), values
