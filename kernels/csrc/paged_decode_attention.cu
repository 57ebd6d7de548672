// Decode attention over a paged cache; contract, schedule and workspace are those of kernels/paged_decode_attention.py.
//
// Every warp streams its own 16-token tiles through its own ring of cp.async stages, so no barrier stands between the
// loads and the arithmetic, and its ring runs on across items: while one item's parts are merged, the next item's
// tiles are already on their way. Scores are computed transposed (tokens are rows of the mma, query heads its 8
// columns): the group of a grouped-query model fills half of the tensor core's columns instead of a quarter of its rows.
//
// Macros: HEAD_DIM (64, 128, 256), E4M3 (the cache holds float8_e4m3fn), HALF (queries are fp16, else bf16), COLUMNS (a
// group has at most 8 times as many heads), WARPS of a block, STAGES of a warp's ring, BLOCKS that shall fit on a
// multiprocessor.

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "dependent_launch.cuh"

namespace {

constexpr int kTile = 16;
constexpr int kGranule = 64;
constexpr int kThreads = WARPS * 32;
constexpr int kElementBytes = E4M3 ? 1 : 2;
constexpr int kRowBytes = HEAD_DIM * kElementBytes;
constexpr int kRowVectors = kRowBytes / 16;
constexpr int kTileBytes = kTile * kRowBytes;
constexpr int kRingBytes = WARPS * STAGES * 2 * kTileBytes;
constexpr int kSteps = HEAD_DIM / 16;
constexpr unsigned kAll = 0xffffffffu;

struct Arguments {
    const void *q;
    const uint8_t *cache;
    const int *pages;
    const int *indptr;  // null: pages is a padded table
    const int *lengths;
    void *out;
    float *logsumexp;  // null: not wanted
    float *partial;
    float *stats;
    int *arrivals;
    float qk_scale, v_scale;
    int batch, kv_heads, group, page_shift, splits, min_chunk;
    int64_t q_lane_stride, q_head_stride, out_lane_stride, out_head_stride, pages_stride;
};

struct Item {
    int lane, head, part, chunks, start, stop;
};

__device__ __forceinline__ int chunk_of(const Arguments &a, int length) {
    int share = (length + a.splits - 1) / a.splits;
    return max(a.min_chunk, (share + kGranule - 1) / kGranule * kGranule);
}

// A lane of length 0 is one item without tokens: it writes its zeros.
__device__ __forceinline__ int chunks_of(const Arguments &a, int length) {
    int chunk = chunk_of(a, length);
    return max(1, (length + chunk - 1) / chunk);
}

// Inclusive prefix sum of the lanes' chunk counts into ends[]; the whole block takes part.
__device__ void sum_chunks(const Arguments &a, int *ends, int *warp_sums) {
    int before = 0;
    int warp = threadIdx.x / 32, thread = threadIdx.x % 32;
    for (int first = 0; first < a.batch; first += kThreads) {
        int lane = first + threadIdx.x;
        int value = lane < a.batch ? chunks_of(a, a.lengths[lane]) : 0;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(kAll, value, step);
            if (thread >= step) value += other;
        }
        if (thread == 31) warp_sums[warp] = value;
        __syncthreads();
        int all = 0;
        for (int other = 0; other < WARPS; ++other) {
            if (other < warp) value += warp_sums[other];
            all += warp_sums[other];
        }
        if (lane < a.batch) ends[lane] = before + value;
        before += all;
        __syncthreads();
    }
}

// The item of a number; `lane` is where the search starts (numbers only grow). The whole warp takes part.
__device__ __forceinline__ Item find(const Arguments &a, const int *ends, int number, int lane) {
    int column = number / a.kv_heads;
    int thread = threadIdx.x % 32;
    for (;;) {
        int candidate = lane + thread;
        bool passed = candidate < a.batch && ends[candidate] <= column;
        int count = __popc(__ballot_sync(kAll, passed));
        lane += count;
        if (count < 32) break;
    }
    int length = a.lengths[lane];
    int chunk = chunk_of(a, length);
    int begin = lane ? ends[lane - 1] : 0;
    Item item;
    item.lane = lane;
    item.head = number - column * a.kv_heads;
    item.part = column - begin;
    item.chunks = ends[lane] - begin;
    item.start = item.part * chunk;
    item.stop = min(length, item.start + chunk);
    return item;
}

__device__ __forceinline__ const int *pages_of(const Arguments &a, int lane) {
    return a.pages + (a.indptr ? int64_t(a.indptr[lane]) : lane * a.pages_stride);
}

// This warp's tiles of an item: tile i starts at token start + (i * WARPS + warp) * kTile.
__device__ __forceinline__ int tiles_of(const Item &item, int warp) {
    int all = (item.stop - item.start + kTile - 1) / kTile;
    return (all - warp + WARPS - 1) / WARPS;
}

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

// Vectors of a row are permuted by the row's number, so that 8 rows' same vector lies in 8 different bank groups.
__device__ __forceinline__ int swizzled(int row, int vector) {
    if constexpr (kRowVectors >= 8) return row * kRowBytes + ((vector ^ (row & 7)) * 16);
    return row * kRowBytes + ((vector ^ ((row >> 1) & 3)) * 16);
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ uint32_t transpose(uint32_t value) {
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(value));
    return result;
}

// c += a . b, of fp16 or bf16.
template <bool FP16>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (FP16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool FP16>
__device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (FP16) {
        __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&pair);
    } else {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&pair);
    }
}

// fp16 holds every e4m3 number, so values and weights meet in it whatever the queries are: one conversion instead of
// four. Keys meet queries in the queries' type, whose range may be bf16's.
constexpr bool kHalfQueries = HALF;
constexpr bool kHalfWeights = HALF || E4M3;

#if E4M3
template <bool FP16>
__device__ __forceinline__ uint32_t widen(uint32_t pair) {
    __half2_raw half = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    if constexpr (FP16) return *reinterpret_cast<uint32_t *>(&half);
    float2 wide = __half22float2(__half2(half));
    return pack<FP16>(wide.x, wide.y);
}
#endif

// The tile's keys as left operands of the score product, 16 dims a step.
__device__ __forceinline__ void load_keys(uint32_t (&left)[kSteps][4], uint32_t tile) {
    int thread = threadIdx.x % 32;
    int row = thread % 16, half = thread / 16;
#if E4M3
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
        uint32_t raw[4];
        load_matrices(raw, tile + swizzled(row, step + half));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            left[step + i][0] = widen<kHalfQueries>(raw[2 * i] & 0xffff);
            left[step + i][1] = widen<kHalfQueries>(raw[2 * i + 1] & 0xffff);
            left[step + i][2] = widen<kHalfQueries>(raw[2 * i] >> 16);
            left[step + i][3] = widen<kHalfQueries>(raw[2 * i + 1] >> 16);
        }
    }
#else
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_matrices(left[step], tile + swizzled(row, 2 * step + half));
#endif
}

// Which dims of a step a thread's query registers hold: with e4m3 keys ldmatrix hands out four bytes a thread.
__device__ __forceinline__ int query_dim(int thread_in_group, int reg) {
#if E4M3
    return thread_in_group * 4 + reg * 2;
#else
    return thread_in_group * 2 + reg * 8;
#endif
}

// Which dim of a step an accumulator's row is.
__device__ __forceinline__ int value_dim(int group_of_thread, int upper) {
#if E4M3
    return group_of_thread * 2 + upper;
#else
    return group_of_thread + upper * 8;
#endif
}

__device__ __forceinline__ void add_values(float (&sum)[COLUMNS][kSteps][4], const uint32_t (&weights)[COLUMNS][2],
                                           uint32_t tile) {
    int thread = threadIdx.x % 32;
#if E4M3
    int row = thread % 16, half = thread / 16;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
        uint32_t raw[4];
        load_transposed(raw, tile + swizzled(row, step + half));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint32_t left[4];
            left[0] = widen<kHalfWeights>(__byte_perm(raw[2 * i], 0, 0x4420));
            left[1] = widen<kHalfWeights>(__byte_perm(raw[2 * i], 0, 0x4431));
            left[2] = widen<kHalfWeights>(__byte_perm(raw[2 * i + 1], 0, 0x4420));
            left[3] = widen<kHalfWeights>(__byte_perm(raw[2 * i + 1], 0, 0x4431));
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column)
                multiply<kHalfWeights>(sum[column][step + i], left, weights[column][0], weights[column][1]);
        }
    }
#else
    int row = thread % 8 + thread / 16 * 8, half = thread / 8 % 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        uint32_t left[4];
        load_transposed(left, tile + swizzled(row, 2 * step + half));
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            multiply<kHalfWeights>(sum[column][step], left, weights[column][0], weights[column][1]);
    }
#endif
}

// Runs ahead of the arithmetic through the same items and tiles, filling the warp's ring.
struct Feeder {
    int number, lane, tile, tiles, start, stop;
    int ids;  // thread i: page of tile (tile & ~31) + i
    const int *pages;
    int64_t head_offset;
    // The item after this one, whose page numbers are already on their way.
    int next_number, next_tiles, next_start, next_stop, next_ids;
    const int *next_pages;
    int64_t next_head_offset;

    __device__ __forceinline__ int page_of(const Arguments &a, const int *from, int first, int i, int tiles_) {
        int warp = threadIdx.x / 32;
        return i < tiles_ ? __ldg(from + ((first + (i * WARPS + warp) * kTile) >> a.page_shift)) : 0;
    }

    __device__ __forceinline__ void look_ahead(const Arguments &a, const int *ends, int total, int which) {
        next_number = which;
        next_tiles = 0;
        if (which >= total) return;
        Item item = find(a, ends, which, lane);
        lane = item.lane;
        next_tiles = tiles_of(item, threadIdx.x / 32);
        next_start = item.start;
        next_stop = item.stop;
        next_pages = pages_of(a, item.lane);
        next_head_offset = int64_t(item.head) * kRowBytes << a.page_shift;
        next_ids = page_of(a, next_pages, item.start, threadIdx.x % 32, next_tiles);
    }

    __device__ __forceinline__ void step_item(const Arguments &a, const int *ends, int total) {
        number = next_number;
        tile = 0;
        tiles = next_tiles;
        start = next_start;
        stop = next_stop;
        ids = next_ids;
        pages = next_pages;
        head_offset = next_head_offset;
        look_ahead(a, ends, total, number + gridDim.x);
    }

    __device__ __forceinline__ void begin(const Arguments &a, const int *ends, int total) {
        lane = 0;
        look_ahead(a, ends, total, blockIdx.x);
        step_item(a, ends, total);
    }

    // Ask for one more tile into `ring_slot`, if there is one; always closes a cp.async group.
    __device__ __forceinline__ void feed(const Arguments &a, const int *ends, int total, uint32_t ring_slot) {
        while (tile >= tiles && number < total) step_item(a, ends, total);
        if (tile < tiles) {
            int warp = threadIdx.x / 32, thread = threadIdx.x % 32;
            if (tile && tile % 32 == 0) ids = page_of(a, pages, start, tile + thread, tiles);
            int page = __shfl_sync(kAll, ids, tile % 32);
            int token = start + (tile * WARPS + warp) * kTile;
            int64_t value_offset = int64_t(a.kv_heads) * kRowBytes << a.page_shift;
            int in_page = token & ((1 << a.page_shift) - 1);
            const uint8_t *keys = a.cache + page * (2 * value_offset) + head_offset + in_page * kRowBytes;
            constexpr int kRowsAtOnce = 32 / kRowVectors > 0 ? 32 / kRowVectors : 1;
            int live = stop - token;
#pragma unroll
            for (int i = 0; i < kTile * kRowVectors / 32; ++i) {
                int vector = kRowVectors >= 32 ? thread : thread % kRowVectors;
                int row = i * kRowsAtOnce + (kRowVectors >= 32 ? 0 : thread / kRowVectors);
                int bytes = row < live ? 16 : 0;  // 0: filled with zeros, nothing read
                int from = row * kRowBytes + vector * 16;
                uint32_t to = ring_slot + swizzled(row, vector);
                copy_async(to, keys + from, bytes);
                copy_async(to + kTileBytes, keys + value_offset + from, bytes);
            }
            ++tile;
        }
        asm volatile("cp.async.commit_group;");
    }
};

__device__ __forceinline__ void load_queries(const Arguments &a, const Item &item, uint32_t (&right)[COLUMNS][kSteps][2]) {
    int thread = threadIdx.x % 32;
    const uint16_t *base = static_cast<const uint16_t *>(a.q) + item.lane * a.q_lane_stride;
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
        int head = column * 8 + thread / 4;
        const uint16_t *row = base + (int64_t(item.head) * a.group + head) * a.q_head_stride;
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
            for (int reg = 0; reg < 2; ++reg)
                right[column][step][reg] =
                    head < a.group
                        ? *reinterpret_cast<const uint32_t *>(row + step * 16 + query_dim(thread % 4, reg))
                        : 0;
    }
}

__device__ __forceinline__ void store_output(const Arguments &a, int lane, int q_head, int dim, float4 v) {
    uint2 packed = {pack<kHalfQueries>(v.x, v.y), pack<kHalfQueries>(v.z, v.w)};
    uint16_t *row = static_cast<uint16_t *>(a.out) + lane * a.out_lane_stride + q_head * a.out_head_stride;
    *reinterpret_cast<uint2 *>(row + dim) = packed;
}

// exp2 of a difference of maxima, where both may be -inf: nothing was seen, nothing is kept.
__device__ __forceinline__ float decayed(float from, float to) { return from == -INFINITY ? 0.f : exp2f(from - to); }

__device__ __forceinline__ void finish(const Arguments &a, const Item &item, int head, int dim, float4 sum, float maximum,
                                       float weight) {
    float factor = weight > 0.f ? a.v_scale / weight : 0.f;
    int q_head = item.head * a.group + head;
    store_output(a, item.lane, q_head, dim,
                 {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor});
    if (a.logsumexp && dim == 0)
        a.logsumexp[int64_t(item.lane) * a.kv_heads * a.group + q_head] =
            weight > 0.f ? (maximum + log2f(weight)) * 0.6931471805599453f : -INFINITY;
}

__device__ __forceinline__ int64_t row_of(const Arguments &a, const Item &item) {
    return int64_t(item.lane) * a.kv_heads + item.head;
}

// How many chunks of the item's row were there before this one; the last leaves the counter at 0 for the next launch.
__device__ __forceinline__ int arrive(const Arguments &a, const Item &item) {
    int *counter = a.arrivals + row_of(a, item);
    int before = atomicAdd(counter, 1);
    if (before == item.chunks - 1) *counter = 0;
    return before;
}

// All chunks of the item's row, in their order, into the output; the whole block takes part.
__device__ __forceinline__ void merge(const Arguments &a, const Item &item) {
    __threadfence();
    int64_t slot = row_of(a, item) * a.splits;
    for (int place = threadIdx.x; place < a.group * (HEAD_DIM / 4); place += kThreads) {
        int head = place / (HEAD_DIM / 4), dim = place % (HEAD_DIM / 4) * 4;
        const float2 *stats = reinterpret_cast<const float2 *>(a.stats) + slot * a.group + head;
        const float *parts = a.partial + (slot * a.group + head) * HEAD_DIM + dim;
        float top = -INFINITY, all = 0.f;
        float4 value = {0.f, 0.f, 0.f, 0.f};
        constexpr int kAtOnce = 8;
        for (int first = 0; first < item.chunks; first += kAtOnce) {
            float2 stat[kAtOnce];
            float4 v[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                bool there = first + i < item.chunks;
                int64_t chunk = int64_t(first + i) * a.group;
                stat[i] = there ? __ldcg(stats + chunk) : float2{-INFINITY, 0.f};
                v[i] = there ? __ldcg(reinterpret_cast<const float4 *>(parts + chunk * HEAD_DIM))
                             : float4{0.f, 0.f, 0.f, 0.f};
            }
            float higher = top;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) higher = fmaxf(higher, stat[i].x);
            float decay = decayed(top, higher);
            top = higher;
            all *= decay, value.x *= decay, value.y *= decay, value.z *= decay, value.w *= decay;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                float gain = decayed(stat[i].x, top);
                all += stat[i].y * gain;
                value.x += v[i].x * gain, value.y += v[i].y * gain;
                value.z += v[i].z * gain, value.w += v[i].w * gain;
            }
        }
        finish(a, item, head, dim, value, top, all);
    }
}

__global__ void __launch_bounds__(kThreads, BLOCKS) decode(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) uint8_t shared[];
    float *sums = reinterpret_cast<float *>(shared + kRingBytes);                  // [WARPS][group][HEAD_DIM]
    float2 *seen = reinterpret_cast<float2 *>(sums + WARPS * a.group * HEAD_DIM);  // [WARPS][group]: maximum, weight
    int *scratch = reinterpret_cast<int *>(seen + WARPS * a.group);
    int *ends = scratch + 16;

    let_next_grid_start();
    wait_for_previous_grid();
    int warp = threadIdx.x / 32, thread = threadIdx.x % 32;
    sum_chunks(a, ends, scratch);
    int total = ends[a.batch - 1] * a.kv_heads;
    if (blockIdx.x >= total) return;
    uint32_t ring = shared_address(shared) + warp * STAGES * 2 * kTileBytes;

    Feeder feeder;
    feeder.begin(a, ends, total);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) feeder.feed(a, ends, total, ring + stage * 2 * kTileBytes);
    int consume = 0, refill = STAGES - 1;

    // A split item's arrival is counted when the next one ends: by then its parts are long written, and neither the
    // fence nor the atomic keeps the ring waiting. The next item's queries travel meanwhile, too.
    bool pending = false;
    Item waiting;
    Item item = find(a, ends, blockIdx.x, 0);
    uint32_t queries[COLUMNS][kSteps][2];
    load_queries(a, item, queries);
    for (int number = blockIdx.x; number < total; number += gridDim.x) {
        float sum[COLUMNS][kSteps][4] = {};
        float maximum[COLUMNS][2], weight[COLUMNS][2];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
            for (int i = 0; i < 2; ++i) maximum[column][i] = -INFINITY, weight[column][i] = 0.f;

        int tiles = tiles_of(item, warp);
        for (int tile = 0; tile < tiles; ++tile) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncwarp();
            feeder.feed(a, ends, total, ring + refill * 2 * kTileBytes);
            refill = refill + 1 == STAGES ? 0 : refill + 1;
            uint32_t keys = ring + consume * 2 * kTileBytes;
            consume = consume + 1 == STAGES ? 0 : consume + 1;

            int live = item.stop - (item.start + (tile * WARPS + warp) * kTile);
            uint32_t left[kSteps][4];
            load_keys(left, keys);
            uint32_t weights[COLUMNS][2];
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
                float score[4] = {}, odd[4] = {};
#pragma unroll
                for (int step = 0; step < kSteps; step += 2) {
                    multiply<kHalfQueries>(score, left[step], queries[column][step][0], queries[column][step][1]);
                    multiply<kHalfQueries>(odd, left[step + 1], queries[column][step + 1][0], queries[column][step + 1][1]);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    score[i] = thread / 4 + i / 2 * 8 < live ? (score[i] + odd[i]) * a.qk_scale : -INFINITY;
                float peak[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
#pragma unroll
                    for (int i = 0; i < 2; ++i) peak[i] = fmaxf(peak[i], __shfl_xor_sync(kAll, peak[i], step));
                bool higher = peak[0] > maximum[column][0] || peak[1] > maximum[column][1];
                if (__any_sync(kAll, higher)) {
                    float decay[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float top = fmaxf(maximum[column][i], peak[i]);
                        decay[i] = decayed(maximum[column][i], top);
                        maximum[column][i] = top;
                        weight[column][i] *= decay[i];
                    }
#pragma unroll
                    for (int step = 0; step < kSteps; ++step)
#pragma unroll
                        for (int i = 0; i < 4; ++i) sum[column][step][i] *= decay[i % 2];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    score[i] = decayed(score[i], maximum[column][i % 2]);
                    weight[column][i % 2] += score[i];
                }
                weights[column][0] = transpose(pack<kHalfWeights>(score[0], score[1]));
                weights[column][1] = transpose(pack<kHalfWeights>(score[2], score[3]));
            }
            add_values(sum, weights, keys + kTileBytes);
        }

        Item next = item;
        if (number + gridDim.x < total) {
            next = find(a, ends, number + gridDim.x, item.lane);
            load_queries(a, next, queries);
        }

        // The warps' parts meet in shared memory.
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    weight[column][i] += __shfl_xor_sync(kAll, weight[column][i], step);
                int head = column * 8 + thread % 4 * 2 + i;
                if (head >= a.group) continue;
                if (thread < 4) seen[warp * a.group + head] = {maximum[column][i], weight[column][i]};
                float *own = sums + (warp * a.group + head) * HEAD_DIM;
#pragma unroll
                for (int step = 0; step < kSteps; ++step)
#pragma unroll
                    for (int upper = 0; upper < 2; ++upper)
                        own[step * 16 + value_dim(thread / 4, upper)] = sum[column][step][upper * 2 + i];
            }
        if (pending) __threadfence();
        __syncthreads();
        if (pending && threadIdx.x == 0) scratch[0] = arrive(a, waiting);

        int64_t slot = row_of(a, item) * a.splits;
        for (int place = threadIdx.x; place < a.group * (HEAD_DIM / 4); place += kThreads) {
            int head = place / (HEAD_DIM / 4), dim = place % (HEAD_DIM / 4) * 4;
            float top = -INFINITY, all = 0.f;
#pragma unroll
            for (int other = 0; other < WARPS; ++other) top = fmaxf(top, seen[other * a.group + head].x);
            float4 value = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int other = 0; other < WARPS; ++other) {
                float2 stat = seen[other * a.group + head];
                float gain = decayed(stat.x, top);
                float4 v = *reinterpret_cast<float4 *>(sums + (other * a.group + head) * HEAD_DIM + dim);
                all += stat.y * gain;
                value.x += v.x * gain, value.y += v.y * gain, value.z += v.z * gain, value.w += v.w * gain;
            }
            if (item.chunks == 1) {
                finish(a, item, head, dim, value, top, all);
            } else {
                int64_t mine = (slot + item.part) * a.group + head;
                __stcg(reinterpret_cast<float4 *>(a.partial + mine * HEAD_DIM + dim), value);
                if (dim == 0) __stcg(reinterpret_cast<float2 *>(a.stats) + mine, float2{top, all});
            }
        }
        __syncthreads();  // sums[] and seen[] are read before the next item writes them
        if (pending && scratch[0] == waiting.chunks - 1) merge(a, waiting);
        pending = item.chunks > 1;
        waiting = item;
        item = next;
    }
    if (!pending) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) scratch[0] = arrive(a, waiting);
    __syncthreads();
    if (scratch[0] == waiting.chunks - 1) merge(a, waiting);
}

cudaError_t start(const Arguments &a, int bytes, int blocks, cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(decode, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    return launch_dependent(decode, a, dim3(blocks), kThreads, bytes, true, stream);
}

}  // namespace

extern "C" int paged_decode_attention(const void *q, const void *cache, const void *pages, const void *indptr,
                                      const void *lengths, void *out, void *logsumexp, void *partial, void *stats,
                                      void *arrivals, float qk_scale, float v_scale, int batch, int kv_heads, int group,
                                      int page_shift, int splits, int min_chunk, int64_t q_lane_stride,
                                      int64_t q_head_stride, int64_t out_lane_stride, int64_t out_head_stride,
                                      int64_t pages_stride, int shared_bytes, int blocks, cudaStream_t stream) {
    Arguments a = {q,
                   static_cast<const uint8_t *>(cache),
                   static_cast<const int *>(pages),
                   static_cast<const int *>(indptr),
                   static_cast<const int *>(lengths),
                   out,
                   static_cast<float *>(logsumexp),
                   static_cast<float *>(partial),
                   static_cast<float *>(stats),
                   static_cast<int *>(arrivals),
                   qk_scale,
                   v_scale,
                   batch,
                   kv_heads,
                   group,
                   page_shift,
                   splits,
                   min_chunk,
                   q_lane_stride,
                   q_head_stride,
                   out_lane_stride,
                   out_head_stride,
                   pages_stride};
    return start(a, shared_bytes, blocks, stream);
}
