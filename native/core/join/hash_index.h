// Maps 64-bit hashes to rows: the index of a dimension view, a dictionary or a fitted table.
//
//   slots_: power of two of {hash, row}, at most half full, linear probing. A row of kEmpty marks a free slot.
//
// Integer keys hash by a bijection, so equal hashes mean equal keys. Of string keys the builder compares the strings
// when two hashes are equal (duplicate or collision) and refuses a collision; a foreign string meets one with
// probability n/2^64. Built by one thread through insert(), or by several through of_rows(); then read by all.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/system/parallel.h"
#include "operators/table_lookup.h"

namespace cb {

class HashIndex {
 public:
  static constexpr uint32_t kEmpty = kNoRow;

  // Two rows that share a hash, the one that comes first and the other; -1 and -1 where no two do.
  struct Duplicate {
    int64_t first = -1, second = -1;
  };

  explicit HashIndex(size_t expected) : slots_(size_for(expected)) {
    std::fill_n(slots_.data(), slots_.size(), Slot{0, kEmpty});
  }

  // An index of rows 0, 1, 2, … with these hashes. Of rows that share a hash the last one counts where `keep_last`,
  // otherwise `duplicate` names the first two.
  //
  // The slots are cut into kRegions ranges. Blocks of rows are sorted by the range of their home slot; then a task
  // fills one range, in the order of the rows. Rows that would run over the end of their range are set aside and
  // inserted at the end, range after range. All of that depends on the hashes alone, so the slots hold the same bits
  // for any number of threads.
  static HashIndex of_rows(std::span<const uint64_t> hashes, bool keep_last, size_t threads, Duplicate& duplicate) {
    if (hashes.size() >= kEmpty) throw std::length_error("an index of 2^32 rows or more");
    HashIndex index(Slots(size_for(hashes.size())));
    const size_t regions = hashes.size() < kSmall ? 1 : kRegions;
    std::vector<Block> blocks((hashes.size() + kBlockRows - 1) / kBlockRows);
    auto rows = std::make_unique_for_overwrite<uint32_t[]>(hashes.size());
    parallel_for(threads, blocks.size(), [&](size_t k) {
      blocks[k].rows = rows.get() + k * kBlockRows;
      index.sort_block(k * kBlockRows, hashes, regions, blocks[k]);
    });
    std::vector<Region> found(regions);
    parallel_for(threads, regions, [&](size_t k) { index.fill_region(k, blocks, hashes, keep_last, found); });
    auto meet = [&](const Duplicate& d) {
      if (d.second >= 0 && (duplicate.second < 0 || d.second < duplicate.second)) duplicate = d;
    };
    for (const Region& region : found) {
      index.count_ += region.count;
      meet(region.duplicate);
    }
    for (const Region& region : found)
      for (uint32_t row : region.aside) {
        const uint32_t there = index.insert(hashes[row], row);
        if (there == kEmpty) continue;
        if (keep_last)
          index.replace(hashes[row], row);
        else
          meet({there, row});
      }
    return index;
  }

  // The row already there for `hash`, or kEmpty after inserting `row`.
  uint32_t insert(uint64_t hash, uint32_t row) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    for (size_t k = hash & mask();; k = (k + 1) & mask()) {
      if (slots_[k].row == kEmpty) {
        slots_[k] = {hash, row};
        ++count_;
        return kEmpty;
      }
      if (slots_[k].hash == hash) return slots_[k].row;
    }
  }

  void replace(uint64_t hash, uint32_t row) {
    for (size_t k = hash & mask();; k = (k + 1) & mask())
      if (slots_[k].row != kEmpty && slots_[k].hash == hash) {
        slots_[k].row = row;
        return;
      }
  }

  // Row r becomes to[r].
  void renumber(const std::vector<uint32_t>& to, size_t threads = 1) {
    const size_t regions = slots_.size() < kSmall ? 1 : kRegions, width = slots_.size() / regions;
    parallel_for(threads, regions, [&](size_t k) {
      for (size_t slot = k * width; slot < (k + 1) * width; ++slot)
        if (slots_[slot].row != kEmpty) slots_[slot].row = to.at(slots_[slot].row);
    });
  }

  uint32_t find(uint64_t hash) const { return find_row(view(), hash); }

  IndexView view() const { return {slots_.data(), mask()}; }  // valid until the next insert

  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask()]); }

  size_t size() const { return count_; }
  size_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  using Slot = IndexSlot;

  static constexpr size_t kRegions = 16;             // divides every number of slots
  static constexpr size_t kSmall = size_t{1} << 15;  // rows or slots that one thread handles in half a millisecond
  static constexpr size_t kBlockRows = size_t{1} << 15;

  // What filling a range of slots has left to do.
  struct Region {
    std::vector<uint32_t> aside;  // rows that found no free slot up to the end of the range
    Duplicate duplicate;
    size_t count = 0;
  };

  // Some rows in the order of the range that their home slot lies in; `ends` are the ends of the ranges.
  struct Block {
    uint32_t* rows = nullptr;
    uint32_t ends[kRegions] = {};
  };

  void sort_block(size_t first, std::span<const uint64_t> hashes, size_t regions, Block& block) const {
    const size_t last = std::min(hashes.size(), first + kBlockRows), width = slots_.size() / regions;
    const int shift = std::countr_zero(width);
    uint32_t at[kRegions + 1] = {};
    for (size_t row = first; row < last; ++row) ++at[((hashes[row] & mask()) >> shift) + 1];
    for (size_t k = 0; k < kRegions; ++k) block.ends[k] = at[k + 1] += at[k];
    for (size_t row = first; row < last; ++row)
      block.rows[at[(hashes[row] & mask()) >> shift]++] = static_cast<uint32_t>(row);
  }

  // A row that is set aside leaves a range that is full from its home slot to the end, so each later row with the same
  // hash is set aside as well: whether two rows share a hash is always seen in one place.
  void fill_region(size_t number, const std::vector<Block>& blocks, std::span<const uint64_t> hashes, bool keep_last,
                   std::vector<Region>& found) {
    Region& region = found[number];
    const size_t width = slots_.size() / found.size(), end = (number + 1) * width;
    std::fill(slots_.data() + number * width, slots_.data() + end, Slot{0, kEmpty});
    for (const Block& block : blocks)
      for (uint32_t k = number ? block.ends[number - 1] : 0; k < block.ends[number]; ++k) {
        const uint32_t row = block.rows[k];
        const uint64_t hash = hashes[row];
        size_t slot = hash & mask();
        while (slot < end && slots_[slot].row != kEmpty && slots_[slot].hash != hash) ++slot;
        if (slot == end) {
          region.aside.push_back(row);
        } else if (slots_[slot].row == kEmpty) {
          slots_[slot] = {hash, row};
          ++region.count;
        } else if (keep_last) {
          slots_[slot].row = row;
        } else if (region.duplicate.second < 0) {
          region.duplicate = {slots_[slot].row, row};
        }
      }
  }

  // Memory that nobody has written yet: the threads that fill it are the first to touch its pages.
  class Slots {
   public:
    explicit Slots(size_t size) : memory_(std::make_unique_for_overwrite<Slot[]>(size)), size_(size) {}
    Slot& operator[](size_t k) { return memory_[k]; }
    const Slot& operator[](size_t k) const { return memory_[k]; }
    Slot* data() { return memory_.get(); }
    const Slot* data() const { return memory_.get(); }
    size_t size() const { return size_; }

   private:
    std::unique_ptr<Slot[]> memory_;
    size_t size_;
  };

  explicit HashIndex(Slots slots) : slots_(std::move(slots)) {}

  static size_t size_for(size_t rows) { return std::bit_ceil(std::max<size_t>(16, rows * 2)); }
  size_t mask() const { return slots_.size() - 1; }

  void grow() {
    Slots old = std::exchange(slots_, Slots(slots_.size() * 2));
    std::fill_n(slots_.data(), slots_.size(), Slot{0, kEmpty});
    for (size_t from = 0; from < old.size(); ++from) {
      if (old[from].row == kEmpty) continue;
      size_t k = old[from].hash & mask();
      while (slots_[k].row != kEmpty) k = (k + 1) & mask();
      slots_[k] = old[from];
    }
  }

  Slots slots_;
  size_t count_ = 0;
};

}  // namespace cb
