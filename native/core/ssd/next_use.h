// Records in which of the known later batches a key is needed again, for Belady's rule (eviction_policy.h).
//
// Batches are walked from the last to the first, beside a hash table from a key to the batch that was met with it last,
// which is the one that comes next. Keys of other shards never meet, so that callers with many batches give them shard
// by shard and need memory for one shard's keys at a time.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/embed/shard_of_key.h"

namespace cb {

// For each of the first `answered` batches, a byte a key: how many batches later it comes again, 0 where that is none
// of these or more than Policy::kFarthest away. A key that a batch has twice does not come again by that; key 0 never
// does. std::invalid_argument where there are fewer batches than `answered`.
std::vector<std::vector<uint8_t>> next_uses(std::span<const std::span<const int64_t>> batches, size_t answered);

// Keys before each shard, and all of them, of keys that stand in the order of shards, as lookups give them;
// std::invalid_argument where they do not.
std::array<size_t, kShards + 1> shard_bounds(std::span<const int64_t> keys);

}  // namespace cb
