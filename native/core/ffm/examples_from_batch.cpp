#include "core/ffm/examples_from_batch.h"

#include <stdexcept>
#include <string>

namespace cb {

namespace {

[[noreturn]] void refuse(size_t row, const std::string& why) {
  throw std::invalid_argument("row " + std::to_string(row) + ": " + why);
}

std::string name_of(const BatchColumns& b, size_t column) {
  if (column >= b.dense_names.size()) return std::to_string(column);
  std::string shown = "'";
  shown.append(b.dense_names[column], 0, 100).append("'");
  return shown;
}

void check_shape(const BatchColumns& b, size_t salts) {
  bool fits = salts == b.sparse.size() + b.width && (b.label.empty() || b.label.size() == b.rows) &&
              (b.weight.empty() || b.weight.size() == b.rows);
  for (const auto& field : b.sparse) {
    fits = fits && field.offsets.size() == b.rows + 1 && field.offsets.front() >= 0 &&
           field.offsets.back() <= static_cast<int64_t>(field.values.size());
    for (size_t r = 0; fits && r < b.rows; ++r) fits = field.offsets[r] <= field.offsets[r + 1];
  }
  if (!fits) throw std::invalid_argument("the arrays of the batch have different lengths");
}

}  // namespace

Examples examples_of(const BatchColumns& b, const std::vector<uint64_t>& salts) {
  check_shape(b, salts.size());
  Examples out;
  out.offsets.reserve(b.rows + 1);
  for (size_t r = 0; r < b.rows; ++r) {
    for (size_t f = 0; f < b.sparse.size(); ++f) {
      const auto& field = b.sparse[f];
      for (int64_t i = field.offsets[r]; i < field.offsets[r + 1]; ++i) {
        const uint64_t key = static_cast<uint64_t>(field.values[static_cast<size_t>(i)]);
        if (key != 0) out.add(feature_key(key, salts[f]), static_cast<uint16_t>(f), 1.0f);
      }
    }
    for (size_t c = 0; c < b.width; ++c) {
      const float x = b.dense[r * b.width + c];
      const size_t f = b.sparse.size() + c;
      if (!std::isfinite(x))
        refuse(r, "dense column " + name_of(b, c) + " is " + std::to_string(x) + "; expected a finite number");
      out.add(feature_key(1, salts[f]), static_cast<uint16_t>(f), x);
    }
    if (out.keys.size() - out.offsets.back() > kMostFeatures) refuse(r, "it has more than 65,535 features");
    if (out.keys.size() > std::numeric_limits<uint32_t>::max()) refuse(r, "a batch holds at most 2^32 features");
    const float label = b.label.empty() ? std::numeric_limits<float>::quiet_NaN() : b.label[r];
    const float weight = b.weight.empty() ? 1.0f : b.weight[r];
    if (!b.label.empty() && label != 0.0f && label != 1.0f)
      refuse(r, "its label is " + std::to_string(label) + "; expected 0 or 1");
    if (!std::isfinite(weight) || weight < 0.0f) refuse(r, "its weight is " + std::to_string(weight));
    out.close(label, weight);
  }
  return out;
}

}  // namespace cb
