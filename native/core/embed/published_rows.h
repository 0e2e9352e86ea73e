// Looks up the rows of a published version by key, in an index over a copy of the rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/join/hash_index.h"

namespace cb {

class PublishedRows {
 public:
  static constexpr size_t kMost = HashIndex::kEmpty;

  // Rows of `width` floats, one per key; fewer than kMost.
  PublishedRows(std::span<const int64_t> keys, const float* rows, size_t width);

  // A key that came twice; then nothing else may be asked.
  std::optional<int64_t> twice() const { return twice_; }

  // Rows of keys, and which of the keys have none: theirs are 0. Any number of threads.
  void find(std::span<const int64_t> keys, float* out, std::vector<int64_t>& lost) const;

  size_t size() const { return index_.size(); }
  size_t width() const { return width_; }
  size_t bytes() const { return index_.bytes() + rows_.size() * sizeof(float); }

 private:
  HashIndex index_;
  std::vector<float> rows_;
  size_t width_;
  std::optional<int64_t> twice_;
};

}  // namespace cb
