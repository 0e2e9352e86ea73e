// Finds the unique keys that a batch reads from one embedder, and the references to them.
//
//   keys      [unique]        ordered by shard, within a shard by first reference: threads have no say in it
//   inverse   [references]    position in keys; references stand field after field, row after row
//   offsets   [field][rows+1] a field's references of a row, from the field's start; empty: exactly one per row
//   shards    keys and references before each shard: who shares keys among threads weighs them by references
//
// Refuses offsets that fall or point outside their values, and more than 2^31 - 1 rows or references.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/system/reused_buffers.h"

namespace cb {

struct FieldKeys {
  const int64_t* values = nullptr;
  size_t count = 0;                  // values there are
  const int64_t* offsets = nullptr;  // rows + 1 of them, may begin above 0; null: values hold one key per row
};

struct Lookup {
  static constexpr size_t kPadding = 64;  // readable past the end of inverse, for prefetches

  size_t rows = 0;
  std::vector<size_t> starts;            // fields + 1
  std::vector<Buffer<int32_t>> offsets;  // one a field
  Buffer<int64_t> keys;
  Buffer<int32_t> inverse;
  std::array<size_t, kShards + 1> shard_keys{}, shard_references{};

  size_t fields() const { return offsets.size(); }
  bool single(size_t field) const { return offsets[field].size() == 0; }

  // Throws std::invalid_argument where the input is refused.
  static std::shared_ptr<Lookup> of(std::span<const FieldKeys> fields, size_t rows, size_t threads);
};

}  // namespace cb
