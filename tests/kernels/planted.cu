// A planted race: what racecheck must find, or its silence over our kernels proves nothing.
#include <cuda_runtime.h>

__global__ void planted_race_kernel(float* out) {
    __shared__ float word[64];
    word[threadIdx.x] = float(threadIdx.x);
    out[threadIdx.x] = word[63 - threadIdx.x];  // no __syncthreads() before the other warp's word is read
}

extern "C" int planted_race(float* out, cudaStream_t stream) {
    planted_race_kernel<<<1, 64, 0, stream>>>(out);
    return cudaGetLastError();
}
