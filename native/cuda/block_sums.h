// Functions that the threads of a block run together: sums, and allocation from the pool.
//
// The pool is one stretch of memory and a head. Every thread of the block states the bytes its row needs (0 for none),
// a prefix sum over the block gives each its place, one thread adds the block's sum, rounded up to 128 bytes, to the
// head: one atomic a block. A head past the end means that the pool is too small by that much; then nobody gets memory
// and nothing is written. Resetting is writing one number.
//
// CB_HOST_BLOCKS: a block is one thread (the tests' runtime on the CPU).
#pragma once
#include "operators/types.h"

namespace cb {

typedef unsigned long long Count;  // what atomics work on

struct Pool {
  char* base;
  uint64_t bytes;
  Count* head;
};

#if defined(CB_HOST_BLOCKS)
// The sum over the threads before this one; *total: over all.
inline uint64_t sum_before(uint64_t value, uint64_t* total) {
  *total = value;
  return 0;
}
inline uint64_t reserve_in(const Pool& pool, uint64_t, uint64_t total) {
  uint64_t at = *pool.head;
  *pool.head += (total + 127) / 128 * 128;
  return at;
}
#else
__device__ inline uint64_t sum_before(uint64_t value, uint64_t* total) {
  __shared__ uint64_t sums[32];
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  uint64_t sum = value;
  for (uint32_t step = 1; step < 32; step <<= 1) {
    uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    uint64_t mine = lane < warps ? sums[lane] : 0;
    for (uint32_t step = 1; step < 32; step <<= 1) {
      uint64_t other = __shfl_up_sync(0xffffffffu, mine, step);
      if (lane >= step) mine += other;
    }
    sums[lane] = mine;
  }
  __syncthreads();
  uint64_t before = (warp ? sums[warp - 1] : 0) + sum - value;
  *total = sums[warps - 1];
  __syncthreads();  // sums is used again by the next call
  return before;
}
__device__ inline uint64_t reserve_in(const Pool& pool, uint64_t, uint64_t total) {
  __shared__ uint64_t place;
  if (threadIdx.x == 0) place = total ? atomicAdd(pool.head, (Count)((total + 127) / 128 * 128)) : 0;
  __syncthreads();
  uint64_t at = place;
  __syncthreads();
  return at;
}
#endif

// Called by every thread of the block. Memory is 16-byte aligned; nullptr where nothing was asked for or the pool is
// too small.
__device__ inline char* reserve(const Pool& pool, uint64_t bytes) {
  uint64_t total, before = sum_before((bytes + 15) / 16 * 16, &total);
  uint64_t at = reserve_in(pool, before, total);
  if (!bytes || at + total > pool.bytes) return nullptr;
  return pool.base + at + before;
}

}  // namespace cb
