// Defines a frame: columns of equal length that a program can load from.
//
// Two origins. An Arrow record batch, imported through the Arrow C data interface without copying; or the kept results
// of an earlier stage, already in register format (one fixed-width entry a row) with the memory they point into. A
// frame is immutable once built and may be read by many threads.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/program/kernel_shapes.h"
#include "core/system/bump_allocator.h"

// The Arrow C data interface, as its specification gives it: two plain structs.
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
}

namespace cb {

// A row that cannot be used. position: its place in the rows given to the call.
struct RowError : std::runtime_error {
  RowError(uint32_t piece_, int64_t position_, const std::string& what)
      : std::runtime_error(what), piece(piece_), position(position_) {}
  uint32_t piece;
  int64_t position;
};

// An entry of a column that cannot be loaded. position: its place among the rows given to load_column; null: the first
// null before it, or -1.
struct BadEntry : std::logic_error {
  BadEntry(int64_t position_, int64_t null_, const std::string& what)
      : std::logic_error(what), position(position_), null(null_) {}
  int64_t position, null;
};

enum class Storage : uint8_t {
  Bool,
  I8,
  I16,
  I32,
  I64,
  U8,
  U16,
  U32,
  F32,
  F64,
  Utf8,
  LargeUtf8,
  Dictionary,
  List,
  LargeList,
  FixedList,
  Entries,  // register format: `values` holds entries, `bytes_valid` a byte a row
};

struct FrameColumn {
  Storage storage;
  char kind;  // b i f t s k of a row, or of an element when is_list
  bool is_list = false;
  int64_t offset = 0;  // first row inside the buffers
  int64_t rows = 0;
  const uint8_t* bitmap = nullptr;       // Arrow validity, or nullptr
  const uint8_t* bytes_valid = nullptr;  // Entries only
  const void* values = nullptr;          // fixed width values, offsets of strings and lists, dictionary indices
  const char* text = nullptr;            // bytes of strings
  int64_t fixed = 0;                     // FixedList: elements a row
  int index_width = 4;                   // Dictionary: bytes of an index
  std::unique_ptr<FrameColumn> child;    // list elements, dictionary values

  bool has(int64_t row) const {
    if (bytes_valid) return bytes_valid[row];
    if (bitmap) {
      int64_t k = row + offset;
      if (!(bitmap[k >> 3] >> (k & 7) & 1)) return false;
    }
    return storage != Storage::Dictionary || !child->bitmap || has_value(row);
  }
  // Whether no row can be null.
  bool whole() const { return !bitmap && !bytes_valid && !(storage == Storage::Dictionary && child->bitmap); }

 private:
  bool has_value(int64_t row) const;  // Dictionary: the value that the row points at is not null
};

class Frame {
 public:
  // Takes over `array`. Throws std::invalid_argument for a type the reader should have simplified.
  static std::shared_ptr<Frame> from_arrow(ArrowSchema* schema, ArrowArray* array);
  ~Frame();
  Frame() = default;
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  int64_t rows() const { return rows_; }
  const std::vector<FrameColumn>& columns() const { return columns_; }

  // A copy of a frame of kept columns that needs no other frame: strings and lists lie in one block of just their size.
  // Throws std::invalid_argument where a column is not a kept one.
  std::shared_ptr<Frame> compacted() const;
  // Returns a frame with some columns of `of`, a frame of kept columns, which it keeps alive. Throws
  // std::invalid_argument if a column is not a kept one, and std::out_of_range if there is no such column.
  static std::shared_ptr<Frame> selected(const std::shared_ptr<const Frame>& of, const std::vector<size_t>& columns);
  // Returns a frame of columns in register format without nulls; `kinds` and `entries` by column. It keeps the entries,
  // but not what texts point at.
  static std::shared_ptr<Frame> of_entries(int64_t rows, const std::vector<char>& kinds,
                                           std::vector<std::vector<char>> entries);
  // Bytes that the frame holds itself, with those that its blocks have to spare; not what it points at elsewhere.
  size_t bytes() const;

 private:
  friend class FrameBuilder;
  friend class RequestRows;
  int64_t rows_ = 0;
  std::vector<FrameColumn> columns_;
  ArrowArray array_{};                              // owned when release is set
  std::vector<std::vector<char>> entries_;          // owned entries of kept columns
  Bump memory_;                                     // what kept entries point into
  std::vector<std::shared_ptr<const Frame>> keep_;  // frames whose buffers kept entries point into
};

// Fills `column` (entries and validity, allocated by the caller for `rows` rows) from rows of a frame column. `index`
// gives the frame row of each position, with `missing` perhaps -1 (no such row: null); without it rows run from `base`.
// Returns the first position that is null, or -1; throws BadEntry for one that cannot be loaded. Zero-copy: may replace
// column.data by a pointer into the frame.
int64_t load_column(const FrameColumn& from, const int32_t* index, bool missing, int64_t base, uint32_t rows,
                    Column& column, Bump& pool);

}  // namespace cb
