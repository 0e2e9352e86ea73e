#include "core/network/keys_by_field.h"

#include <algorithm>

#include "core/system/parallel.h"

namespace cb {

namespace {

// Numbers the unique keys of a field by first row, in `number`; their positions go to `key`. Returns how many.
size_t number_keys(const int32_t* inverse, size_t rows, size_t unique, int32_t* number, int32_t* key) {
  thread_local std::vector<int32_t> kept;  // number of a key + 1; 0: not met. A reference: each use would be a call.
  std::vector<int32_t>& met = kept;
  if (met.size() < unique) met.resize(unique);
  size_t count = 0;
  for (size_t r = 0; r < rows; ++r) {
    int32_t& at = met[static_cast<size_t>(inverse[r])];
    if (at == 0) {
      key[count++] = inverse[r];
      at = static_cast<int32_t>(count);
    }
    number[r] = at - 1;
  }
  for (size_t k = 0; k < count; ++k) met[static_cast<size_t>(key[k])] = 0;
  return count;
}

}  // namespace

void FieldIndex::build(const Lookup& lookup, std::span<const size_t> fields, size_t threads) {
  const size_t n = lookup.rows, unique = lookup.keys.size();
  columns.clear();
  for (size_t c = 0; c < fields.size(); ++c)
    if (lookup.single(fields[c])) columns.push_back(c);
  place.resize(columns.size() * n);
  Buffer<int32_t> found;  // keys of each field
  found.resize(columns.size() * n);
  std::vector<size_t> count(columns.size());
  parallel_for(threads, columns.size(), [&](size_t f) {
    const int32_t* inverse = lookup.inverse.data() + lookup.starts[fields[columns[f]]];
    count[f] = number_keys(inverse, n, unique, place.data() + f * n, found.data() + f * n);
  });

  // A key's gradient is written by the field that has it, so a field that shares one is not indexed.
  std::vector<uint8_t> owned(unique);
  std::vector<size_t> kept;
  for (size_t f = 0; f < columns.size(); ++f) {
    const int32_t* keys = found.data() + f * n;
    auto shared = [&](int32_t k) { return lookup.keys.data()[k] != 0 && owned[static_cast<size_t>(k)]; };
    if (std::any_of(keys, keys + count[f], shared)) continue;
    for (size_t k = 0; k < count[f]; ++k) owned[static_cast<size_t>(keys[k])] = 1;
    kept.push_back(f);
  }

  std::vector<size_t> chosen;
  begin.assign(1, 0);
  for (size_t f : kept) {
    chosen.push_back(columns[f]);
    begin.push_back(begin.back() + count[f]);
  }
  key.resize(places());
  from.resize(places() + 1);
  rows.resize(kept.size() * n);
  if (from.size()) from.data()[places()] = static_cast<int32_t>(kept.size() * n);
  // Kept fields move down in `place`, in order: the one below has been read.
  for (size_t f = 0; f < kept.size(); ++f)
    if (kept[f] != f) std::copy_n(place.data() + kept[f] * n, n, place.data() + f * n);
  parallel_for(threads, kept.size(), [&](size_t f) {
    std::copy_n(found.data() + kept[f] * n, count[kept[f]], key.data() + begin[f]);
    int32_t* start = from.data() + begin[f];
    const size_t mine = begin[f + 1] - begin[f];
    thread_local std::vector<int32_t> kept_next;
    std::vector<int32_t>& next = kept_next;
    next.assign(mine, 0);
    int32_t* at = place.data() + f * n;
    for (size_t r = 0; r < n; ++r) ++next[static_cast<size_t>(at[r])];
    int32_t sum = static_cast<int32_t>(f * n);
    for (size_t k = 0; k < mine; ++k) {
      start[k] = sum;
      sum += next[k];
      next[k] = start[k];
    }
    for (size_t r = 0; r < n; ++r) {
      rows.data()[next[static_cast<size_t>(at[r])]++] = static_cast<int32_t>(r);
      at[r] += static_cast<int32_t>(begin[f]);
    }
  });
  columns = std::move(chosen);
}

}  // namespace cb
