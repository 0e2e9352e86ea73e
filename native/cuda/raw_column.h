// Describes a source column in device memory: Arrow's own layout, sliced so that row 0 is the chunk's first.
//
// Written by src/ctrbox/engines/cuda/upload.py with these very offsets (numpy dtype RAW), read by load_columns.h. All
// pointers are device pointers; buffers begin 16-byte aligned and have 16 readable bytes behind them.
#pragma once
#include "operators/types.h"

namespace cb {

enum Storage : uint8_t {
  kBool = 0,
  kI8 = 1,
  kI16 = 2,
  kI32 = 3,
  kI64 = 4,
  kU8 = 5,
  kU16 = 6,
  kU32 = 7,
  kF32 = 8,
  kF64 = 9,
  kUtf8 = 10,
  kLargeUtf8 = 11,
  kDictionary = 12,  // of strings
  kList = 13,
  kLargeList = 14,
  kFixedList = 15,
  kAbsent = 16,  // this run has no such source: every row is null
  kViews = 17,   // strings, a TextView a row; `text` is the byte that its places count from
};

struct TextView {
  uint32_t at, n;
};

struct Raw {
  const void* values;           // fixed width values, bits of bools, offsets of strings and lists, dictionary indices
  const char* text;             // byte that offset 0 of the strings (or of the dictionary's) stands for
  const uint8_t* bitmap;        // validity bits, or nullptr where no row is null
  const void* inner;            // List: elements, or offsets of element strings; Dictionary: offsets of its strings
  const char* inner_text;       // List of strings: byte that offset 0 stands for
  const uint8_t* inner_bitmap;  // validity bits of elements or of dictionary values, or nullptr
  int64_t inner_rows;           // Dictionary: its size; FixedList: elements a row
  uint32_t bit;                 // of row 0 in bitmap
  uint32_t value_bit;           // Bool: of row 0 in values
  uint32_t inner_bit;           // of inner element 0 in inner_bitmap
  uint32_t inner_value_bit;     // of inner element 0, where elements are bools
  uint8_t storage;
  uint8_t inner_storage;  // of list elements (never a list or dictionary), of dictionary values: kUtf8 or kLargeUtf8
  uint8_t index_width;    // Dictionary: bytes of an index: 1, 2, 4, 8 (signed)
  uint8_t unused[5];
};
static_assert(sizeof(Raw) == 80, "upload.py writes these bytes");

// The rows of a source. Position p of the chunk is row index[p] of the columns (-1: no such row), or row p.
struct SourceRows {
  const int32_t* index;
  uint64_t rows;  // of its columns
};
static_assert(sizeof(SourceRows) == 16, "upload.py writes these bytes");

// What a chunk brings, at a fixed address: this head, then `sources` SourceRows, then every source's Raw columns.
struct Header {
  uint64_t rows;
  uint64_t first;  // of the log, for messages
};

}  // namespace cb
