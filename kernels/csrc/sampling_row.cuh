// A row, the cluster of blocks that reads it, and what its threads share and reduce.

#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

namespace cg = cooperative_groups;

#ifndef THREADS
#define THREADS 512
#endif
constexpr int WARPS = THREADS / 32;
constexpr int CAPACITY = 2048;
constexpr int BINS = 2048;
constexpr int SAMPLED = 8;  // one vector of so many is sampled

struct Arguments {
    const void* logits;
    int64_t stride;
    int vocabulary;
    const float* temperature;
    const int* top_k;
    const float* top_p;
    const float* min_p;
    const int64_t* seeds;
    const void* positions;
    int wide_positions;
    void* ids;
    int wide_ids;
    int* status;

    __device__ int64_t position(int64_t lane) const {
        return wide_positions ? ((const int64_t*)positions)[lane] : ((const int*)positions)[lane];
    }
    __device__ void write(int64_t lane, uint32_t id) const {
        if (wide_ids)
            ((int64_t*)ids)[lane] = id;
        else
            ((int*)ids)[lane] = (int)id;
    }
};

struct Shared {
    uint64_t scan[WARPS];
    uint64_t reduce[WARPS];
    uint64_t above;  // of this block: weight or count above the bracket
    uint64_t total;  // of this block: weight above the floor
    uint64_t best;
    uint64_t bases[2];
    alignas(16) uint32_t low[BINS];
    alignas(16) uint32_t high[BINS];
    uint32_t largest[THREADS];
    uint32_t keys[CAPACITY];
    uint32_t indices[CAPACITY];
    uint32_t listed;
    uint32_t first;
    uint32_t bins[2];
    uint32_t leader;
};

__device__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().block_rank();
#else
    return 0;
#endif
}

__device__ int cluster_size() {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().num_blocks();
#else
    return 1;
#endif
}

__device__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();
#else
    __syncthreads();
#endif
}

template <typename T>
__device__ T* of_rank(T* local, int rank) {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().map_shared_rank(local, rank);
#else
    return local;
#endif
}

__device__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

__device__ uint32_t block_max(uint32_t value, Shared& s) {
    value = __reduce_max_sync(0xFFFFFFFFu, value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
    __syncthreads();
    return __reduce_max_sync(0xFFFFFFFFu, (uint32_t)s.reduce[threadIdx.x % WARPS]);
}

__device__ uint64_t block_max64(uint64_t value, Shared& s) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) value = max(value, s.reduce[warp]);
    return value;
}

__device__ uint64_t block_sum(uint64_t value, Shared& s) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) value += s.reduce[warp];
    return value;
}

template <typename T>
struct Slice {
    static constexpr int N = 16 / sizeof(T);
    const T* row;
    int vocabulary;
    int begin, end;  // vectors that this block reads, all of them whole
    int tail;        // the vector that the vocabulary cuts, or -1

    __device__ Slice(const Arguments& a, int64_t index, int rank, int size) {
        row = (const T*)a.logits + index * a.stride;
        vocabulary = a.vocabulary;
        int vectors = vocabulary / N, share = (vectors + size - 1) / size;
        begin = min(rank * share, vectors);
        end = min(begin + share, vectors);
        tail = rank == size - 1 && vocabulary % N ? vectors : -1;
    }

    __device__ static void unpack(uint4 raw, float (&x)[N]) {
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (N == 8) {
                x[2 * i] = __uint_as_float(words[i] << 16);
                x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
            } else {
                x[i] = __uint_as_float(words[i]);
            }
        }
    }

    // f(values, index of the first) for this thread's vectors, the same ones at every call; UNROLL are in flight. What
    // lies past the end reads as -inf.
    template <int UNROLL, typename F>
    __device__ void each(F f) const {
        const uint4* vectors = (const uint4*)row;
        float x[N];
        for (int first = begin; first < end; first += UNROLL * THREADS) {
            uint4 raw[UNROLL];
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) {
                const int v = first + i * THREADS + threadIdx.x;
                constexpr uint32_t nothing = N == 8 ? 0xFF80FF80u : 0xFF800000u;
                raw[i] = v < end ? vectors[v] : make_uint4(nothing, nothing, nothing, nothing);
            }
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) {
                unpack(raw[i], x);
                f(x, (first + i * THREADS + (int)threadIdx.x) * N);
            }
        }
        if (tail >= 0 && threadIdx.x == 0) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const int index = tail * N + i;
                x[i] = index < vocabulary ? (float)row[index] : -INFINITY;
            }
            f(x, tail * N);
        }
    }

    // f(values) for one of SAMPLED of them.
    template <typename F>
    __device__ void sample(F f) const {
        const uint4* vectors = (const uint4*)row;
        float x[N];
        for (int v = begin + threadIdx.x; v < end; v += SAMPLED * THREADS) {
            unpack(vectors[v], x);
            f(x);
        }
    }

    // The share of this block's vectors that `sample` sees.
    __device__ float sampled() const { return end > begin ? (float)seen(end - begin) / (float)(end - begin) : 1.0f; }

    // The share of the row's: one number for the cluster, whose blocks must bracket the same threshold.
    __device__ float sampled_of_row(int size) const {
        const int vectors = vocabulary / N, share = (vectors + size - 1) / size;
        if (!vectors) return 1.0f;
        return (float)(vectors / share * seen(share) + seen(vectors % share)) / (float)vectors;
    }

    __device__ static int seen(int vectors) {
        constexpr int period = SAMPLED * THREADS;
        return vectors / period * THREADS + min(vectors % period, THREADS);
    }
};

}  // namespace
