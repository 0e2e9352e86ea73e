// Which of 64 shards a key belongs to. Lookups group their unique keys by it, so that tables need not sort them again.
#pragma once
#include <cstdint>

#include "operators/hash.h"

namespace cb {

inline constexpr unsigned kShardBits = 6;
inline constexpr unsigned kShards = 1u << kShardBits;

// Keys of a plan are mixed already, keys a user brings (row numbers) are not.
inline uint64_t mix_of(int64_t key) { return finish(static_cast<uint64_t>(key)); }
inline unsigned shard_of_mix(uint64_t mix) { return static_cast<unsigned>(mix >> (64 - kShardBits)); }
inline unsigned shard_of(int64_t key) { return shard_of_mix(mix_of(key)); }

}  // namespace cb
