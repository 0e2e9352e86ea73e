#include "core/ffm/own_weights.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace cb {

namespace {

// Where a key's weights are: its row, or without rows its record.
uint64_t place_of(const FfmLayout& layout, uint64_t key) {
  return layout.ffm ? layout.row_of(key) : layout.lr_of(key, static_cast<uint32_t>(std::countr_zero(layout.lr_size)));
}

// Takes away keys that do not have a place for themselves, 7 of its 8 times met: two copies of a place learn the same
// thing twice. With 32 rows for 91 such keys four threads had a loss of 0.670, and 0.636 with one copy left, as one
// thread has.
void leave_shared(const std::vector<uint64_t>& met, std::vector<std::pair<size_t, uint64_t>>& found,
                  const FfmLayout& layout) {
  std::vector<std::pair<uint64_t, size_t>> places;  // with how often any key of them was met
  for (const auto& [count, key] : found) places.emplace_back(place_of(layout, key), 0);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  auto at = [&](uint64_t key) {
    const std::pair<uint64_t, size_t> least{place_of(layout, key), 0};
    const auto place = std::lower_bound(places.begin(), places.end(), least);
    return place != places.end() && place->first == least.first ? place : places.end();
  };
  for (size_t i = 0, end; i < met.size(); i = end) {
    end = i + 1;
    while (end < met.size() && met[end] == met[i]) ++end;
    if (const auto place = at(met[i]); place != places.end()) place->second += end - i;
  }
  std::erase_if(found, [&](const auto& hot) { return hot.first * 8 < at(hot.second)->second * 7; });
}

}  // namespace

HotKeys::HotKeys(const Examples& examples, const FfmLayout& layout) {
  slots_.fill(kNone);
  const size_t rows = std::min(examples.rows(), kSample);
  std::vector<uint64_t> met(examples.keys.begin(), examples.keys.begin() + examples.offsets[rows]);
  std::sort(met.begin(), met.end());
  std::vector<std::pair<size_t, uint64_t>> found;
  for (size_t i = 0, end; i < met.size(); i = end) {
    end = i + 1;
    while (end < met.size() && met[end] == met[i]) ++end;
    if ((end - i) * kOneIn >= rows) found.emplace_back(end - i, met[i]);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  leave_shared(met, found, layout);
  const size_t most = kMostFloats / ((layout.ffm ? layout.row_step : 0) + layout.lr_step);
  for (const auto& [count, key] : found) {
    uint16_t& slot = slots_[slot_of(key)];
    if (slot != kNone || keys_.size() == most) continue;
    slot = static_cast<uint16_t>(keys_.size());
    keys_.push_back(key);
  }
}

OwnWeights::OwnWeights(const HotKeys& hot, const FfmSettings& settings, const FfmLayout& layout, float* lr, float* ffm,
                       float* dense) {
  const size_t keys = hot.keys().size();
  const size_t rows = layout.ffm ? keys * layout.row_step : 0, records = layout.lr ? keys * layout.lr_step : 0;
  // Rows first, so that each begins on a cache line and the kernel of pairs may read behind the last.
  dense_ = rows + padded(kBehind * layout.latent, kLanes);
  const size_t lr_at = dense_ + padded(layout.dense, kLanes), floats = lr_at + records;
  memory_.resize(floats + kLanes);
  const size_t skip = (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64 / sizeof(float);
  mine_ = std::span(memory_).subspan(skip, floats);
  parts_.push_back({dense, dense_, layout.dense});
  for (size_t n = 0; n < keys; ++n) {
    const uint64_t key = hot.keys()[n];
    if (layout.ffm)
      parts_.push_back({ffm + layout.row_step * layout.row_of(key), n * layout.row_step, layout.row_step});
    if (layout.lr)
      parts_.push_back(
          {lr + layout.lr_step * layout.lr_of(key, settings.bits), lr_at + n * layout.lr_step, layout.lr_step});
  }
  for (const Part& part : parts_) std::copy_n(part.shared, part.floats, mine_.data() + part.at);
  base_.assign(mine_.begin(), mine_.end());
  hot_ = {&hot, mine_.data(), mine_.data() + lr_at};
}

void OwnWeights::exchange(bool hot) {
  for (const Part& part : std::span(parts_).first(hot ? parts_.size() : 1)) {
    float *shared = part.shared, *mine = mine_.data() + part.at, *base = base_.data() + part.at;
    for (size_t i = 0; i < part.floats; ++i) {
      shared[i] += mine[i] - base[i];
      base[i] = mine[i] = shared[i];
    }
  }
}

}  // namespace cb
