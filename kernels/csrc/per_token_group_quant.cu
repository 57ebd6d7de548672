// Quantization of groups to 8 bits; semantics in kernels/quantize.py, contract in kernels/per_token_group_quant.py.
//
// A thread holds vectors of 16 neighbours in registers, so memory is read once, and stores each as 16 bytes (stores of 8
// took 15 % longer on an H200). 1 to 16 lanes share a group and find its largest magnitude by shuffles. All loads of a
// thread are in flight before the first is used. Two loads share a 32-byte sector, so they go through the L1 cache.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 128;
constexpr int kElements = 16;  // of a vector
constexpr int kMaximumExperts = 1024;  // MAXIMUM_EXPERTS of the host

struct Problem {
  const void* x;
  uint4* q;                // contiguous
  void* scales;            // float, or bytes of UE8M0 words
  const int* counts;       // rows of each expert that are live; null without experts
  int64_t rows;            // of a matrix
  int64_t row_stride;      // of x, in elements
  int64_t scale_expert_stride, scale_row_stride, scale_column_stride;  // in elements of the scales
  float eps;
  int experts;             // matrices that follow one another
  int columns;             // of q; x has twice as many with SiLU
  int group_shift;         // log2 of the group size
  int ue8m0;
  uint32_t multiplier, shift;  // n / (vectors of a row) is (n * multiplier) >> shift for n < 2^31
};

__device__ __forceinline__ uint4 load(const void* pointer) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(pointer));
  return value;
}

__device__ __forceinline__ float divide(float x, float y) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

__device__ __forceinline__ float silu(float x) { return divide(x, 1.0f + __expf(-x)); }

// What differs between the input types; two elements of 16 bits lie in a word. `larger` takes magnitudes and loses no
// NaN; `widen` takes the bits of one element. As integers magnitudes order as they do as numbers, NaN above infinity.
struct BFloat16 {
  static constexpr int kBytes = 2;
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
};

struct Float16 {
  static constexpr int kBytes = 2;
  static constexpr uint32_t kInfinity = 0x7C00;
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  __device__ static float widen(uint32_t bits) { return __half2float(__ushort_as_half(bits)); }
  __device__ static float2 unpack(uint32_t pair) {
    return __half22float2(reinterpret_cast<__half2&>(pair));
  }
  __device__ static uint32_t pack(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
  }
};

struct Float32 {
  static constexpr int kBytes = 4;
};

// A vector's elements as they lie in memory.
template <class T>
struct Vector {
  static constexpr int kWords = kElements * T::kBytes / 4;
  uint32_t words[kWords];

  __device__ void read(const void* pointer) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      uint4 part = load(static_cast<const uint4*>(pointer) + i);
      words[4 * i] = part.x, words[4 * i + 1] = part.y, words[4 * i + 2] = part.z, words[4 * i + 3] = part.w;
    }
  }

  __device__ void unpack(float (&values)[kElements]) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if constexpr (T::kBytes == 4) {
        values[i] = __uint_as_float(words[i]);
      } else if (i % 2 == 0) {
        float2 pair = T::unpack(words[i / 2]);
        values[i] = pair.x, values[i + 1] = pair.y;
      }
    }
  }

  // The SiLU of these elements times `up`; both round to T.
  __device__ void multiply_silu(const Vector& up) {
    float gates[kElements], ups[kElements];
    unpack(gates), up.unpack(ups);
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      if constexpr (T::kBytes == 4) {
        words[i] = __float_as_uint(silu(gates[i]) * ups[i]);
        words[i + 1] = __float_as_uint(silu(gates[i + 1]) * ups[i + 1]);
      } else {
        float2 activated = T::unpack(T::pack(silu(gates[i]), silu(gates[i + 1])));
        words[i / 2] = T::pack(activated.x * ups[i], activated.y * ups[i + 1]);
      }
    }
  }

  // The largest magnitude of the `lanes` neighbouring lanes' vectors, and whether all of them are finite.
  __device__ float largest(int lanes, bool& finite) const {
    if constexpr (T::kBytes == 4) {
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) bits = max(bits, words[i] & 0x7FFFFFFFu);
      for (int step = lanes / 2; step; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
      finite = bits < 0x7F800000u;
      return __uint_as_float(bits);
    } else {
      uint32_t pair = words[0] & 0x7FFF7FFFu;
#pragma unroll
      for (int i = 1; i < kWords; ++i) pair = T::larger(pair, words[i] & 0x7FFF7FFFu);
      for (int step = lanes / 2; step; step /= 2) pair = T::larger(pair, __shfl_xor_sync(~0u, pair, step));
      uint32_t bits = max(pair & 0xFFFFu, pair >> 16);
      finite = bits < T::kInfinity;
      return T::widen(bits);
    }
  }
};

// The correctly rounded x / d from r = 1 / d correctly rounded (Markstein). In this order of signs it keeps -0.
__device__ __forceinline__ float quotient(float x, float d, float r) {
  float estimate = __fmul_rn(x, r);
  return __fmaf_rn(__fmaf_rn(estimate, d, -x), -r, estimate);
}

struct E4M3 {
  static constexpr float kMaximum = 448.0f;
  static constexpr uint32_t kNaN = 0x7F7F7F7F;
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
  static constexpr uint32_t kNaN = 0;  // it has none
  __device__ static uint32_t pack(const float* y) {
    uint32_t bits[4];
    // 1.5 * 2^23 leaves no bit for fractions: the addition rounds to nearest even, the integer is in the low byte.
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(__fadd_rn(y[i], 12582912.0f));
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
  }
};

template <class T, class Q>
__device__ __forceinline__ void quantize(const Problem& p, const Vector<T>& vector, bool live, int expert, int64_t row,
                                         uint32_t column) {
  bool finite;
  const int lanes = (1 << p.group_shift) / kElements;
  const float largest = fmaxf(vector.largest(lanes, finite), p.eps);
  float scale = quotient(largest, Q::kMaximum, 1.0f / Q::kMaximum);
  uint32_t exponent = 0xFF;
  if (p.ue8m0) {
    exponent = (__float_as_uint(scale) + 0x7FFFFFu) >> 23;
    scale = __uint_as_float(exponent << 23);
  }
  const float reciprocal = __frcp_rn(scale);
  float y[kElements];
  vector.unpack(y);
#pragma unroll
  for (int i = 0; i < kElements; ++i) y[i] = quotient(y[i], scale, reciprocal);
  uint4 packed = {Q::pack(y), Q::pack(y + 4), Q::pack(y + 8), Q::pack(y + 12)};
  if (!finite) {
    packed = {Q::kNaN, Q::kNaN, Q::kNaN, Q::kNaN};
    scale = __uint_as_float(0x7FC00000u);
    exponent = 0xFF;
  }
  if (!live) return;
  const uint32_t vector_of_row = column / kElements;
  p.q[(expert * p.rows + row) * (p.columns / kElements) + vector_of_row] = packed;
  if (vector_of_row & (lanes - 1)) return;
  const uint32_t group = column >> p.group_shift;
  const int64_t base = expert * p.scale_expert_stride + row * p.scale_row_stride;
  if (!p.ue8m0) {
    static_cast<float*>(p.scales)[base + group * p.scale_column_stride] = scale;
    return;
  }
  uint8_t* word = static_cast<uint8_t*>(p.scales) + (base + (group / 4) * p.scale_column_stride) * 4;
  word[group % 4] = exponent;
  if (column + (1u << p.group_shift) == static_cast<uint32_t>(p.columns))
    for (uint32_t i = group % 4 + 1; i < 4; ++i) word[i] = 0;
}

// Expert and row within it of the n-th live row; `ends` are the running sums of the experts' live rows.
__device__ __forceinline__ int find_expert(const int* ends, int experts, int n) {
  int low = 0, high = experts - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (n < ends[middle]) high = middle; else low = middle + 1;
  }
  return low;
}

__device__ __forceinline__ void sum_counts(const Problem& p, int* ends) {
  if (threadIdx.x < 32) {
    int before = 0;
    for (int first = 0; first < p.experts; first += 32) {
      const int expert = first + threadIdx.x;
      int sum = expert < p.experts ? min(max(p.counts[expert], 0), static_cast<int>(p.rows)) : 0;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (expert < p.experts) ends[expert] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
}

// VECTORS a thread. Without experts the grid covers all rows; with them a grid of any size walks the live rows, whose
// number the host does not know.
template <class T, class Q, bool SILU, bool MASKED, int VECTORS>
__global__ void __launch_bounds__(kThreads) per_token_group_quant(const Problem p) {
  __shared__ int ends[MASKED ? kMaximumExperts : 1];
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  int64_t rows = p.rows;
  if constexpr (MASKED) {
    sum_counts(p, ends);
    rows = ends[p.experts - 1];
  }
  const uint32_t vectors = static_cast<uint32_t>(p.columns) / kElements;  // of a row
  int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * VECTORS);
  do {
    const int64_t first_row = first / vectors;
    const uint32_t first_vector = first - first_row * vectors;
    Vector<T> loaded[VECTORS], up[SILU ? VECTORS : 1];
    bool live[VECTORS];
    int64_t row[VECTORS];
    int expert[VECTORS];
    uint32_t column[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const uint32_t n = first_vector + i * kThreads + threadIdx.x;
      const uint32_t rows_on = (uint64_t{n} * p.multiplier) >> p.shift;
      row[i] = first_row + rows_on;
      column[i] = (n - rows_on * vectors) * kElements;
      expert[i] = 0;
      live[i] = row[i] < rows;
      if (MASKED && live[i]) {
        expert[i] = find_expert(ends, p.experts, row[i]);
        row[i] -= expert[i] ? ends[expert[i] - 1] : 0;
      }
      const char* source = static_cast<const char*>(p.x) +
                           ((expert[i] * p.rows + row[i]) * p.row_stride + column[i]) * T::kBytes;
      loaded[i] = {};
      if (live[i]) loaded[i].read(source);
      if constexpr (SILU) {
        up[i] = {};
        if (live[i]) up[i].read(source + static_cast<int64_t>(p.columns) * T::kBytes);
      }
    }
#if __CUDA_ARCH__ >= 900
    // Only now may the next kernel's blocks come: earlier they take room from this one's.
    asm volatile("griddepcontrol.launch_dependents;");
#endif
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if constexpr (SILU) loaded[i].multiply_silu(up[i]);
      quantize<T, Q>(p, loaded[i], live[i], expert[i], row[i], column[i]);
    }
    first += static_cast<int64_t>(gridDim.x) * (kThreads * VECTORS);
  } while (MASKED && first < rows * vectors);
}

template <class T, class Q, bool SILU, bool MASKED, int VECTORS>
cudaError_t launch(const Problem& p, int multiprocessors, bool overlap, cudaStream_t stream) {
  const auto kernel = per_token_group_quant<T, Q, SILU, MASKED, VECTORS>;
  constexpr int64_t kChunk = int64_t{kThreads} * VECTORS;
  const int64_t vectors = p.experts * p.rows * (p.columns / kElements);
  int64_t blocks = (vectors + kChunk - 1) / kChunk;
  if (MASKED) {
    // As many as are resident at once: each walks equally far, so more would leave a second, half empty wave.
    static const int resident = [kernel] {
      int count = 0;
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, kThreads, 0);
      return count > 0 ? count : 1;
    }();
    if (blocks > int64_t{resident} * multiprocessors) blocks = int64_t{resident} * multiprocessors;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, p);
}

// One vector a thread while there are not enough to fill the GPU; then two, to have more loads in flight.
template <class T, class Q, bool SILU, bool MASKED>
cudaError_t choose_vectors(const Problem& p, int multiprocessors, bool overlap, cudaStream_t stream) {
  constexpr int kMany = T::kBytes == 4 ? 1 : 2;
  const int64_t vectors = p.experts * p.rows * (p.columns / kElements);
  if (vectors < int64_t{2048} * kMany * multiprocessors)
    return launch<T, Q, SILU, MASKED, 1>(p, multiprocessors, overlap, stream);
  return launch<T, Q, SILU, MASKED, kMany>(p, multiprocessors, overlap, stream);
}

template <class T, class Q>
cudaError_t choose(const Problem& p, bool silu, int multiprocessors, bool overlap, cudaStream_t stream) {
  if (p.counts)
    return silu ? choose_vectors<T, Q, true, true>(p, multiprocessors, overlap, stream)
                : choose_vectors<T, Q, false, true>(p, multiprocessors, overlap, stream);
  return silu ? choose_vectors<T, Q, true, false>(p, multiprocessors, overlap, stream)
              : choose_vectors<T, Q, false, false>(p, multiprocessors, overlap, stream);
}

template <class T>
cudaError_t choose(const Problem& p, bool int8, bool silu, int multiprocessors, bool overlap, cudaStream_t stream) {
  return int8 ? choose<T, Int8>(p, silu, multiprocessors, overlap, stream)
              : choose<T, E4M3>(p, silu, multiprocessors, overlap, stream);
}

}  // namespace

// input_type: 0 bfloat16, 1 float16, 2 float32. `overlap`: may start before the kernel ahead of it has ended (sm90 on).
extern "C" int per_token_group_quant_8bit(const void* x, void* q, void* scales, const int* counts, int experts,
                                          int64_t rows, int columns, int64_t row_stride, int64_t scale_expert_stride,
                                          int64_t scale_row_stride, int64_t scale_column_stride, int group_size,
                                          float eps, int input_type, int int8, int ue8m0, int silu,
                                          int multiprocessors, int overlap, cudaStream_t stream) {
  Problem p = {x, static_cast<uint4*>(q), scales, counts, rows, row_stride, scale_expert_stride, scale_row_stride,
               scale_column_stride, eps, experts, columns, 0, ue8m0, 0, 0};
  while ((1 << p.group_shift) < group_size) ++p.group_shift;
  const uint32_t vectors = columns / kElements;
  p.shift = 31;
  while ((1u << (p.shift - 31)) < vectors) ++p.shift;
  p.multiplier = static_cast<uint32_t>(((uint64_t{1} << p.shift) + vectors - 1) / vectors);
  switch (input_type) {
    case 0: return choose<BFloat16>(p, int8, silu, multiprocessors, overlap, stream);
    case 1: return choose<Float16>(p, int8, silu, multiprocessors, overlap, stream);
    default: return choose<Float32>(p, int8, silu, multiprocessors, overlap, stream);
  }
}
