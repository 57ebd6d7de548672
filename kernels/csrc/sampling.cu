// One token a row from its logits: greedy, temperature, top-k, top-p, min-p; kernels/sampling.py holds the contract.
//
// A cluster of blocks works on a row. The first pass finds the largest logit of every thread. The k-th largest of those
// bounds the k-th largest logit from below, so what lies above it, usually little more than k tokens, goes to a list in
// the first block, which finishes alone. Without top-k, or where the list is too short, the cluster brackets the
// threshold by a histogram of a sample, then counts exactly: one pass sums what lies above the bracket and puts what
// lies inside into bins, and so on within the bin that holds the threshold.
//
// Weights are whole numbers, so that sums do not depend on their order or on how many blocks share a row.

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

namespace cg = cooperative_groups;

#ifndef THREADS
#define THREADS 512
#endif
constexpr int WARPS = THREADS / 32;
constexpr int CAPACITY = 2048;
constexpr int BINS = 2048;
constexpr int SMALL_LIST = THREADS / 2;
constexpr int SAMPLED = 8;              // one vector of so many is sampled
constexpr float DEEPEST = 36.0f;         // a weight of 2^-36 rounds to nothing
constexpr double SAMPLE_MARGIN = 0.01;  // of the weight, to either side of the estimate
constexpr int BIN_BITS = 11;
constexpr uint32_t KEY_NAN = 0xFFFFFFFFu;
constexpr uint32_t KEY_INFINITE = 0xFF800000u;
constexpr uint32_t KEY_NOTHING = 0x007FFFFFu;  // of -inf
constexpr int STATUS_NAN = 1, STATUS_EMPTY = 2, STATUS_INFINITE = 3;
constexpr float LEAST_TEMPERATURE = 1e-5f;

struct Arguments {
    const void* logits;
    int64_t stride;
    int vocabulary;
    const float* temperature;
    const int* top_k;
    const float* top_p;
    const float* min_p;
    const int64_t* seeds;
    const void* positions;
    int wide_positions;
    void* ids;
    int wide_ids;
    int* status;

    __device__ int64_t position(int64_t lane) const {
        return wide_positions ? ((const int64_t*)positions)[lane] : ((const int*)positions)[lane];
    }
    __device__ void write(int64_t lane, uint32_t id) const {
        if (wide_ids)
            ((int64_t*)ids)[lane] = id;
        else
            ((int*)ids)[lane] = (int)id;
    }
};

struct Shared {
    uint64_t scan[WARPS];
    uint64_t reduce[WARPS];
    uint64_t above;  // of this block: weight or count above the bracket
    uint64_t total;  // of this block: weight above the floor
    uint64_t best;
    uint64_t base;
    alignas(8) uint32_t low[BINS];
    uint32_t high[BINS];
    uint32_t largest[THREADS];
    uint32_t keys[CAPACITY];
    uint32_t indices[CAPACITY];
    uint32_t listed;
    uint32_t first;
    uint32_t bins[2];
    uint32_t leader;
};

__device__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().block_rank();
#else
    return 0;
#endif
}

__device__ int cluster_size() {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().num_blocks();
#else
    return 1;
#endif
}

__device__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();
#else
    __syncthreads();
#endif
}

template <typename T>
__device__ T* of_rank(T* local, int rank) {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().map_shared_rank(local, rank);
#else
    return local;
#endif
}

__device__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

// Unsigned numbers in the order of the floats; both zeros give one.
__device__ uint32_t key_of(float x) {
    uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits ^ ((uint32_t)((int)bits >> 31) | 0x80000000u);
}

__device__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

__device__ float max_or_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

__device__ float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

__device__ float log2_approx(float x) {
    float result;
    asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// exp2 of a logit's distance to the largest, over temperature: in (0, 1].
struct Scale {
    float largest;
    float factor;  // log2(e) / temperature

    __device__ float exponent(float x) const { return __fmul_rn(__fsub_rn(x, largest), factor); }
    __device__ float weight(float x) const { return exp2_approx(exponent(x)); }
};

// round(w * 2^34) for w in [0, 1] as high * 2^17 + low: adding a constant leaves the rounded number in the low bits.
constexpr float MAGIC_HIGH = 96.0f;               // 1.5 * 2^6: steps of 2^-17
constexpr float MAGIC_LOW = 0.000732421875f;      // 1.5 * 2^-11: steps of 2^-34

__device__ void split(float w, int& high, int& low) {
    float shifted = __fadd_rn(w, MAGIC_HIGH);
    float rest = __fsub_rn(w, __fsub_rn(shifted, MAGIC_HIGH));
    high = __float_as_int(shifted) - __float_as_int(MAGIC_HIGH);
    low = __float_as_int(__fadd_rn(rest, MAGIC_LOW)) - __float_as_int(MAGIC_LOW);
}

__device__ uint64_t whole(float w) {
    int high, low;
    split(w, high, low);
    return (uint64_t)(((int64_t)high << 17) + low);
}

// Philox4x32-10 (Salmon et al. 2011).
__device__ uint4 philox(uint4 counter, uint32_t key0, uint32_t key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        uint32_t hi0 = __umulhi(0xD2511F53u, counter.x), lo0 = 0xD2511F53u * counter.x;
        uint32_t hi1 = __umulhi(0xCD9E8D57u, counter.z), lo1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(hi1 ^ counter.y ^ key0, lo1, hi0 ^ counter.w ^ key1, lo0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// log2 of an exponential variate, made from 32 random bits with full relative precision near zero, where winners are.
__device__ float log2_exponential(uint32_t bits) {
    float v = fminf(__fadd_rn(__fmul_rn(__uint2float_rn(bits), 0x1p-32f), 0x1p-33f), 0x1.fffffep-1f);
    float e = v < 0x1p-6f ? __fmul_rn(v, fmaf(v, fmaf(v, fmaf(v, 0.25f, 0.33333334f), 0.5f), 1.0f))
                          : __fmul_rn(log2_approx(__fsub_rn(1.0f, v)), -0.6931472f);
    return log2_approx(e);
}

__device__ uint64_t race_entry(float exponent, uint32_t bits, uint32_t index) {
    return ((uint64_t)key_of(__fsub_rn(exponent, log2_exponential(bits))) << 32) | (0xFFFFFFFFu - index);
}

__device__ uint32_t block_max(uint32_t value, Shared& s) {
    value = __reduce_max_sync(0xFFFFFFFFu, value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
    __syncthreads();
    return __reduce_max_sync(0xFFFFFFFFu, (uint32_t)s.reduce[threadIdx.x % WARPS]);
}

__device__ uint64_t block_max64(uint64_t value, Shared& s) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) value = max(value, s.reduce[warp]);
    return value;
}

__device__ uint64_t block_sum(uint64_t value, Shared& s) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) value += s.reduce[warp];
    return value;
}

template <typename T>
struct Slice {
    static constexpr int N = 16 / sizeof(T);
    const T* row;
    int vocabulary;
    int begin, end;  // vectors that this block reads, all of them whole
    int tail;        // the vector that the vocabulary cuts, or -1

    __device__ Slice(const Arguments& a, int64_t index, int rank, int size) {
        row = (const T*)a.logits + index * a.stride;
        vocabulary = a.vocabulary;
        int vectors = vocabulary / N, share = (vectors + size - 1) / size;
        begin = min(rank * share, vectors);
        end = min(begin + share, vectors);
        tail = rank == size - 1 && vocabulary % N ? vectors : -1;
    }

    __device__ static void unpack(uint4 raw, float (&x)[N]) {
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (N == 8) {
                x[2 * i] = __uint_as_float(words[i] << 16);
                x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
            } else {
                x[i] = __uint_as_float(words[i]);
            }
        }
    }

    // f(values, index of the first) for this thread's vectors, the same ones at every call; UNROLL are in flight. What
    // lies past the end reads as -inf.
    template <int UNROLL, typename F>
    __device__ void each(F f) const {
        const uint4* vectors = (const uint4*)row;
        float x[N];
        for (int first = begin; first < end; first += UNROLL * THREADS) {
            uint4 raw[UNROLL];
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) {
                const int v = first + i * THREADS + threadIdx.x;
                constexpr uint32_t nothing = N == 8 ? 0xFF80FF80u : 0xFF800000u;
                raw[i] = v < end ? vectors[v] : make_uint4(nothing, nothing, nothing, nothing);
            }
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) {
                unpack(raw[i], x);
                f(x, (first + i * THREADS + (int)threadIdx.x) * N);
            }
        }
        if (tail >= 0 && threadIdx.x == 0) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const int index = tail * N + i;
                x[i] = index < vocabulary ? (float)row[index] : -INFINITY;
            }
            f(x, tail * N);
        }
    }

    // f(values) for one of SAMPLED of them.
    template <typename F>
    __device__ void sample(F f) const {
        const uint4* vectors = (const uint4*)row;
        float x[N];
        for (int v = begin + threadIdx.x; v < end; v += SAMPLED * THREADS) {
            unpack(vectors[v], x);
            f(x);
        }
    }

    // The share of this block's vectors that `sample` sees.
    __device__ float sampled() const {
        int seen = 0;
        for (int first = begin; first < end; first += SAMPLED * THREADS) seen += min(THREADS, end - first);
        return end > begin ? (float)seen / (float)(end - begin) : 1.0f;
    }
};

__device__ void clear_bins(Shared& s) {
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) s.low[bin] = s.high[bin] = 0;
    if (threadIdx.x < 2) s.bins[threadIdx.x] = BINS;
    __syncthreads();
}

__device__ void add_to_bin(Shared& s, uint32_t bin, int high, int low) {
    if (low) atomicAdd(&s.low[bin], (uint32_t)low);
    if (high) atomicAdd(&s.high[bin], (uint32_t)high);
}

constexpr int EACH = BINS / THREADS;

// This thread's EACH bins, summed over `size` blocks (or of this block where it is 0); the sum of the bins before them,
// and of all.
__device__ uint64_t scan_bins(Shared& s, int size, uint64_t (&values)[EACH], uint64_t& before) {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int bin = threadIdx.x * EACH + i;
        int64_t value = 0;
        if (size == 0) value = ((int64_t)s.high[bin] << 17) + (int)s.low[bin];
        for (int r = 0; r < size; ++r) value += ((int64_t)of_rank(s.high, r)[bin] << 17) + (int)of_rank(s.low, r)[bin];
        values[i] = value;
        sum += value;
    }
    uint64_t running = sum;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, running, offset);
        if (threadIdx.x % 32 >= offset) running += other;
    }
    if (threadIdx.x % 32 == 31) s.scan[threadIdx.x / 32] = running;
    __syncthreads();
    before = running - sum;
    uint64_t total = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        if (warp < threadIdx.x / 32) before += s.scan[warp];
        total += s.scan[warp];
    }
    return total;
}

// The bin in which the running sum reaches `target`, into s.bins[which], and the sum before it into s.base.
__device__ void locate(Shared& s, const uint64_t (&values)[EACH], uint64_t before, double target, int which) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const uint64_t after = before + values[i];
        if ((double)before < target && (double)after >= target) {
            s.bins[which] = threadIdx.x * EACH + i;
            s.base = before;
        }
        before = after;
    }
}

__device__ int shift_of(uint32_t range) { return max(0, 32 - __clz(range) - BIN_BITS); }

// The edges of a bin of `shift` bits below `above`: (next below, above].
__device__ void enter_bin(uint32_t bin, int shift, uint32_t& above, uint32_t& below) {
    const uint64_t next = (uint64_t)(bin + 1) << shift;
    if (next < above - below) below = above - (uint32_t)next;
    above -= bin << shift;
}

// The smallest listed key in (below, above] with less than `target` of weight (or count) above it. Where all that lies
// above `below` is less than `target`, all of it.
__device__ uint32_t select_listed(
    Shared& s, int listed, bool weighted, double target, uint32_t above, uint32_t below, Scale scale
) {
    uint64_t base = 0;
    while (above - below > 1) {
        const int shift = shift_of(above - below - 1);
        clear_bins(s);
        for (int i = threadIdx.x; i < listed; i += THREADS) {
            const uint32_t key = s.keys[i];
            if (key > below && key <= above) {
                int high = 0, low = 1;
                if (weighted) split(scale.weight(value_of(key)), high, low);
                add_to_bin(s, (above - key) >> shift, high, low);
            }
        }
        __syncthreads();
        uint64_t values[EACH], before;
        scan_bins(s, 0, values, before);
        locate(s, values, base + before, target, 0);
        __syncthreads();
        if (s.bins[0] == BINS) return below + 1;
        base = s.base;
        enter_bin(s.bins[0], shift, above, below);
        __syncthreads();
    }
    return above;
}

template <typename T>
__device__ void gather(const Slice<T>& slice, Shared& s, uint32_t below) {
    uint32_t* listed = of_rank(&s.listed, 0);
    uint32_t* keys = of_rank(s.keys, 0);
    uint32_t* indices = of_rank(s.indices, 0);
    slice.template each<4>([&](const float(&x)[Slice<T>::N], int index) {
#pragma unroll
        for (int i = 0; i < Slice<T>::N; ++i) {
            const uint32_t key = key_of(x[i]);
            if (key > below) {
                const uint32_t at = atomicAdd(listed, 1);
                if (at < CAPACITY) {
                    keys[at] = key;
                    indices[at] = index + i;
                }
            }
        }
    });
}

// As select_listed, over the whole row by the whole cluster: the smallest key above `floor` with less than `goal` of the
// count above it, or of the weight of all above `floor`.
template <typename T>
__device__ uint32_t select_all(
    const Slice<T>& slice, Shared& s, int size, bool weighted, double goal, uint32_t largest, uint32_t own_largest,
    uint32_t floor, Scale scale
) {
    constexpr int N = Slice<T>::N;
    uint32_t least = floor;
    // Where a weight rounds to nothing no threshold lies.
    if (weighted) least = max(least, key_of(scale.largest - __fdiv_rn(DEEPEST, scale.factor)) - 1);
    if (largest - least <= 1) return largest;

    uint32_t above = largest, below = least;
    uint64_t values[EACH], before;
    {
        // A thread's largest stands for itself, its other tokens for those that were not sampled too. Weights go by even
        // steps of the logit, counts by the keys' leading bits; what the edges of bins miss, exact sums will find.
        const int shift = shift_of(largest - least - 1);
        const float share = slice.sampled(), step = DEEPEST / scale.factor / BINS, steps = BINS * scale.factor / DEEPEST;
        const auto bin_of = [&](float x, uint32_t key) {
            return weighted ? min((uint32_t)((scale.largest - x) * steps), BINS - 1u) : (largest - key) >> shift;
        };
        clear_bins(s);
        if (weighted && own_largest > least) {
            int high, low;
            const float x = value_of(own_largest);
            split(__fmul_rn(scale.weight(x), share), high, low);
            add_to_bin(s, bin_of(x, own_largest), high, low);
        }
        slice.sample([&](const float(&x)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const uint32_t key = key_of(x[i]);
                if (key > least && !(weighted && key == own_largest)) {
                    int high = 0, low = 1;
                    if (weighted) split(scale.weight(x[i]), high, low);
                    add_to_bin(s, bin_of(x[i], key), high, low);
                }
            }
        });
        cluster_sync();
        const double total = (double)scan_bins(s, size, values, before);
        const double middle = goal * (weighted ? total : (double)share);
        const double margin = weighted ? SAMPLE_MARGIN * total : 3.0 * sqrt(middle) + 4.0;
        locate(s, values, before, middle - margin, 0);
        locate(s, values, before, middle + margin, 1);
        __syncthreads();
        const uint32_t upper = s.bins[0], lower = s.bins[1];
        if (lower < BINS) {
            uint64_t depth = (uint64_t)(lower + 1) << shift;
            if (weighted) depth = largest - (uint64_t)key_of(scale.largest - (lower + 1) * step);
            if (depth < largest - least) below = largest - (uint32_t)depth;
        }
        if (upper > 0 && upper < BINS) {
            above = weighted ? key_of(scale.largest - upper * step) : largest - (upper << shift);
            above = max(min(above, largest), below + 1);
        }
        cluster_sync();
    }

    uint64_t base = 0;
    double target = goal;
    for (bool first = true;; first = false) {
        const int shift = shift_of(above - below - 1);
        clear_bins(s);
        uint32_t high_above = 0, high_total = 0;
        int low_above = 0, low_total = 0;
        slice.template each<4>([&](const float(&x)[N], int) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const uint32_t key = key_of(x[i]);
                const bool inside = key > below && key <= above;
                int high = 0, low = 1;
                if (weighted && (first || inside)) split(scale.weight(x[i]), high, low);
                if (first && key > floor) {
                    high_total += high;
                    low_total += low;
                    if (key > above) {
                        high_above += high;
                        low_above += low;
                    }
                }
                if (inside) add_to_bin(s, (above - key) >> shift, high, low);
            }
        });
        if (first) {
            const uint64_t sum_above = block_sum((uint64_t)(((int64_t)high_above << 17) + low_above), s);
            const uint64_t sum_total = block_sum((uint64_t)(((int64_t)high_total << 17) + low_total), s);
            if (threadIdx.x == 0) {
                s.above = sum_above;
                s.total = sum_total;
            }
        }
        cluster_sync();
        if (first) {
            uint64_t all = 0;
            for (int r = 0; r < size; ++r) {
                base += *of_rank(&s.above, r);
                all += *of_rank(&s.total, r);
            }
            if (weighted) target = goal * (double)all;
        }
        scan_bins(s, size, values, before);
        locate(s, values, base + before, target, 0);
        __syncthreads();
        const uint32_t bin = s.bins[0];
        const uint64_t reached = s.base;
        cluster_sync();
        if (bin < BINS) {
            base = reached;
            enter_bin(bin, shift, above, below);
            if (above - below == 1) return above;
        } else if (above == largest && below == least) {
            return floor + 1;  // all there is does not reach the goal
        } else {
            // The sample misled: everything, then.
            above = largest;
            below = least;
            base = 0;
        }
    }
}

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
