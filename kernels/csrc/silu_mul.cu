// SiLU-and-multiply with quantization; contract in kernels/silu_mul.py.
//
// A thread holds 16 neighbours of a row in registers, 8 threads share a group of 128.

#include "quantize.cuh"

namespace {

using quantize::BFloat16;
using quantize::E4M3;
using quantize::Float16;
using quantize::Int8;

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // that share a group

struct Problem {
  const uint4* gate_up;
  uint4* q;
  void* scales;  // float, or bytes of UE8M0 words
  int64_t rows;
  int64_t gate_up_stride;                         // in vectors of 8 elements
  int64_t out_stride;                             // in units of 16 elements
  int64_t scale_row_stride, scale_column_stride;  // in elements of the scales
  float scale_eps;
  uint32_t units;              // of 16 elements in a row of q
  uint32_t multiplier, shift;  // n / units is (n * multiplier) >> (32 + shift) for n < 2^31
  int ue8m0;
};

__device__ __forceinline__ void load(const uint4* pointer, uint32_t* words) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(pointer));
}

// As Triton computes it in silu_mul, so that the two agree to the bit.
__device__ __forceinline__ float silu(float x) {
  float power, result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(-x * 1.4426950408889634f));
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(1.0f + power));
  return result;
}

template <class T, class Q>
__global__ void __launch_bounds__(kThreads) silu_mul_quant(const Problem p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int64_t first_row = start / p.units;
  const uint32_t n = start - first_row * p.units + threadIdx.x;
  const uint32_t rows_on = __umulhi(n, p.multiplier) >> p.shift;
  const int64_t row = first_row + rows_on;
  const uint32_t unit = n - rows_on * p.units;
  const bool live = row < p.rows;
  uint32_t product[8] = {}, up[8] = {};
  if (live) {
    const uint4* gate_pointer = p.gate_up + row * p.gate_up_stride + unit * 2;
    const uint4* up_pointer = gate_pointer + p.units * 2;
    load(gate_pointer, product), load(gate_pointer + 1, product + 4);
    load(up_pointer, up), load(up_pointer + 1, up + 4);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = T::unpack(product[i]);
    product[i] = T::multiply(T::pack(silu(pair.x), silu(pair.y)), up[i]);
  }
  const quantize::Scale scale = quantize::group_scale<T, Q, kLanes>(product, p.scale_eps, p.ue8m0);
  uint32_t q[4];
  quantize::quantize<T, Q>(product, scale, q);
  if (!live) return;
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p.q + row * p.out_stride + unit), "r"(q[0]),
               "r"(q[1]), "r"(q[2]), "r"(q[3])
               : "memory");
  if (unit % kLanes) return;
  char* scales = static_cast<char*>(p.scales) + row * p.scale_row_stride * 4;
  quantize::store_scale(scales, p.scale_column_stride, unit / kLanes, p.units / kLanes, scale, p.ue8m0);
}

template <class T, class Q>
cudaError_t launch(const Problem& p, bool overlap, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((p.rows * p.units + kThreads - 1) / kThreads);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, silu_mul_quant<T, Q>, p);
}

template <class T>
cudaError_t choose(const Problem& p, bool int8, bool overlap, cudaStream_t stream) {
  return int8 ? launch<T, Int8>(p, overlap, stream) : launch<T, E4M3>(p, overlap, stream);
}

}  // namespace

// `overlap`: may start before the kernel ahead of it has ended (sm90 on).
extern "C" int silu_mul_quant(const void* gate_up, void* q, void* scales, int64_t rows, int64_t gate_up_stride,
                              int64_t out_stride, int64_t scale_row_stride, int64_t scale_column_stride,
                              float scale_eps, int units, int ue8m0, int half, int int8, int overlap,
                              cudaStream_t stream) {
  Problem p = {static_cast<const uint4*>(gate_up), static_cast<uint4*>(q), scales, rows, gate_up_stride, out_stride,
               scale_row_stride, scale_column_stride, scale_eps, static_cast<uint32_t>(units), 0, 0, ue8m0};
  while ((1u << (p.shift + 1)) < p.units) ++p.shift;
  const uint64_t power = uint64_t{1} << (32 + p.shift);
  p.multiplier = static_cast<uint32_t>((power + p.units - 1) / p.units);
  return half ? choose<Float16>(p, int8, overlap, stream) : choose<BFloat16>(p, int8, overlap, stream);
}
