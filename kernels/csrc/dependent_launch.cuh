// Programmatic dependent launch: a kernel may begin before the one ahead of it in the stream has ended, and waits for
// that one's writes itself. Before sm_90, and without the launch attribute, both device functions return at once.
#pragma once

#include <cuda_runtime.h>

// Until the grids that this one depends on have finished and their writes can be seen.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// `early`: the kernel calls wait_for_previous_grid, and the GPU is an sm_90 or newer.
template <class Params>
cudaError_t launch_dependent(void (*kernel)(Params), const Params& params, dim3 grid, int threads, int shared_bytes,
                             bool early, cudaStream_t stream) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, params);
}
