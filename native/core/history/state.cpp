#include "core/history/state.h"

#include <algorithm>
#include <stdexcept>

namespace cb {

namespace {

void check(const PastShape& shape) {
  bool sound = shape.words.size() <= kMostPastWords;
  for (int64_t span : {shape.gap, shape.lateness, shape.within, shape.back})
    sound = sound && span >= 0 && span <= kMostSpan;
  for (const PastWord& word : shape.words) {
    const auto kind = static_cast<uint32_t>(word.kind);
    sound = sound && kind >= 1 && kind <= kMostPastWordKind &&
            (word.kind == PastWordKind::kDecayed ? word.half_life >= 1 && word.half_life <= 1e18 : word.half_life == 0);
  }
  if (!sound || shape.last > (uint64_t{1} << 30))
    throw std::invalid_argument("the shape of the past events is out of range");
}

}  // namespace

HistoryState::HistoryState(PastShape shape) : shape_(std::move(shape)) {
  check(shape_);
  shards_.reserve(kPastShards);
  for (unsigned k = 0; k < kPastShards; ++k) shards_.emplace_back(shape_);
}

int64_t HistoryState::late(const int64_t* times, const uint8_t* valid, size_t rows) {
  std::optional<int64_t> newest = newest_;
  int64_t late = -1;
  for (size_t row = 0; row < rows && late < 0; ++row) {
    if (valid && !valid[row]) continue;
    if (newest && times[row] < time_before(*newest, shape_.lateness)) {
      late = static_cast<int64_t>(row);
    } else if (!newest || times[row] > *newest) {
      newest = times[row];
    }
  }
  newest_ = newest;
  return late;
}

void HistoryState::forget_texts() {
  if (texts_.size() < 2 * texts_kept_) return;
  std::vector<bool> held(texts_.size());
  auto each = [&](bool write, auto&& change) {
    size_t word = 0;
    for (const PastWord& spec : shape_.words) {
      if (spec.kind == PastWordKind::kText)
        for (PastShard& shard : shards_) shard.each_word(word, write, change);
      word += spec.stored();
    }
  };
  each(false, [&](uint64_t& number) { held[number] = true; });
  texts_mixed_ = true;
  const std::vector<uint64_t> numbers = texts_.keep_only(held);
  each(true, [&](uint64_t& number) { number = numbers[number]; });
  texts_mixed_ = false;
  texts_kept_ = std::max<size_t>(4096, texts_.size());
}

void HistoryState::check_texts() const {
  if (texts_mixed_) throw DamagedFile("the disk failed while texts of past events were written to it");
}

void HistoryState::spill_to(const std::string& folder, size_t budget) {
  if (budget < kPastShards) throw std::invalid_argument("the budget of past events is out of range");
  for (PastShard& shard : shards_) shard.spill_to(folder, budget / kPastShards);
  folder_ = folder;
  budget_ = budget;
  share_room();
}

void HistoryState::share_room() {
  if (!spills()) return;
  const size_t left = budget_ > texts_.bytes() ? budget_ - texts_.bytes() : 0;
  for (PastShard& shard : shards_) shard.set_room(left / kPastShards);
}

int HistoryState::spill_error() const {
  for (const PastShard& shard : shards_)
    if (shard.spill_error()) return shard.spill_error();
  return 0;
}

void HistoryState::try_disk_again() {
  for (PastShard& shard : shards_) shard.try_disk_again();
}

uint64_t HistoryState::spilled_bytes() const {
  uint64_t n = 0;
  for (const PastShard& shard : shards_) n += shard.spilled_bytes();
  return n;
}

size_t HistoryState::keys() const {
  size_t n = 0;
  for (const PastShard& shard : shards_) n += shard.keys();
  return n;
}

uint64_t HistoryState::events() const {
  uint64_t n = 0;
  for (const PastShard& shard : shards_) n += shard.events();
  return n;
}

size_t HistoryState::bytes() const {
  size_t n = texts_.bytes();
  for (const PastShard& shard : shards_) n += shard.bytes();
  return n;
}

}  // namespace cb
