// Many device-to-device copies and fills in one launch. The descriptors travel by value in the kernel's parameters, so
// that a graph keeps its own, and the host may rewrite its buffer as soon as the launch returns.
//
// kernels/fused_copy.py packs Params as int64 words and chooses the threads of a block, which copies one piece of a long
// row, or UNROLL units a thread of a region of short rows.

#include <cstdint>
#include <cuda_runtime.h>

#include "dependent_launch.cuh"

namespace {

constexpr int MOST_THREADS = 512;
constexpr int64_t LINE = 128;

enum Fill : int64_t { CONSTANT = 0, ADDRESS = 16, REPEAT_LAST = 32 };  // plus the element's size in bytes

struct Region {
    uint64_t destination;
    uint64_t source;
    int64_t destination_stride;  // bytes from row to row
    int64_t source_stride;
    int64_t row_bytes;
    int64_t rows;
    int64_t live_base;  // bytes copied: live_base + count * live_step; the bytes after them are filled
    int64_t live_step;
    uint64_t count;  // address of an int32, or 0: the host's count
    uint64_t value;  // eight bytes of the pattern, or an address
    int64_t fill;
    int64_t unit;  // 0: long rows, by 16-byte vectors with byte edges; else bytes of a unit that divides everything
};

template <int CAPACITY>
struct Params {
    int64_t regions;
    int64_t piece_shift;  // a piece has two to the power of this many bytes: UNROLL vectors a thread
    int64_t counts[CAPACITY];
    int64_t first[CAPACITY];  // first block of each region
    Region region[CAPACITY];
};

template <class Word>
__device__ __forceinline__ uint64_t repeat(uint64_t address, uint64_t ones) {
    return *reinterpret_cast<const Word*>(address) * ones;
}

// Eight bytes whose byte i belongs at every address that is i modulo 8: destinations are aligned to their element.
__device__ uint64_t pattern_of(const Region& region, int64_t live) {
    const int64_t element = region.fill & 15;
    uint64_t address = region.value;
    if (region.fill < ADDRESS) return region.value;
    if (region.fill >= REPEAT_LAST) {
        if (live == 0) return 0;
        const int64_t last = live - element, row = last / region.row_bytes;
        address = region.source + row * region.source_stride + (last - row * region.row_bytes);
    }
    switch (element) {
        case 1: return repeat<uint8_t>(address, 0x0101010101010101ull);
        case 2: return repeat<uint16_t>(address, 0x0001000100010001ull);
        case 4: return repeat<uint32_t>(address, 0x0000000100000001ull);
        default: return repeat<uint64_t>(address, 1);
    }
}

template <class Word>
__device__ __forceinline__ void copy_words(uint64_t destination, uint64_t source, int words) {
    Word* const to = reinterpret_cast<Word*>(destination);
    const Word* const from = reinterpret_cast<const Word*>(source);
    for (int base = threadIdx.x; base < words; base += blockDim.x * UNROLL) {
        Word held[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (base + k * blockDim.x < words) held[k] = from[base + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (base + k * blockDim.x < words) to[base + k * blockDim.x] = held[k];
    }
}

// The last warp does the edges, one byte a lane, while the others do the words.
struct Edges {
    int head, words, tail;
    int at;  // this thread's edge byte, or -1

    __device__ __forceinline__ Edges(uint64_t address, int bytes, int width) {
        head = min(bytes, static_cast<int>(-address & (width - 1)));
        words = (bytes - head) / width;
        tail = bytes - head - words * width;
        const int lane = static_cast<int>(blockDim.x - 1 - threadIdx.x);
        at = lane < head ? lane : lane >= 16 && lane - 16 < tail ? bytes - tail + lane - 16 : -1;
    }
};

__device__ void copy_span(uint64_t destination, uint64_t source, int bytes) {
    const int apart = static_cast<int>(destination ^ source) & 15;
    const int width = apart ? apart & -apart : 16;
    const Edges edges(destination, bytes, width);
    if (edges.at >= 0)
        *reinterpret_cast<uint8_t*>(destination + edges.at) =
            *reinterpret_cast<const uint8_t*>(source + edges.at);
    destination += edges.head;
    source += edges.head;
    switch (width) {
        case 16: copy_words<uint4>(destination, source, edges.words); break;
        case 8: copy_words<uint2>(destination, source, edges.words); break;
        case 4: copy_words<uint32_t>(destination, source, edges.words); break;
        case 2: copy_words<uint16_t>(destination, source, edges.words); break;
        default: copy_words<uint8_t>(destination, source, edges.words);
    }
}

__device__ void fill_span(uint64_t destination, int bytes, uint64_t pattern) {
    const Edges edges(destination, bytes, 16);
    if (edges.at >= 0) {
        const uint64_t address = destination + edges.at;
        *reinterpret_cast<uint8_t*>(address) = static_cast<uint8_t>(pattern >> (8 * (address & 7)));
    }
    const uint32_t low = static_cast<uint32_t>(pattern), high = static_cast<uint32_t>(pattern >> 32);
    uint4* const to = reinterpret_cast<uint4*>(destination + edges.head);
    for (int k = threadIdx.x; k < edges.words; k += blockDim.x) to[k] = make_uint4(low, high, low, high);
}

// Pieces begin at whole lines of the destination, but for a row's first.
__device__ void long_rows(const Region& region, int64_t chunk, int64_t live, int64_t piece_shift) {
    const int64_t pieces = ((region.row_bytes + LINE - 2) >> piece_shift) + 1;
    const int64_t row = region.rows == 1 ? 0 : chunk / pieces;
    const uint64_t start = region.destination + row * region.destination_stride;
    const int64_t end = ((chunk - row * pieces + 1) << piece_shift) - static_cast<int64_t>(start & (LINE - 1));
    const int64_t begin = max(int64_t(0), end - (int64_t(1) << piece_shift));
    const int64_t bytes = min(end, region.row_bytes) - begin;
    if (bytes <= 0) return;
    const int64_t copied = max(int64_t(0), min(bytes, live - row * region.row_bytes - begin));
    if (copied)
        copy_span(start + begin, region.source + row * region.source_stride + begin, static_cast<int>(copied));
    if (copied < bytes)
        fill_span(start + begin + copied, static_cast<int>(bytes - copied), pattern_of(region, live));
}

template <class Word>
__device__ void short_rows(const Region& region, int64_t chunk, int64_t live) {
    const int per_row = static_cast<int>(region.row_bytes / sizeof(Word));
    const int64_t most = blockDim.x * UNROLL, base = chunk * most;
    const int units = static_cast<int>(min(most, region.rows * per_row - base));
    const int64_t first_row = base / per_row;
    const int ahead = static_cast<int>(base - first_row * per_row);
    Word word;
    uint64_t* const halves = reinterpret_cast<uint64_t*>(&word);
    uint64_t pattern = 0;
    if (live < (base + units) * static_cast<int64_t>(sizeof(Word))) pattern = pattern_of(region, live);
    for (int k = threadIdx.x; k < units; k += blockDim.x) {
        const int local = ahead + k, down = local / per_row;
        const int64_t row = first_row + down, column = (local - down * per_row) * static_cast<int64_t>(sizeof(Word));
        if (row * region.row_bytes + column < live) {
            word = *reinterpret_cast<const Word*>(region.source + row * region.source_stride + column);
        } else if constexpr (sizeof(Word) == 16) {
            halves[0] = halves[1] = pattern;
        } else {
            memcpy(&word, &pattern, sizeof(Word));
        }
        *reinterpret_cast<Word*>(region.destination + row * region.destination_stride + column) = word;
    }
}

template <int CAPACITY>
__global__ void __launch_bounds__(MOST_THREADS) fused_copy(const __grid_constant__ Params<CAPACITY> params) {
    const int64_t block = blockIdx.x;
    // Every region has a block, so region(block) <= block, with equality while all regions are small.
    int at = static_cast<int>(min(block, params.regions - 1));
    if (params.first[at] > block) {
        int low = 0;
        while (low < at) {
            const int middle = (low + at + 1) / 2;
            if (params.first[middle] <= block) low = middle;
            else at = middle - 1;
        }
    }
    const Region& region = params.region[at];
    const int64_t chunk = block - params.first[at];
    let_next_grid_start();
    wait_for_previous_grid();
    const int64_t count = region.count ? *reinterpret_cast<const int32_t*>(region.count) : params.counts[at];
    const int64_t total = region.rows * region.row_bytes;
    const int64_t live = max(int64_t(0), min(total, region.live_base + count * region.live_step));
    switch (region.unit) {
        case 0: long_rows(region, chunk, live, params.piece_shift); break;
        case 16: short_rows<uint4>(region, chunk, live); break;
        case 8: short_rows<uint2>(region, chunk, live); break;
        case 4: short_rows<uint32_t>(region, chunk, live); break;
        case 2: short_rows<uint16_t>(region, chunk, live); break;
        default: short_rows<uint8_t>(region, chunk, live);
    }
}

template <int CAPACITY>
int launch(const void* params, int blocks, int threads, int programmatic, cudaStream_t stream) {
    return launch_dependent(fused_copy<CAPACITY>, *static_cast<const Params<CAPACITY>*>(params), dim3(blocks), threads, 0,
                            programmatic, stream);
}

}  // namespace

extern "C" int fused_copy_small(const void* params, int blocks, int threads, int programmatic, cudaStream_t stream) {
    return launch<SMALL_CAPACITY>(params, blocks, threads, programmatic, stream);
}

extern "C" int fused_copy_large(const void* params, int blocks, int threads, int programmatic, cudaStream_t stream) {
    return launch<LARGE_CAPACITY>(params, blocks, threads, programmatic, stream);
}
