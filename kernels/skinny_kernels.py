"""Triton kernels of `skinny_gemm`: by dot products of threads for a few rows, by tensor cores for up to 64.

Both load weights before they wait for the kernel before: most of what can be saved of a few microseconds.
"""

import triton
import triton.language as tl

MAX_SPLIT = tl.constexpr(8)


@triton.jit
def _weight_tiles(bases, k, width, CHUNK: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr):
    """UNROLL chunks of every base's rows, all loads before any use."""
    tiles = ()
    for t in tl.static_range(len(bases)):
        for index in tl.static_range(UNROLL):
            at = k + index * CHUNK
            tile = tl.load(bases[t] + at, mask=at < width, other=0.0) if MASKED else tl.load(bases[t] + at)
            tiles = tiles + (tile,)
    return tiles


@triton.jit
def _activation_tiles(
    x,
    k,
    rows,
    width,
    x_stride,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    UNROLL: tl.constexpr,
    MASKED: tl.constexpr,
):
    """UNROLL chunks of every row, all loads before any use."""
    tiles = ()
    for row in tl.static_range(ROWS):
        for index in tl.static_range(UNROLL):
            at = k + index * CHUNK
            pointer = x + row * x_stride + at
            if MASKED:
                tile = tl.load(pointer, mask=(at < width) & (row < rows), other=0.0)
            elif row > 0:
                tile = tl.load(pointer, mask=(at >= 0) & (row < rows), other=0.0)
            else:
                tile = tl.load(pointer)
            tiles = tiles + (tile,)
    return tiles


@triton.jit
def _accumulate(
    sums,
    tiles,
    xs,
    factors,
    norm_weight,
    k,
    inverses,
    scale_rows,
    start,
    width,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    UNROLL: tl.constexpr,
    MASKED: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    FP8: tl.constexpr,
):
    """sums[row, tile] += tiles[tile, chunk] * xs[row, chunk], element by element."""
    for index in tl.static_range(UNROLL):
        scales = ()
        if FP8:
            column = (start + index * CHUNK) // 128
            for t in tl.static_range(2 if SILU else 1):
                scales = scales + (tl.load(scale_rows[t] + column, mask=column * 128 < width, other=0.0),)
        if NORM:
            # e4m3 weights leave no registers to fetch these ahead.
            if FP8:
                at = start + index * CHUNK + k
                factor = (
                    tl.load(norm_weight + at, mask=at < width, other=0.0)
                    if MASKED
                    else tl.load(norm_weight + at)
                )
            else:
                factor = factors[index]
        updated = ()
        for row in tl.static_range(ROWS):
            value = xs[row * UNROLL + index]
            if NORM:
                normed = (value.to(tl.float32) * inverses[row]).to(value.dtype)
                value = (normed.to(tl.float32) * factor.to(tl.float32)).to(value.dtype)
            value = value.to(tl.float32)
            if FP8 and not SILU:
                value *= scales[0]
            for t in tl.static_range(TILES):
                scaled = value
                if FP8 and SILU:
                    scaled = value * scales[t % 2]
                updated = updated + (
                    sums[row * TILES + t] + tiles[t * UNROLL + index].to(tl.float32) * scaled,
                )
        sums = updated
    return sums


@triton.jit
def _silu_mul(gate, up, dtype: tl.constexpr):
    """Both come rounded to `dtype`, and the silu rounds before the product."""
    gate = gate.to(tl.float32)
    return ((gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up.to(tl.float32)).to(dtype)


@triton.jit(
    do_not_specialize=["rows", "features", "width_units", "x_units", "out_stride", "residual_stride", "eps"]
)
def vector_kernel(
    x,
    weight,
    scale,
    norm_weight,
    residual,
    out,
    rows,
    features,
    width_units,
    x_units,
    out_stride,
    residual_stride,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    UNROLL: tl.constexpr,
    LOOP: tl.constexpr,
    MASKED: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    """Few rows: every thread multiplies what it loaded and sums are made once at the end. x is read in the layout of
    the weight, so that no data crosses warps. `features` counts rows of out; the up projection's follow the gate's."""
    width = width_units * 16
    x_stride = x_units.to(tl.int64) * 8
    k = tl.arange(0, CHUNK)[None, :] + tl.zeros([BLOCK_N, 1], tl.int32)
    # With SILU every other tile is of the up projection, which lies `features` rows further.
    first = tl.program_id(0).to(tl.int64) * (BLOCK_N * TILES // 2 if SILU else BLOCK_N * TILES)
    bases = ()
    scale_rows = ()
    for t in tl.static_range(TILES):
        start_row = first + (t // 2 * BLOCK_N if SILU else t * BLOCK_N)
        further = (t % 2) * features if SILU else 0
        # Rows past the end read the last one: no masks on the loads, and nothing of them is stored.
        n = tl.minimum(start_row + tl.arange(0, BLOCK_N)[:, None], features - 1) + further
        bases = bases + (weight + n * width,)
        scale_rows = scale_rows + (scale + (start_row + further) // 128 * ((width + 127) // 128),)
    tiles = _weight_tiles(bases, k, width, CHUNK, UNROLL, MASKED)
    factors = ()
    if NORM and not FP8:
        factors = _weight_tiles((norm_weight,), k, width, CHUNK, UNROLL, MASKED)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    xs = _activation_tiles(x, k, rows, width, x_stride, ROWS, CHUNK, UNROLL, MASKED)
    inverses = ()
    sums = ()
    for row in tl.static_range(ROWS):
        if NORM:
            squares = tl.zeros([BLOCK_N, CHUNK], tl.float32)
            for index in tl.static_range(UNROLL):
                value = xs[row * UNROLL + index].to(tl.float32)
                squares += value * value
            if LOOP:
                for at in range(CHUNK * UNROLL, width, CHUNK):
                    mask = (k + at < width) & (row < rows)
                    value = tl.load(x + row * x_stride + k + at, mask=mask, other=0.0).to(tl.float32)
                    squares += value * value
            inverses = inverses + (tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / width + eps),)
        for _t in tl.static_range(TILES):
            sums = sums + (tl.zeros([BLOCK_N, CHUNK], tl.float32),)
    sums = _accumulate(
        sums,
        tiles,
        xs,
        factors,
        norm_weight,
        k,
        inverses,
        scale_rows,
        0,
        width,
        ROWS,
        TILES,
        CHUNK,
        UNROLL,
        MASKED,
        NORM,
        SILU,
        FP8,
    )
    if LOOP:
        for start in range(CHUNK * UNROLL, width, CHUNK * UNROLL):
            moved = ()
            for t in tl.static_range(TILES):
                moved = moved + (bases[t] + start,)
            tiles = _weight_tiles(moved, k, width - start, CHUNK, UNROLL, MASKED)
            factors = ()
            if NORM and not FP8:
                factors = _weight_tiles((norm_weight + start,), k, width - start, CHUNK, UNROLL, MASKED)
            xs = _activation_tiles(x + start, k, rows, width - start, x_stride, ROWS, CHUNK, UNROLL, MASKED)
            sums = _accumulate(
                sums,
                tiles,
                xs,
                factors,
                norm_weight,
                k,
                inverses,
                scale_rows,
                start,
                width,
                ROWS,
                TILES,
                CHUNK,
                UNROLL,
                MASKED,
                NORM,
                SILU,
                FP8,
            )
    dtype = out.dtype.element_ty
    for row in tl.static_range(ROWS):
        for t in tl.static_range(TILES // 2 if SILU else TILES):
            n = first + tl.arange(0, BLOCK_N) + t * BLOCK_N
            mask = (n < features) & (row < rows)
            if SILU:
                gate = tl.sum(sums[row * TILES + 2 * t], axis=1).to(dtype)
                up = tl.sum(sums[row * TILES + 2 * t + 1], axis=1).to(dtype)
                result = _silu_mul(gate, up, dtype)
            else:
                result = tl.sum(sums[row * TILES + t], axis=1).to(dtype)
            if RESIDUAL:
                other = tl.load(residual + row * residual_stride.to(tl.int64) + n, mask=mask)
                result = (result.to(tl.float32) + other.to(tl.float32)).to(dtype)
            tl.store(out + row * out_stride.to(tl.int64) + n, result, mask=mask)


@triton.jit
def _finish(
    acc,
    acc_up,
    m,
    n,
    residual,
    out,
    rows,
    features,
    out_stride,
    residual_stride,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    dtype = out.dtype.element_ty
    mask = (m[:, None] < rows) & (n[None, :] < features)
    result = acc.to(dtype)
    if SILU:
        result = _silu_mul(result, acc_up.to(dtype), dtype)
    row = m[:, None].to(tl.int64)
    if RESIDUAL:
        other = tl.load(residual + row * residual_stride.to(tl.int64) + n[None, :], mask=mask)
        result = (result.to(tl.float32) + other.to(tl.float32)).to(dtype)
    tl.store(out + row * out_stride.to(tl.int64) + n[None, :], result, mask=mask)


@triton.jit
def _prefetch(pointers):
    """Fetch the cache lines that `pointers` lie in into the second-level cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(
    do_not_specialize=["rows", "features", "width_units", "x_units", "out_stride", "residual_stride", "split"]
)
def matrix_kernel(
    x,
    weight,
    scale,
    residual,
    out,
    partials,
    counters,
    rows,
    features,
    width_units,
    x_units,
    out_stride,
    residual_stride,
    split,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FP8: tl.constexpr,
    SWAP: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
    WIDE: tl.constexpr,
    BY_FLOAT: tl.constexpr,
):
    """More rows: tensor cores; program (tile of features, part of the width). `PREFETCH` columns of the weight are
    fetched into the cache while the kernel before still runs."""
    width = width_units * 16
    first = tl.program_id(0).to(tl.int64) * BLOCK_N
    part = tl.program_id(1)
    steps = (width + BLOCK_K - 1) // BLOCK_K
    begin = (steps * part // split) * BLOCK_K
    end = tl.minimum((steps * (part + 1) // split) * BLOCK_K, width)
    n = first + tl.arange(0, BLOCK_N)
    row_n = tl.minimum(n, features - 1)
    if PDL:
        if PREFETCH > 0:
            LINE: tl.constexpr = 128 if FP8 else 64
            lines = begin + tl.arange(0, PREFETCH // LINE)[None, :] * LINE
            lines = tl.where(lines < end, lines, begin)  # past the part's end its first line again
            _prefetch(weight + row_n[:, None] * width + lines)
            if SILU:
                _prefetch(weight + (row_n + features)[:, None] * width + lines)
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    m = tl.arange(0, BLOCK_M)
    x_base = x + tl.minimum(m, rows - 1)[:, None].to(tl.int64) * (x_units.to(tl.int64) * 8)
    w_base = weight + row_n[:, None] * width
    scale_columns = (width + 127) // 128
    scale_base = scale + (first // 128) * scale_columns
    up_scale_base = scale + ((first + features) // 128) * scale_columns
    acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
    acc_up = acc
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        xs = tl.load(x_base + k, mask=k < width, other=0.0) if MASKED else tl.load(x_base + k)
        ws = tl.load(w_base + k, mask=k < width, other=0.0) if MASKED else tl.load(w_base + k)
        if SILU:
            up = w_base + features.to(tl.int64) * width + k
            us = tl.load(up, mask=k < width, other=0.0) if MASKED else tl.load(up)
        xs = xs.to(tl.float32) if WIDE else xs
        ws = (ws.to(tl.float32) if BY_FLOAT else ws).to(xs.dtype)
        if SILU:
            us = (us.to(tl.float32) if BY_FLOAT else us).to(xs.dtype)
        if FP8:
            # A step is within one block of scales: the product of unscaled weights times one factor.
            piece = tl.dot(ws, xs.T) if SWAP else tl.dot(xs, ws.T)
            acc += piece * tl.load(scale_base + start // 128)
            if SILU:
                piece = tl.dot(us, xs.T) if SWAP else tl.dot(xs, us.T)
                acc_up += piece * tl.load(up_scale_base + start // 128)
        else:
            acc = tl.dot(ws, xs.T, acc) if SWAP else tl.dot(xs, ws.T, acc)
            if SILU:
                acc_up = tl.dot(us, xs.T, acc_up) if SWAP else tl.dot(xs, us.T, acc_up)
    if SWAP:
        acc = tl.trans(acc)
        acc_up = tl.trans(acc_up)
    if split > 1:
        SIZE: tl.constexpr = BLOCK_M * BLOCK_N
        PART: tl.constexpr = SIZE * 2 if SILU else SIZE
        at = m[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        tile = partials + tl.program_id(0) * split * PART + at
        tl.store(tile + part * PART, acc)
        if SILU:
            tl.store(tile + part * PART + SIZE, acc_up)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel")
        if arrived == split - 1:
            # The last one to arrive adds all in order, its own included, and leaves the counter as it was found.
            tl.store(counters + tl.program_id(0), 0)
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            acc_up = acc
            for index in tl.static_range(MAX_SPLIT):
                mask = (at >= 0) & (index < split)
                acc += tl.load(tile + index * PART, mask=mask, other=0.0, cache_modifier=".cg")
                if SILU:
                    acc_up += tl.load(tile + index * PART + SIZE, mask=mask, other=0.0, cache_modifier=".cg")
            _finish(
                acc, acc_up, m, n, residual, out, rows, features, out_stride, residual_stride, SILU, RESIDUAL
            )
    else:
        _finish(acc, acc_up, m, n, residual, out, rows, features, out_stride, residual_stride, SILU, RESIDUAL)
