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

#include <cuda_runtime.h>

#include <cstdint>

#include "dependent_launch.cuh"
#include "paged_decode_schedule.cuh"
#include "paged_decode_tiles.cuh"

namespace {

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
