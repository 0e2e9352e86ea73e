// Reads and writes whole rows of the Sparse Table for a level above it, and reports statistics.
#include <algorithm>
#include <cstring>

#include "core/ssd/sparse_table.h"
#include "core/system/parallel.h"

namespace cb {

// ---- whole rows -----------------------------------------------------------------------------------------------

void SparseTable::read(std::span<const int64_t> keys, float* out) {
  auto held = load_now(keys, true);
  gather(*held, out, row_floats_);
  release(*held);
}

// Copies each row to its place in memory, which `place_of` tells under the lock of the shard; kNowhere leaves a row
// out.
template <class PlaceOf>
void SparseTable::put_rows(std::span<const int64_t> keys, const float* rows, const Held& held, PlaceOf place_of) {
  const uint32_t version = static_cast<uint32_t>(number_.load() + 1);
  parallel_for(threads_for(keys.size()), kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold_shard(shard.lock);
    for (size_t k = held.bounds[s]; k < held.bounds[s + 1]; ++k) {
      const uint32_t place = place_of(shard, k);
      if (place == kNowhere) continue;
      std::memcpy(shard.rows.row(place), rows + held.at(k) * row_floats_, row_floats_ * sizeof(float));
      Mark& mark = shard.rows.mark(place);
      mark.dirty = 1;
      mark.version = version;
    }
  });
}

void SparseTable::write(std::span<const int64_t> keys, const float* rows, bool known) {
  if (known) return write_known(keys, rows);
  std::lock_guard<std::mutex> hold(calls_);
  auto held = load_now(keys, true);
  try {
    write_cuts(*held);
  } catch (...) {
    release(*held);
    throw;
  }
  put_rows(keys, rows, *held, [&](Shard& shard, size_t k) {
    const uint32_t place = held->place(k);
    if (place != kNowhere) --shard.rows.mark(place).pins;
    return place;
  });
}

void SparseTable::write_known(std::span<const int64_t> keys, const float* rows) {
  std::lock_guard<std::mutex> hold(calls_);
  std::lock_guard<std::mutex> hold_loads(loading_);
  wait_for_compaction();
  const auto held = held_for(keys);
  write_cuts(*held);
  put_rows(keys, rows, *held, [&](Shard& shard, size_t k) {
    const int64_t key = keys[held->at(k)];
    if (key == 0) return kNowhere;
    const uint64_t mix = mix_of(key);
    const uint32_t place = shard.rows.find(key, mix);
    if (place != kNowhere) return place;
    make_room(shard, 1);
    return shard.rows.insert(key, mix);
  });
}

// ---- facts ----------------------------------------------------------------------------------------------------

size_t SparseTable::memory() const {
  size_t sum = index_bytes_.load() + life_->bytes();
  for (unsigned s = 0; s < kShards; ++s) {
    const Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    sum += shard.rows.bytes();
  }
  return sum;
}

std::map<std::string, uint64_t> SparseTable::stats() const {
  uint64_t runs = 0, resident = 0, capacity = 0, live = 0, pinned = 0, dirty = 0;
  for (unsigned s = 0; s < kShards; ++s) {
    const Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    runs += shard.runs->size();
    for (const RunPtr& run : *shard.runs) live += run->bytes();
    resident += shard.rows.count();
    capacity += shard.rows.capacity();
    for (uint32_t place = 0; place < shard.rows.places(); ++place) {
      const Mark& mark = shard.rows.mark(place);
      pinned += mark.pins > 0;
      dirty += mark.key != 0 && mark.dirty;  // a place that a row left keeps its marks
    }
  }
  const Counters& c = counters_;
  return {{"asked", c.asked},
          {"hits", c.hits},
          {"new", c.fresh},
          {"misses", c.misses},
          {"false_positives", c.false_positives},
          {"reads", c.reads},
          {"bytes_read", c.bytes_read},
          {"bytes_written", segments_.written},
          {"crowded", c.crowded},
          {"evicted", c.evicted},
          {"skipped", c.skipped},
          {"not_admitted", c.not_admitted},
          {"expired", c.expired},
          {"clock", clock()},
          {"flushes", c.flushes},
          {"compactions", c.compactions},
          {"compacted_bytes", c.compacted_bytes},
          {"compaction_errors", errors_.count()},
          {"compaction_wait_us", c.compaction_wait_us},
          {"runs", runs},
          {"keys", count_},
          {"resident", resident},
          {"capacity", capacity},
          {"pinned", pinned},
          {"dirty", dirty},
          {"live_bytes", live},
          {"disk_bytes", segments_.disk_bytes()},
          {"held_bytes", segments_.bytes_held_by_name_alone()},
          {"disk_rows", disk_rows_},
          {"index_bytes", index_bytes_},
          {"memory", memory()},
          {"version", durable_}};
}

}  // namespace cb
