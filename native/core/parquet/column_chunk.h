// Decodes one column of a row group from the bytes of a Parquet file into Arrow buffers.
//
// Pages of a column chunk lie one behind the other: at most one dictionary, then values with their definition levels.
// Each is checked against its checksum where it has one, decompressed into memory that the next page uses again, and
// copied to its place in buffers from the pool: no fresh memory, no growing. pyarrow's decoder, which it stands beside,
// spends two thirds of its time on those.
//
// What is understood: flat columns (no lists, at most one level of null), of 4 or 8 bytes or of strings, PLAIN or with
// a dictionary, pages of either version, uncompressed, LZ4_RAW or Snappy. Of everything else, and of bytes that are
// damaged in any way, decode() says so and leaves it to pyarrow, whose word is the last one: this file has no messages.
// Sizes are checked against the bytes that are there before anything is allocated: no codec here makes more than 255
// bytes of one, and strings of a dictionary are counted before they are copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/system/reused_buffers.h"

namespace cb::parquet {

enum class Codec : uint8_t { None, Lz4, Snappy };

struct ColumnShape {
  Codec codec = Codec::None;
  uint32_t width = 0;     // bytes of a value: 4 or 8; 0: strings
  bool nullable = false;  // the highest definition level is 1
  int64_t rows = 0;
};

struct DecodedColumn {
  Buffer<uint8_t> values;   // width * rows bytes, null rows are 0; of strings all bytes, one behind the other
  Buffer<int32_t> offsets;  // of strings: rows + 1
  Buffer<uint8_t> valid;    // bits, lowest first; empty where nothing is null
  int64_t nulls = 0;
};

// The rows of a column chunk, or nothing: somebody else has to read it.
std::optional<DecodedColumn> decode(const uint8_t* chunk, size_t bytes, const ColumnShape& shape);

}  // namespace cb::parquet
