#include "core/ffm/block_plan.h"

#include <algorithm>
#include <bit>

namespace cb {

namespace {

constexpr uint32_t kFree = 0xffffffff;

size_t shard_of(uint64_t place) { return place % BlockPlan::kShards; }

}  // namespace

void BlockPlan::make(const Examples& examples, size_t from, size_t to, const FfmSettings& settings,
                     const FfmLayout& layout) {
  begin = from;
  end = to;
  features = examples.offsets[from];
  count.fill(0);
  if (layout.ffm) find_shared(examples, layout);
  if (layout.lr) sort_first_order(examples, settings, layout);
}

void BlockPlan::find_shared(const Examples& examples, const FfmLayout& layout) {
  const size_t n = examples.offsets[end] - features;
  const uint64_t* keys = examples.keys.data() + features;
  const size_t places = std::bit_ceil(2 * n + 2);
  const int shift = 64 - std::countr_zero(places);
  table_.assign(places, kFree);
  ids_.resize(n);
  found_.clear();
  for (size_t i = 0; i < n; ++i) {
    const uint64_t row = layout.row_of(keys[i]);
    size_t at = (row * 0x9e3779b97f4a7c15ull) >> shift;
    while (table_[at] != kFree && found_[table_[at]].row != row) at = (at + 1) & (places - 1);
    if (table_[at] == kFree) {
      table_[at] = static_cast<uint32_t>(found_.size());
      found_.push_back({row, 0, 0, kFree, 0, 0});
    }
    ids_[i] = table_[at];
    ++found_[ids_[i]].count;
  }

  // Sums of each slice, numbered as they are met.
  sums.resize(n);
  size_t all_parts = 0;
  for (size_t s = 0; s < kSlices; ++s)
    for (size_t i = examples.offsets[slice(s)] - features, stop = examples.offsets[slice(s + 1)] - features; i < stop;
         ++i) {
      Found& row = found_[ids_[i]];
      if (row.count == 1) {
        sums[i] = kAlone;
        continue;
      }
      const bool first = row.slice != s;
      if (first) {
        row.slice = static_cast<uint32_t>(s);
        row.sum = count[s]++;
        ++row.parts;
        ++all_parts;
      }
      sums[i] = row.sum | (first ? kFirst : 0);
    }

  // Shared rows by shard, then the parts of each.
  rows_of.fill(0);
  for (const Found& row : found_)
    if (row.parts) ++rows_of[shard_of(row.row) + 1];
  for (size_t k = 0; k < kShards; ++k) rows_of[k + 1] += rows_of[k];
  rows.resize(rows_of[kShards]);
  parts.resize(all_parts);
  std::array<uint32_t, kShards> next;
  std::copy_n(rows_of.begin(), kShards, next.begin());
  for (Found& row : found_)
    if (row.parts) rows[row.at = next[shard_of(row.row)]++] = {row.row, 0, row.parts};
  uint32_t part = 0;
  for (SharedRow& row : rows) {
    row.first_part = part;
    part += row.parts;
    row.parts = 0;
  }
  for (size_t s = 0; s < kSlices; ++s)
    for (size_t i = examples.offsets[slice(s)] - features, stop = examples.offsets[slice(s + 1)] - features; i < stop;
         ++i)
      if (sums[i] != kAlone && sums[i] & kFirst) {
        SharedRow& row = rows[found_[ids_[i]].at];
        parts[row.first_part + row.parts++] = {static_cast<uint32_t>(s), sums[i] & ~kFirst};
      }
}

void BlockPlan::sort_first_order(const Examples& examples, const FfmSettings& settings, const FfmLayout& layout) {
  const size_t n = examples.offsets[end] - features;
  const uint64_t* keys = examples.keys.data() + features;
  // Sixteen records of lr share two cache lines, so that two threads rarely write one line.
  auto shard = [&](size_t i) { return shard_of(layout.lr_of(keys[i], settings.bits) / kLanes); };
  first_order_of.fill(0);
  for (size_t i = 0; i < n; ++i) ++first_order_of[shard(i) + 1];
  for (size_t k = 0; k < kShards; ++k) first_order_of[k + 1] += first_order_of[k];
  std::array<uint32_t, kShards> next;
  std::copy_n(first_order_of.begin(), kShards, next.begin());
  first_order.resize(n);
  for (size_t i = 0; i < n; ++i) first_order[next[shard(i)]++] = static_cast<uint32_t>(i);
}

}  // namespace cb
