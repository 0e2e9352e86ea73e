// Copies registers to the outputs of a chunk, and turns a mask into the rows it selects.
//
// Lists are written end to end in the order of the rows. Three launches: tiles (a tile is the rows of a block) count
// their values, one block a list adds the tiles up, tiles write. A list whose values pass its room is not written; its
// counter says what it needs.
#pragma once
#include "cuda/chunk_memory.h"

namespace cb {

__device__ inline void count_tile(const Slot& s, uint32_t list, uint64_t tiles, uint64_t n) {
  uint64_t total;
  sum_before(n, &total);
  if (threadIdx.x == 0) s.tiles[list * tiles + blockIdx.x] = total;
}

// Run by one block a list; turns counts of tiles into the values before them.
__device__ inline void scan_tiles(const Slot& s, uint32_t list, uint64_t tiles, uint64_t used, Count* total) {
  uint64_t* t = s.tiles + list * tiles;
  uint64_t before = 0;
  for (uint64_t from = 0; from < used; from += blockDim.x) {
    uint64_t k = from + threadIdx.x, sum;
    uint64_t mine = sum_before(k < used ? t[k] : 0, &sum);
    if (k < used) t[k] = before + mine;
    before += sum;
  }
  if (threadIdx.x == 0) *total = before;
}

#if defined(CB_HOST_BLOCKS)
enum : uint32_t { kTile = 1 };
#else
enum : uint32_t { kTile = 256 };  // rows of a block; the runtime launches with as many threads
#endif

// Offsets of the tile's rows and their values. Threads take values, not rows: writes are whole lines however short the
// lists are.
__device__ inline void write_tile(const Slot& s, uint32_t list, uint64_t tiles, uint64_t row, bool live,
                                  List<uint64_t> keys, int64_t* offsets, uint64_t* values, Count total) {
  __shared__ const uint64_t* from[kTile];
  __shared__ uint32_t begin[kTile + 1];
  uint64_t sum, before = sum_before(live ? keys.n : 0, &sum), base = s.tiles[list * tiles + blockIdx.x];
  from[threadIdx.x] = keys.p;
  begin[threadIdx.x] = (uint32_t)before;
  if (live) offsets[row + 1] = (int64_t)(base + before + keys.n);
  if (row == 0) offsets[0] = 0;
  __syncthreads();
  if (total > s.limits[list]) {
    // nothing is written
  } else if (sum > 0xffffffffull) {  // positions do not fit 32 bits: a row each
    for (uint64_t k = 0; live && k < keys.n; ++k) values[base + before + k] = keys.p[k];
  } else {
    for (uint64_t k = threadIdx.x; k < sum; k += blockDim.x) {
      uint32_t low = 0, high = blockDim.x;  // the last row that begins at or before k
      while (high - low > 1) {
        uint32_t middle = (low + high) >> 1;
        if (begin[middle] <= k)
          low = middle;
        else
          high = middle;
      }
      values[base + k] = from[low][k - begin[low]];
    }
  }
  __syncthreads();
}

__device__ inline void pick_tile(const Slot& s, uint32_t list, uint64_t tiles, uint64_t row, bool chosen) {
  uint64_t sum, before = sum_before(chosen, &sum);
  if (chosen) s.picked[s.tiles[list * tiles + blockIdx.x] + before] = (int32_t)row;
}

// ---- many stretches of memory in one launch ------------------------------------------------------------------------

struct Stretch {
  const char* from;
  char* to;
  uint64_t bytes;
  uint64_t shift;  // kPlain: bytes are copied. Else they are offsets: `shift` is added, what the first is is taken off
};
enum : uint64_t { kPlain = ~0ull };

__device__ inline void copy_stretch(const Stretch& c) {
  const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (uint64_t)gridDim.x * blockDim.x;
  if (c.shift != kPlain) {
    const int64_t* from = (const int64_t*)c.from;
    for (uint64_t k = first; k < c.bytes / 8; k += step) ((int64_t*)c.to)[k] = from[k] - from[0] + (int64_t)c.shift;
    return;
  }
  if ((((uint64_t)c.from | (uint64_t)c.to | c.bytes) & 7) == 0) {
    for (uint64_t k = first; k < c.bytes / 8; k += step) ((uint64_t*)c.to)[k] = ((const uint64_t*)c.from)[k];
    return;
  }
  for (uint64_t k = first; k < c.bytes / 4; k += step) ((uint32_t*)c.to)[k] = ((const uint32_t*)c.from)[k];
}

}  // namespace cb
