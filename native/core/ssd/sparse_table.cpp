#include "core/ssd/sparse_table.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kFewKeys = 2048;      // below it, waking threads costs more than it gives
constexpr size_t kMostPrefetched = 4;  // batches between prefetch and pull that stay pinned
constexpr size_t kAhead = 8;           // keys between asking for a slot and probing it
constexpr size_t kLeastRun = 512;      // rows that leave at once: a write of fewer takes as long

// Shards that one thread looks through and reads: at the end of each such group its queue of the disk runs dry, so
// there are no more of them than threads need to end together.
unsigned group_of(size_t threads) {
  unsigned group = kShards;
  while (threads > 1 && group > 4 && group * threads * 2 > kShards) group /= 2;
  return group;
}

// Asks for a row's lines, up to four; the processor goes on by itself from there.
inline void prefetch_row(const float* row, size_t floats) {
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t k = 0; k < std::min(floats, 4 * kLine); k += kLine) __builtin_prefetch(row + k);
}

}  // namespace

// ---- begin and end --------------------------------------------------------------------------------------------

SparseTable::SparseTable(std::string folder, const TableShape& shape, const SparseOptions& options)
    : folder_(std::move(folder)),
      shape_(shape),
      options_(options),
      width_(shape.width()),
      row_floats_(shape.floats()),
      threads_(options.threads ? options.threads : usable_cores()),
      page_(shape.floats()),
      fresh_(shape),
      place_bytes_(bytes_a_row(shape, options.policy)),
      generation_(has_manifest(folder_) ? read_manifest(folder_).generation : 0),
      segments_(segments_folder(folder_, generation_), options.segment_bytes),
      shards_(new Shard[kShards]),
      life_(std::make_unique<LifeState>(shape.life, shape.seed)),
      process_(::getpid()),
      errors_(folder_),
      bandwidth_(options.compaction_bytes_per_s) {
  if (width_ == 0 || shape.dim > kMostDim) throw std::invalid_argument("a row must have 1 to 4,097 values");
  if (shape.dense()) throw std::invalid_argument("a dense optimizer needs all rows in memory");
  const MemoryPlan plan = plan_memory(shape, options.policy, options.ram);
  if (plan.places < kLeastPlaces) throw TableFull("the budget holds fewer than 1,024 rows");
  if (plan.places > kMostPlaces) throw std::invalid_argument("a table holds at most 192 billion rows in memory");
  const uint32_t capacity = static_cast<uint32_t>(plan.places);
  places_ = places_at_start_ = uint64_t{capacity} * kShards;
  const size_t slots = slots_for(capacity);
  const bool huge = options.ram <= machine_bytes();
  slots_memory_ = LazyBlock(slots * kShards * sizeof(uint32_t), huge);
  marks_memory_ = LazyBlock(size_t{capacity} * kShards * sizeof(Mark), huge);
  rows_memory_ = LazyBlock(size_t{capacity} * kShards * row_floats_ * sizeof(float), huge);
  for (unsigned s = 0; s < kShards; ++s)
    shards_[s].rows.begin(capacity, row_floats_, reinterpret_cast<uint32_t*>(slots_memory_.data()) + s * slots,
                          reinterpret_cast<Mark*>(marks_memory_.data()) + size_t{s} * capacity,
                          reinterpret_cast<float*>(rows_memory_.data()) + size_t{s} * capacity * row_floats_,
                          make_policy(options.policy, capacity));
  if (has_manifest(folder_)) open(read_manifest(folder_));
  narrow_for(index_bytes_);
  if (!options.read_only) segments_.remove_others();
  start_compactors();
}

SparseTable::~SparseTable() {
  if (::getpid() == process_)
    stop_compactors();
  else
    forget_compactors();
}

void SparseTable::open(const Manifest& manifest) {
  std::vector<SegmentPtr> named;
  for (unsigned s = 0; s < kShards; ++s) {
    auto runs = std::make_shared<Runs>();
    for (const RunFacts& facts : manifest.runs[s]) {
      RunPtr run = open_run(segments_, facts, page_);
      disk_rows_ += run->rows;
      index_bytes_ += run->memory();
      named.push_back(run->place.segment);
      runs->push_back(std::move(run));
    }
    set_runs(shards_[s], std::move(runs));
  }
  if (manifest.life) life_ = std::make_unique<LifeState>(*manifest.life);
  segments_.name(std::move(named));
  segments_.next_id_is(manifest.next_segment);
  count_.store(manifest.keys);
  number_.store(manifest.number);
  durable_.store(manifest.number);
}

size_t SparseTable::threads_for(size_t keys) const { return keys < kFewKeys ? 1 : threads_; }

// ---- keys -----------------------------------------------------------------------------------------------------

std::unique_ptr<SparseTable::Held> SparseTable::held_for(std::span<const int64_t> keys) const {
  return std::make_unique<Held>(keys, threads_for(keys.size()));
}

void SparseTable::release(Held& held) {
  parallel_for(threads_for(held.size()), kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    const size_t end = held.bounds[s + 1];
    std::lock_guard<std::mutex> hold(shard.lock);
    for (size_t k = held.bounds[s]; k < end; ++k) {
      if (k + kAhead < end && held.place(k + kAhead) != kNowhere)
        __builtin_prefetch(&shard.rows.mark(held.place(k + kAhead)), 1);
      if (held.place(k) != kNowhere) --shard.rows.mark(held.place(k)).pins;
    }
  });
}

std::unique_ptr<PageReading> SparseTable::take_reading() {
  {
    std::lock_guard<std::mutex> hold(readings_lock_);
    if (!readings_.empty()) {
      auto found = std::move(readings_.back());
      readings_.pop_back();
      return found;
    }
  }
  return std::make_unique<PageReading>(page_.bytes);
}

void SparseTable::give_reading(std::unique_ptr<PageReading> reading) {
  std::lock_guard<std::mutex> hold(readings_lock_);
  if (readings_.size() < threads_) readings_.push_back(std::move(reading));
}

// ---- loading --------------------------------------------------------------------------------------------------

void SparseTable::fetch(unsigned first, unsigned end, const Fetch::Look& look, const Fetch::Found& found,
                        const Fetch::Absent& absent) {
  Fetch rows(page_, first, end, look, found, absent);
  if (!rows.needs_pages()) return;
  reads_ = true;
  auto reading = take_reading();
  const auto count_and_give_back = [&] {
    counters_.reads += rows.reads();
    counters_.bytes_read += rows.reads() * page_.bytes;
    counters_.false_positives += rows.false_positives();
    give_reading(std::move(reading));
  };
  try {
    rows.read(*reading);
  } catch (...) {  // such as TableFull, which another load may follow
    count_and_give_back();
    throw;
  }
  count_and_give_back();
}

std::unique_ptr<SparseTable::Held> SparseTable::load(std::span<const int64_t> keys, bool create, bool batch,
                                                     NextUse next_use) {
  wait_for_compaction();
  auto held = held_for(keys);
  held->next_use = next_use;
  foreseen_ += next_use || (batch && foreseen_ > 0);
  try {
    // Where the load before found all rows in memory, so will this one: every shard is a task of its own then.
    const size_t threads = threads_for(keys.size());
    const unsigned group = reads_.exchange(false) ? group_of(threads) : 1;
    parallel_for(threads, kShards / group, [&](size_t t) {
      load_shards(static_cast<unsigned>(t) * group, static_cast<unsigned>(t + 1) * group, *held, create);
    });
  } catch (...) {
    release(*held);
    throw;
  }
  held->next_use.reset();
  return held;
}

// Without `create` keys that are nowhere stay so.
void SparseTable::load_shards(unsigned first, unsigned end, Held& held, bool create) {
  const uint8_t* next_use = held.next_use ? held.next_use->data() : nullptr;
  const uint32_t version = static_cast<uint32_t>(number_.load() + 1);
  // Added to the table's counters once: threads that all add to one number for each row wait for each other.
  struct Tally {
    SparseTable& table;
    uint64_t asked = 0, hits = 0, misses = 0, fresh = 0;
    ~Tally() {
      table.counters_.asked += asked;
      table.counters_.hits += hits;
      table.counters_.misses += misses;
      table.counters_.fresh += fresh;
      table.count_ += fresh;
    }
  } tally{*this};
  const auto look = [&](unsigned s, std::vector<Fetch::Key>& missing) -> std::shared_ptr<const Runs> {
    const size_t begin = held.bounds[s], stop = held.bounds[s + 1];
    if (begin == stop) return nullptr;
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    Resident& rows = shard.rows;
    shard.most_asked = std::max(shard.most_asked, stop - begin);
    rows.policy->next_pass();
    if (foreseen_ > 0) rows.policy->foresee(foreseen_);
    const size_t before = missing.size();
    uint64_t asked = 0;
    for (size_t k = begin; k < stop; ++k) {
      if (k + 2 * kAhead < stop) rows.prefetch(mix_of(held.key(k + 2 * kAhead)));
      if (k + kAhead < stop) rows.prefetch_mark(mix_of(held.key(k + kAhead)));
      const int64_t key = held.key(k);
      if (key == 0) continue;
      ++asked;
      const uint64_t mix = mix_of(key);
      const uint32_t place = rows.find(key, mix);
      if (place == kNowhere) {
        missing.push_back({key, mix, static_cast<uint32_t>(k)});
        continue;
      }
      rows.policy->hit(place);
      if (next_use) rows.policy->due(place, next_use[held.at(k)]);
      ++rows.mark(place).pins;
      held.place(k) = place;
    }
    const size_t missed = missing.size() - before;
    size_t need = missed;
    if (rows.room() < need) {  // a key given twice needs one place
      std::vector<uint64_t> mixes;
      for (size_t k = before; k < missing.size(); ++k) mixes.push_back(missing[k].mix);
      std::sort(mixes.begin(), mixes.end());
      need = static_cast<size_t>(std::unique(mixes.begin(), mixes.end()) - mixes.begin());
    }
    make_room(shard, need);
    tally.asked += asked;
    tally.hits += asked - missed;
    return shard.runs;
  };
  const auto put = [&](const Fetch::Key& key, uint32_t stamp, const float* row) {
    Shard& shard = shards_[key.shard];
    std::lock_guard<std::mutex> hold(shard.lock);
    uint32_t place = shard.rows.find(key.key, key.mix);  // a key given twice is there by now
    if (place == kNowhere) {
      place = shard.rows.insert(key.key, key.mix, row ? worth_of(stamp) : uint8_t{0});
      Mark& mark = shard.rows.mark(place);
      if (row) {
        std::memcpy(shard.rows.row(place), row, row_floats_ * sizeof(float));
        mark.version = version_of(stamp);
        ++tally.misses;
      } else {
        fresh_.row(key.key, shard.rows.row(place), life_->clock.load(std::memory_order_relaxed));
        mark.version = stamp;
        mark.dirty = 1;
        ++tally.fresh;
      }
    }
    if (next_use) shard.rows.policy->due(place, next_use[held.at(key.place)]);
    ++shard.rows.mark(place).pins;
    held.place(key.place) = place;
  };
  fetch(first, end, look, put, [&](const Fetch::Key& key) {
    if (create) put(key, version, nullptr);
  });
}

// Under the shard's lock. TableFull where pins leave no room; std::system_error where the disk does: nothing is lost
// then.
void SparseTable::make_room(Shard& shard, size_t need) {
  Resident& rows = shard.rows;
  try {
    narrow(shard, need);
  } catch (const std::system_error&) {  // a full disk stops only who needs it
    if (rows.room() < need) throw;
  }
  if (rows.room() >= need) return;
  write_cut(shard);
  std::vector<uint32_t> places;
  while (rows.room() < need) {  // again where some of those who left had a place that was given up
    places.clear();
    rows.policy->victims(
        std::max({need - rows.room(), size_t{rows.capacity() / 16}, std::min<size_t>(kLeastRun, rows.capacity() / 4)}),
        [&](uint32_t place) { return rows.mark(place).pins > 0; }, places);
    if (places.empty()) throw TableFull("its rows in memory are all in use by batches that are in progress");
    try {
      std::vector<uint32_t> dirty;
      for (uint32_t place : places)
        if (rows.mark(place).dirty) dirty.push_back(place);
      if (RunPtr run = written(shard, dirty)) add_run(shard, std::move(run));
    } catch (...) {
      for (uint32_t place : places) rows.policy->reload(place, mix_of(rows.mark(place).key), rows.policy->worth(place));
      throw;
    }
    for (uint32_t place : places) rows.erase(place);
    counters_.evicted += places.size();
  }
}

RunPtr SparseTable::written(Shard& shard, std::vector<uint32_t>& places) {
  if (places.empty()) return nullptr;
  const Resident& rows = shard.rows;
  std::vector<std::pair<uint64_t, uint32_t>> order;
  order.reserve(places.size());
  for (uint32_t place : places) order.emplace_back(mix_of(rows.mark(place).key), place);
  std::sort(order.begin(), order.end());
  RunWriter writer(segments_, page_, order.size(), bits_for(*shard.runs, {}, order.size()));
  for (const auto& [mix, place] : order) {
    const Mark& mark = rows.mark(place);
    writer.add(mix, mark.key, stamp_of(mark.version, rows.policy->worth(place)), rows.row(place));
  }
  ++counters_.flushes;
  return writer.finish();
}

// ---- the three verbs ------------------------------------------------------------------------------------------

// A wish: where batches under way leave no room for these rows they are loaded by their pull.
void SparseTable::prefetch(std::span<const int64_t> keys, NextUse next_use) {
  if (next_use && next_use->size() != keys.size()) throw std::invalid_argument("expected one next use for each key");
  std::unique_ptr<Held> held, oldest;
  try {
    std::lock_guard<std::mutex> hold(loading_);
    held = load(keys, shape_.life.admits_all(), true, next_use);
  } catch (const TableFull&) {
    ++counters_.crowded;
    return;
  }
  {
    std::lock_guard<std::mutex> hold(prefetched_lock_);
    prefetched_.push_back(std::move(held));
    if (prefetched_.size() > kMostPrefetched) {
      oldest = std::move(prefetched_.front());
      prefetched_.pop_front();
    }
  }
  if (oldest) release(*oldest);
}

// For a pull or a push that comes now: what was prefetched for later gives way.
std::unique_ptr<SparseTable::Held> SparseTable::load_now(std::span<const int64_t> keys, bool create, bool batch) {
  std::lock_guard<std::mutex> hold(loading_);
  try {
    return load(keys, create, batch);
  } catch (const TableFull&) {
    ++counters_.crowded;
    std::deque<std::unique_ptr<Held>> later;
    {
      std::lock_guard<std::mutex> hold_prefetched(prefetched_lock_);
      later.swap(prefetched_);
    }
    for (auto& held : later) release(*held);
    return load(keys, create, false);  // counted before
  }
}

std::unique_ptr<SparseTable::Held> SparseTable::take_prefetched(std::span<const int64_t> keys) {
  std::lock_guard<std::mutex> hold(prefetched_lock_);
  for (auto it = prefetched_.begin(); it != prefetched_.end(); ++it) {
    if (!(*it)->same(keys, threads_for(keys.size()))) continue;
    auto found = std::move(*it);
    prefetched_.erase(it);
    return found;
  }
  return nullptr;
}

void SparseTable::pull(std::span<const int64_t> keys, float* out, bool create) {
  if (!create) return look(keys, out, 0, width_);
  std::lock_guard<std::mutex> hold(calls_);
  if (last_) release(*last_);
  last_.reset();
  auto held = take_prefetched(keys);
  if (!held)
    held = load_now(keys, shape_.life.admits_all());
  else if (!shape_.life.admits_all())
    find_again(*held);
  gather(*held, out, width_);
  last_ = std::move(held);
}

// Rows of a prefetched batch that came to be since then.
void SparseTable::find_again(Held& held) {
  std::vector<uint32_t> which;
  for (size_t k = 0; k < held.size(); ++k)
    if (held.place(k) == kNowhere && held.key(k) != 0) which.push_back(static_cast<uint32_t>(k));
  hold_too(held, which, false);
}

// Load more of a batch's keys, into it; `which` of its grouped keys, in rising order.
void SparseTable::hold_too(Held& held, const std::vector<uint32_t>& which, bool create) {
  if (which.empty()) return;
  std::vector<int64_t> keys;
  keys.reserve(which.size());
  for (uint32_t k : which) keys.push_back(held.key(k));
  const auto more = load_now(keys, create, false);  // its pins are the batch's from here on
  for (size_t k = 0; k < which.size(); ++k) held.place(which[more->at(k)]) = more->place(k);
}

// The first `floats` of every row.
void SparseTable::gather(const Held& held, float* out, size_t floats) const {
  parallel_for(threads_for(held.size()), kShards, [&](size_t s) {
    const Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    const size_t end = held.bounds[s + 1];
    for (size_t k = held.bounds[s]; k < end; ++k) {
      if (k + kAhead < end && held.place(k + kAhead) != kNowhere)
        prefetch_row(shard.rows.row(held.place(k + kAhead)), floats);
      float* to = out + held.at(k) * floats;
      if (held.place(k) != kNowhere)
        std::memcpy(to, shard.rows.row(held.place(k)), floats * sizeof(float));
      else if (held.key(k) != 0)
        fresh_.values(held.key(k), to);  // not admitted yet
      else
        std::fill_n(to, floats, 0.0f);
    }
  });
}

// `floats` of every row from `first` on: values, or counters. Creates nothing, and brings nothing into memory.
void SparseTable::look(std::span<const int64_t> keys, float* out, size_t first, size_t floats) {
  auto held = held_for(keys);
  const size_t threads = threads_for(keys.size());
  const unsigned group = group_of(threads);
  const auto to = [&](const Fetch::Key& key) { return out + size_t{key.place} * floats; };
  const auto look_in = [&](unsigned s, std::vector<Fetch::Key>& missing) -> std::shared_ptr<const Runs> {
    if (held->bounds[s] == held->bounds[s + 1]) return nullptr;
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    const size_t end = held->bounds[s + 1];
    for (size_t k = held->bounds[s]; k < end; ++k) {
      if (k + 2 * kAhead < end) shard.rows.prefetch(mix_of(held->key(k + 2 * kAhead)));
      if (k + kAhead < end) shard.rows.prefetch_mark(mix_of(held->key(k + kAhead)));
      const size_t at = held->at(k);
      const int64_t key = held->key(k);
      const uint64_t mix = mix_of(key);
      const uint32_t place = key == 0 ? kNowhere : shard.rows.find(key, mix);
      if (key == 0)
        std::fill_n(out + at * floats, floats, 0.0f);
      else if (place != kNowhere)
        std::memcpy(out + at * floats, shard.rows.row(place) + first, floats * sizeof(float));
      else
        missing.push_back({key, mix, static_cast<uint32_t>(at)});
    }
    return shard.runs;
  };
  const auto found = [&](const Fetch::Key& key, uint32_t, const float* row) {
    std::memcpy(to(key), row + first, floats * sizeof(float));
  };
  const auto absent = [&](const Fetch::Key& key) {
    if (first == 0)
      fresh_.values(key.key, to(key));
    else
      std::fill_n(to(key), floats, -1.0f);
  };
  parallel_for(threads, kShards / group, [&](size_t t) {
    fetch(static_cast<unsigned>(t) * group, static_cast<unsigned>(t + 1) * group, look_in, found, absent);
  });
}

int64_t SparseTable::push(std::span<const int64_t> keys, const float* gradients, double factor, const Shown& shown,
                          bool skip) {
  std::lock_guard<std::mutex> hold(calls_);
  const int64_t bad = first_not_finite(keys, gradients, width_, threads_for(keys.size()));
  if (bad >= 0 && !skip) return bad;
  if (!last_ || !last_->same(keys, threads_for(keys.size()))) {
    if (last_) release(*last_);
    last_.reset();
    last_ = load_now(keys, shape_.life.admits_all());
  }
  ++life_->pushes;
  if (!shape_.life.admits_all()) admit(*last_, gradients, shown, bad >= 0);
  write_cuts(*last_);
  const RowStep step(shape_, factor);
  const RowCount count(shape_, clock());
  const uint32_t version = static_cast<uint32_t>(number_.load() + 1);
  const Held& held = *last_;
  parallel_for(threads_for(keys.size()), kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold_shard(shard.lock);
    const size_t end = held.bounds[s + 1];
    uint64_t skipped = 0;
    for (size_t k = held.bounds[s]; k < end; ++k) {
      if (k + kAhead < end && held.place(k + kAhead) != kNowhere) {
        prefetch_row(shard.rows.row(held.place(k + kAhead)), row_floats_);
        __builtin_prefetch(&shard.rows.mark(held.place(k + kAhead)), 1);
        prefetch_row(gradients + held.at(k + kAhead) * width_, width_);
      }
      const size_t at = held.at(k);
      const uint32_t place = held.place(k);
      const bool skip_it = bad >= 0 && held.key(k) != 0 && !all_finite(gradients + at * width_, width_);
      skipped += skip_it;
      if (place == kNowhere) continue;
      Mark& mark = shard.rows.mark(place);
      --mark.pins;
      if (skip_it) continue;
      step(shard.rows.row(place), gradients + at * width_);
      count(shard.rows.row(place), shown.shows_of(at), shown.clicks_of(at));
      mark.dirty = 1;
      mark.version = version;
    }
    if (skipped) counters_.skipped += skipped;
  });
  last_.reset();
  return -1;
}

}  // namespace cb
