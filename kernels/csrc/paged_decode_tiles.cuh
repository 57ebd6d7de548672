// A warp's tiles in paged_decode_attention.cu: the ring that they are loaded into, and the matrix products over them.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "paged_decode_schedule.cuh"

namespace {

constexpr int kElementBytes = E4M3 ? 1 : 2;
constexpr int kRowBytes = HEAD_DIM * kElementBytes;
constexpr int kRowVectors = kRowBytes / 16;
constexpr int kTileBytes = kTile * kRowBytes;
constexpr int kRingBytes = WARPS * STAGES * 2 * kTileBytes;
constexpr int kSteps = HEAD_DIM / 16;

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

}  // namespace
