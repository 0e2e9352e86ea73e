#include "core/parquet/page_list.h"

#include <algorithm>

#include "core/parquet/crc32.h"
#include "core/parquet/lz4.h"

namespace cb::parquet {

namespace {

constexpr size_t kMostExpansion = 255;           // bytes that a codec makes of one, at most
constexpr int64_t kMostRows = int64_t{1} << 26;  // of a row group; run lengths could say any number in a few bytes

}  // namespace

std::optional<std::vector<Page>> pages_of(const uint8_t* chunk, size_t bytes, const ColumnShape& shape) {
  if (shape.rows < 0 || shape.rows > kMostRows) return std::nullopt;
  std::vector<Page> pages;
  const uint8_t *at = chunk, *end = chunk + bytes;
  int64_t rows = 0;
  while (at < end) {
    Page page;
    PageHeader& h = page.header;
    Compact reader(at, end);
    if (!read_page_header(reader, h) || h.stored_size < 0 || h.raw_size < 0 || h.values < 0 || h.described != h.kind)
      return std::nullopt;
    page.stored = reader.at();
    const size_t stored = static_cast<size_t>(h.stored_size), raw = static_cast<size_t>(h.raw_size);
    if (stored > static_cast<size_t>(end - page.stored)) return std::nullopt;
    if (raw > kMostExpansion * stored + kSlack) return std::nullopt;
    at = page.stored + stored;
    if (h.has_crc && crc32(page.stored, stored) != h.crc) return std::nullopt;
    const bool dictionary = h.kind == static_cast<int32_t>(PageKind::Dictionary);
    if (dictionary) {
      if (!pages.empty() || (h.encoding != kPlain && h.encoding != kPlainDictionary)) return std::nullopt;
    } else if (h.kind == static_cast<int32_t>(PageKind::Data)) {
      if (h.level_encoding < 0 || h.repetition_encoding < 0) return std::nullopt;
      if (shape.nullable && h.level_encoding != kRle) return std::nullopt;
    } else if (h.kind == static_cast<int32_t>(PageKind::DataV2)) {
      if (h.rows != h.values || h.nulls < 0) return std::nullopt;
      if (h.repetition_bytes != 0 || h.definition_bytes < 0 || h.definition_bytes > std::min(h.stored_size, h.raw_size))
        return std::nullopt;
    } else {
      return std::nullopt;
    }
    if (!dictionary) {
      const bool coded =
          dictionary_coded(h) && !pages.empty() && pages[0].header.kind == static_cast<int32_t>(PageKind::Dictionary);
      if (h.encoding != kPlain && !coded) return std::nullopt;
      rows += h.values;
    }
    pages.push_back(page);
  }
  if (rows != shape.rows) return std::nullopt;
  return pages;
}

}  // namespace cb::parquet
