// Quantization of groups to 8 bits; semantics in kernels/quantize.py, contract in kernels/per_token_group_quant.py.
//
// A thread holds vectors of 16 neighbours in registers, so memory is read once, and stores each as 16 bytes (stores of 8
// took 15 % longer on an H200). 1 to 16 lanes share a group and find its largest magnitude by shuffles. All loads of a
// thread are in flight before the first is used. Two loads share a 32-byte sector, so they go through the L1 cache.

#include "quantize.cuh"

namespace {

using quantize::BFloat16;
using quantize::E4M3;
using quantize::Float16;
using quantize::Int8;

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

struct Float32 {};

template <class T>
constexpr int kBytes = std::is_same<T, Float32>::value ? 4 : 2;

// A vector's elements as they lie in memory. As integers magnitudes order as they do as numbers, NaN above infinity.
template <class T>
struct Vector {
  static constexpr int kWords = kElements * kBytes<T> / 4;
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
      if constexpr (kBytes<T> == 4) {
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
      if constexpr (kBytes<T> == 4) {
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
    if constexpr (kBytes<T> == 4) {
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

template <class T, class Q>
__device__ __forceinline__ void store_quantized(const Problem& p, const Vector<T>& vector, bool live, int expert,
                                                int64_t row, uint32_t column) {
  bool finite;
  const int lanes = (1 << p.group_shift) / kElements;
  const float largest = vector.largest(lanes, finite);
  const quantize::Scale scale = quantize::scale_of<Q>(largest, finite, p.eps, p.ue8m0);
  const float reciprocal = __frcp_rn(scale.value);
  float y[kElements];
  vector.unpack(y);
#pragma unroll
  for (int i = 0; i < kElements; ++i) y[i] = quantize::quotient(y[i], scale.value, reciprocal);
  uint4 packed = {Q::pack(y), Q::pack(y + 4), Q::pack(y + 8), Q::pack(y + 12)};
  if (!finite) {
    constexpr uint32_t kNaN = std::is_same<Q, E4M3>::value ? 0x7F7F7F7F : 0;  // int8 has none
    packed = {kNaN, kNaN, kNaN, kNaN};
  }
  if (!live) return;
  const uint32_t vector_of_row = column / kElements;
  p.q[(expert * p.rows + row) * (p.columns / kElements) + vector_of_row] = packed;
  if (vector_of_row & (lanes - 1)) return;
  const int64_t base = expert * p.scale_expert_stride + row * p.scale_row_stride;
  quantize::store_scale(static_cast<char*>(p.scales) + base * 4, p.scale_column_stride, column >> p.group_shift,
                        static_cast<uint32_t>(p.columns) >> p.group_shift, scale, p.ue8m0);
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
                           ((expert[i] * p.rows + row[i]) * p.row_stride + column[i]) * kBytes<T>;
      loaded[i] = {};
      if (live[i]) loaded[i].read(source);
      if constexpr (SILU) {
        up[i] = {};
        if (live[i]) up[i].read(source + static_cast<int64_t>(p.columns) * kBytes<T>);
      }
    }
#if __CUDA_ARCH__ >= 900
    // Only now may the next kernel's blocks come: earlier they take room from this one's.
    asm volatile("griddepcontrol.launch_dependents;");
#endif
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if constexpr (SILU) loaded[i].multiply_silu(up[i]);
      store_quantized<T, Q>(p, loaded[i], live[i], expert[i], row[i], column[i]);
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
  constexpr int kMany = kBytes<T> == 4 ? 1 : 2;
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
