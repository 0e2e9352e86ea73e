// Holds examples to learn from: features as mixed 64-bit keys, in columns.
//
// Example e owns features offsets[e] … offsets[e + 1]. Within an example fields ascend; a field may have no feature,
// one, or many. Values, labels and weights are left out where all values are 1, nobody gave labels, all weights are 1;
// a label that one example lacks is NaN, and `unlabeled` counts those. Made only by code that checks: values finite
// and not 0, labels 0, 1 or NaN, weights finite and not negative.
//
// A key holds 48 bits, at the top: two features share one with probability 2^-48, and files are a quarter smaller.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "operators/hash.h"

namespace cb {

inline constexpr size_t kMostFeatures = 65535;  // of one example

// `value`: the hash of a feature's name, or a key of a plan; `salt`: the hash of its field's name.
inline uint64_t feature_key(uint64_t value, uint64_t salt) { return finish(value ^ salt) & ~uint64_t{0xffff}; }

struct Examples {
  std::vector<uint32_t> offsets{0};
  std::vector<uint64_t> keys;
  std::vector<uint16_t> fields;
  std::vector<float> values, labels, weights;
  size_t unlabeled = 0;

  size_t rows() const { return offsets.size() - 1; }
  float value(size_t i) const { return values.empty() ? 1.0f : values[i]; }
  float weight(size_t e) const { return weights.empty() ? 1.0f : weights[e]; }

  // One feature of the example that is being built.
  void add(uint64_t key, uint16_t field, float x) {
    if (x == 0.0f) return;
    if (x != 1.0f && values.empty()) values.assign(keys.size(), 1.0f);
    keys.push_back(key);
    fields.push_back(field);
    if (!values.empty() || x != 1.0f) values.push_back(x);
  }

  // The end of the example that is being built; its fields are put in order.
  void close(float label, float weight) {
    const size_t begin = offsets.back();
    if (!std::is_sorted(fields.begin() + static_cast<ptrdiff_t>(begin), fields.end())) sort_from(begin);
    if (weight != 1.0f && weights.empty()) weights.assign(rows(), 1.0f);
    if (!weights.empty() || weight != 1.0f) weights.push_back(weight);
    labels.push_back(label);
    unlabeled += std::isnan(label);
    offsets.push_back(static_cast<uint32_t>(keys.size()));
  }

  // Forget the example that is being built.
  void drop() {
    keys.resize(offsets.back());
    fields.resize(offsets.back());
    if (!values.empty()) values.resize(offsets.back());
  }

  // Fields by other numbers.
  Examples renumbered(const std::vector<uint16_t>& to) const {
    Examples out = *this;
    for (uint16_t& f : out.fields) f = to[f];
    for (size_t e = 0; e < rows(); ++e) {
      const auto begin = out.fields.begin() + offsets[e], end = out.fields.begin() + offsets[e + 1];
      if (!std::is_sorted(begin, end)) out.sort(offsets[e], offsets[e + 1]);
    }
    return out;
  }

 private:
  void sort_from(size_t begin) { sort(begin, keys.size()); }

  void sort(size_t begin, size_t end) {
    std::vector<size_t> order(end - begin);
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return fields[a] < fields[b]; });
    auto put = [&](auto& column) {
      if (column.empty()) return;
      const std::vector<typename std::decay_t<decltype(column)>::value_type> before(
          column.begin() + static_cast<ptrdiff_t>(begin), column.begin() + static_cast<ptrdiff_t>(end));
      for (size_t i = 0; i < order.size(); ++i) column[begin + i] = before[order[i] - begin];
    };
    put(keys);
    put(fields);
    put(values);
  }
};

}  // namespace cb
