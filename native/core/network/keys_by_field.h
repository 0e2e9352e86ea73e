// Indexes every field with one key per row: its unique keys, the key of each row, and the rows of each key.
//
//   A "place" is the number of a (field, unique key): those of a field are neighbors, ordered by first row.
//   place    [field][rows]    of each row
//   key      [places]         position in lookup.keys
//   from     [places + 1]     where the rows of a place begin in `rows`
//   rows     [field][rows]    rows sorted by place, ascending within one
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/embed/unique_keys.h"
#include "core/system/reused_buffers.h"

namespace cb {

struct FieldIndex {
  std::vector<size_t> columns;  // the columns that are indexed, of those asked for
  std::vector<size_t> begin;    // [fields + 1]: where the places of a field begin
  Buffer<int32_t> place, key, from, rows;

  size_t fields() const { return columns.size(); }
  size_t places() const { return begin.back(); }

  // `fields`: of each column its field in the lookup. Columns whose field has other than one key per row are left out,
  // and those that share a key (other than 0, which has no row) with an earlier one.
  void build(const Lookup& lookup, std::span<const size_t> fields, size_t threads);
};

}  // namespace cb
