#include "core/join/as_of_index.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>

#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kParts = 64;  // ranges of hashes, by their upper bits; one thread sorts a range
constexpr size_t kBlockRows = size_t{1} << 16;

size_t part_of(uint64_t hash) { return hash >> 58; }

struct Row {
  uint64_t hash;
  int64_t time;
  uint32_t row;

  bool operator<(const Row& other) const {
    return std::tie(hash, time, row) < std::tie(other.hash, other.time, other.row);
  }
  bool same(const Row& other) const { return hash == other.hash && time == other.time; }
};

struct Part {
  std::vector<Row> rows;  // sorted, with one row for each key and time
  size_t keys = 0;
  HashIndex::Duplicate duplicate;
};

// Sorts the rows of a range and counts its keys.
void sort_part(Part& part, bool keep_last) {
  std::vector<Row>& rows = part.rows;
  std::sort(rows.begin(), rows.end());
  size_t kept = 0;
  for (size_t k = 0; k < rows.size(); ++k) {
    part.keys += k == 0 || rows[k].hash != rows[k - 1].hash;
    if (kept && rows[kept - 1].same(rows[k])) {
      const HashIndex::Duplicate met{rows[kept - 1].row, rows[k].row};
      if (part.duplicate.second < 0 || met.second < part.duplicate.second) part.duplicate = met;
      if (keep_last) rows[kept - 1] = rows[k];
      continue;
    }
    rows[kept++] = rows[k];
  }
  rows.resize(kept);
}

}  // namespace

AsOfIndex::AsOfIndex(std::span<const uint64_t> hashes, std::span<const int64_t> times, bool keep_last, size_t threads,
                     HashIndex::Duplicate& duplicate) {
  if (hashes.size() != times.size()) throw std::invalid_argument("expected one time for each hash");
  if (hashes.size() >= HashIndex::kEmpty) throw std::length_error("an index has 2^32 rows or more; expected fewer");

  // Rows go to the range of their hash. at[block][range]: the number of rows in that range before the block.
  const size_t blocks = (hashes.size() + kBlockRows - 1) / kBlockRows;
  std::vector<std::array<size_t, kParts>> at(blocks);
  auto last = [&](size_t block) { return std::min(hashes.size(), (block + 1) * kBlockRows); };
  parallel_for(threads, blocks, [&](size_t b) {
    at[b].fill(0);
    for (size_t r = b * kBlockRows; r < last(b); ++r) ++at[b][part_of(hashes[r])];
  });
  std::vector<Part> parts(kParts);
  for (size_t p = 0; p < kParts; ++p) {
    size_t total = 0;
    for (size_t b = 0; b < blocks; ++b) total += std::exchange(at[b][p], total);
    parts[p].rows.resize(total);
  }
  parallel_for(threads, blocks, [&](size_t b) {
    for (size_t r = b * kBlockRows; r < last(b); ++r) {
      const size_t p = part_of(hashes[r]);
      parts[p].rows[at[b][p]++] = {hashes[r], times[r], static_cast<uint32_t>(r)};
    }
  });
  parallel_for(threads, kParts, [&](size_t p) { sort_part(parts[p], keep_last); });

  std::vector<size_t> first_row(kParts), first_key(kParts);
  size_t rows = 0, keys = 0;
  for (size_t p = 0; p < kParts; ++p) {
    first_row[p] = rows;
    first_key[p] = keys;
    rows += parts[p].rows.size();
    keys += parts[p].keys;
    const HashIndex::Duplicate& met = parts[p].duplicate;
    if (!keep_last && met.second >= 0 && (duplicate.second < 0 || met.second < duplicate.second)) duplicate = met;
  }
  versions_.resize(rows);
  std::vector<uint64_t> key_hashes(keys);
  std::vector<uint32_t> begins(keys);
  parallel_for(threads, kParts, [&](size_t p) {
    const std::vector<Row>& sorted = parts[p].rows;
    size_t key = first_key[p];
    for (size_t from = 0, to = 0; from < sorted.size(); from = to) {
      while (to < sorted.size() && sorted[to].hash == sorted[from].hash) ++to;
      key_hashes[key] = sorted[from].hash;
      begins[key++] = static_cast<uint32_t>(first_row[p] + from);
      for (size_t k = from; k < to; ++k)
        versions_[first_row[p] + k] = {sorted[k].time, sorted[k].row, static_cast<uint32_t>(to - k)};
    }
    parts[p].rows = {};
  });
  HashIndex::Duplicate none;
  map_ = HashIndex::of_rows(key_hashes, false, threads, none);
  map_.renumber(begins, threads);
  view_ = {map_.view(), versions_.data()};
}

void AsOfIndex::renumber(const std::vector<uint32_t>& to, size_t threads) {
  const size_t blocks = (versions_.size() + kBlockRows - 1) / kBlockRows;
  parallel_for(threads, blocks, [&](size_t b) {
    for (size_t k = b * kBlockRows; k < std::min(versions_.size(), (b + 1) * kBlockRows); ++k)
      versions_[k].row = to.at(versions_[k].row);
  });
}

}  // namespace cb
