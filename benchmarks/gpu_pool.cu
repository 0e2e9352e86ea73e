// Split strings at blanks and hash the tokens, a list of hashes a row: by the pool, by malloc, by counting first.
//
// Text lies as Arrow has it: bytes of row r are text[offsets[r] … offsets[r + 1]); 16 readable bytes lie behind the
// last. Three ways to work, each with every way to get memory that suits it:
//
//   rows     a thread a row, text read from where it lies, a word at a time
//   staged   a thread a row, the block's text brought into shared memory first, by whole lines
//   tokens   staged; then a thread a token, so that long rows hold nobody up and hashes are written as whole lines
//
// A block whose text or tokens pass the shared memory goes on by rows. Included by gpu_pool.py through NVRTC.
#include "cuda/block.h"
#include "operators/hash.h"
#include "operators/strings.h"

using namespace cb;

typedef List<uint64_t> Hashes;
enum : uint32_t { kText = 12288, kTokens = 2560 };  // shared memory of a block of 256 rows: eight blocks fit an SM
constexpr uint64_t kBlanks = kOnes * ' ';

struct __align__(16) Two {
  uint64_t low, high;
};

__device__ inline uint32_t ones_of(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return (uint32_t)__popcll(bits);
#else
  return (uint32_t)__builtin_popcountll(bits);
#endif
}

// ---- a row at a time -----------------------------------------------------------------------------------------------

__device__ inline Str text_of(const char* text, const int32_t* offsets, uint64_t row, bool live) {
  if (!live) return Str{nullptr, 0};
  const int32_t from = offsets[row];
  return Str{text + from, (uint32_t)(offsets[row + 1] - from)};
}

__device__ inline uint32_t tokens_of(Str s) {
  const char blank[16] = {' '};
  const Params q = {{}, {}, {{blank, 1}, {}}, nullptr};
  return Split::bound(q, s);
}

// What Split does, with a hash where that stores a view.
__device__ inline void hash_tokens(Str s, uint64_t* out) {
  uint32_t start = 0;
  for (uint32_t k = 0; k < s.n; k += 8) {
    const uint32_t left = s.n - k;
    uint64_t found = match_byte(load_at(s, k), kBlanks);
    if (left < 8) found &= (1ull << (8 * left)) - 1;
    for (; found; found &= found - 1) {
      const uint32_t at = k + (lowest_bit(found) >> 3);
      *out++ = hash_bytes(s.p + start, at - start);
      start = at + 1;
    }
  }
  if (s.n) *out = hash_bytes(s.p + start, s.n - start);
}

// ---- a block's text in shared memory -------------------------------------------------------------------------------

struct Staged {
  char* text;          // of the block
  uint32_t* blanks;    // a bit for each of its bytes
  uint32_t from, end;  // of this thread's row
  bool fits;

  // 64 bits of the map from byte `at` on; what lies behind the row's end is cleared.
  __device__ uint64_t window(uint32_t at) const {
    const uint32_t word = at >> 5, shift = at & 31, left = end - at;
    const uint64_t low = blanks[word] | (uint64_t)blanks[word + 1] << 32, high = blanks[word + 2];
    const uint64_t bits = low >> shift | (shift ? high << (64 - shift) : 0);
    return left < 64 ? bits & ((1ull << left) - 1) : bits;
  }
  __device__ uint32_t count() const {
    if (from == end) return 0;
    uint32_t n = 1;
    for (uint32_t at = from; at < end; at += 64) n += ones_of(window(at));
    return n;
  }
  // Calls token(number, begin, length) for each of the row.
  template <class Token>
  __device__ void each(Token token) const {
    if (from == end) return;
    uint32_t start = from, number = 0;
    for (uint32_t at = from; at < end; at += 64)
      for (uint64_t found = window(at); found; found &= found - 1) {
        const uint32_t blank = at + lowest_bit(found);
        token(number++, start, blank - start);
        start = blank + 1;
      }
    token(number, start, end - start);
  }
};

// Called by every thread of the block; the block has rows `first` … `last`.
__device__ inline Staged stage(const char* text, const int32_t* offsets, uint64_t first, uint64_t last, uint64_t row) {
  __shared__ Two staged[kText / 16 + 2];
  __shared__ uint32_t blanks[kText / 32 + 4];
  const char* begin = text + offsets[first];
  const uint32_t skip = (uint32_t)(uint64_t)begin & 15;
  const uint64_t span = skip + (uint64_t)(offsets[last] - offsets[first]);
  Staged s = {(char*)staged, blanks, 0, 0, span <= kText};
  if (row < last) {
    s.from = skip + (uint32_t)(offsets[row] - offsets[first]);
    s.end = skip + (uint32_t)(offsets[row + 1] - offsets[first]);
  }
  if (!s.fits) return s;
  const Two* from = (const Two*)(begin - skip);
  for (uint32_t k = threadIdx.x; 16 * k < span; k += blockDim.x) {
    const Two two = from[k];
    staged[k] = two;
    ((uint16_t*)blanks)[k] =
        (uint16_t)(gather_bits(match_byte(two.low, kBlanks)) | gather_bits(match_byte(two.high, kBlanks)) << 8);
  }
  __syncthreads();
  return s;
}

// ---- where hashes go -----------------------------------------------------------------------------------------------

// The block's hashes lie end to end: one reservation, and each row begins where the one before ends.
struct FromPool {
  Pool pool;
  __device__ uint64_t* take(uint32_t n, uint64_t* before, uint64_t* total, uint64_t) const {
    *before = sum_before(n, total);
    const uint64_t at = reserve_in(pool, *before * 8, *total * 8);
    return at + *total * 8 <= pool.bytes ? (uint64_t*)(pool.base + at) : nullptr;
  }
};

// Counted and summed up by earlier launches: `ends` has the number of hashes up to and with each row.
struct FromSums {
  uint64_t* values;
  const int64_t* ends;
  __device__ uint64_t* take(uint32_t n, uint64_t* before, uint64_t* total, uint64_t first) const {
    *before = sum_before(n, total);
    return values + (first ? ends[first - 1] : 0);
  }
};

template <class Place>
__device__ inline Hashes by_rows(const char* text, const int32_t* offsets, uint64_t row, bool live, uint64_t first,
                                 const Place& place) {
  const Str s = text_of(text, offsets, row, live);
  const uint32_t n = tokens_of(s);
  uint64_t before, total;
  uint64_t* at = place.take(n, &before, &total, first);
  if (!at || !n) return Hashes{nullptr, 0};
  hash_tokens(s, at + before);
  return Hashes{at + before, n};
}

template <class Place>
__device__ inline Hashes by_staged_rows(const char* text, const int32_t* offsets, uint64_t rows, uint64_t row,
                                        uint64_t first, const Place& place) {
  const uint64_t last = first + blockDim.x < rows ? first + blockDim.x : rows;
  const Staged s = stage(text, offsets, first, last, row);
  if (!s.fits) return by_rows(text, offsets, row, row < rows, first, place);
  const uint32_t n = s.count();
  uint64_t before, total;
  uint64_t* at = place.take(n, &before, &total, first);
  if (!at || !n) return Hashes{nullptr, 0};
  s.each([&](uint32_t k, uint32_t begin, uint32_t length) { at[before + k] = hash_bytes(s.text + begin, length); });
  return Hashes{at + before, n};
}

template <class Place>
__device__ inline Hashes by_tokens(const char* text, const int32_t* offsets, uint64_t rows, uint64_t row,
                                   uint64_t first, const Place& place) {
  __shared__ uint32_t tokens[kTokens];  // begin, and length above it
  const uint64_t last = first + blockDim.x < rows ? first + blockDim.x : rows;
  const Staged s = stage(text, offsets, first, last, row);
  if (!s.fits) return by_rows(text, offsets, row, row < rows, first, place);
  const uint32_t n = s.count();
  uint64_t before, total;
  uint64_t* at = place.take(n, &before, &total, first);
  if (!at) return Hashes{nullptr, 0};
  if (total > kTokens) {
    s.each([&](uint32_t k, uint32_t begin, uint32_t length) { at[before + k] = hash_bytes(s.text + begin, length); });
  } else {
    const uint32_t mine = (uint32_t)before;
    s.each([&](uint32_t k, uint32_t begin, uint32_t length) { tokens[mine + k] = begin | length << 16; });
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < (uint32_t)total; k += blockDim.x)
      at[k] = hash_bytes(s.text + (tokens[k] & 0xffff), tokens[k] >> 16);
  }
  return n ? Hashes{at + before, n} : Hashes{nullptr, 0};
}

// ---- kernels -------------------------------------------------------------------------------------------------------

#define CB_ROW                                                                         \
  const uint64_t first = (uint64_t)blockIdx.x * blockDim.x, row = first + threadIdx.x; \
  if (first >= rows) return;                                                           \
  const bool live = row < rows;

#define CB_TEXT const char *text, const int32_t *offsets, uint64_t rows

// Every row's memory rounded up to 16 bytes, as the engine's operators ask for it.
extern "C" __global__ void __launch_bounds__(256)
    pool_reserve(CB_TEXT, Hashes* lists, char* base, uint64_t bytes, Count* head) {
  CB_ROW
  const Pool pool = {base, bytes, head};
  const Str s = text_of(text, offsets, row, live);
  const uint32_t n = tokens_of(s);
  uint64_t* at = (uint64_t*)reserve(pool, (uint64_t)n * 8);
  if (at) hash_tokens(s, at);
  if (live) lists[row] = Hashes{at, at ? n : 0};
}

extern "C" __global__ void __launch_bounds__(256)
    pool_rows(CB_TEXT, Hashes* lists, char* base, uint64_t bytes, Count* head) {
  CB_ROW
  const Hashes found = by_rows(text, offsets, row, live, first, FromPool{{base, bytes, head}});
  if (live) lists[row] = found;
}

extern "C" __global__ void __launch_bounds__(256)
    pool_staged(CB_TEXT, Hashes* lists, char* base, uint64_t bytes, Count* head) {
  CB_ROW
  const Hashes found = by_staged_rows(text, offsets, rows, row, first, FromPool{{base, bytes, head}});
  if (live) lists[row] = found;
}

extern "C" __global__ void __launch_bounds__(256)
    pool_tokens(CB_TEXT, Hashes* lists, char* base, uint64_t bytes, Count* head) {
  CB_ROW
  const Hashes found = by_tokens(text, offsets, rows, row, first, FromPool{{base, bytes, head}});
  if (live) lists[row] = found;
}

// ---- counted first

extern "C" __global__ void __launch_bounds__(256) count_rows(CB_TEXT, int64_t* counts) {
  CB_ROW
  const uint32_t n = tokens_of(text_of(text, offsets, row, live));
  if (live) counts[row] = n;
}

extern "C" __global__ void __launch_bounds__(256) count_staged(CB_TEXT, int64_t* counts) {
  CB_ROW
  const Staged s = stage(text, offsets, first, first + blockDim.x < rows ? first + blockDim.x : rows, row);
  const uint32_t n = s.fits ? s.count() : tokens_of(text_of(text, offsets, row, live));
  if (live) counts[row] = n;
}

extern "C" __global__ void __launch_bounds__(256)
    write_rows(CB_TEXT, Hashes* lists, uint64_t* values, const int64_t* ends) {
  CB_ROW
  if (!live) return;
  const uint64_t from = row ? ends[row - 1] : 0;
  hash_tokens(text_of(text, offsets, row, live), values + from);
  lists[row] = Hashes{values + from, (uint32_t)(ends[row] - from)};
}

extern "C" __global__ void __launch_bounds__(256)
    write_tokens(CB_TEXT, Hashes* lists, uint64_t* values, const int64_t* ends) {
  CB_ROW
  const Hashes found = by_tokens(text, offsets, rows, row, first, FromSums{values, ends});
  if (live) lists[row] = found;
}

// ---- memory of its own for every row

extern "C" __global__ void __launch_bounds__(256) malloc_rows(CB_TEXT, Hashes* lists) {
  CB_ROW
  if (!live) return;
  const Str s = text_of(text, offsets, row, live);
  const uint32_t n = tokens_of(s);
  uint64_t* at = n ? (uint64_t*)malloc((uint64_t)n * 8) : nullptr;
  if (at) hash_tokens(s, at);
  lists[row] = Hashes{at, at ? n : 0};
}

extern "C" __global__ void __launch_bounds__(256) free_rows(uint64_t rows, Hashes* lists) {
  CB_ROW
  if (live && lists[row].n) free((void*)lists[row].p);
}

// ---- for the check: lists end to end, wherever they lie

extern "C" __global__ void __launch_bounds__(256)
    collect(uint64_t rows, const Hashes* lists, uint64_t* values, const int64_t* ends) {
  CB_ROW
  if (!live) return;
  const Hashes list = lists[row];
  for (uint32_t k = 0; k < list.n; ++k) values[ends[row] - list.n + k] = list.p[k];
}
