// The parts that the kernels of moe_fp8.cu are made of: asynchronous copies and their ring, the product, quantization of
// a group, routing of a token.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroup = 128;
constexpr int kMaximumTokens = 4;
constexpr int kMaximumTopK = kWarps;
constexpr int kMaximumExperts = 256;
constexpr int kMaximumSteps = 64;  // of 128 along k
constexpr int kDepth = 4;         // stages of a ring
constexpr int kStage = 16 * kGroup;  // bytes of a ring's stage
constexpr float kEps = 1e-10f;

__device__ __forceinline__ void copy_streamed(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

__device__ __forceinline__ uint4 read_shared(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint16_t to_e4m3(float low, float high) {
    uint16_t packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}

// The IEEE quotient x / scale from the reciprocal correctly rounded, as kernels/quantize.py has it.
__device__ __forceinline__ float quotient(float x, float scale, float reciprocal) {
    const float estimate = __fmul_rn(x, reciprocal);
    return fmaf(fmaf(estimate, scale, -x), -reciprocal, estimate);
}

// Quantize a group of 128: 16 lanes (half a warp, all of whose lanes call) have 8 bf16 each. Returns the scale.
__device__ __forceinline__ float quantize_group(const uint4 raw, uint2& q) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    float v[8];
    uint32_t most = 0;  // magnitudes order as their bits do, and NaN is above infinity
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        most = max(most, max(__float_as_uint(v[2 * i]) & 0x7FFFFFFFu, __float_as_uint(v[2 * i + 1]) & 0x7FFFFFFFu));
    }
#pragma unroll
    for (int step = 8; step; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
    float scale = __fdiv_rn(fmaxf(__uint_as_float(most), kEps), 448.f);
    if (most >= 0x7F800000u) scale = __uint_as_float(0x7FC00000u);
    const float reciprocal = __frcp_rn(scale);
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        packed[i] = to_e4m3(quotient(v[2 * i], scale, reciprocal), quotient(v[2 * i + 1], scale, reciprocal));
    }
    q = make_uint2(packed[0] | packed[1] << 16, packed[2] | packed[3] << 16);
    return scale;
}

struct Routing {
    const void* logits;  // [tokens, experts]
    int64_t logits_stride;
    int top_k, experts, normalize, logits_type;  // the type's place in LOGIT_DTYPES of moe_routing.py
};

__device__ __forceinline__ float read_logit(const void* logits, int64_t at, int type) {
    if (type == 0) return static_cast<const float*>(logits)[at];
    if (type == 1) return __bfloat162float(static_cast<const __nv_bfloat16*>(logits)[at]);
    return __half2float(static_cast<const __half*>(logits)[at]);
}

// One warp: the experts of one token and, if asked for, their weights, as moe_routing.py says, one a lane.
template <bool Weights>
__device__ __forceinline__ void choose(const Routing& p, int64_t token, int& chosen, float& weight) {
    constexpr int kHeld = kMaximumExperts / 32;
    const int lane = threadIdx.x % 32;
    uint32_t keys[kHeld];  // in the order of the logits; 1: not a number; 0: cannot be chosen (again)
    float logits[kHeld], best = -INFINITY, total = 0.f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int expert = lane + 32 * i;
        const bool exists = expert < p.experts;
        logits[i] = exists ? read_logit(p.logits, token * p.logits_stride + expert, p.logits_type) : -INFINITY;
        const uint32_t bits = logits[i] == 0.f ? 0u : __float_as_uint(logits[i]);  // -0 ties with 0
        keys[i] = bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
        if (logits[i] != logits[i]) keys[i] = 1;
        if (expert >= p.experts) keys[i] = 0;
        best = fmaxf(best, logits[i]);
    }
    if (Weights) {
        for (int step = 16; step; step /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
#pragma unroll
        for (int i = 0; i < kHeld; ++i) total += lane + 32 * i < p.experts ? expf(logits[i] - best) : 0.f;
        for (int step = 16; step; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    }
    chosen = 0;
    weight = 0.f;
    uint32_t key = 0;
    for (int choice = 0; choice < p.top_k; ++choice) {
        uint32_t most = 0, first = ~0u;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) most = max(most, keys[i]);
        most = __reduce_max_sync(~0u, most);
#pragma unroll
        for (int i = kHeld - 1; i >= 0; --i) {
            if (keys[i] == most) first = lane + 32 * i;
        }
        first = __reduce_min_sync(~0u, first);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (first == lane + 32 * i) keys[i] = 0;
        }
        if (lane == choice) chosen = static_cast<int>(first), key = most;
    }
    if (Weights && lane < p.top_k) {
        const float logit = __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu));
        weight = expf(logit - best) / total;
    }
    if (Weights && p.normalize) {
        float sum = weight;
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        weight /= sum;
    }
}

// A ring of `kDepth` stages of 16 rows x 128 bytes, of one warp. Rows are whole cache lines, copied 8 lanes each; the
// halves of odd rows are swapped, so that the lanes that read two rows at once meet different banks.
struct Ring {
    uint32_t copy_to, read_from[2];
    int copy_slot = 0, read_slot = 0;

    __device__ __forceinline__ explicit Ring(uint8_t* shared) {
        const int lane = threadIdx.x % 32, row = lane / 8, chunk = lane % 8, read_row = lane / 4, quad = lane % 4;
        const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
        copy_to = base + row * kGroup + (chunk ^ (row & 1) * 4) * 16;
        for (int i = 0; i < 2; ++i) read_from[i] = base + read_row * kGroup + ((quad + 4 * i) ^ (read_row & 1) * 4) * 16;
    }

    // The lane's part of rows 4 i + lane / 8; `row(i)` points to its first byte.
    template <typename Row>
    __device__ __forceinline__ void copy(const Row& row) {
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_streamed(copy_to + copy_slot * kStage + i * 4 * kGroup, row(i));
    }

    // Every stage is committed, also when there is nothing left to copy: waiting counts them.
    __device__ __forceinline__ void commit_stage() {
        commit();
        copy_slot = copy_slot + 1 == kDepth ? 0 : copy_slot + 1;
    }

    // The oldest stage times one column, `b` being the lane's 2 x 16 bytes of it (0 outside column 0). The product's
    // rows lane / 4 and lane / 4 + 8 are in `low` and `high` where lane % 4 is 0.
    __device__ __forceinline__ void multiply_stage(const uint4 (&b)[2], float& low, float& high) {
        wait_for_copies<kDepth - 1>();
        __syncwarp();
        const uint32_t at = read_slot * kStage;
        float d[2][4] = {};  // two chains of products, as each waits for the one before it
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4 l = read_shared(read_from[i] + at), h = read_shared(read_from[i] + at + 8 * kGroup);
            multiply(d[i], l.x, h.x, l.y, h.y, b[i].x, b[i].y);
            multiply(d[i], l.z, h.z, l.w, h.w, b[i].z, b[i].w);
        }
        __syncwarp();  // every lane has read: the slot may be filled again
        read_slot = read_slot + 1 == kDepth ? 0 : read_slot + 1;
        low = d[0][0] + d[1][0];
        high = d[0][2] + d[1][2];
    }
};

// The scales of a row of blocks, read well before they are needed: lane l holds those of steps l, l + 32, ...
struct Scales {
    static constexpr int kHeld = kMaximumSteps / 32;
    float held[kHeld];

    __device__ __forceinline__ void read(const float* from, int steps) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int step = threadIdx.x % 32 + 32 * i;
            held[i] = step < steps ? __ldg(from + step) : 0.f;
        }
    }

    __device__ __forceinline__ float at(int step) const {
        float value = held[0];
#pragma unroll
        for (int i = 1; i < kHeld; ++i) value = step / 32 == i ? held[i] : value;
        return __shfl_sync(~0u, value, step % 32);
    }
};

}  // namespace
