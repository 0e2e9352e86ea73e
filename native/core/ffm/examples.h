// Examples ready to learn from: features as mixed 64-bit keys, in columns.
//
// Example e owns features offsets[e] … offsets[e + 1]. Within an example fields ascend; a field may have no feature,
// one, or many. Values, labels and weights are left out where all values are 1, nobody gave labels, all weights are 1.
// Made only by code that checks: keys are mixed with their field, values finite, labels 0 or 1, weights finite and not
// negative. `fields` is the number of fields the numbers count up to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cb {

struct Examples {
  uint32_t fields = 0;
  std::vector<uint32_t> offsets{0};
  std::vector<uint64_t> keys;
  std::vector<uint16_t> field;
  std::vector<float> values, labels, weights;

  size_t rows() const { return offsets.size() - 1; }
  float value(size_t i) const { return values.empty() ? 1.0f : values[i]; }
  float weight(size_t e) const { return weights.empty() ? 1.0f : weights[e]; }
};

}  // namespace cb
