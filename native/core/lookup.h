// The keys a batch reads from one embedder, each once, and the references to them.
//
//   keys      [unique]        ordered by shard, within a shard by first reference: threads have no say in it
//   inverse   [references]    position in keys; references stand field after field, row after row
//   offsets   [field][rows+1] a field's references of a row, from the field's start; empty: exactly one a row
//   groups    [unique+1]      where each key's cells begin
//   cells     [references]    row << field_bits | field, grouped by key, in the order of the references
//
// Cells are what a gradient needs: whoever owns a range of keys sums them alone and in one order.
// Refuses offsets that fall or point outside their values, and more than 2^31 - 1 references or 2^32 cells.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/buffers.h"

namespace cb {

struct FieldKeys {
  const int64_t* values = nullptr;
  size_t count = 0;                  // values there are
  const int64_t* offsets = nullptr;  // rows + 1 of them, may begin above 0; null: values hold one key a row
};

struct Lookup {
  size_t rows = 0;
  uint32_t field_bits = 0;
  std::vector<size_t> starts;            // fields + 1
  std::vector<Buffer<int32_t>> offsets;  // one a field
  Buffer<int64_t> keys;
  Buffer<int32_t> inverse;
  Buffer<uint32_t> groups;
  Buffer<uint32_t> cells;

  size_t fields() const { return offsets.size(); }
  bool single(size_t field) const { return offsets[field].size() == 0; }

  // Throws std::invalid_argument where the input is refused.
  static std::shared_ptr<Lookup> of(std::span<const FieldKeys> fields, size_t rows, size_t threads);
};

}  // namespace cb
