#include "core/embed/published_rows.h"

#include <algorithm>

#include "operators/hash.h"

namespace cb {

namespace {

uint64_t hash_of(int64_t key) { return finish(static_cast<uint64_t>(key)); }

}  // namespace

PublishedRows::PublishedRows(std::span<const int64_t> keys, const float* rows, size_t width)
    : index_(keys.size()), rows_(rows, rows + keys.size() * width), width_(width) {
  for (size_t r = 0; r < keys.size(); ++r)
    if (index_.insert(hash_of(keys[r]), static_cast<uint32_t>(r)) != HashIndex::kEmpty) {
      twice_ = keys[r];
      return;
    }
}

void PublishedRows::find(std::span<const int64_t> keys, float* out, std::vector<int64_t>& lost) const {
  constexpr size_t kAhead = 8;
  const size_t n = keys.size();
  for (size_t k = 0; k < std::min(n, kAhead); ++k) index_.prefetch(hash_of(keys[k]));
  for (size_t k = 0; k < n; ++k, out += width_) {
    if (k + kAhead < n) index_.prefetch(hash_of(keys[k + kAhead]));
    const uint32_t row = index_.find(hash_of(keys[k]));
    if (row == HashIndex::kEmpty) {
      lost.push_back(static_cast<int64_t>(k));
      std::fill_n(out, width_, 0.0f);
    } else {
      std::copy_n(rows_.data() + size_t{row} * width_, width_, out);
    }
  }
}

}  // namespace cb
