// Maps keys to the rows of a shard that are in memory, with pins and dirty marks.
//
//   slots   32 bits: place + 1 in as many low bits as the shard's places need, 24 at least, and bits of the key's mix
//           above them; linear probing, no marks of what left. More places leave fewer bits of the mix (8 up to 16.7
//           million places of a shard, 4 at 268 million, where one probe in 16 of another key's slot reads its mark
//           in vain), so a slot has the same size in a table of any size.
//   marks   key, version, pins, dirty, by place
//   rows    floats, by place
//
// All memory belongs to the table and is given at the start; pages never touched cost nothing. Where it is needed
// elsewhere the last places are given up (narrow): none of them is given out again, rows that are pinned stay there
// until they leave. Called under the shard's lock.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/ssd/eviction_policy.h"
#include "core/system/huge_pages.h"

namespace cb {

struct Mark {
  int64_t key;
  uint32_t version;
  uint32_t pins : 31;
  uint32_t dirty : 1;
};
static_assert(sizeof(Mark) == 16);

inline constexpr uint32_t kNowhere = 0xffffffffu;
// The most rows of one shard, whose slots are numbered by 32 bits; all shards together have 192 billion rows at most.
inline constexpr uint32_t kMostPlaces = 3'000'000'000u;
inline constexpr unsigned kMostTagBits = 8;

inline size_t slots_for(size_t places) { return places + places / 3 + 8; }
static_assert(kMostPlaces + kMostPlaces / 3u + 8u > kMostPlaces, "slots are counted by 32 bits");
// Bits of a slot that hold a place of so many, plus one.
inline unsigned place_bits(uint32_t places) {
  return std::max(32 - kMostTagBits, static_cast<unsigned>(std::bit_width(places)));
}

class Resident {
 public:
  // `slots` (zeroed, slots_for(capacity)), `marks` and `rows` (capacity × stride) belong to the caller.
  void begin(uint32_t capacity, size_t stride, uint32_t* slots, Mark* marks, float* rows,
             std::unique_ptr<Policy> policy_) {
    capacity_ = capacity;
    stride_ = stride;
    slot_count_ = slots_for(capacity);
    place_bits_ = place_bits(capacity);
    place_mask_ = static_cast<uint32_t>((uint64_t{1} << place_bits_) - 1);
    slots_ = slots;
    marks_ = marks;
    rows_ = rows;
    policy = std::move(policy_);
  }

  uint32_t find(int64_t key, uint64_t mix) const {
    const uint32_t tag = tag_of(mix);
    for (size_t at = home_of(mix); slots_[at]; at = next(at))
      if ((slots_[at] & ~place_mask_) == tag && marks_[place_in(at)].key == key) return place_in(at);
    return kNowhere;
  }
  void prefetch(uint64_t mix) const { __builtin_prefetch(slots_ + home_of(mix)); }
  // Once its slot is there: the mark that find will compare.
  void prefetch_mark(uint64_t mix) const {
    const uint32_t tag = tag_of(mix);
    for (size_t at = home_of(mix); slots_[at]; at = next(at)) {
      if ((slots_[at] & ~place_mask_) != tag) continue;
      __builtin_prefetch(marks_ + place_in(at), 1);
      return;
    }
  }

  // A place for a key that is not there; there must be room. Its floats are whatever was there. `worth`: what the
  // policy said of the row when it was written to disk; 0: the key is new.
  uint32_t insert(int64_t key, uint64_t mix, uint8_t worth = 0) {
    uint32_t place;
    if (!freed_.empty()) {
      place = freed_.back();
      freed_.pop_back();
    } else {
      place = fresh_++;
    }
    size_t at = home_of(mix);
    while (slots_[at]) at = next(at);
    slots_[at] = tag_of(mix) | (place + 1);
    marks_[place] = {key, 0, 0, 0};
    ++count_;
    if (worth)
      policy->reload(place, mix, worth);
    else
      policy->insert(place, mix);
    return place;
  }

  // The policy has let go of the place already.
  void erase(uint32_t place) {
    const uint64_t mix = mix_of(marks_[place].key);
    size_t hole = home_of(mix);
    while (place_in(hole) != place) hole = next(hole);
    // Whoever stands behind and would rather stand in the hole moves there.
    for (size_t at = next(hole); slots_[at]; at = next(at)) {
      const size_t home = home_of(mix_of(marks_[place_in(at)].key));
      const bool between = hole <= at ? hole < home && home <= at : hole < home || home <= at;
      if (between) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = 0;
    marks_[place].key = 0;
    --count_;
    if (place < capacity_)
      freed_.push_back(place);
    else
      --above_;
  }

  // From now on `capacity` places, not more than now; the memory of those above is given back, but for pages with rows.
  void narrow(uint32_t capacity) {
    const uint32_t end = fresh_;
    capacity_ = capacity;
    freed_.erase(std::remove_if(freed_.begin(), freed_.end(), [&](uint32_t place) { return place >= capacity; }),
                 freed_.end());
    freed_.shrink_to_fit();
    fresh_ = std::min(fresh_, capacity);
    above_ = 0;
    uint32_t free_from = capacity;
    for (uint32_t place = capacity; place < end; ++place) {
      if (marks_[place].key == 0) continue;
      give_back(free_from, place);
      free_from = place + 1;
      fresh_ = free_from;
      ++above_;
    }
    give_back(free_from, end);
  }

  Mark& mark(uint32_t place) { return marks_[place]; }
  const Mark& mark(uint32_t place) const { return marks_[place]; }
  float* row(uint32_t place) const { return rows_ + size_t{place} * stride_; }
  uint32_t capacity() const { return capacity_; }
  uint32_t count() const { return count_; }
  uint32_t room() const { return capacity_ - (count_ - above_); }
  uint32_t places() const { return fresh_; }  // all rows are at places below it; a free one has key 0
  size_t bytes() const {
    const size_t touched = std::min(fresh_, capacity_) + above_;
    return touched * (sizeof(Mark) + stride_ * sizeof(float)) + slot_count_ * sizeof(uint32_t) +
           freed_.capacity() * sizeof(uint32_t) + policy->bytes();
  }

  std::unique_ptr<Policy> policy;

 private:
  // The lowest bits of the mix; the home is of the 32 bits below those of the shard, which has nothing in common with
  // them.
  uint32_t tag_of(uint64_t mix) const { return static_cast<uint32_t>(mix << place_bits_); }
  size_t home_of(uint64_t mix) const { return static_cast<size_t>((mix << kShardBits >> 32) * slot_count_ >> 32); }
  size_t next(size_t at) const { return ++at == slot_count_ ? 0 : at; }
  uint32_t place_in(size_t at) const { return (slots_[at] & place_mask_) - 1; }
  void give_back(uint32_t first, uint32_t end) {
    if (first >= end) return;
    give_back_pages(marks_ + first, marks_ + end);  // zeros are the marks of free places
    give_back_pages(rows_ + size_t{first} * stride_, rows_ + size_t{end} * stride_);
  }

  uint32_t capacity_ = 0, fresh_ = 0, count_ = 0;
  uint32_t above_ = 0;  // rows at places that were given up
  size_t stride_ = 0, slot_count_ = 0;
  unsigned place_bits_ = 0;
  uint32_t place_mask_ = 0;
  uint32_t* slots_ = nullptr;
  Mark* marks_ = nullptr;
  float* rows_ = nullptr;
  std::vector<uint32_t> freed_;
};

}  // namespace cb
