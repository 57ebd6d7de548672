// One token a row from its logits: greedy, temperature, top-k, top-p, min-p; kernels/sampling.py holds the contract.
//
// A cluster of blocks works on a row. The first pass finds the largest logit of every thread. The k-th largest of those
// bounds the k-th largest logit from below, so what lies above it, usually little more than k tokens, goes to a list in
// the first block, which finishes alone. Without top-k, or where the list is too short, the cluster brackets the
// threshold by a histogram of a sample, then counts exactly: one pass sums what lies above the bracket and puts what
// lies inside into bins, and so on within the bin that holds the threshold.
//
// Weights are whole numbers, so that sums do not depend on their order or on how many blocks share a row.

#include <cuda_bf16.h>

#include "sampling_threshold.cuh"

namespace {

constexpr int SMALL_LIST = THREADS / 2;
constexpr int STATUS_NAN = 1, STATUS_EMPTY = 2, STATUS_INFINITE = 3;
constexpr float LEAST_TEMPERATURE = 1e-5f;

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) sample(Arguments a) {
    __shared__ Shared s;
    const int rank = cluster_rank(), size = cluster_size();
    const int64_t lane = blockIdx.x / size;
    const Slice<T> slice(a, lane, rank, size);
    constexpr int N = Slice<T>::N;
    if (threadIdx.x == 0) {
        s.best = 0;
        s.listed = 0;
        s.first = 0;
        s.leader = 0;
    }
    wait_for_previous_kernel();

    float own = -INFINITY;
    slice.template each<8>([&](const float(&x)[N], int) {
#pragma unroll
        for (int i = 0; i < N; ++i) own = max_or_nan(own, x[i]);
    });
    const uint32_t own_key = own == own ? key_of(own) : KEY_NAN;
    s.largest[threadIdx.x] = own_key;
    cluster_sync();
    uint32_t largest = 0, smallest = 0xFFFFFFFFu;
    for (int r = 0; r < size; ++r) {
        const uint32_t key = of_rank(s.largest, r)[threadIdx.x];
        largest = max(largest, key);
        smallest = min(smallest, key);
    }
    largest = block_max(largest, s);
    const int status = largest == KEY_NAN        ? STATUS_NAN
                       : largest == KEY_INFINITE ? STATUS_INFINITE
                       : largest == KEY_NOTHING  ? STATUS_EMPTY
                                                 : 0;
    if (rank == 0 && threadIdx.x == 0) {
        a.status[lane] = status;
        if (status) a.write(lane, 0);
    }
    if (status) {
        cluster_sync();
        return;
    }

    const float temperature = a.temperature ? a.temperature[lane] : 0.0f;
    if (!(temperature >= LEAST_TEMPERATURE)) {
        if (own_key == largest) {
            uint32_t best = 0;
            slice.template each<4>([&](const float(&x)[N], int index) {
#pragma unroll
                for (int i = 0; i < N; ++i)
                    if (key_of(x[i]) == largest) best = max(best, 0xFFFFFFFFu - (index + i));
            });
            atomicMax(of_rank(&s.first, 0), best);
        }
        cluster_sync();
        if (rank == 0 && threadIdx.x == 0) a.write(lane, 0xFFFFFFFFu - s.first);
        return;
    }

    const Scale scale{value_of(largest), __fdiv_rn(1.442695041f, temperature)};
    const int k = a.top_k ? a.top_k[lane] : 0;
    const float p = a.top_p ? a.top_p[lane] : 1.0f;
    const float least_weight = a.min_p ? fminf(a.min_p[lane], 1.0f) : 0.0f;
    const bool by_count = k > 0 && k < a.vocabulary;
    const bool by_weight = p < 1.0f;
    const int64_t seed = a.seeds[lane], position = a.position(lane);
    const double share = p;

    if (by_count && k <= size * THREADS) {
        smallest = ~block_max(~smallest, s);
        const int shift = shift_of(largest - smallest);
        clear_bins(s);
        for (int r = 0; r < size; ++r)
            atomicAdd(&s.low[(largest - of_rank(s.largest, r)[threadIdx.x]) >> shift], 1);
        __syncthreads();
        uint64_t values[EACH], before;
        scan_bins(s, 0, values, before);
        locate(s, values, before, k, 0);
        __syncthreads();
        uint32_t above = largest, below = KEY_NOTHING;
        enter_bin(s.bins[0], shift, above, below);
        if (own_key > below) gather(slice, s, below);
        cluster_sync();
        const int listed = *of_rank(&s.listed, 0);
        if (listed <= CAPACITY) {
            if (rank == 0) {
                uint64_t best = 0;
                const auto race = [&](int i) {
                    const uint32_t index = s.indices[i];
                    const uint4 random = philox(
                        make_uint4(index / 4, (uint32_t)position, (uint32_t)(position >> 32), 0), (uint32_t)seed,
                        (uint32_t)(seed >> 32)
                    );
                    const uint32_t bits = index & 2 ? (index & 1 ? random.w : random.z)
                                                    : (index & 1 ? random.y : random.x);
                    const float x = value_of(s.keys[i]);
                    if (scale.weight(x) >= least_weight) best = max(best, race_entry(scale.exponent(x), bits, index));
                };
                if (listed <= SMALL_LIST) {
                    // Two threads a token count what lies above it.
                    uint64_t* wholes = (uint64_t*)s.low;
                    const int i = threadIdx.x / 2;
                    const uint32_t key = i < listed ? s.keys[i] : 0;
                    const uint64_t own_weight = i < listed ? whole(scale.weight(value_of(key))) : 0;
                    if (threadIdx.x % 2 == 0) wholes[i] = own_weight;
                    __syncthreads();
                    int higher = 0;
                    uint64_t weight = 0;
                    for (int j = threadIdx.x % 2; j < listed; j += 2) {
                        if (s.keys[j] > key) {
                            ++higher;
                            weight += wholes[j];
                        }
                    }
                    higher += __shfl_xor_sync(0xFFFFFFFFu, higher, 1);
                    weight += __shfl_xor_sync(0xFFFFFFFFu, weight, 1);
                    bool kept = i < listed && threadIdx.x % 2 == 0 && higher < k;
                    if (by_weight) {
                        const uint64_t all = block_sum(kept ? own_weight : 0, s);
                        kept = kept && ((double)weight < share * (double)all || key == largest);
                    }
                    if (kept) race(i);
                } else {
                    uint32_t threshold = select_listed(s, listed, false, k, largest, below, scale);
                    if (by_weight) {
                        uint64_t sum = 0;
                        for (int i = threadIdx.x; i < listed; i += THREADS)
                            if (s.keys[i] >= threshold) sum += whole(scale.weight(value_of(s.keys[i])));
                        const double all = (double)block_sum(sum, s);
                        threshold = p > 0.0f
                                        ? select_listed(s, listed, true, share * all, largest, threshold - 1, scale)
                                        : largest;
                    }
                    for (int i = threadIdx.x; i < listed; i += THREADS)
                        if (s.keys[i] >= threshold) race(i);
                }
                best = block_max64(best, s);
                if (threadIdx.x == 0) a.write(lane, 0xFFFFFFFFu - (uint32_t)best);
            }
            cluster_sync();
            return;
        }
        cluster_sync();
    }

    uint32_t threshold = KEY_NOTHING + 1;
    if (by_count) threshold = select_all(slice, s, size, false, k, largest, own_key, threshold - 1, scale);
    if (by_weight)
        threshold = p > 0.0f ? select_all(slice, s, size, true, share, largest, own_key, threshold - 1, scale) : largest;
    uint64_t best = 0;
    slice.template each<4>([&](const float(&x)[N], int index) {
        const float leader = value_of(*(volatile uint32_t*)&s.leader);
        const uint64_t before = best;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float top = fmaxf(fmaxf(x[i], x[i + 1]), fmaxf(x[i + 2], x[i + 3]));
            if (key_of(top) < threshold) continue;
            const uint4 random = philox(
                make_uint4((index + i) / 4, (uint32_t)position, (uint32_t)(position >> 32), 0), (uint32_t)seed,
                (uint32_t)(seed >> 32)
            );
            // No token of the four gets past what the largest logit would with the smallest draw: -ln(1 - v) >= v.
            const float least = (float)min(min(random.x, random.y), min(random.z, random.w)) * 0x1p-32f + 0x1p-33f;
            if (scale.exponent(top) - log2_approx(least) + 0.01f < leader) continue;
            const uint32_t bits[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (key_of(x[i + j]) >= threshold && scale.weight(x[i + j]) >= least_weight)
                    best = max(best, race_entry(scale.exponent(x[i + j]), bits[j], index + i + j));
        }
        if (best != before) atomicMax(&s.leader, (uint32_t)(best >> 32));
    });
    best = block_max64(best, s);
    if (threadIdx.x == 0) s.best = best;
    cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        for (int r = 1; r < size; ++r) best = max(best, *of_rank(&s.best, r));
        a.write(lane, 0xFFFFFFFFu - (uint32_t)best);
    }
    cluster_sync();
}

}  // namespace

extern "C" int sample_tokens(
    const void* logits, int wide, int64_t rows, int64_t stride, int vocabulary, const float* temperature,
    const int* top_k, const float* top_p, const float* min_p, const int64_t* seeds, const void* positions,
    int wide_positions, void* ids, int wide_ids, int* status, int cluster, int programmatic, cudaStream_t stream
) {
    Arguments arguments{logits, stride, vocabulary, temperature, top_k, top_p, min_p, seeds, positions, wide_positions,
                        ids, wide_ids, status};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(rows * cluster));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    cudaLaunchAttribute attributes[2];
    if (cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs].val.clusterDim.x = cluster;
        attributes[config.numAttrs].val.clusterDim.y = 1;
        attributes[config.numAttrs].val.clusterDim.z = 1;
        ++config.numAttrs;
    }
    if (programmatic) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
        ++config.numAttrs;
    }
    config.attrs = attributes;
    return wide ? cudaLaunchKernelEx(&config, sample<float>, arguments)
                : cudaLaunchKernelEx(&config, sample<__nv_bfloat16>, arguments);
}
