// What paged_decode_attention.cu is called with, the items that its lanes are cut into, and which block has which item.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kTile = 16;
constexpr int kGranule = 64;
constexpr int kThreads = WARPS * 32;
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

}  // namespace
