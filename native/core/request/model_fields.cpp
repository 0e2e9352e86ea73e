#include "core/request/model_fields.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/ffm/examples_from_batch.h"
#include "operators/hash.h"

namespace cb {

ModelFields ModelFields::of(const std::vector<std::string>& sparse, const std::vector<std::string>& dense,
                            const std::vector<std::string>& fields) {
  ModelFields out;
  auto choose = [&](const std::vector<std::string>& names, std::vector<size_t>& chosen) {
    for (size_t k = 0; k < names.size(); ++k) {
      const auto at = std::find(fields.begin(), fields.end(), names[k]);
      if (at == fields.end()) continue;
      chosen.push_back(k);
      out.salts.push_back(hash_bytes(names[k].data(), static_cast<uint32_t>(names[k].size())));
      out.numbers.push_back(static_cast<uint16_t>(at - fields.begin()));
    }
  };
  choose(sparse, out.sparse);
  choose(dense, out.dense);
  for (size_t k : out.dense) out.dense_names.push_back(dense[k]);
  return out;
}

Examples ModelFields::examples(const Batch& batch) const {
  const size_t rows = static_cast<size_t>(batch.rows), width = batch.dense_width;
  std::vector<int64_t> one_each(rows + 1);
  std::iota(one_each.begin(), one_each.end(), int64_t{0});
  BatchColumns columns;
  for (size_t k : sparse) {
    const Batch::Field& field = batch.fields.at(k);
    std::span<const int64_t> offsets = one_each;
    if (field.ragged) offsets = {field.offsets.data(), field.offsets.size()};
    columns.sparse.push_back({{field.values.data(), field.values.size()}, offsets});
  }
  std::vector<float> chosen;  // only where the model leaves a column out
  columns.dense = batch.dense.data();
  if (dense.size() != width) {
    for (size_t r = 0; r < rows; ++r)
      for (size_t c : dense) chosen.push_back(batch.dense.data()[r * width + c]);
    columns.dense = chosen.data();
  }
  columns.rows = rows;
  columns.width = dense.size();
  columns.dense_names = dense_names;
  return examples_of(columns, salts).renumbered(numbers);
}

}  // namespace cb
