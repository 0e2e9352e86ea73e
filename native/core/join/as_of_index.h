// Maps a key's hash and a time to the newest row of the key at or before that time: the index of an as-of join.
//
//   map_:      HashIndex from the hash of a key to the place of its first version
//   versions_: {time, row, left}, 16 bytes each; the versions of a key lie side by side in order of time
//              (operators/table_lookup.h)
//
// Equal hashes count as equal keys: integer keys hash by a bijection, and two of n string keys share a hash with
// probability n^2/2^65. Several threads build the index, with the same bits for any number of threads; after that it is
// only read, by all threads.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/join/hash_index.h"
#include "core/program/operator_table.h"

namespace cb {

class AsOfIndex : public Table {
 public:
  // Indexes the rows 0, 1, 2, … with these keys and times, which may be in any order. If several rows have the same key
  // and time, the index keeps the last one if `keep_last` is set; otherwise `duplicate` names two of them.
  AsOfIndex(std::span<const uint64_t> hashes, std::span<const int64_t> times, bool keep_last, size_t threads,
            HashIndex::Duplicate& duplicate);

  // Row r becomes to[r].
  void renumber(const std::vector<uint32_t>& to, size_t threads = 1);

  const void* view() const override { return &view_; }
  size_t bytes() const override { return map_.bytes() + versions_.size() * sizeof(Version); }
  size_t keys() const { return map_.size(); }
  size_t rows() const { return versions_.size(); }

  void prefetch(uint64_t hash) const { map_.prefetch(hash); }
  // Returns the first version of a key, or nullptr if the key has none.
  const Version* find(uint64_t hash) const {
    const uint32_t first = map_.find(hash);
    return first == HashIndex::kEmpty ? nullptr : versions_.data() + first;
  }

 protected:
  void put_image(ImageWriter& to) const override;

 private:
  HashIndex map_{0};
  std::vector<Version> versions_;
  AsOfView view_{};
};

}  // namespace cb
