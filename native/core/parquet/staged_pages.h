// Column chunks on their way to the page decoder of a GPU (cuda/parquet_pages.h): where everything lies that a call of
// it uses.
//
//   stored    the chunks as they lie in the file, each at a multiple of 16 bytes
//   held      decompressed pages of strings; then values and validity bits of each column: what batches refer to
//   between   decompressed pages of numbers; then levels, working memory and dictionaries' strings of each column: not
//             needed any more when the kernels have run
//   table     a StoredPage for each page, a PageColumn for each decoded column, the numbers (uint32) of the dictionary
//             pages, and those of the data pages
//
// A column is left out, and somebody else decodes it, if a page of it is not understood or damaged (page_list.h), if
// its strings take more bytes than a view of a string can address, or if a dictionary of strings says that it has more
// entries than its bytes allow. Sizes are checked against the stored bytes by then, so that no sum of them overflows.
//
// Use it in this order: chunk() and found() for each number below chunks(), lay_out(), write(), outcome(). The slow
// twin is tests/engines/cuda/laid_out.py.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/parquet/page_list.h"

namespace cb::parquet {

struct StagedChunk {
  int64_t start = 0, size = 0;  // in the file; a damaged footer may say anything
  ColumnShape shape;
  uint32_t narrow = 0;  // bytes that a value of 4 bytes keeps, 0: all
};

// As cuda/parquet_pages.h reads them; see there.
struct StagedPage {
  uint64_t stored, raw, row;
  uint32_t stored_size, raw_size, values, plain, column;
  int32_t dictionary;
  uint8_t codec, kind, unused[6];
};
struct StagedColumn {
  uint64_t values, levels, bits, between, words, text, rows;
  uint32_t width;
  uint16_t nullable, out_width;
};
struct StagedResult {
  uint32_t failed, there;
};

class StagedPages {
 public:
  static constexpr size_t kSlack = 64;  // unused bytes behind each decompressed page and behind every buffer

  // A decoded column. Its addresses begin at the address of `held` that write() was given.
  struct Column {
    uint32_t failed;  // 0, or the largest PageResult::failed of its pages
    uint64_t rows, nulls, values, text, bits;
    uint32_t width;  // bytes a row; 0: views of strings
  };

  explicit StagedPages(std::vector<std::vector<StagedChunk>> columns);
  StagedPages(const StagedPages&) = delete;  // places point into the columns
  StagedPages& operator=(const StagedPages&) = delete;

  size_t chunks() const { return places_.size(); }
  const StagedChunk& chunk(size_t number) const { return *places_[number].chunk; }
  uint64_t place(size_t number) const { return places_[number].at; }  // among the stored bytes
  // Bytes of all chunks, without the slack; at least 2^62 if the footer says so.
  uint64_t stored_bytes() const { return stored_bytes_; }

  // Lists the pages of a chunk, whose bytes lie at `stored`.
  void found(size_t number, const uint8_t* stored);
  void lay_out();

  bool decoded(size_t column) const { return std::count(numbers_.begin(), numbers_.end(), column) > 0; }
  size_t pages() const { return pages_.size(); }
  size_t shapes() const { return shapes_.size(); }
  size_t dictionaries() const { return dictionaries_.size(); }
  size_t data() const { return data_.size(); }
  bool nullable() const;  // whether a decoded column may have nulls
  uint64_t held_bytes() const { return held_; }
  uint64_t between_bytes() const { return between_; }
  size_t table_bytes() const;

  // Writes the table for buffers at these addresses.
  void write(uint8_t* to, uint64_t stored, uint64_t held, uint64_t between) const;

  // Returns the outcome of each column from the kernels' results, one for each page; nothing for a column that was left
  // out.
  std::vector<std::optional<Column>> outcome(std::span<const StagedResult> results, uint64_t held) const;

 private:
  struct Place {
    const StagedChunk* chunk;
    uint64_t at;
    size_t column;
    std::optional<std::vector<Page>> pages;
    const uint8_t* stored;
  };
  bool decodable(std::span<const Place> places) const;
  void add_pages(std::span<const Place> places, uint64_t& text, uint64_t& numbers);

  std::vector<std::vector<StagedChunk>> columns_;
  std::vector<Place> places_;
  uint64_t stored_bytes_ = 0;
  std::vector<StagedPage> pages_;
  std::vector<StagedColumn> shapes_;
  std::vector<size_t> numbers_;  // of the columns that are decoded
  std::vector<uint32_t> dictionaries_, data_;
  uint64_t held_ = 0, between_ = 0;
};

}  // namespace cb::parquet
