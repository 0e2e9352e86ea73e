// Divides the memory budget of a Sparse Table before any memory is allocated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/embed/table_file.h"

namespace cb {

// Shares of the budget for filters and fences. A key that is new and that a filter does not know costs a read, so with
// many rows on disk bits save more reads than rows in memory do: of 100M keys within 400 MB a fifth makes 0.176 reads a
// key, and up to 0.35 of it 0.142.
inline constexpr double kLeastIndex = 0.2, kMostIndex = 0.35;
inline constexpr uint32_t kLeastPlaces = 16;  // of a shard

// Bytes of memory for a resident row: its floats, its mark, its slot and what the policy keeps of it.
size_t bytes_a_row(const TableShape& shape, const std::string& policy);

struct MemoryPlan {
  uint64_t places = 0;  // of a shard: rows that fit in memory; above kMostPlaces where `ram` is more than can be used
  uint64_t rows = 0;    // of all shards
  unsigned place_bits = 0, tag_bits = 0;  // of a slot, 32 in all
  uint64_t row_bytes = 0;                 // of all rows
  uint64_t index_bytes = 0;               // of filters and fences, at the start
};

MemoryPlan plan_memory(const TableShape& shape, const std::string& policy, size_t ram);

// The least and the most bytes that a table can use.
size_t least_memory(const TableShape& shape, const std::string& policy);
size_t most_memory(const TableShape& shape, const std::string& policy);

}  // namespace cb
