// The smallest key with less than a count, or a weight, above it: by bins, of a list or of a row.

#pragma once

#include "sampling_numbers.cuh"
#include "sampling_row.cuh"

namespace {

constexpr float DEEPEST = 36.0f;         // a weight of 2^-36 rounds to nothing
constexpr double SAMPLE_MARGIN = 0.01;  // of the weight, to either side of the estimate
constexpr int BIN_BITS = 11;

__device__ void clear_bins(Shared& s) {
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) s.low[bin] = s.high[bin] = 0;
    if (threadIdx.x < 2) s.bins[threadIdx.x] = BINS;
    __syncthreads();
}

// A bin's sum is of two words, since shared memory adds no more than one at once: the low one carries when it wraps.
__device__ void add_to_bin(Shared& s, uint32_t bin, uint64_t amount) {
    const uint32_t low = (uint32_t)amount;
    const uint32_t old = atomicAdd(&s.low[bin], low);
    const uint32_t high = (uint32_t)(amount >> 32) + (old + low < low);
    if (high) atomicAdd(&s.high[bin], high);
}

constexpr int EACH = BINS / THREADS;
static_assert(EACH % 4 == 0, "bins are read 16 bytes at a time");

// This thread's EACH bins, summed over `size` blocks (or of this block where it is 0); the sum of the bins before them,
// and of all.
__device__ uint64_t scan_bins(Shared& s, int size, uint64_t (&values)[EACH], uint64_t& before) {
    const int first = threadIdx.x * EACH;
#pragma unroll
    for (int i = 0; i < EACH; ++i) values[i] = 0;
    const auto add = [&](const uint32_t* low, const uint32_t* high) {
#pragma unroll
        for (int i = 0; i < EACH; i += 4) {
            const uint4 l = *(const uint4*)(low + first + i), h = *(const uint4*)(high + first + i);
            values[i] += (uint64_t)h.x << 32 | l.x;
            values[i + 1] += (uint64_t)h.y << 32 | l.y;
            values[i + 2] += (uint64_t)h.z << 32 | l.z;
            values[i + 3] += (uint64_t)h.w << 32 | l.w;
        }
    };
    if (size == 0) add(s.low, s.high);
#pragma unroll 1
    for (int r = 0; r < size; ++r) add(of_rank(s.low, r), of_rank(s.high, r));
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum += values[i];
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

// The bin in which the running sum reaches `target`, into s.bins[which], and the sum before it into s.bases[which]. The
// bins of all threads part the sums, so that one thread at most finds it.
__device__ void locate(Shared& s, const uint64_t (&values)[EACH], uint64_t before, double target, int which) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const uint64_t after = before + values[i];
        if ((double)before < target && (double)after >= target) {
            s.bins[which] = threadIdx.x * EACH + i;
            s.bases[which] = before;
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
                add_to_bin(s, (above - key) >> shift, weighted ? whole(scale.weight(value_of(key))) : 1);
            }
        }
        __syncthreads();
        uint64_t values[EACH], before;
        scan_bins(s, 0, values, before);
        locate(s, values, base + before, target, 0);
        __syncthreads();
        if (s.bins[0] == BINS) return below + 1;
        base = s.bases[0];
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
    constexpr uint32_t APART = N == 8 ? 1u << 16 : 1u;  // keys of different values, of bfloat16 ones at least
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
            const float x = value_of(own_largest);
            add_to_bin(s, bin_of(x, own_largest), whole(__fmul_rn(scale.weight(x), share)));
        }
        slice.sample([&](const float(&x)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const uint32_t key = key_of(x[i]);
                if (key > least && !(weighted && key == own_largest))
                    add_to_bin(s, bin_of(x[i], key), weighted ? whole(scale.weight(x[i])) : 1);
            }
        });
        cluster_sync();
        const double total = (double)scan_bins(s, size, values, before);
        const double middle = weighted ? goal * total : goal * slice.sampled_of_row(size);
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
        uint64_t own_above = 0, own_total = 0;
        slice.template each<4>([&](const float(&x)[N], int) {
            int high_above = 0, high_total = 0, low_above = 0, low_total = 0;
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
                if (inside) add_to_bin(s, (above - key) >> shift, joined(high, low));
            }
            own_above += joined(high_above, low_above);
            own_total += joined(high_total, low_total);
        });
        if (first) {
            const uint64_t sum_above = block_sum(own_above, s);
            const uint64_t sum_total = block_sum(own_total, s);
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
        const uint64_t reached = s.bases[0];
        cluster_sync();
        if (bin < BINS) {
            base = reached;
            enter_bin(bin, shift, above, below);
            if (above - below <= APART) return below + 1;
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

}  // namespace
