// A cache of byte strings by a 64-bit id, in a fixed number of bytes: what was read last from a disk.
//
//   shard       two generations, young and old; an entry is added to the young one. When that is full, the old one is
//               emptied and the two change places. An entry that is found in the old one is copied to the young one, so
//               what is used again stays.
//   generation  arena of {u64 id, u32 bytes, u32 zero, the bytes}, each at a multiple of 8, from front to back;
//               slots of u32, the place of an entry / 8 + 1 by the hash of its id, 0 where free, linear probing
//
// Nothing is allocated after the constructor. Any number of threads; each shard has a lock.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "operators/hash.h"

namespace cb {

class Recent {
 public:
  // `bytes` in all, or a little less; `typical`: bytes of an entry, which decides on the number of slots.
  Recent(uint64_t bytes, uint64_t typical) {
    const uint64_t shards = std::bit_floor(std::clamp<uint64_t>(bytes / kLeastShard, 1, kMostShards));
    const uint64_t each = std::min<uint64_t>(bytes / shards / 2, kMostGeneration);
    const uint64_t slots = std::bit_ceil(std::max<uint64_t>(8, each / (typical + sizeof(Head) + 4)));
    if (each < slots * 4 + 256) return;  // too little for anything
    shards_ = std::vector<Shard>(shards);
    for (Shard& shard : shards_)
      for (Generation* g : {&shard.young, &shard.old}) {
        g->room = (each - slots * 4) / 8 * 8;
        g->arena = std::make_unique_for_overwrite<char[]>(g->room);
        g->slots.assign(slots, 0);
      }
    bytes_ = shards * 2 * each;
    largest_ = shards_[0].young.room / 4;
  }

  uint64_t bytes() const { return bytes_; }

  // Calls use(bytes, how many) if there is an entry of this id, which lasts until it returns.
  template <class Use>
  bool get(uint64_t id, Use use) {
    if (shards_.empty()) return false;
    const uint64_t mix = finish(id);
    Shard& shard = shard_of(mix);
    std::lock_guard<std::mutex> hold(shard.mutex);
    if (const Head* head = shard.young.find(id, mix)) {
      use(data_of(head), head->bytes);
      return true;
    }
    const Head* head = shard.old.find(id, mix);
    if (!head) return false;
    use(data_of(head), head->bytes);
    if (shard.young.fits(head->bytes)) shard.young.add(id, mix, data_of(head), head->bytes);
    return true;
  }

  void put(uint64_t id, const char* bytes, size_t n) {
    if (shards_.empty() || n > largest_) return;
    const uint64_t mix = finish(id);
    Shard& shard = shard_of(mix);
    std::lock_guard<std::mutex> hold(shard.mutex);
    if (shard.young.find(id, mix)) return;
    if (!shard.young.fits(n)) {
      std::swap(shard.young, shard.old);
      shard.young.clear();
    }
    shard.young.add(id, mix, bytes, static_cast<uint32_t>(n));
  }

 private:
  struct Head {
    uint64_t id;
    uint32_t bytes;
    uint32_t zero;
  };

  struct Generation {
    std::unique_ptr<char[]> arena;
    size_t room = 0, used = 0, count = 0;
    std::vector<uint32_t> slots;

    const Head* find(uint64_t id, uint64_t mix) const {
      for (size_t k = mix & (slots.size() - 1); slots[k]; k = (k + 1) & (slots.size() - 1)) {
        const Head* head = reinterpret_cast<const Head*>(arena.get() + size_t{slots[k] - 1} * 8);
        if (head->id == id) return head;
      }
      return nullptr;
    }
    bool fits(size_t n) const { return used + sizeof(Head) + n <= room && (count + 1) * 4 <= slots.size() * 3; }
    void add(uint64_t id, uint64_t mix, const char* bytes, uint32_t n) {
      size_t k = mix & (slots.size() - 1);
      while (slots[k]) k = (k + 1) & (slots.size() - 1);
      slots[k] = static_cast<uint32_t>(used / 8 + 1);
      const Head head{id, n, 0};
      std::memcpy(arena.get() + used, &head, sizeof head);
      if (n) std::memcpy(arena.get() + used + sizeof head, bytes, n);
      used = std::min((used + sizeof head + n + 7) / 8 * 8, room);
      ++count;
    }
    void clear() {
      used = count = 0;
      std::fill(slots.begin(), slots.end(), 0);
    }
  };

  struct Shard {
    std::mutex mutex;
    Generation young, old;
  };

  static const char* data_of(const Head* head) { return reinterpret_cast<const char*>(head + 1); }
  Shard& shard_of(uint64_t mix) { return shards_[(mix >> 32) & (shards_.size() - 1)]; }

  static constexpr uint64_t kMostShards = 64;
  static constexpr uint64_t kLeastShard = uint64_t{1} << 16;
  static constexpr uint64_t kMostGeneration = uint64_t{1} << 34;  // a place / 8 fits in 32 bits

  std::vector<Shard> shards_;
  uint64_t bytes_ = 0;
  size_t largest_ = 0;  // bytes of an entry; what is longer is not kept
};

}  // namespace cb
