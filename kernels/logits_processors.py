"""Penalties, biases and bans on the logits of each lane, from the tokens its sequence has so far.

    process_logits   changes logits [batch, vocabulary] in place, before sampling
    record_tokens    adds the sampled tokens to the history, after it

Both can be captured: they neither allocate nor wait, and read all that varies from the device. Per lane, in this order
(Hugging Face's, whose generation adds biases before it penalises; presence and frequency as OpenAI defines them):

1. logit bias: added to the token's logit; -inf bans it.
2. repetition penalty r: of each token in the prompt or generated, a logit below 0 is multiplied by r, another divided.
3. frequency f and presence p penalty: of each token generated n > 0 times, f * n + p is subtracted.
4. no_repeat_ngram n: a token that would repeat n tokens in a row, prompt included, gets -inf.
5. min_tokens: while fewer are generated, the sequence's stop ids get -inf.

Shapes: logits bfloat16 or float32, rows contiguous, their stride a multiple of 16 bytes, the pointer aligned to 16
bytes; the lanes as `ProcessorLanes` says, a row of the history in one lane at most. NaN stays NaN unless banned.

Rounding: float32 arithmetic without fused multiply-adds, in the order above, rounded to the logits' dtype once a token.
A token that nothing applies to is not touched. A lane whose row is negative or whose flag is 0 costs a read.

One program a lane visits its entries and biases, with a wait between what penalises and what bans. On Hopper and newer
everything is read after the kernel before has ended.

Source: Keskar et al., "CTRL: a conditional transformer language model for controllable generation", 2019 (repetition
penalty); OpenAI, API reference, frequency and presence penalties; Paulus, Xiong and Socher, "A deep reinforced model for
abstractive summarization", 2017 (n-grams).

Errors: ValueError naming the argument, the expected and the actual property; nothing is launched. Zero lanes return at
once. Offsets are 64-bit.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels import contract, target, token_history
from kernels.launch import BuildCase, launch, meta
from kernels.logits_processors_reference import process_logits_reference, record_tokens_reference
from kernels.quantize import rounded
from kernels.token_history import ProcessorLanes, TokenHistory, load_row

BLOCK, WARPS = 2048, 8
RECORDED_LANES = 32

_LENGTH = tl.constexpr(token_history.LENGTH)
_PROMPT_LENGTH = tl.constexpr(token_history.PROMPT_LENGTH)
_BIAS_COUNT = tl.constexpr(token_history.BIAS_COUNT)
_STOP_COUNT = tl.constexpr(token_history.STOP_COUNT)
_STOP_IDS = tl.constexpr(token_history.STOP_IDS)
_MAX_STOP = tl.constexpr(token_history.MAX_STOP)
_BIAS_IDS = tl.constexpr(token_history.BIAS_IDS)
_BIAS_VALUES = tl.constexpr(token_history.BIAS_VALUES)
_ENTRIES = tl.constexpr(token_history.ENTRIES)
_GENERATED = tl.constexpr(token_history.GENERATED)
_BIAS_SHIFT = tl.constexpr(token_history.BIAS_SHIFT)
_BIAS_PLACE = tl.constexpr(token_history.BIAS_PLACE)
_SEEN = tl.constexpr(token_history.IN_PROMPT | token_history.GENERATED)
_FIRST = tl.constexpr(token_history.FIRST)
_TOKEN = tl.constexpr(token_history.TOKEN)
_BIASES_AT_ONCE = tl.constexpr(triton.next_power_of_2(token_history.MAX_BIAS))


def process_logits(logits: torch.Tensor, lanes: ProcessorLanes, history: TokenHistory) -> None:
    """Change the logits of each lane in place; see the module."""
    contract.require(
        "logits",
        logits,
        dtype=(torch.bfloat16, torch.float32),
        shape=(None, history.vocabulary),
        rows_contiguous=True,
        aligned=contract.VECTOR_BYTES,
    )
    contract.require_aligned_rows("logits", logits)
    batch = logits.shape[0]
    for name, value in vars(lanes).items():
        dtype = torch.float32 if name.endswith("_penalty") else torch.int32
        contract.require(name, value, dtype=dtype, shape=(batch,), device=logits.device, contiguous=True)
    _require_history(lanes.rows, history)
    if not batch:
        return
    overlapped = "pdl" in target.current().features
    launch(
        process_logits_kernel,
        (batch,),
        logits,
        *vars(lanes).values(),
        history.record,
        history.counts,
        logits.stride(0),
        history.record.stride(0),
        history.vocabulary,
        BLOCK=BLOCK,
        OVERLAPPED=overlapped,
        num_warps=WARPS,
        enable_fp_fusion=False,
        launch_pdl=True,
    )


def record_tokens(ids: torch.Tensor, rows: torch.Tensor, flags: torch.Tensor, history: TokenHistory) -> None:
    """Make `ids` the newest tokens of the lanes' sequences; where flags are not 0 also add them to the history.

    ids [batch] int64 or int32, as sampled; rows and flags as in `ProcessorLanes`. A full history, or an id outside the
    vocabulary, changes `last_ids` alone.
    """
    contract.require("ids", ids, dtype=(torch.int64, torch.int32), shape=(None,), contiguous=True)
    batch = ids.shape[0]
    for name, value in (("rows", rows), ("flags", flags)):
        contract.require(name, value, dtype=torch.int32, shape=(batch,), device=ids.device, contiguous=True)
    _require_history(rows, history)
    if not batch:
        return
    launch(
        record_tokens_kernel,
        (triton.cdiv(batch, RECORDED_LANES),),
        ids,
        rows,
        flags,
        history.last_ids,
        history.record,
        history.counts,
        batch,
        history.record.stride(0),
        history.vocabulary,
        history.max_length,
        LANES=RECORDED_LANES,
        OVERLAPPED="pdl" in target.current().features,
        num_warps=1,
        launch_pdl=True,
    )


def _require_history(rows: torch.Tensor, history: TokenHistory) -> None:
    contract.require("history.record", history.record, device=rows.device)
    contract.require_range("rows", rows, -(1 << 31), history.rows)


@triton.jit(do_not_specialize=["logits_stride", "record_stride", "vocabulary"])
def process_logits_kernel(
    logits,
    rows,
    flags,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    no_repeat_ngram,
    min_tokens,
    record,
    counts,
    logits_stride,
    record_stride,
    vocabulary,
    BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    """One lane."""
    lane = tl.program_id(0).to(tl.int64)
    if OVERLAPPED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.load(rows + lane).to(tl.int64)
    flag = tl.load(flags + lane)
    if (row >= 0) & (flag != 0):
        scores, words, kept = (
            logits + lane * logits_stride,
            counts + row * vocabulary,
            record + row * record_stride,
        )
        repetition = tl.load(repetition_penalty + lane)
        presence = tl.load(presence_penalty + lane)
        frequency = tl.load(frequency_penalty + lane)
        ngram = tl.load(no_repeat_ngram + lane)
        least = tl.load(min_tokens + lane)
        length = tl.load(kept + _LENGTH)
        generated = length - tl.load(kept + _PROMPT_LENGTH)
        entries = kept + _ENTRIES

        penalises = (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0)
        _add_biases(scores, words, kept, tl.where(penalises, _SEEN, 0))
        if penalises:
            for start in range(0, length, BLOCK):
                at = start + tl.arange(0, BLOCK)
                entry = tl.load(entries + at, mask=at < length, other=0)
                first = entry < 0
                token = entry & _TOKEN
                word = tl.load(words + token, mask=first, other=0)
                given = tl.load(scores + token, mask=first, other=0.0)
                place = (word >> _BIAS_SHIFT) & _BIAS_PLACE
                bias = tl.load(kept + _BIAS_VALUES - 1 + place, mask=place > 0, other=0)
                score = given.to(tl.float32) + bias.to(tl.float32, bitcast=True)
                score = tl.where(score < 0.0, score * repetition, tl.div_rn(score, repetition))
                times = (word & _GENERATED).to(tl.float32)
                score -= times * frequency + tl.where(times > 0.0, presence, 0.0)
                tl.store(scores + token, rounded(score, given.dtype), mask=first)
        tl.debug_barrier()  # a ban of a token is written after its penalty, by whichever thread
        if ngram > 0:
            _ban_repeats(scores, entries, length, ngram, BLOCK)
        if generated < least:
            at = tl.arange(0, _MAX_STOP)
            inside = at < tl.load(kept + _STOP_COUNT)
            stop = tl.load(kept + _STOP_IDS + at, mask=inside, other=0)
            tl.store(scores + stop, float("-inf"), mask=inside)


@triton.jit
def _add_biases(scores, words, kept, left):
    """All biases but those of tokens whose word has a bit of `left`: what penalises these adds it, to round once."""
    at = tl.arange(0, _BIASES_AT_ONCE)
    inside = at < tl.load(kept + _BIAS_COUNT)
    token = tl.load(kept + _BIAS_IDS + at, mask=inside, other=0)
    bias = tl.load(kept + _BIAS_VALUES + at, mask=inside, other=0).to(tl.float32, bitcast=True)
    word = tl.load(words + token, mask=inside, other=0)
    inside &= (word & left) == 0
    given = tl.load(scores + token, mask=inside, other=0.0)
    tl.store(scores + token, rounded(given.to(tl.float32) + bias, given.dtype), mask=inside)


@triton.jit
def _ban_repeats(scores, entries, length, ngram, BLOCK: tl.constexpr):
    """-inf to each token that followed, anywhere before, the `ngram` - 1 tokens that are now the last."""
    for start in range(ngram - 1, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        follows = at < length
        for back in range(1, ngram):
            last = tl.load(entries + length - back) & _TOKEN
            follows &= (tl.load(entries + at - back, mask=follows, other=0) & _TOKEN) == last
        token = tl.load(entries + at, mask=follows, other=0) & _TOKEN
        tl.store(scores + token, float("-inf"), mask=follows)


@triton.jit(do_not_specialize=["batch", "record_stride", "vocabulary", "max_length"])
def record_tokens_kernel(
    ids,
    rows,
    flags,
    last_ids,
    record,
    counts,
    batch,
    record_stride,
    vocabulary,
    max_length,
    LANES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    """LANES lanes."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    if OVERLAPPED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    inside = lane < batch
    row = tl.load(rows + lane, mask=inside, other=-1).to(tl.int64)
    flag = tl.load(flags + lane, mask=inside, other=0)
    token = tl.load(ids + lane, mask=inside, other=0).to(tl.int32)
    live = row >= 0
    tl.store(last_ids + row, token, mask=live)

    kept = record + row * record_stride
    recorded = live & (flag != 0) & (token >= 0) & (token < vocabulary)
    length = tl.load(kept + _LENGTH, mask=recorded, other=0)
    recorded &= length < max_length
    words = counts + row * vocabulary + token
    word = tl.load(words, mask=recorded, other=0)
    tl.store(kept + _ENTRIES + length, tl.where((word & _SEEN) == 0, token | _FIRST, token), mask=recorded)
    tl.store(words, word + 1, mask=recorded)
    tl.store(kept + _LENGTH, length + 1, mask=recorded)


def build_cases() -> Iterator[BuildCase]:
    history = TokenHistory(64, 151936, 4096, "meta")
    whole = [meta(64, dtype=torch.int32) for _ in range(4)]
    real = [meta(64, dtype=torch.float32) for _ in range(3)]
    lanes = ProcessorLanes(whole[0], whole[1], *real, *whole[2:])
    for dtype in (torch.bfloat16, torch.float32):
        yield BuildCase(
            f"logits_processors/{str(dtype).removeprefix('torch.')}",
            lambda dtype=dtype: process_logits(meta(64, 151936, dtype=dtype), lanes, history),
        )
    for dtype in (torch.int64, torch.int32):
        yield BuildCase(
            f"logits_processors/record-{str(dtype).removeprefix('torch.')}",
            lambda dtype=dtype: record_tokens(meta(64, dtype=dtype), lanes.rows, lanes.flags, history),
        )


def check(device: torch.device) -> tuple[float, float]:
    """Share of logits and of the history's words that differ from the reference's."""
    generator = torch.Generator(device).manual_seed(1)
    vocabulary = 1000
    logits = torch.randn(2, vocabulary, generator=generator, device=device)
    ids = torch.randint(vocabulary, (2,), generator=generator, device=device)

    def put(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    integers, reals = torch.int32, torch.float32
    lanes = ProcessorLanes(
        put([2, 0], integers), put([1, 1], integers), put([1.3, 0.8], reals), put([0.5, 0.0], reals),
        put([0.2, -0.1], reals), put([2, 3], integers), put([100, 0], integers),
    )  # fmt: skip
    prompts = torch.randint(vocabulary, (2, 200), generator=generator, device=device).tolist()
    results = []
    for process, record in (
        (process_logits, record_tokens),
        (process_logits_reference, record_tokens_reference),
    ):
        history = TokenHistory(3, vocabulary, 300, device)
        for row, prompt in zip((2, 0), prompts, strict=True):
            load_row(history, row, prompt, prompt[:50], {prompt[0]: 2.0, 7: float("-inf")}, {1, 2})
        scores = logits.clone()
        record(ids, lanes.rows, lanes.flags, history)
        process(scores, lanes, history)
        results.append([scores, *history.graph_buffers().values()])
    unequal = [float((one != other).double().mean()) for one, other in zip(*results, strict=True)]
    return max(unequal), 0.0
