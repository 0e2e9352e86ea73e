// Turns a batch of a plan into examples: a dense column becomes a field with one feature of that value.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/ffm/examples.h"

namespace cb {

struct BatchColumns {
  struct Ragged {
    std::span<const int64_t> values, offsets;
  };
  std::vector<Ragged> sparse;
  const float* dense = nullptr;  // rows × width
  size_t rows = 0, width = 0;
  std::span<const float> label, weight;      // empty: none
  std::span<const std::string> dense_names;  // of the dense columns, for errors; empty: their numbers name them
};

// Key 0, the null slot, and the number 0 are no feature. Throws std::invalid_argument that names the row: a number,
// label or weight that is not finite, a label other than 0 and 1, a negative weight, too many features, arrays that do
// not fit.
Examples examples_of(const BatchColumns& batch, const std::vector<uint64_t>& salts);

}  // namespace cb
