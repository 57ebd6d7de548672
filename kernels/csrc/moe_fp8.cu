// moe_fp8 for one or a few tokens, in two kernels: each token's experts are read as often as they are chosen.
//
// Every block routes for itself, which takes less time than a kernel of its own and a wait for it would. The second
// kernel starts while the first one runs, routes too, and fetches its weights before it waits for the first one.
//
// A warp owns 16 rows of weights and copies them, 128 bytes of each at a time, into a ring of its own, which keeps
// running from one matrix to the next. The m16n8k32 product fixes which lane holds which row, but not the order along k
// as long as both operands agree: of 128 bytes lane t of a quad takes bytes 16 t .. 16 t + 15 and the same 64 on. Of the
// product's 8 columns a single one is used.

#include "dependent_launch.cuh"
#include "moe_fp8.cuh"

namespace {

struct Params {
    const __nv_bfloat16* x;  // [tokens, hidden]
    const int* valid;        // null, or how many tokens are no padding
    const uint8_t* w13;      // e4m3 [experts, 2 inter, hidden]
    const float* w13_scale;  // [experts, 2 inter / 128, hidden / 128]
    const uint8_t* w2;       // e4m3 [experts, hidden, inter]
    const float* w2_scale;   // [experts, hidden / 128, inter / 128]
    __nv_bfloat16* h;        // [tokens * top_k, inter]
    __nv_bfloat16* out;      // [tokens, hidden]
    int64_t x_stride;
    int tokens, hidden, inter;
    Routing routing;
};

// h = silu(gate) * up. A warp's unit: 8 columns of h for one (token, choice) pair, so 8 rows of gate and 8 of up.
__global__ void __launch_bounds__(kThreads, 2) gate_up_kernel(const Params p) {
    extern __shared__ __align__(128) uint8_t shared[];  // the rings, then x quantized
    __shared__ int experts[kMaximumTokens * kMaximumTopK];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, quad = lane % 4;
    const int steps = p.hidden / kGroup;
    uint8_t* x = shared + kWarps * kDepth * kStage;
    float* x_scales = reinterpret_cast<float*>(x + p.tokens * p.hidden);
    wait_for_previous_grid();
    let_next_grid_start();
    const int tokens = p.valid == nullptr ? p.tokens : min(p.tokens, max(*p.valid, 0));
    if (warp < p.tokens) {  // these warps route, the others quantize
        int chosen;
        float weight;
        if (warp < tokens) choose<false>(p.routing, warp, chosen, weight);
        if (warp < tokens && lane < p.routing.top_k) experts[warp * p.routing.top_k + lane] = chosen;
    } else {
        const int first = (threadIdx.x - p.tokens * 32) / 16, tasks = tokens * steps;
        // Both halves of a warp go through the loop together, for the shuffles.
        for (int task = first; task < (tasks + 1) / 2 * 2; task += (kThreads - p.tokens * 32) / 16) {
            const int of = min(task, tasks - 1), at = of % steps * kGroup + threadIdx.x % 16 * 8;
            uint2 q;
            const float scale =
                quantize_group(*reinterpret_cast<const uint4*>(p.x + of / steps * p.x_stride + at), q);
            if (task < tasks) {
                *reinterpret_cast<uint2*>(x + of / steps * p.hidden + at) = q;
                if (threadIdx.x % 16 == 0) x_scales[of] = scale;
            }
        }
    }
    __syncthreads();

    const int tiles = p.inter / 8, units = tokens * p.routing.top_k * tiles, stride = gridDim.x * kWarps;
    Ring ring(shared + warp * kDepth * kStage);
    int next = warp * gridDim.x + blockIdx.x, next_step = 0;  // neighbours of a unit go to other multiprocessors
    const uint8_t *gate_from = nullptr, *up_from = nullptr;
    Scales next_gate_scales, next_up_scales;
    auto fetch = [&] {
        if (next < units) {
            if (next_step == 0) {
                const int64_t expert = experts[next / tiles];
                const int column = next % tiles * 8 + lane / 8;
                gate_from = p.w13 + (expert * 2 * p.inter + column) * p.hidden + lane % 8 * 16;
                up_from = gate_from + static_cast<int64_t>(p.inter) * p.hidden;
                const float* scales =
                    p.w13_scale + (expert * (2 * p.inter / kGroup) + next % tiles * 8 / kGroup) * steps;
                next_gate_scales.read(scales, steps);
                next_up_scales.read(scales + p.inter / kGroup * steps, steps);
            }
            ring.copy([&](int i) { return (i < 2 ? gate_from : up_from) + i % 2 * 4 * p.hidden + next_step * kGroup; });
            if (++next_step == steps) next_step = 0, next += stride;
        }
        ring.commit_stage();
    };
    for (int i = 0; i < kDepth; ++i) fetch();

    for (int unit = warp * gridDim.x + blockIdx.x; unit < units; unit += stride) {
        const int pair = unit / tiles, column = unit % tiles * 8 + row, token = pair / p.routing.top_k;
        const Scales gate_scales = next_gate_scales, up_scales = next_up_scales;
        const uint8_t* x_from = x + token * p.hidden + quad * 16;
        float gate = 0.f, up = 0.f;
        for (int step = 0; step < steps; ++step) {
            const float x_scale = x_scales[token * steps + step];
            uint4 b[2] = {};
            if (row == 0) {
                b[0] = *reinterpret_cast<const uint4*>(x_from + step * kGroup);
                b[1] = *reinterpret_cast<const uint4*>(x_from + step * kGroup + 64);
            }
            float gate_part, up_part;
            ring.multiply_stage(b, gate_part, up_part);
            fetch();
            gate += gate_part * (x_scale * gate_scales.at(step));
            up += up_part * (x_scale * up_scales.at(step));
        }
        if (quad == 0) {
            p.h[static_cast<int64_t>(pair) * p.inter + column] =
                __float2bfloat16_rn(gate / (1.f + __expf(-gate)) * up);
        }
    }
    wait_for_copies<0>();
}

// A row quantized and its scales, to the next 16 bytes.
__host__ __device__ constexpr int row_bytes(int columns) { return columns + (columns / kGroup * 4 + 15) / 16 * 16; }

// 16 columns of a token's output. A warp has a choice; their sum is taken in order.
__global__ void __launch_bounds__(kThreads, 2) down_kernel(const Params p) {
    extern __shared__ __align__(128) uint8_t shared[];  // the rings, then each warp's row of h quantized
    __shared__ float parts[kWarps][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, quad = lane % 4;
    const int steps = p.inter / kGroup, token = blockIdx.y, first = blockIdx.x * 16;
    uint8_t* h = shared + kWarps * kDepth * kStage + warp * row_bytes(p.inter);
    float* h_scales = reinterpret_cast<float*>(h + p.inter);
    // What the kernel before this one waited for is there: it lets this one start only after that.
    const bool live = p.valid == nullptr || token < *p.valid;
    const bool busy = live && warp < p.routing.top_k;
    Ring ring(shared + warp * kDepth * kStage);
    int chosen = 0, next_step = 0;
    float weight = 0.f;
    const uint8_t* from = nullptr;
    Scales w_scales;
    auto fetch = [&] {
        if (next_step < steps) {
            ring.copy([&](int i) { return from + i * 4 * p.inter + next_step * kGroup; });
            ++next_step;
        }
        ring.commit_stage();
    };
    if (busy) {
        choose<true>(p.routing, token, chosen, weight);
        chosen = __shfl_sync(~0u, chosen, warp);
        weight = __shfl_sync(~0u, weight, warp);
        from = p.w2 + (static_cast<int64_t>(chosen) * p.hidden + first + lane / 8) * p.inter + lane % 8 * 16;
        for (int i = 0; i < kDepth; ++i) fetch();
        w_scales.read(p.w2_scale + (static_cast<int64_t>(chosen) * (p.hidden / kGroup) + first / kGroup) * steps,
                      steps);
    }
    wait_for_previous_grid();
    let_next_grid_start();
    if (busy) {
        const __nv_bfloat16* h_from = p.h + (static_cast<int64_t>(token) * p.routing.top_k + warp) * p.inter;
        for (int task = lane / 16; task < (steps + 1) / 2 * 2; task += 2) {
            const int group = min(task, steps - 1), at = group * kGroup + lane % 16 * 8;
            uint2 q;
            const float scale = quantize_group(__ldcg(reinterpret_cast<const uint4*>(h_from + at)), q);
            if (task < steps) {
                *reinterpret_cast<uint2*>(h + at) = q;
                if (lane % 16 == 0) h_scales[group] = scale;
            }
        }
        __syncwarp();
        float low = 0.f, high = 0.f;
        for (int step = 0; step < steps; ++step) {
            const float scale = h_scales[step] * w_scales.at(step);
            uint4 b[2] = {};
            if (row == 0) {
                b[0] = *reinterpret_cast<const uint4*>(h + step * kGroup + quad * 16);
                b[1] = *reinterpret_cast<const uint4*>(h + step * kGroup + quad * 16 + 64);
            }
            float low_part, high_part;
            ring.multiply_stage(b, low_part, high_part);
            fetch();
            low += low_part * scale;
            high += high_part * scale;
        }
        if (quad == 0) {
            parts[warp][row] = weight * __bfloat162float(__float2bfloat16_rn(low));
            parts[warp][row + 8] = weight * __bfloat162float(__float2bfloat16_rn(high));
        }
        wait_for_copies<0>();
    }
    __syncthreads();
    if (threadIdx.x < 16) {
        float total = 0.f;
        for (int choice = 0; live && choice < p.routing.top_k; ++choice) total += parts[choice][threadIdx.x];
        p.out[static_cast<int64_t>(token) * p.hidden + first + threadIdx.x] = __float2bfloat16_rn(total);
    }
}

cudaError_t start(void (*kernel)(Params), const Params& params, dim3 grid, int shared, cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    // All of it: both kernels are to fit on a multiprocessor at once.
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
    }
    if (error != cudaSuccess) return error;
    return launch_dependent(kernel, params, grid, kThreads, shared, true, stream);
}

}  // namespace

// `blocks` of the first kernel. At most 4 tokens, 8 choices, 256 experts, 64 groups along hidden and along inter; at
// least `kDepth` groups along hidden, as a warp holds the scales of no more than two matrices.
extern "C" int moe_few_tokens(const void* x, const void* logits, const void* valid, const void* w13,
                              const void* w13_scale, const void* w2, const void* w2_scale, void* h, void* out,
                              int64_t x_stride, int64_t logits_stride, int tokens, int top_k, int experts, int hidden,
                              int inter, int normalize, int logits_type, int blocks, void* stream) {
    const Params p = {static_cast<const __nv_bfloat16*>(x),
                      static_cast<const int*>(valid),
                      static_cast<const uint8_t*>(w13),
                      static_cast<const float*>(w13_scale),
                      static_cast<const uint8_t*>(w2),
                      static_cast<const float*>(w2_scale),
                      static_cast<__nv_bfloat16*>(h),
                      static_cast<__nv_bfloat16*>(out),
                      x_stride,
                      tokens,
                      hidden,
                      inter,
                      {logits, logits_stride, top_k, experts, normalize, logits_type}};
    const auto on = static_cast<cudaStream_t>(stream);
    const int rings = kWarps * kDepth * kStage;
    const int x_bytes = tokens * (hidden + hidden / kGroup * 4);
    const cudaError_t error = start(gate_up_kernel, p, dim3(blocks), rings + x_bytes, on);
    if (error != cudaSuccess) return error;
    return start(down_kernel, p, dim3(hidden / 16, tokens), rings + kWarps * row_bytes(inter), on);
}
