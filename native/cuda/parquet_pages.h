// Decodes pages of Parquet column chunks: flat columns of 4 or 8 bytes or of strings, PLAIN or with a dictionary, pages
// of both versions, stored as they are or compressed with LZ4_RAW or Snappy.
//
// The slow twin is core/parquet/column_chunk.cpp; what is good there is good here, with the same values. The host has
// listed the pages already (core/parquet/page_list.h), so that headers, checksums and row counts are sound; what lies
// inside a page is anything. Whatever the bytes are, nothing outside the page's memory is read or written, except that
// reads may touch 8 bytes before it and 24 behind it; a page that cannot be decoded is reported in its PageResult, and
// the host's reader decodes the column again and says what is wrong.
//
// One warp decodes a page. All its lanes read the same headers, lengths and tokens, so control flow is the same for all
// of them, and they share the copies and the values. CB_HOST_BLOCKS: a warp is one thread (tests on the CPU).
//
// Strings are not copied: a view of 8 bytes a row names place and length of the string in the decompressed pages.
//
// src/ctrbox/engines/cuda/parquet_pages.py writes StoredPage and PageColumn and launches, in this order:
//
//   pages_unpack   decompresses every page to its place
//   pages_words    checks dictionaries; those of strings are walked once for the place of every string
//   pages_values   definition levels and values of every data page
//   pages_bits     levels, a byte a row, become validity bits
#pragma once
#include "cuda/page_decompression.h"
#include "cuda/raw_column.h"

namespace cb::pages {

enum : uint32_t { kStoredAsIs = 0, kLz4 = 1, kSnappy = 2 };
enum : uint32_t { kDictionaryPage = 0, kDataPage = 1, kDataPageV2 = 2 };

struct StoredPage {
  const uint8_t* stored;  // behind the page's header
  uint8_t* raw;           // where its bytes belong, 16-byte aligned; 64 bytes behind them are nobody's
  uint64_t row;           // its first row among those of the column
  uint32_t stored_size;
  uint32_t raw_size;
  uint32_t values;  // of a dictionary its entries, else rows
  uint32_t plain;   // V2: bytes of levels in front, never compressed
  uint32_t column;
  int32_t dictionary;  // its number among the pages, -1: values are PLAIN
  uint8_t codec;
  uint8_t kind;
  uint8_t unused[6];
};
static_assert(sizeof(StoredPage) == 56, "parquet_pages.py writes these bytes");

struct PageColumn {
  uint8_t* values;      // out_width bytes a row, of strings a TextView
  uint8_t* levels;      // nullable: a byte a row, 1 where there is a value
  uint8_t* bits;        // nullable: validity bits, lowest first
  uint8_t* between;     // 8 bytes a row of working memory; only where it is nullable
  uint8_t* words;       // a TextView for each string of the dictionaries, each at the place of its page's row…
  const uint8_t* text;  // what views count from
  uint64_t rows;
  uint32_t width;  // 4, 8, or 0 for strings
  uint16_t nullable;
  uint16_t out_width;  // bytes of a value in `values`: `width`, 8 for strings; of 4 bytes also the lowest 1 or 2
};
static_assert(sizeof(PageColumn) == 64, "parquet_pages.py writes these bytes");

struct PageResult {
  uint32_t failed;  // 0, or where decoding ended: 1 compression, 2 dictionary, 3 levels, 4 values
  uint32_t there;   // rows that are not null
};

// Brings a page's bytes to `raw`, with zeros behind them.
__device__ inline bool unpack(const StoredPage& p, const Scratch& scratch) {
  if (lane() == 0)
    for (uint32_t k = 0; k < 64; ++k) p.raw[p.raw_size + k] = 0;
  if (p.plain > p.stored_size || p.plain > p.raw_size) return false;
  copy_apart(p.raw, p.stored, p.plain);
  const uint8_t* in = p.stored + p.plain;
  uint8_t* out = p.raw + p.plain;
  const uint64_t stored = p.stored_size - p.plain, raw = p.raw_size - p.plain;
  if (p.codec == kStoredAsIs) {
    if (stored != raw) return false;
    copy_apart(out, in, raw);
    return true;
  }
  // A page of nothing but nulls may be stored as no bytes at all.
  if (stored == 0 && raw == 0) return true;
  Input input(in, (uint32_t)stored, scratch);
  Output output(out, in, scratch);
  return p.codec == kLz4 ? lz4_block(input, output, (uint32_t)raw) : snappy_stream(input, output, (uint32_t)raw);
}

// ---- run lengths and bit packing
// --------------------------------------------------------------------------------------

// Gives exactly `n` values of `width` bits (at most 32) to emit(number, value), each to one lane; see
// core/parquet/run_length_bit_packing.h. False: the bytes end first, or a value is not below `bound`; emit sees those
// values, too.
template <class Emit>
__device__ inline bool hybrid(const uint8_t* at, const uint8_t* end, uint32_t width, uint64_t n, uint64_t bound,
                              Emit&& emit) {
  const uint64_t mask = (1ull << width) - 1;
  uint64_t done = 0, largest = 0;
  while (done < n) {
    uint64_t run = 0;
    if (!read_number(at, end, run)) return false;
    const uint64_t left = (uint64_t)(end - at), missing = n - done;
    if (run & 1) {
      const uint64_t groups = run >> 1, values = groups * 8 < missing ? groups * 8 : missing;
      if (groups * width > left || !values) return false;
      for (uint64_t k = lane(); k < values; k += kLanes) {
        const uint64_t bit = k * width, value = load64((const char*)at + bit / 8) >> (bit % 8) & mask;
        largest = value > largest ? value : largest;
        emit(done + k, (uint32_t)value);
      }
      at += groups * width;
      done += values;
    } else {
      const uint64_t bytes = (width + 7) / 8, values = run >> 1 < missing ? run >> 1 : missing;
      if (bytes > left || !values) return false;
      const uint64_t value = little(at, (uint32_t)bytes);
      at += bytes;
      largest = value > largest ? value : largest;
      for (uint64_t k = lane(); k < values; k += kLanes) emit(done + k, (uint32_t)value);
      done += values;
    }
  }
  return lanes_with(largest >= bound) == 0;
}

// ---- strings
// ----------------------------------------------------------------------------------------------------------

// Finds exactly `n` strings, each behind its length, in exactly `size` bytes; views count from `text`. Each length says
// where the next one is, so the bytes are fetched in steps ahead of the place that is read.
__device__ inline bool walk(const uint8_t* from, uint64_t size, uint64_t n, const uint8_t* text, TextView* out,
                            uint8_t* ahead) {
  Input in(from, (uint32_t)size, Scratch{nullptr, ahead});
  const uint32_t begin = (uint32_t)(from - text);
  uint32_t at = 0;
  for (uint64_t k = 0; k < n; ++k) {
    if (in.size - at < 4) return false;
    in.reach(at + 4);
    const uint32_t length = (uint32_t)in.byte(at) | (uint32_t)in.byte(at + 1) << 8 | (uint32_t)in.byte(at + 2) << 16 |
                            (uint32_t)in.byte(at + 3) << 24;
    at += 4;
    if (length > in.size - at) return false;
    if (lane() == k % kLanes) out[k] = TextView{begin + at, length};
    at += length;
    if (length > kMostLiterals) in.skip_to(at);
  }
  return at == in.size;
}

// ---- pages
// ------------------------------------------------------------------------------------------------------------

// Checks a dictionary; views of its strings go to `words`, from the entry of its own first row on.
__device__ inline bool read_dictionary(const StoredPage& p, const PageColumn& c, uint8_t* ahead) {
  if (c.width) return p.raw_size == (uint64_t)p.values * c.width;
  if (p.values > p.raw_size / 4) return false;
  return walk(p.raw, p.raw_size, p.values, c.text, (TextView*)c.words + p.row, ahead);
}

// The values of a page whose rows all have one, or in order for those that have one.
template <class T>
struct Plain {
  const uint8_t* at;
  __device__ T operator()(uint64_t k) const {
    if constexpr (sizeof(T) == 8)
      return (T)load64((const char*)at + 8 * k);
    else
      return (T)load32((const char*)at + 4 * k);
  }
};
template <class T>
struct Kept {
  const T* at;
  __device__ T operator()(uint64_t k) const { return at[k]; }
};
template <class T, class Word>
struct Picked {
  const Word* words;
  const uint32_t* places;
  __device__ T operator()(uint64_t k) const { return (T)words[places[k]]; }
};

// Gives every row its value, zero where it is null.
template <class T, class Value>
__device__ inline void spread(const uint8_t* levels, uint64_t n, T* out, const Value& value) {
  meet();
  uint64_t before = 0;
  for (uint64_t first = 0; first < n; first += kLanes) {
    const uint64_t row = first + lane();
    const bool here = row < n && levels[row];
    const uint32_t mask = lanes_with(here);
    if (row < n) out[row] = here ? value(before + lanes_before(mask)) : T{};
    before += chosen_count(mask);
  }
}

template <class T, class Word>
__device__ inline bool read_coded(const StoredPage& p, const PageColumn& c, const uint8_t* at, const uint8_t* end,
                                  uint64_t there, uint64_t bound, const Word* words) {
  T* const out = (T*)c.values + p.row;
  const uint64_t n = p.values;
  uint32_t width = 0;
  if (there) {
    if (at == end || *at > 32) return false;
    width = *at++;
  }
  if (there == n) {
    const auto put = [&](uint64_t k, uint32_t place) {
      if (place < bound) out[k] = (T)words[place];
    };
    return hybrid(at, end, width, there, there ? bound : 1, put);
  }
  uint32_t* const places = (uint32_t*)(c.between + 8 * p.row);
  const auto put = [&](uint64_t k, uint32_t place) { places[k] = place; };
  if (!hybrid(at, end, width, there, there ? bound : 1, put)) return false;
  spread(c.levels + p.row, n, out, Picked<T, Word>{words, places});
  return true;
}

// T has the bytes of a value as it is kept; what is stored has 8 bytes where T has, else 4.
template <class T>
__device__ inline bool read_plain(const StoredPage& p, const PageColumn& c, const uint8_t* at, uint64_t size,
                                  uint64_t there) {
  if (size != there * (sizeof(T) == 8 ? 8 : 4)) return false;
  T* const out = (T*)c.values + p.row;
  const Plain<T> value{at};
  if (there < p.values)
    spread(c.levels + p.row, p.values, out, value);
  else if (sizeof(T) >= 4)
    copy_apart((uint8_t*)out, at, size);
  else
    for (uint64_t k = lane(); k < there; k += kLanes) out[k] = value(k);
  return true;
}

// Numbers of 4 stored bytes.
template <class T>
__device__ inline bool read_numbers(const StoredPage& p, const PageColumn& c, const StoredPage* dictionary,
                                    const uint8_t* at, const uint8_t* end, uint64_t there) {
  if (dictionary) return read_coded<T>(p, c, at, end, there, dictionary->values, (const uint32_t*)dictionary->raw);
  return read_plain<T>(p, c, at, (uint64_t)(end - at), there);
}

__device__ inline bool read_texts(const StoredPage& p, const PageColumn& c, const uint8_t* at, uint64_t size,
                                  uint64_t there, uint8_t* ahead) {
  TextView* const out = (TextView*)c.values + p.row;
  if (there == p.values) return walk(at, size, there, c.text, out, ahead);
  TextView* const found = (TextView*)c.between + p.row;
  if (!walk(at, size, there, c.text, found, ahead)) return false;
  spread(c.levels + p.row, p.values, out, Kept<TextView>{found});
  return true;
}

// Levels and values of a data page; what PageResult::failed says.
__device__ inline uint32_t read_data(const StoredPage& p, const PageColumn& c, const StoredPage* pages,
                                     uint32_t* rows_there, uint8_t* ahead) {
  const uint64_t n = p.values;
  const uint8_t *at = p.raw, *const end = p.raw + p.raw_size;
  uint64_t there = n;
  if (c.nullable) {
    uint64_t length = p.plain;
    if (p.kind == kDataPage) {
      if (p.raw_size < 4) return 3;
      length = load32((const char*)at);
      at += 4;
    }
    if (length > (uint64_t)(end - at)) return 3;
    uint8_t* const levels = c.levels + p.row;
    uint32_t ones = 0;
    const auto put = [&](uint64_t k, uint32_t level) {
      levels[k] = (uint8_t)level;
      ones += level;
    };
    if (!hybrid(at, at + length, 1, n, 2, put)) return 3;
    there = sum_of(ones);
    at += length;
  } else if (p.plain) {
    return 3;
  }
  *rows_there = (uint32_t)there;
  const uint64_t size = (uint64_t)(end - at);
  const StoredPage* const d = p.dictionary >= 0 ? pages + p.dictionary : nullptr;
  bool good = false;
  if (c.width == 0) {
    good = d ? read_coded<TextView>(p, c, at, end, there, d->values, (const TextView*)c.words + d->row)
             : read_texts(p, c, at, size, there, ahead);
  } else if (c.width == 8) {
    good = d ? read_coded<uint64_t>(p, c, at, end, there, d->values, (const uint64_t*)d->raw)
             : read_plain<uint64_t>(p, c, at, size, there);
  } else if (c.out_width == 4) {
    good = read_numbers<uint32_t>(p, c, d, at, end, there);
  } else if (c.out_width == 2) {
    good = read_numbers<uint16_t>(p, c, d, at, end, there);
  } else if (c.out_width == 1) {
    good = read_numbers<uint8_t>(p, c, d, at, end, there);
  }
  return good ? 0 : 4;
}

}  // namespace cb::pages

// ---- kernels
// ----------------------------------------------------------------------------------------------------------

namespace cb::pages {

constexpr uint32_t kMostWarps = 4;  // of a block of pages_words and pages_values

// The page of this warp.
__device__ inline uint64_t page_here() {
  const uint32_t warps = (blockDim.x + kLanes - 1) / kLanes;
  return (uint64_t)blockIdx.x * warps + threadIdx.x / kLanes;
}

__device__ inline void report(PageResult* results, uint64_t number, uint32_t failed, uint32_t there) {
  if (lane() == 0) results[number] = PageResult{failed, there};
}

// The chosen page of this warp; nullptr where there are no more, or where an earlier kernel found that it is damaged.
__device__ inline const StoredPage* chosen_here(const StoredPage* pages, const PageResult* results,
                                                const uint32_t* chosen, uint64_t n) {
  const uint64_t k = page_here();
  return k < n && !results[chosen[k]].failed ? pages + chosen[k] : nullptr;
}

}  // namespace cb::pages

extern "C" __global__ void pages_unpack(const cb::pages::StoredPage* pages, cb::pages::PageResult* results,
                                        uint64_t n) {
  using namespace cb::pages;
  __shared__ uint64_t ahead[kAhead / 8];  // of the block's one warp
  __shared__ Batch batch;
  const uint64_t number = page_here();
  if (number >= n) return;
  const StoredPage p = pages[number];
  report(results, number, unpack(p, Scratch{&batch, (uint8_t*)ahead}) ? 0 : 1, p.values);
}

extern "C" __global__ void pages_words(const cb::pages::StoredPage* pages, const cb::pages::PageColumn* columns,
                                       cb::pages::PageResult* results, const uint32_t* chosen, uint64_t n) {
  using namespace cb::pages;
  __shared__ uint64_t ahead[kMostWarps][kAhead / 8];
  const StoredPage* at = chosen_here(pages, results, chosen, n);
  if (!at) return;
  const StoredPage p = *at;
  const bool good = read_dictionary(p, columns[p.column], (uint8_t*)ahead[threadIdx.x / kLanes]);
  if (!good) report(results, at - pages, 2, 0);
}

extern "C" __global__ void pages_values(const cb::pages::StoredPage* pages, const cb::pages::PageColumn* columns,
                                        cb::pages::PageResult* results, const uint32_t* chosen, uint64_t n) {
  using namespace cb::pages;
  __shared__ uint64_t ahead[kMostWarps][kAhead / 8];
  const StoredPage* at = chosen_here(pages, results, chosen, n);
  if (!at || (at->dictionary >= 0 && results[at->dictionary].failed)) return;
  const StoredPage p = *at;
  uint32_t there = 0;
  const uint32_t failed = read_data(p, columns[p.column], pages, &there, (uint8_t*)ahead[threadIdx.x / kLanes]);
  meet();
  report(results, at - pages, failed, there);
}

extern "C" __global__ void pages_bits(const cb::pages::PageColumn* columns) {
  const cb::pages::PageColumn c = columns[blockIdx.y];
  if (!c.nullable) return;
  const uint64_t bytes = (c.rows + 7) / 8, step = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t k = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; k < bytes; k += step) {
    uint32_t bits = 0;
    for (uint32_t b = 0; b < 8 && 8 * k + b < c.rows; ++b) bits |= (uint32_t)(c.levels[8 * k + b] & 1) << b;
    c.bits[k] = (uint8_t)bits;
  }
}
