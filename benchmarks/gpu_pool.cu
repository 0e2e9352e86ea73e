// Split strings at blanks and hash the tokens, a list of hashes a row: by the pool, by malloc, by counting first.
//
// Text lies as Arrow has it: bytes of row r are text[offsets[r] … offsets[r + 1]); 16 readable bytes lie behind the
// last. Three ways to work, each with every way to get memory that suits it:
//
//   rows     a thread a row, text read from where it lies, a word at a time
//   staged   a thread a row, the block's text brought into shared memory first, by whole lines
//   tokens   staged; then a thread a token, so that long rows hold nobody up and hashes are written as whole lines
//
// A block whose text or tokens pass the shared memory goes on by rows. The engine has the first and the last of them
// (cuda/split_and_hash.h). Included by gpu_pool.py through NVRTC.
#include "cuda/split_and_hash.h"

using namespace cb;

typedef List<uint64_t> Hashes;
constexpr char kBlank = ' ';

// ---- a row at a time -----------------------------------------------------------------------------------------------

__device__ inline Str text_of(const char* text, const int32_t* offsets, uint64_t row, bool live) {
  if (!live) return Str{nullptr, 0};
  const int32_t from = offsets[row];
  return Str{text + from, (uint32_t)(offsets[row + 1] - from)};
}

// The texts of the block that begins with row `first`.
__device__ inline void texts_of(const char* text, const int32_t* offsets, uint64_t rows, uint64_t first,
                                const char** low, const char** high) {
  const uint64_t last = first + blockDim.x < rows ? first + blockDim.x : rows;
  *low = text + offsets[first];
  *high = text + offsets[last];
}

// ---- where hashes go: FromPool, or here ----------------------------------------------------------------------------

// Counted and summed up by earlier launches: `ends` has the number of hashes up to and with each row.
struct FromSums {
  uint64_t* values;
  __device__ FromSums(uint64_t* all, const int64_t* ends, uint64_t first)
      : values(all + (first ? ends[first - 1] : 0)) {}
  __device__ uint64_t* take(uint32_t n, uint64_t* before, uint64_t* total) const {
    *before = sum_before(n, total);
    return values;
  }
};

template <class Place>
__device__ inline Hashes by_staged_rows(const char* text, const int32_t* offsets, uint64_t rows, uint64_t row,
                                        uint64_t first, const Place& place) {
  const char *low, *high;
  texts_of(text, offsets, rows, first, &low, &high);
  const Str mine = text_of(text, offsets, row, row < rows);
  const StagedText s = stage_text(low, high, mine, kBlank);
  if (!s.fits) return hashed_by_rows(mine, kBlank, place);
  const uint32_t n = s.count();
  uint64_t before, total;
  uint64_t* at = place.take(n, &before, &total);
  if (!at || !n) return Hashes{nullptr, 0};
  s.each([&](uint32_t k, uint32_t begin, uint32_t length) { at[before + k] = s.hash(begin, length); });
  return Hashes{at + before, n};
}

template <class Place>
__device__ inline Hashes by_tokens(const char* text, const int32_t* offsets, uint64_t rows, uint64_t row,
                                   uint64_t first, const Place& place) {
  const char *low, *high;
  texts_of(text, offsets, rows, first, &low, &high);
  return hashed_by_parts(low, high, text_of(text, offsets, row, row < rows), kBlank, place);
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
  const uint32_t n = parts_of(s, kBlank);
  uint64_t* at = (uint64_t*)reserve(pool, (uint64_t)n * 8);
  if (at && n) hash_parts(s, kBlank, at);
  if (live) lists[row] = Hashes{at, at ? n : 0};
}

extern "C" __global__ void __launch_bounds__(256)
    pool_rows(CB_TEXT, Hashes* lists, char* base, uint64_t bytes, Count* head) {
  CB_ROW
  const Hashes found = hashed_by_rows(text_of(text, offsets, row, live), kBlank, FromPool{{base, bytes, head}});
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
  const uint32_t n = parts_of(text_of(text, offsets, row, live), kBlank);
  if (live) counts[row] = n;
}

extern "C" __global__ void __launch_bounds__(256) count_staged(CB_TEXT, int64_t* counts) {
  CB_ROW
  const char *low, *high;
  texts_of(text, offsets, rows, first, &low, &high);
  const Str mine = text_of(text, offsets, row, live);
  const StagedText s = stage_text(low, high, mine, kBlank);
  const uint32_t n = s.fits ? s.count() : parts_of(mine, kBlank);
  if (live) counts[row] = n;
}

extern "C" __global__ void __launch_bounds__(256)
    write_rows(CB_TEXT, Hashes* lists, uint64_t* values, const int64_t* ends) {
  CB_ROW
  if (!live) return;
  const uint64_t from = row ? ends[row - 1] : 0;
  const Str s = text_of(text, offsets, row, live);
  if (s.n) hash_parts(s, kBlank, values + from);
  lists[row] = Hashes{values + from, (uint32_t)(ends[row] - from)};
}

extern "C" __global__ void __launch_bounds__(256)
    write_tokens(CB_TEXT, Hashes* lists, uint64_t* values, const int64_t* ends) {
  CB_ROW
  const Hashes found = by_tokens(text, offsets, rows, row, first, FromSums(values, ends, first));
  if (live) lists[row] = found;
}

// ---- memory of its own for every row

extern "C" __global__ void __launch_bounds__(256) malloc_rows(CB_TEXT, Hashes* lists) {
  CB_ROW
  if (!live) return;
  const Str s = text_of(text, offsets, row, live);
  const uint32_t n = parts_of(s, kBlank);
  uint64_t* at = n ? (uint64_t*)malloc((uint64_t)n * 8) : nullptr;
  if (at && n) hash_parts(s, kBlank, at);
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
