// Logits as ordered keys, their weights as whole numbers, and the random numbers of the race.

#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr uint32_t KEY_NAN = 0xFFFFFFFFu;
constexpr uint32_t KEY_INFINITE = 0xFF800000u;
constexpr uint32_t KEY_NOTHING = 0x007FFFFFu;  // of -inf

// Unsigned numbers in the order of the floats; both zeros give one.
__device__ uint32_t key_of(float x) {
    uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits ^ ((uint32_t)((int)bits >> 31) | 0x80000000u);
}

__device__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

__device__ float max_or_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

__device__ float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

__device__ float log2_approx(float x) {
    float result;
    asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// exp2 of a logit's distance to the largest, over temperature: in (0, 1].
struct Scale {
    float largest;
    float factor;  // log2(e) / temperature

    __device__ float exponent(float x) const { return __fmul_rn(__fsub_rn(x, largest), factor); }
    __device__ float weight(float x) const { return exp2_approx(exponent(x)); }
};

// round(w * 2^34) for w in [0, 1] as high * 2^17 + low: adding a constant leaves the rounded number in the low bits.
constexpr float MAGIC_HIGH = 96.0f;               // 1.5 * 2^6: steps of 2^-17
constexpr float MAGIC_LOW = 0.000732421875f;      // 1.5 * 2^-11: steps of 2^-34

__device__ void split(float w, int& high, int& low) {
    float shifted = __fadd_rn(w, MAGIC_HIGH);
    float rest = __fsub_rn(w, __fsub_rn(shifted, MAGIC_HIGH));
    high = __float_as_int(shifted) - __float_as_int(MAGIC_HIGH);
    low = __float_as_int(__fadd_rn(rest, MAGIC_LOW)) - __float_as_int(MAGIC_LOW);
}

__device__ uint64_t joined(int high, int low) { return (uint64_t)(((int64_t)high << 17) + low); }

__device__ uint64_t whole(float w) {
    int high, low;
    split(w, high, low);
    return joined(high, low);
}

// Philox4x32-10 (Salmon et al. 2011).
__device__ uint4 philox(uint4 counter, uint32_t key0, uint32_t key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        uint32_t hi0 = __umulhi(0xD2511F53u, counter.x), lo0 = 0xD2511F53u * counter.x;
        uint32_t hi1 = __umulhi(0xCD9E8D57u, counter.z), lo1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(hi1 ^ counter.y ^ key0, lo1, hi0 ^ counter.w ^ key1, lo0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// log2 of an exponential variate, made from 32 random bits with full relative precision near zero, where winners are.
__device__ float log2_exponential(uint32_t bits) {
    float v = fminf(__fadd_rn(__fmul_rn(__uint2float_rn(bits), 0x1p-32f), 0x1p-33f), 0x1.fffffep-1f);
    float e = v < 0x1p-6f ? __fmul_rn(v, fmaf(v, fmaf(v, fmaf(v, 0.25f, 0.33333334f), 0.5f), 1.0f))
                          : __fmul_rn(log2_approx(__fsub_rn(1.0f, v)), -0.6931472f);
    return log2_approx(e);
}

__device__ uint64_t race_entry(float exponent, uint32_t bits, uint32_t index) {
    return ((uint64_t)key_of(__fsub_rn(exponent, log2_exponential(bits))) << 32) | (0xFFFFFFFFu - index);
}

}  // namespace
