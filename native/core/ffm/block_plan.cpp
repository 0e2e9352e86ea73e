#include "core/ffm/block_plan.h"

#include <algorithm>
#include <bit>

namespace cb {

namespace {

constexpr uint32_t kFree = 0xffffffff;

size_t shard_of(uint64_t place) { return place % BlockPlan::kShards; }

}  // namespace

void BlockPlan::make(const Examples& examples, size_t from, size_t to, const FfmSettings& settings,
                     const FfmLayout& layout, Scratch& scratch) {
  begin = from;
  end = to;
  features = examples.offsets[from];
  count.fill(0);
  if (layout.ffm) find_shared(examples, layout, scratch);
  if (layout.lr) sort_first_order(examples, settings, layout, scratch);
}

// Shard by shard: the hash table of a shard's rows stays in the first cache.
void BlockPlan::find_shared(const Examples& examples, const FfmLayout& layout, Scratch& scratch) {
  const size_t n = examples.offsets[end] - features;
  const uint64_t* keys = examples.keys.data() + features;
  std::array<uint32_t, kShards + 1> from{};
  scratch.rows.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t row = static_cast<uint32_t>(layout.row_of(keys[i]));  // there are at most 2^32 rows
    scratch.rows[i] = row;
    ++from[shard_of(row) + 1];
  }
  for (size_t k = 0; k < kShards; ++k) from[k + 1] += from[k];
  std::array<uint32_t, kShards> next;
  std::copy_n(from.begin(), kShards, next.begin());
  scratch.sorted.resize(n);
  for (uint32_t i = 0; i < n; ++i) scratch.sorted[next[shard_of(scratch.rows[i])]++] = {scratch.rows[i], i};

  std::array<uint32_t, kSlices + 1> ends;
  for (size_t s = 0; s <= kSlices; ++s) ends[s] = examples.offsets[slice(s)] - features;
  sums.resize(n);
  rows.clear();
  parts.clear();
  for (size_t k = 0; k < kShards; ++k) {
    rows_of[k] = static_cast<uint32_t>(rows.size());
    find_in_shard(scratch.sorted.data() + from[k], from[k + 1] - from[k], ends, scratch);
  }
  rows_of[kShards] = static_cast<uint32_t>(rows.size());
}

// A row is at first that of one feature, and gets its sums as soon as a second feature has it.
void BlockPlan::find_in_shard(const Scratch::Feature* from, size_t n, const std::array<uint32_t, kSlices + 1>& ends,
                              Scratch& scratch) {
  const size_t places = std::bit_ceil(2 * n + 2);
  const int shift = 64 - std::countr_zero(places);
  auto& table = scratch.table;
  auto& found = scratch.found;
  auto& made = scratch.made;
  table.assign(places, {0, kFree});
  found.clear();
  made.clear();
  auto add_part = [&](uint32_t id, uint32_t s) {
    found[id].slice = s;
    found[id].sum = count[s]++;
    ++found[id].parts;
    made.push_back({id, {s, found[id].sum}});
  };
  uint32_t s = 0;
  for (const Scratch::Feature* f = from; f < from + n; ++f) {
    while (f->feature >= ends[s + 1]) ++s;
    size_t at = (f->row * 0x9e3779b97f4a7c15ull) >> shift;
    while (table[at].id != kFree && table[at].row != f->row) at = (at + 1) & (places - 1);
    const uint32_t id = table[at].id;
    if (id == kFree) {
      table[at] = {f->row, static_cast<uint32_t>(found.size())};
      found.push_back({f->row, f->feature, s, 0, 0});
      sums[f->feature] = kAlone;
      continue;
    }
    const auto& known = found[id];
    if (known.parts == 0) {
      add_part(id, known.slice);
      sums[known.first] = known.sum | kFirst;
    }
    if (known.slice != s) {
      add_part(id, s);
      sums[f->feature] = known.sum | kFirst;
    } else {
      sums[f->feature] = known.sum;
    }
  }
  uint32_t part = static_cast<uint32_t>(parts.size());
  for (auto& row : found) {
    if (row.parts == 0) continue;
    rows.push_back({row.row, part, row.parts});
    row.first = part;  // from here on: where its next part goes
    part += row.parts;
  }
  parts.resize(part);
  for (const auto& one : made) parts[found[one.id].first++] = one.part;
}

void BlockPlan::sort_first_order(const Examples& examples, const FfmSettings& settings, const FfmLayout& layout,
                                 Scratch& scratch) {
  const size_t n = examples.offsets[end] - features;
  const uint64_t* keys = examples.keys.data() + features;
  // Sixteen records of lr share two cache lines, so that two threads rarely write one line.
  auto shard = [](uint64_t record) { return shard_of(record / kLanes); };
  records_of.fill(0);
  scratch.records.resize(n);
  for (size_t i = 0; i < n; ++i) {
    scratch.records[i] = layout.lr_of(keys[i], settings.bits);
    ++records_of[shard(scratch.records[i]) + 1];
  }
  for (size_t k = 0; k < kShards; ++k) records_of[k + 1] += records_of[k];
  std::array<uint32_t, kShards> next;
  std::copy_n(records_of.begin(), kShards, next.begin());
  first_order.resize(n);
  records.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t at = next[shard(scratch.records[i])]++;
    first_order[i] = at;
    records[at] = scratch.records[i];
  }
}

}  // namespace cb
