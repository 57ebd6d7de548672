// paged_prefill_attention on Hopper: see kernels/paged_prefill_attention.py for the contract.
//
// One warp copies pages into a ring of key and value blocks; two warp groups, each with 64 query rows, multiply. Each
// issues the product of the next keys before that of the current values, so that the softmax between them runs while
// the tensor cores work (Shah et al., "FlashAttention-3", arXiv 2407.08608).

#include <cuda_bf16.h>

#include "hopper.cuh"

namespace {

using namespace hopper;

constexpr int GROUPS = 2;          // warp groups that multiply
constexpr int GROUP_ROWS = 64;     // query rows of one
constexpr int ROWS = GROUPS * GROUP_ROWS;
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int STAGES = 2;
constexpr int LINE = 128;          // bytes of a swizzled row, 64 elements
constexpr int LINE_ELEMENTS = LINE / 2;
constexpr float NEVER = -1e30f;    // finite, so that differences of maxima stay finite where nothing was seen

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) F4(i), F4(i + 4)
#define F16(i) F8(i), F8(i + 8)
#define F32(i) F16(i), F16(i + 16)
#define F64(i) F32(i), F32(i + 32)
#define N32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define N64 N32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define N128 N64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d[64, COLUMNS] (+)= a[64, 16] . b[COLUMNS, 16]^T, both in shared memory with 16 contiguous.
template <int COLUMNS>
__device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], uint64_t a, uint64_t b, int add);
// d[64, COLUMNS] += a[64, 16] . b[16, COLUMNS], a in registers, b in shared memory with COLUMNS contiguous.
template <int COLUMNS>
__device__ __forceinline__ void multiply_add(float (&d)[COLUMNS / 2], const uint32_t* a, uint64_t b);

#define MULTIPLY(columns, names, a_index, b_index, add_index, ...)                                                  \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply<columns>(float (&d)[columns / 2], uint64_t a, uint64_t b, int add) {   \
        asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" add_index ", 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names "}, %" a_index ", %"  \
                     b_index ", adds, 1, 1, 0, 0;\n}\n"                                                             \
                     : __VA_ARGS__                                                                                  \
                     : "l"(a), "l"(b), "r"(add));                                                                   \
    }
#define MULTIPLY_ADD(columns, names, a0, a1, a2, a3, b_index, ...)                                                  \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_add<columns>(float (&d)[columns / 2], const uint32_t* a, uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names "}, {%" a0 ",%" a1    \
                     ",%" a2 ",%" a3 "}, %" b_index ", 1, 1, 1, 1;\n"                                               \
                     : __VA_ARGS__                                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                         \
    }
MULTIPLY(64, N32, "32", "33", "34", F32(0))
MULTIPLY(128, N64, "64", "65", "66", F64(0))
MULTIPLY_ADD(64, N32, "32", "33", "34", "35", "36", F32(0))
MULTIPLY_ADD(128, N64, "64", "65", "66", "67", "68", F64(0))
MULTIPLY_ADD(256, N128, "128", "129", "130", "131", "132", F64(0), F64(64))

struct Operands {
    const __nv_bfloat16* query;
    __nv_bfloat16* out;
    float* logsumexp;
    const int* tables;
    const int* query_indptr;
    const int* kv_lengths;
    float scale, v_scale;  // scale includes log2(e)
    int64_t query_token, query_head, out_token, out_head, table_row;
    int batch, kv_heads, group, page_size;
};

__device__ __forceinline__ float power_of_2(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

// Where 16 bytes of a row lie in a swizzled tile of `rows` rows, 128 bytes of each after one another.
__device__ __forceinline__ uint32_t swizzled(int row, int vector, int rows) {
    return vector / 8 * rows * LINE + row * LINE + ((vector % 8 ^ row % 8) << 4);
}

// Values: COLUMNS contiguous, in pieces of 64 `piece` bytes apart, 8 keys after 8 keys.
__device__ __forceinline__ uint64_t columns_of_128_bytes(uint32_t address, uint32_t piece) {
    return (uint64_t(address & 0x3FFFF) >> 4) | (uint64_t(piece >> 4) << 16) | (uint64_t(1024 >> 4) << 32) |
           (uint64_t(1) << 62);
}

template <int HEAD_DIM, int KEYS>
__global__ __launch_bounds__(THREADS, 1) void prefill(const __grid_constant__ CUtensorMap cache, const Operands p) {
    constexpr int PIECES = HEAD_DIM / LINE_ELEMENTS;
    constexpr int BLOCK_BYTES = KEYS * HEAD_DIM * 2;
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t queries_at = shared_address(shared), keys_at = queries_at + ROWS * HEAD_DIM * 2;
    const uint32_t values_at = keys_at + STAGES * BLOCK_BYTES;
    const uint32_t keys_full = values_at + STAGES * BLOCK_BYTES, keys_empty = keys_full + 8 * STAGES;
    const uint32_t values_full = keys_empty + 8 * STAGES, values_empty = values_full + 8 * STAGES;

    const int lanes = p.batch * p.kv_heads;
    // The last block of a sequence sees the most keys: those start first, so that short ones fill the end.
    const int block = gridDim.x / lanes - 1 - blockIdx.x / lanes;
    const int sequence = blockIdx.x % lanes / p.kv_heads, kv_head = blockIdx.x % lanes % p.kv_heads;
    const int first_token = p.query_indptr[sequence], queries = p.query_indptr[sequence + 1] - first_token;
    const int first_row = block * ROWS;
    if (first_row >= queries * p.group) return;
    const int length = p.kv_lengths[sequence], prefix = length - queries;
    const int seen_by_all = max(prefix + first_row / p.group + 1, 0);
    const int seen_by_any = max(prefix + min((first_row + ROWS - 1) / p.group, queries - 1) + 1, 0);
    const int blocks = (seen_by_any + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(keys_full + 8 * stage, 1);
            barrier_init(values_full + 8 * stage, 1);
            barrier_init(keys_empty + 8 * stage, GROUPS);
            barrier_init(values_empty + 8 * stage, GROUPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const int group = threadIdx.x / 128;

    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x / 32 % 4 != 0) return;
        // Each lane copies 128 bytes of each row of one page; together they copy a block of keys, then of values.
        const int lane = threadIdx.x % 32, box = min(p.page_size, KEYS), boxes = KEYS / box;
        const int piece = lane / boxes, row = lane % boxes * box;
        const bool copies = lane < boxes * PIECES;
        const int64_t page_rows = 2 * p.kv_heads * p.page_size;
        const int head_row = kv_head * p.page_size, values_row = p.kv_heads * p.page_size;
        const int* const table = p.tables + sequence * p.table_row;
        int stage = 0, phase = 1;
        for (int index = 0; index < blocks; ++index) {
            const int position = index * KEYS + row;
            // Positions past the end lie on no page; the null page stands in, and they are masked.
            const int page = copies && position < length ? table[position / p.page_size] : 0;
            const int y = int(page * page_rows) + head_row + position % p.page_size;
            const uint32_t to = stage * BLOCK_BYTES + (piece * KEYS + row) * LINE;
            barrier_wait(keys_empty + 8 * stage, phase);
            if (lane == 0) barrier_expect(keys_full + 8 * stage, BLOCK_BYTES);
            __syncwarp();
            if (copies) copy_tile(keys_at + to, &cache, piece * LINE_ELEMENTS, y, keys_full + 8 * stage);
            barrier_wait(values_empty + 8 * stage, phase);
            if (lane == 0) barrier_expect(values_full + 8 * stage, BLOCK_BYTES);
            __syncwarp();
            if (copies) copy_tile(values_at + to, &cache, piece * LINE_ELEMENTS, y + values_row, values_full + 8 * stage);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int group_row = group * GROUP_ROWS;
    uint8_t* const my_rows = shared + group_row * LINE;  // of each piece of 64 elements
    for (int index = thread; index < GROUP_ROWS * HEAD_DIM / 8; index += 128) {
        const int row = index / (HEAD_DIM / 8), vector = index % (HEAD_DIM / 8);
        const int pair = first_row + group_row + row, token = pair / p.group;
        const __nv_bfloat16* const from = p.query + (first_token + token) * p.query_token +
                                          (kv_head * p.group + pair % p.group) * p.query_head + vector * 8;
        const uint4 value = token < queries ? *reinterpret_cast<const uint4*>(from) : uint4{};
        *reinterpret_cast<uint4*>(my_rows + swizzled(row, vector, ROWS)) = value;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    sync_threads(1 + group, 128);

    const int row = thread / 32 * 16 + lane / 4;  // and row + 8, of the group's
    const int position_low = prefix + (first_row + group_row + row) / p.group;
    const int position_high = prefix + (first_row + group_row + row + 8) / p.group;
    float score[KEYS / 2], weighted[HEAD_DIM / 2] = {};
    uint32_t share[KEYS / 4];
    float highest[2] = {NEVER, NEVER}, total[2] = {};

    const auto multiply_keys = [&](int stage) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; ++k)
            multiply<KEYS>(
                score,
                rows_of_128_bytes(queries_at + group_row * LINE + k / 4 * ROWS * LINE) + 2 * (k % 4),
                rows_of_128_bytes(keys_at + stage * BLOCK_BYTES + k / 4 * KEYS * LINE) + 2 * (k % 4), k != 0);
        wgmma_commit();
    };
    const auto multiply_values = [&](int stage) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
            multiply_add<HEAD_DIM>(
                weighted, share + 4 * k,
                columns_of_128_bytes(values_at + stage * BLOCK_BYTES + k * 16 * LINE, KEYS * LINE));
        wgmma_commit();
    };
    // Scores to probabilities; returns by how much what was summed so far shrinks.
    const auto soften = [&](int start, float (&fade)[2]) {
        if (start + KEYS > seen_by_all) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                const int key = start + i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (key > (i % 4 < 2 ? position_low : position_high)) score[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float peak = NEVER;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i += 4) peak = fmaxf(peak, fmaxf(score[i + 2 * half], score[i + 2 * half + 1]));
            peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFF, peak, 1));
            peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFF, peak, 2));
            peak = fmaxf(highest[half], peak * p.scale);
            fade[half] = power_of_2(highest[half] - peak);
            highest[half] = peak;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i += 4) {
                float& left = score[i + 2 * half];
                float& right = score[i + 2 * half + 1];
                left = power_of_2(fmaf(left, p.scale, -peak));
                right = power_of_2(fmaf(right, p.scale, -peak));
                sum += left + right;
            }
            // The four lanes of a row add their sums at the end.
            total[half] = total[half] * fade[half] + sum;
        }
    };
    const auto keep = [&] {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) share[i] = pack(score[2 * i], score[2 * i + 1]);
    };

    if (blocks) {
        float fade[2];
        barrier_wait(keys_full, 0);
        multiply_keys(0);
        wgmma_wait<0>();
        if (thread == 0) barrier_arrive(keys_empty);
        soften(0, fade);
        keep();
        for (int index = 1; index < blocks; ++index) {
            const int stage = index % STAGES, before = (index - 1) % STAGES;
            barrier_wait(keys_full + 8 * stage, index / STAGES & 1);
            multiply_keys(stage);
            barrier_wait(values_full + 8 * before, (index - 1) / STAGES & 1);
            multiply_values(before);
            wgmma_wait<1>();
            if (thread == 0) barrier_arrive(keys_empty + 8 * stage);
            soften(index * KEYS, fade);
            wgmma_wait<0>();
            if (thread == 0) barrier_arrive(values_empty + 8 * before);
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) weighted[i] *= fade[i / 2 % 2];
            keep();
        }
        const int last = (blocks - 1) % STAGES;
        barrier_wait(values_full + 8 * last, (blocks - 1) / STAGES & 1);
        // Past the end there may be anything, and 0 times NaN is NaN.
        const int first_past = length - (blocks - 1) * KEYS;
        if (first_past < KEYS) {
            for (int index = threadIdx.x + first_past * (HEAD_DIM / 8); index < KEYS * (HEAD_DIM / 8);
                 index += 128 * GROUPS)
                *reinterpret_cast<uint4*>(shared + (values_at - queries_at) + last * BLOCK_BYTES +
                                          swizzled(index / (HEAD_DIM / 8), index % (HEAD_DIM / 8), KEYS)) = uint4{};
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            sync_threads(1 + GROUPS, 128 * GROUPS);
        }
        multiply_values(last);
        wgmma_wait<0>();
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        total[half] += __shfl_xor_sync(0xFFFFFFFF, total[half], 1);
        total[half] += __shfl_xor_sync(0xFFFFFFFF, total[half], 2);
        const int pair = first_row + group_row + row + 8 * half, token = pair / p.group;
        if (p.logsumexp && lane % 4 == 0 && token < queries)
            p.logsumexp[int64_t(first_token + token) * p.kv_heads * p.group + kv_head * p.group + pair % p.group] =
                total[half] > 0 ? (highest[half] + log2f(total[half])) * 0.6931471805599453f : -INFINITY;
        total[half] = p.v_scale / (total[half] > 0 ? total[half] : 1.0f);
    }
    // When all of the group have read the queries, their memory turns fragments into rows.
    sync_threads(1 + group, 128);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i += 2) {
        const int half = i / 2 % 2;
        *reinterpret_cast<uint32_t*>(my_rows + swizzled(row + 8 * half, i / 4, ROWS) + lane % 4 * 4) =
            pack(weighted[i] * total[half], weighted[i + 1] * total[half]);
    }
    sync_threads(1 + group, 128);
    for (int index = thread; index < GROUP_ROWS * HEAD_DIM / 8; index += 128) {
        const int from = index / (HEAD_DIM / 8), vector = index % (HEAD_DIM / 8);
        const int pair = first_row + group_row + from, token = pair / p.group;
        if (token >= queries) break;
        *reinterpret_cast<uint4*>(
            p.out + (first_token + token) * p.out_token + (kv_head * p.group + pair % p.group) * p.out_head + vector * 8) =
            *reinterpret_cast<const uint4*>(my_rows + swizzled(from, vector, ROWS));
    }
}

template <int HEAD_DIM, int KEYS>
cudaError_t run(const void* kv_cache, int64_t pages, int blocks, const Operands& p, cudaStream_t stream) {
    const int64_t rows = pages * 2 * p.kv_heads * p.page_size;
    const cuuint64_t sizes[] = {HEAD_DIM, cuuint64_t(rows)}, strides[] = {HEAD_DIM * 2};
    const cuuint32_t box[] = {LINE_ELEMENTS, cuuint32_t(min(p.page_size, KEYS))}, steps[] = {1, 1};
    CUtensorMap cache;
    const EncodeTiled encode = encode_tiled();
    if (rows > INT32_MAX || !encode ||
        encode(&cache, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(kv_cache), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    constexpr int BYTES = (ROWS + 2 * STAGES * KEYS) * HEAD_DIM * 2 + 4 * STAGES * 8;
    const cudaError_t error =
        cudaFuncSetAttribute(prefill<HEAD_DIM, KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (error != cudaSuccess) return error;
    prefill<HEAD_DIM, KEYS><<<blocks * p.batch * p.kv_heads, THREADS, BYTES, stream>>>(cache, p);
    return cudaGetLastError();
}

}  // namespace

// Strides count elements; `scale` includes log2(e); `blocks` of 128 (token, head of the group) rows cover the longest
// sequence. The page size is a power of two of at least 16.
extern "C" int paged_prefill_attention(
    const void* query, const void* kv_cache, const int* tables, const int* query_indptr, const int* kv_lengths, void* out,
    float* logsumexp, float scale, float v_scale, int64_t query_token, int64_t query_head, int64_t out_token,
    int64_t out_head, int64_t table_row, int64_t pages, int batch, int kv_heads, int group, int page_size, int head_dim,
    int blocks, cudaStream_t stream) {
    const Operands p = {static_cast<const __nv_bfloat16*>(query), static_cast<__nv_bfloat16*>(out), logsumexp, tables,
                        query_indptr, kv_lengths, scale, v_scale, query_token, query_head, out_token, out_head, table_row,
                        batch, kv_heads, group, page_size};
    switch (head_dim) {
        case 64:
            return run<64, 128>(kv_cache, pages, blocks, p, stream);
        case 128:
            return run<128, 128>(kv_cache, pages, blocks, p, stream);
        case 256:
            return run<256, 64>(kv_cache, pages, blocks, p, stream);
    }
    return cudaErrorInvalidValue;
}
