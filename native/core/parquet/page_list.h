// Lists the pages of a column chunk from untrusted bytes: their headers are checked, their contents are not looked at.
//
// Both readers, the one in column_chunk.cpp and the one for a GPU (cuda/parquet_pages.h), begin with this list, so that
// they accept the same chunks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/parquet/column_chunk.h"
#include "core/parquet/page_header.h"

namespace cb::parquet {

enum Encoding : int32_t { kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8 };

struct Page {
  PageHeader header;
  const uint8_t* stored;  // the bytes behind the header, header.stored_size of them
};

inline bool dictionary_coded(const PageHeader& h) {
  return h.encoding == kPlainDictionary || h.encoding == kRleDictionary;
}

// Returns all pages of a chunk, or nothing if the readers do not understand a part of it or a checksum is
// wrong. The rows of the data pages add up to `shape.rows`; a dictionary is the first page.
std::optional<std::vector<Page>> pages_of(const uint8_t* chunk, size_t bytes, const ColumnShape& shape);

}  // namespace cb::parquet
