// Quantization of groups to 8 bits on packed pairs of 16-bit floats; semantics in kernels/quantize.py.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace quantize {

// What differs between the 16-bit types; a word holds two elements. `larger` keeps the larger and loses no NaN.
struct BFloat16 {
  static constexpr uint32_t kInfinity = 0x7F80;
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t result;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  __device__ static float widen(uint32_t bits) { return __uint_as_float(bits << 16); }
  __device__ static float2 unpack(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  }
  __device__ static uint32_t pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
  }
  __device__ static uint32_t add(uint32_t a, uint32_t b) {
    __nv_bfloat162 sum = __hadd2_rn(reinterpret_cast<__nv_bfloat162&>(a), reinterpret_cast<__nv_bfloat162&>(b));
    return reinterpret_cast<uint32_t&>(sum);
  }
  __device__ static uint32_t multiply(uint32_t a, uint32_t b) {
    __nv_bfloat162 product = __hmul2_rn(reinterpret_cast<__nv_bfloat162&>(a), reinterpret_cast<__nv_bfloat162&>(b));
    return reinterpret_cast<uint32_t&>(product);
  }
};

struct Float16 {
  static constexpr uint32_t kInfinity = 0x7C00;
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  __device__ static float widen(uint32_t bits) { return __half2float(__ushort_as_half(bits)); }
  __device__ static float2 unpack(uint32_t pair) { return __half22float2(reinterpret_cast<__half2&>(pair)); }
  __device__ static uint32_t pack(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
  }
  __device__ static uint32_t add(uint32_t a, uint32_t b) {
    __half2 sum = __hadd2_rn(reinterpret_cast<__half2&>(a), reinterpret_cast<__half2&>(b));
    return reinterpret_cast<uint32_t&>(sum);
  }
  __device__ static uint32_t multiply(uint32_t a, uint32_t b) {
    __half2 product = __hmul2_rn(reinterpret_cast<__half2&>(a), reinterpret_cast<__half2&>(b));
    return reinterpret_cast<uint32_t&>(product);
  }
};

// The correctly rounded x / d from r = 1 / d correctly rounded (Markstein). In this order of signs it keeps -0.
__device__ __forceinline__ float quotient(float x, float d, float r) {
  const float estimate = __fmul_rn(x, r);
  return __fmaf_rn(__fmaf_rn(estimate, d, -x), -r, estimate);
}

struct E4M3 {
  static constexpr float kMaximum = 448.0f;
  __device__ static uint32_t pack(const float* y) {
    uint32_t word = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y[1]), "f"(y[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(y[3]), "f"(y[2]));
    asm("mov.b32 %0, {%1, %2};" : "=r"(word) : "h"(low), "h"(high));
#else
    __trap();  // the host refuses e4m3 here
#endif
    return word;
  }
};

struct Int8 {
  static constexpr float kMaximum = 127.0f;
  __device__ static uint32_t pack(const float* y) {
    uint32_t bits[4];
    // 1.5 * 2^23 leaves no bit for fractions: the addition rounds to nearest even, the integer is in the low byte.
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(__fadd_rn(y[i], 12582912.0f));
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
  }
};

struct Scale {
  float value;
  float reciprocal, rest;  // neither negative; their sum is 1 / value to twice the precision
  uint32_t exponent;       // the UE8M0 byte
  bool finite;
};

// 1 / d correctly rounded, for d and 1 / d normal numbers, as a group's scale is: an estimate and one Newton step.
__device__ __forceinline__ float reciprocal(float d) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(d));
  return __fmaf_rn(estimate, __fmaf_rn(-d, estimate, 1.0f), estimate);
}

// The scale of a group whose largest magnitude is `largest`, without reciprocal and rest.
template <class Q>
__device__ __forceinline__ Scale scale_of(float largest, bool finite, float eps, bool ue8m0) {
  Scale scale = {};
  scale.finite = finite;
  scale.value = quotient(fmaxf(largest, eps), Q::kMaximum, 1.0f / Q::kMaximum);
  scale.exponent = (__float_as_uint(scale.value) + 0x7FFFFFu) >> 23;
  if (ue8m0) scale.value = __uint_as_float(scale.exponent << 23);
  if (!finite) scale.value = __uint_as_float(0x7FC00000u), scale.exponent = 0xFF;
  return scale;
}

// The scale of a group that LANES neighbouring lanes share (all of a warp take part), from this lane's WORDS words.
template <class T, class Q, int LANES, int WORDS>
__device__ __forceinline__ Scale group_scale(const uint32_t (&words)[WORDS], float eps, bool ue8m0) {
  uint32_t pair = words[0] & 0x7FFF7FFFu;
#pragma unroll
  for (int i = 1; i < WORDS; ++i) pair = T::larger(pair, words[i] & 0x7FFF7FFFu);
#pragma unroll
  for (int step = LANES / 2; step; step /= 2) pair = T::larger(pair, __shfl_xor_sync(~0u, pair, step));
  const uint32_t bits = max(pair & 0xFFFFu, pair >> 16);
  Scale scale = scale_of<Q>(T::widen(bits), bits < T::kInfinity, eps, ue8m0);
  scale.reciprocal = reciprocal(scale.value);
  if (__fmaf_rn(-scale.value, scale.reciprocal, 1.0f) < 0.0f)
    scale.reciprocal = __uint_as_float(__float_as_uint(scale.reciprocal) - 1);
  scale.rest = __fmaf_rn(-scale.value, scale.reciprocal, 1.0f) * scale.reciprocal;
  return scale;
}

// x over the scale, rounded as the IEEE quotient is wherever the rounding to 8 bits can tell: a 16-bit x over the scale
// of a 16-bit maximum lies a 2^-19th or more from where that rounding turns, or just there, and there this is exact
// (while the scale is below 2^113). One operation fewer than `quotient`. Keeps -0.
__device__ __forceinline__ float scaled(float x, const Scale& scale) {
  return __fmaf_rn(x, scale.reciprocal, x * scale.rest);
}

// Quantizes this lane's WORDS words, twice as many elements, into half as many words.
template <class T, class Q, int WORDS>
__device__ __forceinline__ void quantize(const uint32_t (&words)[WORDS], const Scale& scale, uint32_t (&q)[WORDS / 2]) {
#pragma unroll
  for (int i = 0; i < WORDS / 2; ++i) {
    const float2 low = T::unpack(words[2 * i]), high = T::unpack(words[2 * i + 1]);
    const float y[4] = {scaled(low.x, scale), scaled(low.y, scale), scaled(high.x, scale), scaled(high.y, scale)};
    q[i] = Q::pack(y);  // e4m3 takes over that the scale is NaN
    if (std::is_same<Q, Int8>::value && !scale.finite) q[i] = 0;
  }
}

// Stores the scale of one of a row's `groups` groups; `row` is where the row's scales begin, `column_stride` counts
// elements.
__device__ __forceinline__ void store_scale(char* row, int64_t column_stride, uint32_t group, uint32_t groups,
                                            const Scale& scale, bool ue8m0) {
  if (!ue8m0) {
    *reinterpret_cast<float*>(row + group * column_stride * 4) = scale.value;
    return;
  }
  char* word = row + group / 4 * column_stride * 4;
  word[group % 4] = scale.exponent;
  if (group + 1 == groups)
#pragma unroll 1
    for (uint32_t i = group % 4 + 1; i < 4; ++i) word[i] = 0;
}

}  // namespace quantize
