// What per_token_group_quant gained from: the plain way to quantize bfloat16 groups of 128 to e4m3, which reads its group
// once for the largest magnitude and again for the quotients and stores byte by byte, and each of the two remedies alone.

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;    // that share a group
constexpr int kElements = 8;  // of a lane

__device__ __forceinline__ uint4 load(const uint4* pointer) {
  uint4 value;  // volatile, so that the compiler does not make one read of two
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(pointer));
  return value;
}

template <bool READ_ONCE, bool PACKED>
__global__ void __launch_bounds__(kThreads) quantize(const uint4* x, uint8_t* q, float* scales, int64_t vectors) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= vectors) return;
  uint4 loaded = load(x + index);
  float largest = 1e-10f;
  for (int i = 0; i < kElements; ++i)
    largest = fmaxf(largest, fabsf(__bfloat162float(reinterpret_cast<__nv_bfloat16*>(&loaded)[i])));
  for (int step = kLanes / 2; step; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(__activemask(), largest, step));
  const float scale = largest / 448.0f;
  if (threadIdx.x % kLanes == 0) scales[index / kLanes] = scale;
  if (!READ_ONCE) loaded = load(x + index);
  __nv_fp8_e4m3 quantized[kElements];
  for (int i = 0; i < kElements; ++i) {
    const float value = __bfloat162float(reinterpret_cast<__nv_bfloat16*>(&loaded)[i]) / scale;
    quantized[i] = __nv_fp8_e4m3(fminf(fmaxf(value, -448.0f), 448.0f));
    if (!PACKED) asm volatile("st.global.u8 [%0], %1;" ::"l"(q + index * kElements + i), "r"(uint32_t{quantized[i].__x}));
  }
  if (PACKED) reinterpret_cast<uint2*>(q)[index] = *reinterpret_cast<uint2*>(quantized);
}

}  // namespace

extern "C" int quantize_plainly(const void* x, void* q, void* scales, int64_t elements, int read_once, int packed,
                                cudaStream_t stream) {
  const int64_t vectors = elements / kElements;
  const auto kernel = read_once ? (packed ? quantize<true, true> : quantize<true, false>)
                                : (packed ? quantize<false, true> : quantize<false, false>);
  kernel<<<(vectors + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      static_cast<const uint4*>(x), static_cast<uint8_t*>(q), static_cast<float*>(scales), vectors);
  return cudaGetLastError();
}
