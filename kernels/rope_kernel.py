"""The Triton kernel of `rope_kv_write`: heads as tiles of pairs, in float32 between load and store."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["axis_stride", "query_heads", "kv_heads"])
def rope_kv_write_kernel(
    qkv,
    positions,
    slots,
    cache,
    cos_sin,
    query_norm,
    key_norm,
    axis_of_frequency,
    out,
    qkv_stride,
    out_stride,
    axis_stride,
    page_stride,
    epsilon,
    query_heads,
    kv_heads,
    PAGE_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One token and HEADS heads of its queries, keys or values."""
    HEAD_DIM: tl.constexpr = 2 * HALF
    query_groups = tl.cdiv(query_heads, HEADS)
    kv_groups = tl.cdiv(kv_heads, HEADS)
    # A token's groups are neighbours, so that its row is read in one go.
    groups = query_groups + 2 * kv_groups
    token = tl.program_id(0).to(tl.int64) // groups
    group = tl.program_id(0) % groups
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = qkv + token * qkv_stride
    if group < query_groups:
        first, second = _rotated(
            row, group * HEADS, query_heads, token, positions, cos_sin, query_norm, axis_of_frequency, axis_stride,
            epsilon, HALF, PADDED_HALF, HEADS, INTERLEAVED,
        )  # fmt: skip
        _store_heads(
            out + token * out_stride, group * HEADS, query_heads, HEAD_DIM, True, first, second, HALF, PADDED_HALF,
            HEADS, INTERLEAVED,
        )  # fmt: skip
    else:
        # The slot only masks the stores, so that the other loads do not wait for it.
        slot = tl.load(slots + token).to(tl.int64)
        page = cache + (slot // PAGE_SIZE) * page_stride + (slot % PAGE_SIZE) * HEAD_DIM
        if group < query_groups + kv_groups:
            head = (group - query_groups) * HEADS
            first, second = _rotated(
                row + query_heads * HEAD_DIM, head, kv_heads, token, positions, cos_sin, key_norm, axis_of_frequency,
                axis_stride, epsilon, HALF, PADDED_HALF, HEADS, INTERLEAVED,
            )  # fmt: skip
        else:
            head = (group - query_groups - kv_groups) * HEADS
            page += kv_heads * PAGE_SIZE * HEAD_DIM
            first, second = _load_heads(
                row + (query_heads + kv_heads) * HEAD_DIM,
                head,
                kv_heads,
                HALF,
                PADDED_HALF,
                HEADS,
                INTERLEAVED,
            )
        _store_heads(
            page, head, kv_heads, PAGE_SIZE * HEAD_DIM, slot >= 0, first, second, HALF, PADDED_HALF, HEADS,
            INTERLEAVED,
        )  # fmt: skip


@triton.jit
def _rotated(
    row,
    head,
    count,
    token,
    positions,
    cos_sin,
    norm,
    axis_of_frequency,
    axis_stride,
    epsilon,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """The two members of each pair, [HEADS, PADDED_HALF] float32, after norm and rotation."""
    first, second = _load_heads(row, head, count, HALF, PADDED_HALF, HEADS, INTERLEAVED)
    column = tl.arange(0, PADDED_HALF)
    inside = column < HALF
    if axis_of_frequency is None:
        position = tl.load(positions + token).to(tl.int64)
    else:
        axis = tl.load(axis_of_frequency + column, mask=inside, other=0).to(tl.int64)
        position = tl.load(positions + axis * axis_stride + token, mask=inside, other=0).to(tl.int64)
    angle = cos_sin + position * (2 * HALF) + column
    cosine = tl.load(angle, mask=inside, other=0.0)[None, :]
    sine = tl.load(angle + HALF, mask=inside, other=0.0)[None, :]
    if norm is not None:
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        scale = tl.rsqrt(squares / (2 * HALF) + epsilon)
        first_at, second_at = (2 * column, 2 * column + 1) if INTERLEAVED else (column, column + HALF)
        first = first * scale * tl.load(norm + first_at, mask=inside, other=0.0).to(tl.float32)[None, :]
        second = second * scale * tl.load(norm + second_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def _load_heads(
    row,
    head,
    count,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    heads = head + tl.arange(0, HEADS)[:, None]
    if INTERLEAVED:
        column = tl.arange(0, 2 * PADDED_HALF)[None, :]
        x = tl.load(row + heads * (2 * HALF) + column, mask=(heads < count) & (column < 2 * HALF), other=0.0)
        first, second = tl.split(tl.reshape(x.to(tl.float32), (HEADS, PADDED_HALF, 2)))
    else:
        column = tl.arange(0, PADDED_HALF)[None, :]
        inside = (heads < count) & (column < HALF)
        at = row + heads * (2 * HALF) + column
        first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _store_heads(
    base,
    head,
    count,
    HEAD_STRIDE: tl.constexpr,
    keep,
    first,
    second,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    heads = head + tl.arange(0, HEADS)[:, None]
    if INTERLEAVED:
        column = tl.arange(0, 2 * PADDED_HALF)[None, :]
        x = tl.reshape(tl.join(first, second), (HEADS, 2 * PADDED_HALF))
        tl.store(
            base + heads * HEAD_STRIDE + column,
            _cast(x, base),
            mask=keep & (heads < count) & (column < 2 * HALF),
        )
    else:
        column = tl.arange(0, PADDED_HALF)[None, :]
        inside = keep & (heads < count) & (column < HALF)
        at = base + heads * HEAD_STRIDE + column
        tl.store(at, _cast(first, base), mask=inside)
        tl.store(at + HALF, _cast(second, base), mask=inside)


@triton.jit
def _cast(x, pointer):
    if pointer.dtype.element_ty == tl.float8e4nv:
        x = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(pointer.dtype.element_ty)
