// From a 64-bit hash to a row: the index of a dimension view, a dictionary or a fitted table.
//
//   slots_: power of two of {hash, row}, at most half full, linear probing. A row of kEmpty marks a free slot.
//
// Integer keys hash by a bijection, so equal hashes mean equal keys. Of string keys the builder compares the strings
// when two hashes are equal (duplicate or collision) and refuses a collision; a foreign string meets one with
// probability n/2^64. Built by one thread, then read by all.
#pragma once
#include <cstdint>
#include <vector>

#include "operators/lookup.h"

namespace cb {

class HashIndex {
 public:
  static constexpr uint32_t kEmpty = kNoRow;

  explicit HashIndex(size_t expected) {
    size_t size = 16;
    while (size < expected * 2) size *= 2;
    slots_.assign(size, Slot{0, kEmpty});
    mask_ = size - 1;
  }

  // The row already there for `hash`, or kEmpty after inserting `row`.
  uint32_t insert(uint64_t hash, uint32_t row) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    for (size_t k = hash & mask_;; k = (k + 1) & mask_) {
      if (slots_[k].row == kEmpty) {
        slots_[k] = {hash, row};
        ++count_;
        return kEmpty;
      }
      if (slots_[k].hash == hash) return slots_[k].row;
    }
  }

  void replace(uint64_t hash, uint32_t row) {
    for (size_t k = hash & mask_;; k = (k + 1) & mask_)
      if (slots_[k].row != kEmpty && slots_[k].hash == hash) {
        slots_[k].row = row;
        return;
      }
  }

  // Row r becomes to[r].
  void renumber(const std::vector<uint32_t>& to) {
    for (Slot& s : slots_)
      if (s.row != kEmpty) s.row = to.at(s.row);
  }

  uint32_t find(uint64_t hash) const { return find_row(view(), hash); }

  IndexView view() const { return {slots_.data(), mask_}; }  // valid until the next insert

  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

  size_t size() const { return count_; }
  size_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  using Slot = IndexSlot;

  void grow() {
    std::vector<Slot> old(slots_.size() * 2, Slot{0, kEmpty});
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (const Slot& s : old) {
      if (s.row == kEmpty) continue;
      size_t k = s.hash & mask_;
      while (slots_[k].row != kEmpty) k = (k + 1) & mask_;
      slots_[k] = s;
    }
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t count_ = 0;
};

}  // namespace cb
