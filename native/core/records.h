// The rows of a dimension view after hoisting: one fixed-width record a row.
//
//   record: the fields of a row side by side (widest first, so all are aligned), then a validity byte for each nullable
//   field, padded to 8 bytes. Strings and lists of a row lie together in memory_, in row order. An impression that
//   needs ten columns of its user touches the record's one or two cache lines and the lists, not ten columns.
//
// Built by one thread (RecordSink), then read by all.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/bump.h"
#include "core/kernel.h"
#include "core/memory.h"

namespace cb {

inline size_t entry_width(const std::string& kind) { return kind[0] == '*' || kind == "s" ? 16 : kind == "b" ? 1 : 8; }

struct RecordField {
  std::string kind;
  bool nullable;
  uint32_t offset = 0;        // of the entry inside the record
  uint32_t valid_offset = 0;  // of its validity byte, when nullable
};

class Records {
 public:
  explicit Records(std::vector<RecordField> fields) : fields_(std::move(fields)), memory_(size_t{1} << 18) {
    uint32_t at = 0;
    for (size_t width : {size_t{16}, size_t{8}, size_t{1}})
      for (RecordField& f : fields_)
        if (entry_width(f.kind) == width) {
          f.offset = at;
          at += static_cast<uint32_t>(width);
        }
    for (RecordField& f : fields_)
      if (f.nullable) f.valid_offset = at++;
    stride_ = (at + 7) / 8 * 8;
    if (stride_ == 0) stride_ = 8;
  }

  const std::vector<RecordField>& fields() const { return fields_; }
  uint32_t stride() const { return stride_; }
  size_t rows() const { return data_.size() / stride_; }
  const char* at(size_t row) const { return data_.data() + row * stride_; }
  size_t bytes() const { return data_.capacity() + memory_.capacity(); }

  // For the builder.
  char* grow(size_t rows) {
    size_t before = data_.size();
    data_.resize(before + rows * stride_);
    return data_.data() + before;
  }
  Bump& memory() { return memory_; }

 private:
  std::vector<RecordField> fields_;
  uint32_t stride_ = 8;
  std::vector<char, HugePages<char>> data_;
  Bump memory_;
};

}  // namespace cb
