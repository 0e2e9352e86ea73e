#include "core/ssd/next_use.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "core/ssd/eviction_policy.h"

namespace cb {

namespace {

constexpr size_t kSlotsAhead = 8;  // keys between asking for a slot and probing it

// From a key to a number above 0; open addressing, at most two thirds full.
class Last {
 public:
  explicit Last(size_t keys) : slots_(std::bit_ceil(std::max<size_t>(16, keys + keys / 2))) {}

  void prefetch(int64_t key) const { __builtin_prefetch(&slots_[home(key)]); }
  uint32_t get(int64_t key) const { return slots_[find(key)].number; }
  void set(int64_t key, uint32_t number) {
    Slot& slot = slots_[find(key)];
    count_ += slot.number == 0;
    slot = {key, number};
    if (count_ * 3 > slots_.size() * 2) grow();
  }

 private:
  struct Slot {
    int64_t key = 0;
    uint32_t number = 0;  // 0: nobody there
  };
  // The highest bits of the mix are the shard's, the same for all keys of a call.
  size_t home(int64_t key) const { return (mix_of(key) >> 8) & (slots_.size() - 1); }
  size_t find(int64_t key) const {
    size_t at = home(key);
    while (slots_[at].number && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.number) slots_[find(slot.key)] = slot;
  }
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace

std::vector<std::vector<uint8_t>> next_uses(std::span<const std::span<const int64_t>> batches, size_t answered) {
  if (answered > batches.size() || batches.size() >= UINT32_MAX)
    throw std::invalid_argument("next uses were given for more batches than there are");
  size_t most = 0;
  for (const auto& keys : batches) most = std::max(most, keys.size());
  Last last(most);
  std::vector<std::vector<uint8_t>> out(answered);
  for (size_t b = batches.size(); b-- > 0;) {
    const auto& keys = batches[b];
    if (b < answered) {  // all of them before any is noted: a key may be there twice
      out[b].assign(keys.size(), 0);
      for (size_t k = 0; k < keys.size(); ++k) {
        if (k + kSlotsAhead < keys.size()) last.prefetch(keys[k + kSlotsAhead]);
        const uint32_t next = keys[k] == 0 ? 0 : last.get(keys[k]);
        const size_t in = next == 0 ? 0 : next - 1 - b;
        if (in <= Policy::kFarthest) out[b][k] = static_cast<uint8_t>(in);
      }
    }
    for (size_t k = 0; k < keys.size(); ++k) {
      if (k + kSlotsAhead < keys.size()) last.prefetch(keys[k + kSlotsAhead]);
      last.set(keys[k], static_cast<uint32_t>(b + 1));
    }
  }
  return out;
}

std::array<size_t, kShards + 1> shard_bounds(std::span<const int64_t> keys) {
  std::array<size_t, kShards + 1> bounds{};
  unsigned before = 0;
  for (size_t k = 0; k < keys.size(); ++k) {
    const unsigned shard = shard_of(keys[k]);
    if (shard < before) throw std::invalid_argument("keys are not in the order of their shards");
    before = shard;
    ++bounds[shard + 1];
  }
  for (unsigned s = 0; s < kShards; ++s) bounds[s + 1] += bounds[s];
  return bounds;
}

}  // namespace cb
