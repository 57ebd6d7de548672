"""The logits processors in torch, written from their definitions; what a CPU runs. They wait for the device."""

import torch

from kernels.token_history import (
    BIAS_COUNT,
    BIAS_IDS,
    BIAS_VALUES,
    ENTRIES,
    FIRST,
    GENERATED,
    IN_PROMPT,
    LENGTH,
    STOP_COUNT,
    STOP_IDS,
    ProcessorLanes,
    TokenHistory,
)


def process_logits_reference(logits: torch.Tensor, lanes: ProcessorLanes, history: TokenHistory) -> None:
    """See `kernels.logits_processors.process_logits`; equal to it bit for bit."""
    for lane, (row, flag) in enumerate(zip(lanes.rows.tolist(), lanes.flags.tolist(), strict=True)):
        if row >= 0 and flag:
            logits[lane] = _processed(logits[lane].float(), lane, row, lanes, history)


def record_tokens_reference(
    ids: torch.Tensor, rows: torch.Tensor, flags: torch.Tensor, history: TokenHistory
) -> None:
    """See `kernels.logits_processors.record_tokens`."""
    for token, row, flag in zip(ids.tolist(), rows.tolist(), flags.tolist(), strict=True):
        if row < 0:
            continue
        history.last_ids[row] = token
        length = int(history.record[row, LENGTH])
        if not flag or length >= history.max_length or not 0 <= token < history.vocabulary:
            continue
        seen = bool(history.counts[row, token] & (GENERATED | IN_PROMPT))
        history.record[row, ENTRIES + length] = token if seen else token + FIRST
        history.record[row, LENGTH] = length + 1
        history.counts[row, token] += 1


def _processed(
    scores: torch.Tensor, lane: int, row: int, lanes: ProcessorLanes, history: TokenHistory
) -> torch.Tensor:
    record, tokens, prompt = history.record[row], history.tokens(row), int(history.prompt_lengths[row])
    generated = tokens[prompt:]

    biases = int(record[BIAS_COUNT])
    bias_ids = record[BIAS_IDS : BIAS_IDS + biases].long()
    scores[bias_ids] += record[BIAS_VALUES : BIAS_VALUES + biases].view(torch.float32)

    seen = torch.unique(tokens)
    penalty = lanes.repetition_penalty[lane]
    penalised = torch.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
    times = torch.bincount(generated, minlength=history.vocabulary)[seen].float()
    frequency, presence = lanes.frequency_penalty[lane], lanes.presence_penalty[lane]
    scores[seen] = penalised - (times * frequency + (times > 0) * presence)

    size = int(lanes.no_repeat_ngram[lane])
    if 0 < size <= len(tokens):
        grams = tokens.unfold(0, size, 1)
        repeated = (grams[:, :-1] == tokens[len(tokens) - size + 1 :]).all(1)
        scores[grams[repeated, -1]] = float("-inf")
    if len(generated) < int(lanes.min_tokens[lane]):
        stops = record[STOP_IDS : STOP_IDS + int(record[STOP_COUNT])].long()
        scores[stops] = float("-inf")
    return scores
