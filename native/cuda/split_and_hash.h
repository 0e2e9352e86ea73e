// Splits the texts of a block at one byte and hashes the parts, without a list of the parts in between.
//
// The result has the bytes of Split followed by HashStr (operators/strings.h, operators/hash.h). Texts that lie close
// together are copied into shared memory in whole cache lines, with a bit for each separator. Then every thread hashes
// parts of any row, so that no thread waits for a long row and hashes are written as whole cache lines. If the texts or
// parts of a block do not fit into shared memory, each thread hashes the parts of its own row.
#pragma once
#include "cuda/block_sums.h"
#include "operators/hash.h"
#include "operators/strings.h"

namespace cb {

enum : uint32_t { kStagedText = 12288, kStagedParts = 2560 };  // of a block of 256 rows: eight blocks fit an SM

struct __align__(16) TwoWords {
  uint64_t low, high;
};

__device__ inline uint32_t ones_of(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return (uint32_t)__popc((uint32_t)bits) + (uint32_t)__popc((uint32_t)(bits >> 32));
#else
  return (uint32_t)__builtin_popcountll(bits);
#endif
}

__device__ inline uint32_t parts_of(Str s, char separator) {
  const Params q = {{}, {}, {{&separator, 1}, {}}, nullptr};
  return Split::bound(q, s);
}

struct HashedPart {
  uint64_t* out;
  CB_BODY void operator()(uint32_t number, Str part) const { out[number] = hash_str(part); }
};

__device__ inline void hash_parts(Str s, char separator, uint64_t* out) {
  Split::each_by_byte(separator, s, HashedPart{out});
}

// A block's texts in shared memory.
struct StagedText {
  char* text;
  uint32_t* separators;  // a bit for each byte
  uint32_t from, end;    // of this thread's row
  bool fits;             // else nothing was staged

  // 64 bits of the map from byte `at` on; what lies behind the row's end is cleared.
  __device__ uint64_t window(uint32_t at) const {
    const uint32_t word = at >> 5, shift = at & 31, left = end - at;
    const uint64_t low = separators[word] | (uint64_t)separators[word + 1] << 32, high = separators[word + 2];
    const uint64_t bits = low >> shift | (shift ? high << (64 - shift) : 0);
    return left < 64 ? bits & ((1ull << left) - 1) : bits;
  }
  __device__ uint32_t count() const {
    if (from == end) return 0;
    uint32_t n = 1;
    for (uint32_t at = from; at < end; at += 64) n += ones_of(window(at));
    return n;
  }
  // Calls part(number, begin, length) for each of the row.
  template <class Part>
  __device__ void each(Part part) const {
    if (from == end) return;
    uint32_t start = from, number = 0;
    for (uint32_t at = from; at < end; at += 64)
      for (uint64_t found = window(at); found; found &= found - 1) {
        const uint32_t separator = at + lowest_bit(found);
        part(number++, start, separator - start);
        start = separator + 1;
      }
    part(number, start, end - start);
  }
  __device__ uint64_t hash(uint32_t begin, uint32_t length) const { return hash_bytes(text + begin, length); }
};

// Called by every thread of the block. The texts lie between `low` and `high`; `s` is this thread's, or empty.
__device__ inline StagedText stage_text(const char* low, const char* high, Str s, char separator) {
  __shared__ TwoWords staged[kStagedText / 16 + 2];
  __shared__ uint32_t separators[kStagedText / 32 + 4];
  const char* const begin = low - ((uint64_t)low & 15);
  const uint64_t span = low < high ? (uint64_t)(high - begin) : 0, pattern = kOnes * (uint8_t)separator;
  StagedText all = {(char*)staged, separators, 0, 0, span <= kStagedText};
  if (!all.fits) return all;
  if (s.n) {
    all.from = (uint32_t)(s.p - begin);
    all.end = all.from + s.n;
  }
  const TwoWords* const from = (const TwoWords*)begin;
  for (uint32_t k = threadIdx.x; 16 * (uint64_t)k < span; k += blockDim.x) {
    const TwoWords two = from[k];
    staged[k] = two;
    ((uint16_t*)separators)[k] =
        (uint16_t)(gather_bits(match_byte(two.low, pattern)) | gather_bits(match_byte(two.high, pattern)) << 8);
  }
  __syncthreads();
  return all;
}

// Memory for hashes from the pool: the block's hashes lie end to end, and each row begins where the one before ends.
struct FromPool {
  Pool pool;
  // Returns nullptr if the pool is too small. `*before`: hashes of the threads before this one; `*total`: of the block.
  __device__ uint64_t* take(uint32_t n, uint64_t* before, uint64_t* total) const {
    *before = sum_before(n, total);
    const uint64_t at = reserve_in(pool, *before * 8, *total * 8);
    return at + *total * 8 <= pool.bytes ? (uint64_t*)(pool.base + at) : nullptr;
  }
};

// One thread for each row.
template <class Place>
__device__ inline List<uint64_t> hashed_by_rows(Str s, char separator, const Place& place) {
  const uint32_t n = parts_of(s, separator);
  uint64_t before, total;
  uint64_t* const at = place.take(n, &before, &total);
  if (!at || !n) return List<uint64_t>{nullptr, 0};
  hash_parts(s, separator, at + before);
  return List<uint64_t>{at + before, n};
}

// One thread for each part, if the texts of the block, between `low` and `high`, fit into shared memory.
template <class Place>
__device__ inline List<uint64_t> hashed_by_parts(const char* low, const char* high, Str s, char separator,
                                                 const Place& place) {
  __shared__ uint32_t parts[kStagedParts];  // begin, and length above it
  const StagedText all = stage_text(low, high, s, separator);
  if (!all.fits) return hashed_by_rows(s, separator, place);
  const uint32_t n = all.count();
  uint64_t before, total;
  uint64_t* const at = place.take(n, &before, &total);
  if (!at) return List<uint64_t>{nullptr, 0};
  if (total > kStagedParts) {
    all.each([&](uint32_t k, uint32_t begin, uint32_t length) { at[before + k] = all.hash(begin, length); });
  } else {
    const uint32_t mine = (uint32_t)before;
    all.each([&](uint32_t k, uint32_t begin, uint32_t length) { parts[mine + k] = begin | length << 16; });
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < (uint32_t)total; k += blockDim.x)
      at[k] = all.hash(parts[k] & 0xffff, parts[k] >> 16);
  }
  return n ? List<uint64_t>{at + before, n} : List<uint64_t>{nullptr, 0};
}

// The lowest and the highest address of the texts of the block; equal if all texts are empty.
#if defined(CB_HOST_BLOCKS)
inline void bounds_of(Str s, const char** low, const char** high) {
  *low = s.p;
  *high = s.p + s.n;
}
#else
__device__ inline void bounds_of(Str s, const char** low, const char** high) {
  __shared__ uint64_t least[32], most[32];
  uint64_t from = s.n ? (uint64_t)s.p : ~0ull, end = s.n ? (uint64_t)(s.p + s.n) : 0;
  for (uint32_t step = 16; step; step >>= 1) {
    const uint64_t a = __shfl_xor_sync(0xffffffffu, from, step), b = __shfl_xor_sync(0xffffffffu, end, step);
    from = a < from ? a : from;
    end = b > end ? b : end;
  }
  if ((threadIdx.x & 31) == 0) {
    least[threadIdx.x >> 5] = from;
    most[threadIdx.x >> 5] = end;
  }
  __syncthreads();
  for (uint32_t warp = 0; warp < (blockDim.x + 31) >> 5; ++warp) {
    from = least[warp] < from ? least[warp] : from;
    end = most[warp] > end ? most[warp] : end;
  }
  *low = (const char*)from;
  *high = (const char*)(end ? end : from);
}
#endif

// Split, s[0] of one byte, then HashStr. Called by every thread of the block; `live`: its row has a text.
__device__ inline List<uint64_t> split_hash_row(const Pool& pool, const Params& q, bool live, Str s) {
  if (!live) s = Str{nullptr, 0};
  const char *low, *high;
  bounds_of(s, &low, &high);
  return hashed_by_parts(low, high, s, q.s[0].p[0], FromPool{pool});
}

}  // namespace cb
