// Memory for the rings of one shard: pieces for 2, 4, 8, … events.
//
// Every new key allocates and frees small rings, and malloc took a tenth of the time of a scan. The pool therefore cuts
// their pieces from blocks. The first block has 4 KB, and blocks of 2 MB or more use huge pages, so that reads of
// random keys miss the TLB less often. A freed piece is used again for the next ring of its size; blocks are freed with
// the shard. Larger rings, and all rings after use_heap(), are allocated by malloc.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/system/huge_pages.h"

namespace cb {

class RingPool {
 public:
  explicit RingPool(size_t stride) : stride_(stride) {}

  struct Piece {
    uint64_t* words;
    bool pooled;
  };
  Piece take(uint32_t events) {
    if (heap_ || events > kMostEvents)
      return {std::make_unique_for_overwrite<uint64_t[]>(size_t{events} * stride_).release(), false};
    uint64_t*& waiting = waiting_[static_cast<size_t>(std::countr_zero(events))];
    uint64_t* words = waiting;
    if (words)
      std::memcpy(&waiting, words, sizeof waiting);
    else
      words = cut(size_t{events} * stride_);
    return {words, true};
  }
  void give(Piece piece, uint32_t events) {
    if (!piece.pooled) {
      delete[] piece.words;
      return;
    }
    uint64_t*& waiting = waiting_[static_cast<size_t>(std::countr_zero(events))];
    std::memcpy(piece.words, &waiting, sizeof waiting);  // the first word of a free piece points to the next one
    waiting = piece.words;
  }

  // From now on, memory of freed rings can serve rings of any size. Shards that move rings to a disk call this, because
  // free pieces of other sizes would take memory beyond the budget.
  void use_heap() { heap_ = true; }

 private:
  static constexpr uint32_t kMostEvents = 32;
  static constexpr size_t kFirstBlock = size_t{4} << 10, kLastBlock = 2 * HugeBlock::kPage;

  uint64_t* cut(size_t words) {
    if (words > left_) {
      const size_t bytes = std::max(words * sizeof(uint64_t), std::clamp(total_, kFirstBlock, kLastBlock));
      if (bytes >= HugeBlock::kPage) {
        huge_.emplace_back(bytes);
        next_ = reinterpret_cast<uint64_t*>(huge_.back().data());
        left_ = huge_.back().size() / sizeof(uint64_t);
      } else {
        left_ = bytes / sizeof(uint64_t);
        small_.push_back(std::make_unique_for_overwrite<uint64_t[]>(left_));
        next_ = small_.back().get();
      }
      total_ += bytes;
    }
    left_ -= words;
    return std::exchange(next_, next_ + words);
  }

  size_t stride_;  // 64-bit words of an event
  bool heap_ = false;
  std::array<uint64_t*, std::bit_width(kMostEvents)> waiting_{};
  std::vector<std::unique_ptr<uint64_t[]>> small_;
  std::vector<HugeBlock> huge_;
  uint64_t* next_ = nullptr;
  size_t left_ = 0, total_ = 0;
};

}  // namespace cb
