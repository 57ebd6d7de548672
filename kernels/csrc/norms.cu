// RMS norms with residual addition and quantization; contract in kernels/rms_norm.py.
//
// A row lies in the registers of its threads from the load to the store, so memory is read once. A row of more than a
// warp has a block of its own; shorter rows share a block, a warp each.

#include "quantize.cuh"

namespace {

using quantize::BFloat16;
using quantize::E4M3;
using quantize::Float16;
using quantize::Int8;

constexpr int kGroupSize = 128;

struct None {};  // in the place of a quantized type

struct Problem {
  const uint4* x;
  const uint4* residual;  // null: none is added
  const uint4* weight;
  void* out;  // uint4 of elements, or uint2 of quantized ones
  uint4* residual_out;
  void* scales;  // float, or bytes of UE8M0 words
  int64_t rows;
  int64_t x_stride, residual_stride, out_stride, residual_out_stride;  // in vectors of 8 elements
  int64_t scale_row_stride, scale_column_stride;                       // in elements of the scales
  float eps, scale_eps, inverse_width;
  uint32_t vectors;  // of a row
  int ue8m0;
};

struct Words {
  uint32_t word[4];
};

__device__ __forceinline__ Words load(const uint4* pointer) {
  Words result;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.word[0]), "=r"(result.word[1]), "=r"(result.word[2]), "=r"(result.word[3])
               : "l"(pointer));
  return result;
}

__device__ __forceinline__ void store(uint4* pointer, const Words& words) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(words.word[0]), "r"(words.word[1]),
               "r"(words.word[2]), "r"(words.word[3])
               : "memory");
}

// The sum over a row, from those over a thread's vectors; every thread of the row gets it.
//
// In which order it adds depends on the vectors' places in the row alone, so that a row's bits are the same in every
// layout: first neighbours, then neighbouring pairs, and so on up to chunks of 32 vectors; then chunks that are 32
// apart; then again neighbours. What lies beyond the row adds zeros, which change nothing.
template <int COUNT, int UNIT, bool FULL>
__device__ __forceinline__ float row_sum(const float (&sums)[COUNT]) {
  constexpr int kParts = COUNT / UNIT;  // of a thread, each in another chunk
  constexpr int kLanes = 32 / UNIT;     // that hold a chunk
  float part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) part[i] = UNIT == 2 ? sums[2 * i] + sums[2 * i + 1] : sums[i];
  using Index = std::conditional_t<FULL, int, uint32_t>;  // for int, ptxas schedules the first weights' load early
  const Index thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32, warps = threads / 32;
#pragma unroll
  for (int step = 1, left = kParts; step < kLanes; step *= 2) {
    // While there are several parts, a lane takes every other one and leaves the rest to its partner: in the end lane n
    // has the sum of the chunk of part n % kParts.
    if (left == 1) {
      part[0] += __shfl_xor_sync(~0u, part[0], step);
      continue;
    }
    left /= 2;
    const bool odd = lane & step;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float other = __shfl_xor_sync(~0u, odd ? part[2 * i] : part[2 * i + 1], step);
      part[i] = (odd ? part[2 * i + 1] : part[2 * i]) + other;
    }
  }
  float sum = part[0];
  if (!FULL && warps == 1) {
    if (UNIT == 2) sum += __shfl_xor_sync(~0u, sum, kLanes);
#pragma unroll
    for (int step = 1; step < kParts; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }
  __shared__ float chunks[64];
  if (lane % kLanes < kParts) chunks[((lane % kLanes) * warps + warp) * UNIT + lane / kLanes] = sum;
  __syncthreads();
  sum = lane < COUNT * warps ? chunks[lane] : 0.0f;
  if (!FULL && COUNT > 1 && lane + 32 < COUNT * warps) sum += chunks[lane + 32];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// Quantizes and stores UNIT neighbouring vectors of a row, the first of them `vector`.
template <class T, class Q, int UNIT, bool FULL>
__device__ __forceinline__ void store_quantized(const Problem& p, uint2* out, char* scales, uint32_t vector,
                                                const Words* values) {
  constexpr int kVectors = kGroupSize / 8;
  uint32_t words[4 * UNIT], q[2 * UNIT];
#pragma unroll
  for (int i = 0; i < 4 * UNIT; ++i) words[i] = values[i / 4].word[i % 4];
  const quantize::Scale scale =
      quantize::group_scale<T, Q, kVectors / UNIT>(words, p.scale_eps, !FULL && p.ue8m0);
  quantize::quantize<T, Q>(words, scale, q);
  if (!FULL && vector >= p.vectors) return;
  if constexpr (UNIT == 2) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(out + vector), "r"(q[0]), "r"(q[1]), "r"(q[2]),
                 "r"(q[3])
                 : "memory");
  } else {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(out + vector), "r"(q[0]), "r"(q[1]) : "memory");
  }
  if (vector % kVectors) return;
  quantize::store_scale(scales, p.scale_column_stride, vector / kVectors, p.vectors / kVectors, scale,
                        !FULL && p.ue8m0);
}

// Blocks of 288 threads that a multiprocessor has to have registers for; 0 leaves it to the compiler. Four leave 56
// registers a thread, so that five rows of 224 threads (width 7168) are under way instead of four.
template <class Q, bool FULL>
constexpr int kBlocks = FULL && !std::is_same<Q, None>::value ? 4 : 0;

// A thread holds COUNT vectors; two by two they are neighbours where that was measured to be faster.
//
// FULL: a row fills the vectors of 2 to 8 warps, which are a block, and its scales are floats. Without the tests and
// choices of the general form it has a quarter fewer instructions.
template <class T, class Q, bool ADD, int COUNT, bool FULL>
__global__ void __launch_bounds__(kBlocks<Q, FULL> ? 288 : COUNT == 1 ? 1024 : 2048 / COUNT, kBlocks<Q, FULL>)
    norms(const Problem p) {
  constexpr int kUnit = !std::is_same<Q, None>::value && !ADD && COUNT == 4 ? 2 : 1;
  const int64_t row = FULL ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (!FULL && row >= p.rows) return;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const uint4* x = p.x + row * p.x_stride;
  Words value[COUNT], other[ADD ? COUNT : 1];
  uint32_t vector[COUNT / kUnit];  // the first of each unit
#pragma unroll
  for (int i = 0; i < COUNT / kUnit; ++i) vector[i] = (threadIdx.x + i * blockDim.x) * kUnit;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    value[i] = {};
    if (FULL || vector[i / kUnit] < p.vectors) value[i] = load(x + vector[i / kUnit] + i % kUnit);
  }
  if constexpr (ADD) {
    const uint4* residual = p.residual + row * p.residual_stride;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      other[i] = {};
      if (vector[i / kUnit] < p.vectors) other[i] = load(residual + vector[i / kUnit] + i % kUnit);
    }
  }
  uint4 weight[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if constexpr (FULL) {  // __ldg would move behind the barrier
      const Words words = load(p.weight + vector[i / kUnit] + i % kUnit);
      weight[i] = {words.word[0], words.word[1], words.word[2], words.word[3]};
    } else if (vector[i / kUnit] < p.vectors) {
      weight[i] = __ldg(p.weight + vector[i / kUnit] + i % kUnit);
    }
  }
  float sums[COUNT] = {};
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (ADD) value[i].word[j] = T::add(value[i].word[j], other[i].word[j]);
      const float2 pair = T::unpack(value[i].word[j]);
      sums[i] = __fmaf_rn(pair.x, pair.x, sums[i]);
      sums[i] = __fmaf_rn(pair.y, pair.y, sums[i]);
    }
    if constexpr (ADD)
      if (vector[i] < p.vectors) store(p.residual_out + row * p.residual_out_stride + vector[i], value[i]);
  }
  const float inverse = rsqrtf(__fmaf_rn(row_sum<COUNT, kUnit, FULL>(sums), p.inverse_width, p.eps));
  char* scales = static_cast<char*>(p.scales) + row * p.scale_row_stride * 4;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const uint32_t factor[4] = {weight[i].x, weight[i].y, weight[i].z, weight[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = T::unpack(value[i].word[j]);
      value[i].word[j] = T::multiply(T::pack(pair.x * inverse, pair.y * inverse), factor[j]);
    }
    if constexpr (std::is_same<Q, None>::value) {
      if (FULL || vector[i] < p.vectors)
        store(static_cast<uint4*>(p.out) + row * p.out_stride + vector[i], value[i]);
    } else if (i % kUnit == kUnit - 1) {
      store_quantized<T, Q, kUnit, FULL>(p, static_cast<uint2*>(p.out) + row * p.out_stride, scales,
                                         vector[i / kUnit], value + i - i % kUnit);
    }
  }
}

template <class T, class Q, bool ADD, int COUNT, bool FULL = false>
cudaError_t launch(const Problem& p, bool overlap, cudaStream_t stream) {
  const int threads = ((p.vectors + COUNT - 1) / COUNT + 31) / 32 * 32;
  const int rows = threads == 32 ? 4 : 1;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((p.rows + rows - 1) / rows);
  config.blockDim = dim3(threads, rows);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, norms<T, Q, ADD, COUNT, FULL>, p);
}

template <class T, class Q, bool ADD>
cudaError_t choose(const Problem& p, int count, bool overlap, cudaStream_t stream) {
  switch (count) {
    case 1: return launch<T, Q, ADD, 1>(p, overlap, stream);
    case 2: return launch<T, Q, ADD, 2>(p, overlap, stream);
    default: break;
  }
  if constexpr (!ADD)
    if (!p.ue8m0 && p.vectors % 128 == 0 && p.vectors > 128 && p.vectors <= 1024)
      return launch<T, Q, ADD, 4, true>(p, overlap, stream);
  return launch<T, Q, ADD, 4>(p, overlap, stream);
}

template <class T, class Q>
cudaError_t choose(const Problem& p, int count, bool overlap, cudaStream_t stream) {
  return p.residual ? choose<T, Q, true>(p, count, overlap, stream)
                    : choose<T, Q, false>(p, count, overlap, stream);
}

template <class T>
cudaError_t choose(const Problem& p, int quantized, int count, bool overlap, cudaStream_t stream) {
  switch (quantized) {
    case 0: return choose<T, None>(p, count, overlap, stream);
    case 2: return choose<T, Int8>(p, count, overlap, stream);
    default: return choose<T, E4M3>(p, count, overlap, stream);
  }
}

}  // namespace

// quantized: 0 not, 1 e4m3, 2 int8. count: vectors a thread, 1, 2 or 4. overlap: may start before the kernel ahead of
// it has ended (sm90 on).
extern "C" int rms_norm(const void* x, const void* residual, const void* weight, void* out, void* residual_out,
                        void* scales, int64_t rows, int64_t x_stride, int64_t residual_stride, int64_t out_stride,
                        int64_t residual_out_stride, int64_t scale_row_stride, int64_t scale_column_stride, float eps,
                        float scale_eps, int vectors, int ue8m0, int half, int quantized, int count, int overlap,
                        cudaStream_t stream) {
  const Problem p = {static_cast<const uint4*>(x), static_cast<const uint4*>(residual),
                     static_cast<const uint4*>(weight), out, static_cast<uint4*>(residual_out), scales, rows, x_stride,
                     residual_stride, out_stride, residual_out_stride, scale_row_stride, scale_column_stride, eps,
                     scale_eps, 1.0f / (8 * vectors), static_cast<uint32_t>(vectors), ue8m0};
  if (half) return choose<Float16>(p, quantized, count, overlap, stream);
  return choose<BFloat16>(p, quantized, count, overlap, stream);
}
