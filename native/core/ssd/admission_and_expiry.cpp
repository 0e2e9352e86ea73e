// Admits new keys to the Sparse Table and expires rows, by the rules of core/embed/row_lifetime.h.
#include <algorithm>
#include <unordered_set>

#include "core/ssd/sparse_table.h"
#include "core/system/parallel.h"

namespace cb {

// Rows for those keys without one that this push admits.
void SparseTable::admit(Held& held, const float* gradients, const Shown& shown, bool some_bad) {
  std::array<std::vector<uint32_t>, kShards> admitted;
  parallel_for(threads_for(held.size()), kShards, [&](size_t s) {
    std::unordered_set<int64_t> mine;  // a key given twice is admitted once, and has a row from then on
    for (size_t k = held.bounds[s]; k < held.bounds[s + 1]; ++k) {
      const size_t at = held.at(k);
      const int64_t key = held.key(k);
      if (held.place(k) != kNowhere || key == 0) continue;
      if (some_bad && !all_finite(gradients + at * width_, width_)) continue;
      const bool again = mine.contains(key);
      if (!again && !life_->admit(mix_of(key), shown.shows_of(at))) {
        ++counters_.not_admitted;
        continue;
      }
      mine.insert(key);
      admitted[s].push_back(static_cast<uint32_t>(k));
    }
  });
  std::vector<uint32_t> all;
  for (const auto& some : admitted) all.insert(all.end(), some.begin(), some.end());
  hold_too(held, all, true);
}

void SparseTable::advance(uint64_t periods) {
  std::lock_guard<std::mutex> hold(calls_);
  std::lock_guard<std::mutex> hold_loads(loading_);
  if (periods >= kMostPeriods - clock())
    throw std::length_error("the clock of the table cannot go beyond 16,777,215 periods");
  life_->clock += periods;
}

void SparseTable::join_life(const LifeState& part, bool first) {
  std::lock_guard<std::mutex> hold(calls_);
  std::lock_guard<std::mutex> hold_loads(loading_);
  life_->join(part, first);
}

void SparseTable::counters(std::span<const int64_t> keys, float* out) {
  look(keys, out, row_floats_ - kCounterFloats, kCounterFloats);
  for (size_t k = 0; k < keys.size(); ++k) {
    float* counters = out + k * kCounterFloats;
    if (keys[k] != 0 && counters[2] >= 0) continue;
    counters[0] = counters[1] = 0.0f;
    counters[2] = -1.0f;
  }
}

size_t SparseTable::expire(const Expiry& rule) {
  std::lock_guard<std::mutex> hold(calls_);
  std::lock_guard<std::mutex> hold_loads(loading_);
  let_go();
  std::deque<std::unique_ptr<Held>> later;
  {
    std::lock_guard<std::mutex> hold_prefetched(prefetched_lock_);
    later.swap(prefetched_);
  }
  for (auto& held : later) release(*held);  // their pulls load them again
  std::atomic<size_t> gone{0};
  parallel_for(threads_, kShards, [&](size_t s) { gone += expire_shard(shards_[s], rule); });
  counters_.expired += gone;
  return gone;
}

// All runs are merged into one without what expired. Rows in memory are newer than those on disk.
size_t SparseTable::expire_shard(Shard& shard, const Expiry& rule) {
  std::lock_guard<std::mutex> alone(shard.compacting);
  std::lock_guard<std::mutex> hold(shard.lock);
  write_cut(shard);
  Resident& rows = shard.rows;
  const RowCount count(shape_, clock());
  struct Here {
    uint64_t mix;
    uint32_t place;
    bool expired;
  };
  std::vector<Here> here;
  for (uint32_t place = 0; place < rows.places(); ++place)
    if (const int64_t key = rows.mark(place).key)
      here.push_back({mix_of(key), place, count.expired(rows.row(place), rule)});
  std::sort(here.begin(), here.end(), [](const Here& a, const Here& b) { return a.mix < b.mix; });
  size_t gone = 0;
  const std::shared_ptr<const Runs> runs = shard.runs;
  uint64_t most = 0, read = 0, dropped = 0;
  for (const RunPtr& run : *runs) most += run->rows;
  RunWriter writer(segments_, page_, most, bits_for({}, {}, most));
  size_t next = 0;
  merge_runs(*runs, page_, &read, nullptr, [&](uint64_t mix, int64_t key, uint32_t stamp, const float* row) {
    while (next < here.size() && here[next].mix < mix) ++next;
    const bool resident = next < here.size() && here[next].mix == mix;
    const bool expired = resident ? here[next].expired : count.expired(row, rule);
    dropped += expired;
    if (expired)
      gone += !resident;  // one in memory is counted there
    else
      writer.add(mix, key, stamp, row);
  });
  counters_.bytes_read += read;
  if (dropped) {
    RunPtr merged = writer.finish();
    if (merged) counters_.compacted_bytes += merged->bytes();
    ++counters_.compactions;
    for (const RunPtr& run : *runs) {
      disk_rows_ -= run->rows;
      index_bytes_ -= run->memory();
    }
    set_runs(shard, std::make_shared<Runs>());
    if (merged) add_run(shard, std::move(merged));
  }
  for (const Here& one : here) {
    if (!one.expired) continue;
    rows.policy->remove(one.place);
    rows.erase(one.place);
    ++gone;
  }
  count_ -= gone;
  return gone;
}

}  // namespace cb
