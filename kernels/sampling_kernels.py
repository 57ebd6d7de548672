"""Triton kernels of `sampling`: its log-probabilities, and the choice of a token where there is no nvcc."""

import triton
import triton.language as tl


@triton.jit
def _keys(x, BITS: tl.constexpr):
    """Signed numbers in the order of the floats; of bfloat16 values the upper half holds all."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> (32 - BITS)


@triton.jit
def _weights(x, largest, factor):
    """exp2((x - largest) * factor) and that as a whole number of 2^-34."""
    weight = tl.exp2((x - largest) * factor)
    shifted = weight + 96.0
    rest = weight - (shifted - 96.0)
    high = shifted.to(tl.int32, bitcast=True) - 0x42C00000
    low = (rest + 0.000732421875).to(tl.int32, bitcast=True) - 0x3A400000
    return weight, (high.to(tl.int64) << 17) + low


@triton.jit
def _above(
    row, vocabulary, key, largest, factor, WEIGHTED: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """Count, or weight, of the tokens with a key above `key`."""
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        inside = _keys(x, BITS).to(tl.int64) > key
        if WEIGHTED:
            _, whole = _weights(x, largest, factor)
            total += tl.where(inside, whole, 0)
        else:
            total += inside.to(tl.int64)
    return tl.sum(total)


@triton.jit
def _threshold(
    row,
    vocabulary,
    goal,
    below,
    above,
    largest,
    factor,
    WEIGHTED: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The least key in (below, above] with less than `goal` above it."""
    while above - below > 1:
        middle = (above + below) >> 1
        if _above(row, vocabulary, middle, largest, factor, WEIGHTED, BITS, BLOCK).to(tl.float64) < goal:
            above = middle
        else:
            below = middle
    return above


@triton.jit
def _first_of(row, vocabulary, largest, BLOCK: tl.constexpr):
    """The lowest index at which the row holds `largest`."""
    first = tl.full([BLOCK], 0x7FFFFFFF, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        first = tl.minimum(first, tl.where((x == largest) & (at < vocabulary), at, 0x7FFFFFFF))
    return tl.min(first)


@triton.jit
def _winner(
    row, vocabulary, below, largest, factor, least, seed, position, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """The token that wins the race of those with a key above `below` and a weight of at least `least`."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        weight, _ = _weights(x, largest, factor)
        kept_here = (_keys(x, BITS).to(tl.int64) > below) & (weight >= least)
        a, b, c, d = tl.philox(seed, at // 4, position.to(tl.uint32), (position >> 32).to(tl.uint32), 0)
        word = tl.where(at % 4 < 2, tl.where(at % 4 == 0, a, b), tl.where(at % 4 == 2, c, d))
        v = tl.minimum(
            word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10, 0.9999999403953552
        )
        series = v * (v * (v * (v * 0.25 + 0.33333334) + 0.5) + 1.0)
        variate = tl.where(v < 0.015625, series, tl.log2(1.0 - v) * -0.6931472)
        score = (x - largest) * factor - tl.log2(variate)
        # A kept token beats one that is not, even where its score is -inf.
        score = tl.where(kept_here, tl.maximum(score, -3.0e38), float("-inf"))
        best_at = tl.where(score > best, at, best_at)
        best = tl.maximum(best, score)
    return tl.min(tl.where(best == tl.max(best), best_at, 0x7FFFFFFF))


@triton.jit(do_not_specialize=["vocabulary", "stride_vectors"])
def sample_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    ids,
    statuses,
    vocabulary,
    stride_vectors,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    row = logits + lane * (stride_vectors.to(tl.int64) * (8 if BITS == 16 else 4))
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    nans = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        nans |= (x != x).to(tl.int32)
        most = tl.maximum(most, x)
    largest = tl.max(most)
    status = tl.where(largest == float("inf"), 3, tl.where(largest == float("-inf"), 2, 0))
    status = tl.where(tl.max(nans) > 0, 1, status)
    tl.store(statuses + lane, status)
    if status != 0:
        tl.store(ids + lane, 0)
    else:
        # Without temperatures there are no seeds either: what reads them must not be compiled.
        if temperatures is None:
            tl.store(ids + lane, _first_of(row, vocabulary, largest, BLOCK))
        else:
            temperature = tl.load(temperatures + lane)
            if temperature >= 1e-5:
                factor = tl.div_rn(1.442695041, temperature)
                top_key = tl.max(_keys(tl.full([1], 0.0, tl.float32) + largest, BITS)).to(tl.int64)
                k = 0 if top_ks is None else tl.load(top_ks + lane)
                p = 1.0 if top_ps is None else tl.load(top_ps + lane)
                least = 0.0 if min_ps is None else tl.minimum(tl.load(min_ps + lane), 1.0)
                below = tl.full([], -2139095041 >> (32 - BITS), tl.int64)  # of -inf
                if (k > 0) & (k < vocabulary):
                    goal = k.to(tl.float64)
                    at_least = _threshold(
                        row, vocabulary, goal, below, top_key, largest, factor, False, BITS, BLOCK
                    )
                    below = at_least - 1
                if p < 1.0:
                    kept = _above(row, vocabulary, below, largest, factor, True, BITS, BLOCK).to(tl.float64)
                    goal = p.to(tl.float64) * kept
                    at_least = _threshold(
                        row, vocabulary, goal, below, top_key, largest, factor, True, BITS, BLOCK
                    )
                    below = at_least - 1
                seed = tl.load(seeds + lane).to(tl.uint64)
                position = tl.load(positions + lane).to(tl.int64)
                winner = _winner(row, vocabulary, below, largest, factor, least, seed, position, BITS, BLOCK)
                tl.store(ids + lane, winner)
            else:
                tl.store(ids + lane, _first_of(row, vocabulary, largest, BLOCK))


@triton.jit(do_not_specialize=["vocabulary", "stride_vectors", "top"])
def top_of_chunk_kernel(
    logits, sums, values, indices, vocabulary, stride_vectors, top, BITS: tl.constexpr, CHUNK: tl.constexpr
):
    """Of a chunk of a row: largest logit, sum of exponentials below it, and its `top` largest in order."""
    lane = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    row = logits + lane * (stride_vectors.to(tl.int64) * (8 if BITS == 16 else 4))
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(row + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    largest = tl.max(x)
    slot = lane * tl.num_programs(1) + chunk
    # Of a chunk of nothing but -inf the sum is 0, not NaN.
    tl.store(sums + slot * 2, largest)
    tl.store(sums + slot * 2 + 1, tl.sum(tl.exp(x - tl.where(largest == float("-inf"), 0.0, largest))))
    for place in range(top):
        value = tl.max(x)
        index = tl.min(tl.where((x == value) & (at < vocabulary), at, 0x7FFFFFFF))
        tl.store(values + slot * top + place, value)
        tl.store(indices + slot * top + place, index)
        # Marks a token as taken; a NaN, larger than nothing, ends the order.
        at = tl.where(at == index, 0x7FFFFFFF, at)
        x = tl.where(at == 0x7FFFFFFF, float("-inf"), x)


@triton.jit(do_not_specialize=["vocabulary", "stride_vectors", "top", "chunks"])
def log_probability_kernel(
    logits,
    ids,
    sums,
    values,
    indices,
    chosen,
    top_ids,
    top_logs,
    vocabulary,
    stride_vectors,
    top,
    chunks,
    BITS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, CHUNKS)
    largest_of = tl.load(sums + (lane * chunks + part) * 2, mask=part < chunks, other=float("-inf"))
    sum_of = tl.load(sums + (lane * chunks + part) * 2 + 1, mask=part < chunks, other=0.0)
    largest = tl.max(largest_of)
    normaliser = largest + tl.log(tl.sum(sum_of * tl.exp(largest_of - largest)))
    at = tl.load(ids + lane).to(tl.int64)
    row = logits + lane * (stride_vectors.to(tl.int64) * (8 if BITS == 16 else 4))
    inside = (at >= 0) & (at < vocabulary)
    logit = tl.load(row + at, mask=inside, other=float("nan")).to(tl.float32)
    tl.store(chosen + lane, logit - normaliser)
    candidate = tl.arange(0, CANDIDATES)
    mask = candidate < chunks * top
    value = tl.load(values + lane * chunks * top + candidate, mask=mask, other=float("-inf"))
    index = tl.load(indices + lane * chunks * top + candidate, mask=mask, other=0x7FFFFFFF)
    for place in range(top):
        most = tl.max(value)
        token = tl.min(tl.where(value == most, index, 0x7FFFFFFF))
        tl.store(top_ids + lane * top + place, tl.minimum(token, vocabulary - 1))
        tl.store(top_logs + lane * top + place, most - normaliser)
        taken = index == token
        value = tl.where(taken, float("-inf"), value)
        index = tl.where(taken, 0x7FFFFFFF, index)
