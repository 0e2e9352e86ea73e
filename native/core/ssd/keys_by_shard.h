// Sorts the keys of one call by shard and records the positions of their rows.
//
//   keys     as they were given; what a later call is compared with
//   grouped  the same keys in the order of shards, those of a shard in the order given; the given ones where they are
//            in that order already, as lookups give them
//   order    place of each grouped key in the call; empty where grouped is the given order
//   bounds   keys of shard s are grouped[bounds[s]] ... grouped[bounds[s + 1] - 1]
//   places   of each grouped key: the place of its row in its shard, pinned; kNowhere: key 0, or not loaded yet
//
// Everything that a thread touches of a shard's keys lies side by side. Grouping counts and moves the keys in parts, on
// all threads, to where one thread would put them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/embed/shard_of_key.h"
#include "core/system/reused_buffers.h"

namespace cb {

struct BatchKeys {
  BatchKeys(std::span<const int64_t> given, size_t threads);

  size_t size() const { return keys.size(); }
  int64_t key(size_t k) const { return moved.size() ? moved.data()[k] : keys.data()[k]; }
  size_t at(size_t k) const { return order.size() ? order.data()[k] : k; }  // in the call
  uint32_t& place(size_t k) { return places.data()[k]; }
  uint32_t place(size_t k) const { return places.data()[k]; }
  bool same(std::span<const int64_t> others, size_t threads) const;

  Buffer<int64_t> keys, moved;
  Buffer<uint32_t> order, places;
  std::array<size_t, kShards + 1> bounds{};
  std::optional<std::span<const uint8_t>> next_use;  // the caller's, while they are loaded
};

}  // namespace cb
