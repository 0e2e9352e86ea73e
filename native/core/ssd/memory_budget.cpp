#include "core/ssd/memory_budget.h"

#include <algorithm>

#include "core/embed/shard_of_key.h"
#include "core/ssd/eviction_policy.h"
#include "core/ssd/rows_in_memory.h"

namespace cb {

namespace {

constexpr double kRowShare = 1 - kLeastIndex;  // of the budget for rows, until filters need more

size_t sketch_bytes(const TableShape& shape) { return shape.life.by_count() ? shape.life.sketch_bytes : 0; }

}  // namespace

size_t bytes_a_row(const TableShape& shape, const std::string& policy) {
  const uint32_t sample = 4096;
  const size_t of_policy = (make_policy(policy, sample)->bytes() + sample - 1) / sample;
  return shape.floats() * 4 + sizeof(Mark) + 4 + 2 + of_policy + 1;  // a slot, a third of one free, a freed place
}

MemoryPlan plan_memory(const TableShape& shape, const std::string& policy, size_t ram) {
  MemoryPlan plan;
  const auto share = static_cast<size_t>(static_cast<double>(ram) * kRowShare);
  const size_t sketch = sketch_bytes(shape), each = bytes_a_row(shape, policy);
  plan.places = (share - std::min(share, sketch)) / each / kShards;
  plan.rows = plan.places * kShards;
  plan.place_bits = place_bits(static_cast<uint32_t>(std::min<uint64_t>(plan.places, kMostPlaces)));
  plan.tag_bits = 32 - plan.place_bits;
  plan.row_bytes = plan.rows * each;
  plan.index_bytes = ram - share;
  return plan;
}

size_t least_memory(const TableShape& shape, const std::string& policy) {
  return static_cast<size_t>(static_cast<double>(kShards * kLeastPlaces * bytes_a_row(shape, policy)) / kRowShare) +
         sketch_bytes(shape) * 5 / 4 + 8192;
}

size_t most_memory(const TableShape& shape, const std::string& policy) {
  const auto rows = static_cast<double>(uint64_t{kShards} * kMostPlaces * bytes_a_row(shape, policy));
  return static_cast<size_t>((rows + static_cast<double>(sketch_bytes(shape))) / kRowShare);
}

}  // namespace cb
