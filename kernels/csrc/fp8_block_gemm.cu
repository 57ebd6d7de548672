// fp8_block_gemm for few tokens on Hopper: see kernels/fp8_block_gemm.py for the contract.
//
// The weights are read once, and that read is the time. A block owns COLUMNS of them over the whole of K, so nothing is
// split and nothing summed between blocks; COLUMNS is chosen so that one wave of blocks covers the GPU. The tokens are
// needed by all blocks: a cluster reads them once and multicasts, otherwise they would cost as much cache traffic as
// the weights. One warp keeps a ring of shared-memory stages full; two warp groups multiply. Each product of 128 values
// of K starts from zero, because the tensor cores keep few bits of an fp8 sum, and is scaled and added in float32.

#include <cuda_bf16.h>

#include "hopper.cuh"

namespace {

using namespace hopper;

constexpr int K_BLOCK = 128;  // values of K that share a scale; one byte each, so one swizzled row
constexpr int GROUP_TOKENS = 64;
constexpr int CONSUMERS = 256;
constexpr int THREADS = CONSUMERS + 32;
constexpr int MAX_STAGES = 24;

template <int COLUMNS>
__device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], uint64_t a, uint64_t b, int add);

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) F4(i), F4(i + 4)
#define F16(i) F8(i), F8(i + 8)
#define F32(i) F16(i), F16(i + 16)
#define N8 "%0,%1,%2,%3"
#define N16 N8 ",%4,%5,%6,%7"
#define N24 N16 ",%8,%9,%10,%11"
#define N32 N24 ",%12,%13,%14,%15"
#define N40 N32 ",%16,%17,%18,%19"
#define N48 N40 ",%20,%21,%22,%23"
#define N56 N48 ",%24,%25,%26,%27"
#define N64 N56 ",%28,%29,%30,%31"
#define N72 N64 ",%32,%33,%34,%35"
#define N80 N72 ",%36,%37,%38,%39"
#define N88 N80 ",%40,%41,%42,%43"
#define N96 N88 ",%44,%45,%46,%47"
#define N104 N96 ",%48,%49,%50,%51"
#define N112 N104 ",%52,%53,%54,%55"
#define N120 N112 ",%56,%57,%58,%59"
#define N128 N120 ",%60,%61,%62,%63"
#define MULTIPLY(columns, names, a_index, b_index, add_index, ...)                                                  \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply<columns>(float (&d)[columns / 2], uint64_t a, uint64_t b, int add) {   \
        asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" add_index ", 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" names "}, %" a_index ", %"  \
                     b_index ", adds, 1, 1;\n}\n"                                                                   \
                     : __VA_ARGS__                                                                                  \
                     : "l"(a), "l"(b), "r"(add));                                                                   \
    }
MULTIPLY(16, N16, "8", "9", "10", F8(0))
MULTIPLY(24, N24, "12", "13", "14", F8(0), F4(8))
MULTIPLY(32, N32, "16", "17", "18", F16(0))
MULTIPLY(40, N40, "20", "21", "22", F16(0), F4(16))
MULTIPLY(48, N48, "24", "25", "26", F16(0), F8(16))
MULTIPLY(56, N56, "28", "29", "30", F16(0), F8(16), F4(24))
MULTIPLY(64, N64, "32", "33", "34", F32(0))
MULTIPLY(80, N80, "40", "41", "42", F32(0), F8(32))
MULTIPLY(96, N96, "48", "49", "50", F32(0), F16(32))
MULTIPLY(112, N112, "56", "57", "58", F32(0), F16(32), F8(48))
MULTIPLY(128, N128, "64", "65", "66", F32(0), F32(32))

struct Operands {
    const float* a_scale;
    int64_t a_scale_row, a_scale_block;
    const float* b_scale;
    int64_t b_scale_row, b_scale_block;
    __nv_bfloat16* out;
    int64_t out_row;
    int tokens, columns, blocks, stages;
};

// TOKEN_GROUPS 1: both warp groups hold the same 64 tokens and take turns over K. 2: each holds 64 of 128 tokens.
template <int COLUMNS, int TOKEN_GROUPS>
__global__ __launch_bounds__(THREADS, 1) void few_tokens(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, const Operands p) {
    constexpr int TOKENS = GROUP_TOKENS * TOKEN_GROUPS;
    constexpr int K_GROUPS = 2 / TOKEN_GROUPS;
    constexpr int A_BYTES = TOKENS * K_BLOCK;
    constexpr int STAGE_BYTES = A_BYTES + COLUMNS * K_BLOCK;
    extern __shared__ __align__(1024) uint8_t shared[];
    float* const a_scales = reinterpret_cast<float*>(shared + p.stages * STAGE_BYTES);  // [blocks, TOKENS]
    float* const b_scales = a_scales + p.blocks * TOKENS;                              // [blocks, 2]
    const uint32_t stages_at = shared_address(shared);
    const uint32_t full = shared_address(b_scales + 2 * p.blocks), empty = full + 8 * p.stages;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t cluster = cluster_size(), rank = cluster_rank();
    const int first_column = blockIdx.x * COLUMNS;
    // Clusters begin at different places of K: all reading the same few lines of the tokens at once is slow.
    const int start = blockIdx.x / cluster * p.blocks / (gridDim.x / cluster);
    const auto rotated = [&](int index) { return index + start < p.blocks ? index + start : index + start - p.blocks; };

    let_next_grid_start();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < p.stages; ++stage) {
            barrier_init(full + 8 * stage, 1);
            // Each warp that reads a stage arrives at every block that may multicast into it.
            barrier_init(empty + 8 * stage, cluster * 4 * TOKEN_GROUPS);
        }
        barrier_init_fence();
    }
    cluster_sync();

    if (warp == CONSUMERS / 32) {
        if (lane == 0) {
            // What the previous grid may still write must not be read yet; a hint to the cache reads nothing.
            for (int index = 0; index < min(p.stages, p.blocks); ++index)
                prefetch_tile(&b_map, rotated(index) * K_BLOCK, first_column);
            wait_for_previous_grid();
            const int slice = TOKENS / cluster;
            int stage = 0, phase = 1;
            for (int index = 0; index < p.blocks; ++index) {
                const uint32_t a_at = stages_at + stage * STAGE_BYTES, barrier = full + 8 * stage;
                const int k = rotated(index) * K_BLOCK;
                barrier_wait(empty + 8 * stage, phase);
                barrier_expect(barrier, STAGE_BYTES);
                copy_tile(a_at + A_BYTES, &b_map, k, first_column, barrier);
                copy_tile_to(a_at + rank * slice * K_BLOCK, &a_map, k, rank * slice, barrier,
                             uint16_t((1 << cluster) - 1));
                if (++stage == p.stages) stage = 0, phase ^= 1;
            }
        }
        __syncwarp();
    } else {
        const int group = warp / 4, my_first_token = TOKEN_GROUPS == 2 ? group * GROUP_TOKENS : 0;
        const int row = my_first_token + warp % 4 * 16 + lane / 4;
        wait_for_previous_grid();
        // The scales lie in the order of use. Eight loads are under way at a time.
        for (int base = threadIdx.x; base < p.blocks * TOKENS; base += 8 * CONSUMERS) {
            float scale[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int index = base + i * CONSUMERS, token = index % TOKENS;
                scale[i] = index < p.blocks * TOKENS && token < p.tokens
                               ? p.a_scale[token * p.a_scale_row + rotated(index / TOKENS) * p.a_scale_block]
                               : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (base + i * CONSUMERS < p.blocks * TOKENS) a_scales[base + i * CONSUMERS] = scale[i];
        }
        // A block's columns may lie across two rows of the weights' scales; which, changes at a multiple of 8.
        const int scale_row = first_column / K_BLOCK, second_from = (scale_row + 1) * K_BLOCK - first_column;
        const int last_scale_row = (p.columns - 1) / K_BLOCK;
        for (int index = threadIdx.x; index < p.blocks * 2; index += CONSUMERS) {
            const int which = min(scale_row + index % 2, last_scale_row);
            b_scales[index] = p.b_scale[which * p.b_scale_row + rotated(index / 2) * p.b_scale_block];
        }
        sync_threads(1, CONSUMERS);

        float total[COLUMNS / 2] = {}, product[COLUMNS / 2];
        for (int index = K_GROUPS == 2 ? group : 0; index < p.blocks; index += K_GROUPS) {
            const int stage = index % p.stages, phase = index / p.stages & 1;
            const uint32_t a_at = stages_at + stage * STAGE_BYTES;
            const float low = a_scales[index * TOKENS + row], high = a_scales[index * TOKENS + row + 8];
            const float first = b_scales[2 * index], second = b_scales[2 * index + 1];
            barrier_wait(full + 8 * stage, phase);
            wgmma_fence();
            const uint64_t a = rows_of_128_bytes(a_at + my_first_token * K_BLOCK);
            const uint64_t b = rows_of_128_bytes(a_at + A_BYTES);
#pragma unroll
            for (int k = 0; k < K_BLOCK / 32; ++k) multiply<COLUMNS>(product, a + 2 * k, b + 2 * k, k != 0);
            wgmma_commit();
            wgmma_wait<0>();
            if (lane < cluster) barrier_arrive_at(empty + 8 * stage, lane);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                const float weight = j * 8 >= second_from ? second : first;
                total[4 * j] += product[4 * j] * (low * weight);
                total[4 * j + 1] += product[4 * j + 1] * (low * weight);
                total[4 * j + 2] += product[4 * j + 2] * (high * weight);
                total[4 * j + 3] += product[4 * j + 3] * (high * weight);
            }
        }

        if (K_GROUPS == 2) {
            // Every stage has been read when both groups are here, so the ring's memory is free.
            float* const other = reinterpret_cast<float*>(shared) + threadIdx.x % 128;
            sync_threads(1, CONSUMERS);
            if (group == 1)
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; ++i) other[128 * i] = total[i];
            sync_threads(1, CONSUMERS);
            if (group == 0)
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; ++i) total[i] += other[128 * i];
        }
        if (K_GROUPS == 1 || group == 0) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                const int column = first_column + 8 * j + lane % 4 * 2;
                if (column >= p.columns) continue;
                if (row < p.tokens)
                    *reinterpret_cast<__nv_bfloat162*>(p.out + row * p.out_row + column) =
                        __floats2bfloat162_rn(total[4 * j], total[4 * j + 1]);
                if (row + 8 < p.tokens)
                    *reinterpret_cast<__nv_bfloat162*>(p.out + (row + 8) * p.out_row + column) =
                        __floats2bfloat162_rn(total[4 * j + 2], total[4 * j + 3]);
            }
        }
    }
    // A block must not end while others may still arrive at its barriers.
    cluster_sync();
}

bool describe(CUtensorMap* map, const void* data, int64_t rows, int64_t k, int64_t stride, int box_rows) {
    const cuuint64_t sizes[] = {cuuint64_t(k), cuuint64_t(rows)}, strides[] = {cuuint64_t(stride)};
    const cuuint32_t box[] = {K_BLOCK, cuuint32_t(box_rows)}, steps[] = {1, 1};
    const EncodeTiled encode = encode_tiled();
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int COLUMNS, int TOKEN_GROUPS>
cudaError_t run(const void* a, int64_t a_row, const void* b, int64_t b_row, Operands p, int cluster, cudaStream_t stream) {
    constexpr int TOKENS = GROUP_TOKENS * TOKEN_GROUPS, STAGE_BYTES = (TOKENS + COLUMNS) * K_BLOCK;
    int device, limit;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    const int scales = p.blocks * (TOKENS + 2) * 4;
    p.stages = min(min((limit - 1024 - scales) / (STAGE_BYTES + 16), MAX_STAGES), max(p.blocks + 1, 4));
    // Even, so that the two groups that take turns over K never share a stage: a wait for a parity cannot tell a phase
    // from the one two before it, and only who waited for the last phase of a stage knows that it has passed.
    p.stages &= ~1;
    if (p.stages < 4) return cudaErrorInvalidValue;
    const int bytes = p.stages * (STAGE_BYTES + 16) + scales;
    error = cudaFuncSetAttribute(few_tokens<COLUMNS, TOKEN_GROUPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    CUtensorMap a_map, b_map;
    if (!describe(&a_map, a, p.tokens, int64_t(p.blocks) * K_BLOCK, a_row, TOKENS / cluster) ||
        !describe(&b_map, b, p.columns, int64_t(p.blocks) * K_BLOCK, b_row, COLUMNS))
        return cudaErrorInvalidValue;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    const int tiles = (p.columns + COLUMNS - 1) / COLUMNS;
    config.gridDim = dim3((tiles + cluster - 1) / cluster * cluster);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, few_tokens<COLUMNS, TOKEN_GROUPS>, a_map, b_map, p);
}

}  // namespace

// Strides count elements. At most 128 tokens; `tile` is one of the numbers of columns below, `cluster` 1, 2, 4 or 8.
extern "C" int fp8_block_gemm_few_tokens(
    const void* a, int64_t a_row, const float* a_scale, int64_t a_scale_row, int64_t a_scale_block, const void* b,
    int64_t b_row, const float* b_scale, int64_t b_scale_row, int64_t b_scale_block, void* out, int64_t out_row,
    int tokens, int columns, int blocks, int tile, int cluster, cudaStream_t stream) {
    const Operands p = {a_scale, a_scale_row, a_scale_block, b_scale, b_scale_row, b_scale_block,
                        static_cast<__nv_bfloat16*>(out), out_row, tokens, columns, blocks, 0};
    if (tokens > 2 * GROUP_TOKENS) return cudaErrorInvalidValue;
#define TILE(COLUMNS)                                                                               \
    case COLUMNS:                                                                                   \
        return tokens <= GROUP_TOKENS ? run<COLUMNS, 1>(a, a_row, b, b_row, p, cluster, stream)     \
                                      : run<COLUMNS, 2>(a, a_row, b, b_row, p, cluster, stream);
    switch (tile) {
        TILE(16)
        TILE(24)
        TILE(32)
        TILE(40)
        TILE(48)
        TILE(56)
        TILE(64)
        TILE(80)
        TILE(96)
        TILE(112)
        TILE(128)
    }
    return cudaErrorInvalidValue;
}
