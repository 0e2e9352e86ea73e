#include "core/sparse/sparse_table.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/checked_file.h"
#include "core/parallel.h"

namespace cb {

namespace {

constexpr size_t kFewKeys = 2048;              // below it, waking threads costs more than it gives
constexpr size_t kMostPrefetched = 4;          // batches between prefetch and pull that stay pinned
constexpr size_t kAhead = 8;                   // keys between asking for a slot and probing it
constexpr double kRowShare = 1 - kLeastIndex;  // of the budget for rows, until filters need more
constexpr size_t kLeastRun = 512;              // rows that leave at once: a write of fewer takes as long

size_t place_bytes(const TableShape& shape, const std::string& policy) {
  const uint32_t sample = 4096;
  const size_t of_policy = (make_policy(policy, sample)->bytes() + sample - 1) / sample;
  return shape.floats() * 4 + sizeof(Mark) + 4 + 2 + of_policy + 1;  // a slot, a third of one free, a freed place
}

// Shards that one thread looks through and reads: at the end of each such group its queue of the disk runs dry, so
// there are no more of them than threads need to end together.
unsigned group_of(size_t threads) {
  unsigned group = kShards;
  while (threads > 1 && group > 4 && group * threads * 2 > kShards) group /= 2;
  return group;
}

}  // namespace

// ---- begin and end --------------------------------------------------------------------------------------------

size_t SparseTable::least_ram(const TableShape& shape, const std::string& policy) {
  return static_cast<size_t>(static_cast<double>(kShards * kLeastPlaces * place_bytes(shape, policy)) / kRowShare) +
         (shape.life.by_count() ? shape.life.sketch_bytes * 5 / 4 : 0) + 8192;
}

SparseTable::SparseTable(std::string folder, const TableShape& shape, const SparseOptions& options)
    : folder_(std::move(folder)),
      shape_(shape),
      options_(options),
      width_(shape.width()),
      row_floats_(shape.floats()),
      threads_(options.threads ? options.threads : usable_cores()),
      page_(shape.floats()),
      fresh_(shape),
      place_bytes_(place_bytes(shape, options.policy)),
      generation_(has_manifest(folder_) ? read_manifest(folder_).generation : 0),
      segments_(segments_folder(folder_, generation_), options.segment_bytes),
      shards_(new Shard[kShards]),
      life_(std::make_unique<LifeState>(shape.life, shape.seed)),
      process_(::getpid()) {
  if (width_ == 0 || shape.dim > kMostDim) throw std::invalid_argument("a row has 1 to 4,097 values");
  const uint32_t capacity = places_within(static_cast<size_t>(static_cast<double>(options.ram) * kRowShare));
  if (capacity < kLeastPlaces) throw TableFull("the budget holds fewer than 1,024 rows");
  places_ = places_at_start_ = uint64_t{capacity} * kShards;
  const size_t slots = slots_for(capacity);
  slots_memory_ = HugeBlock(slots * kShards * sizeof(uint32_t));
  marks_memory_ = HugeBlock(size_t{capacity} * kShards * sizeof(Mark));
  rows_memory_ = HugeBlock(size_t{capacity} * kShards * row_floats_ * sizeof(float));
  for (unsigned s = 0; s < kShards; ++s)
    shards_[s].rows.begin(capacity, row_floats_, reinterpret_cast<uint32_t*>(slots_memory_.data()) + s * slots,
                          reinterpret_cast<Mark*>(marks_memory_.data()) + size_t{s} * capacity,
                          reinterpret_cast<float*>(rows_memory_.data()) + size_t{s} * capacity * row_floats_,
                          make_policy(options.policy, capacity));
  if (has_manifest(folder_)) open(read_manifest(folder_));
  narrow_for(index_bytes_);
  if (!options.read_only) segments_.remove_others();
  worker_ = std::thread([this] { work(); });
}

SparseTable::~SparseTable() {
  if (::getpid() != process_) {  // a forked child has no such thread, and nothing to tidy
    worker_.detach();
    (void)work_wake_.release();  // would wait for the parent's thread
    return;
  }
  {
    std::lock_guard<std::mutex> hold(work_lock_);
    stopping_ = true;
  }
  work_wake_->notify_all();
  worker_.join();
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
    shards_[s].runs = std::move(runs);
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
  if (keys.size() >= UINT32_MAX) throw std::length_error("more than 4,294,967,294 keys in one call");
  auto held = std::make_unique<Held>();
  held->keys.assign(keys.begin(), keys.end());
  held->places.assign(keys.size(), kNowhere);
  unsigned before = 0;
  bool grouped = true;
  for (int64_t key : keys) {
    const unsigned shard = shard_of(key);
    grouped = grouped && shard >= before;
    before = shard;
    ++held->bounds[shard + 1];
  }
  for (unsigned s = 0; s < kShards; ++s) held->bounds[s + 1] += held->bounds[s];
  if (grouped) return held;
  held->order.resize(keys.size());
  std::array<size_t, kShards> next{};
  std::copy_n(held->bounds.begin(), kShards, next.begin());
  for (size_t k = 0; k < keys.size(); ++k) held->order[next[shard_of(keys[k])]++] = static_cast<uint32_t>(k);
  return held;
}

void SparseTable::release(Held& held) {
  for (unsigned s = 0; s < kShards; ++s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    for (size_t k = held.bounds[s]; k < held.bounds[s + 1]; ++k) {
      const uint32_t place = held.places[held.at(k)];
      if (place != kNowhere) --shard.rows.mark(place).pins;
    }
  }
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
  auto held = held_for(keys);
  held->next_use = next_use;
  foreseen_ += next_use || (batch && foreseen_ > 0);
  try {
    const size_t threads = threads_for(keys.size());
    const unsigned group = group_of(threads);
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
      if (k + kAhead < stop) rows.prefetch(mix_of(held.keys[held.at(k + kAhead)]));
      const size_t at = held.at(k);
      const int64_t key = held.keys[at];
      if (key == 0) continue;
      ++asked;
      const uint64_t mix = mix_of(key);
      const uint32_t place = rows.find(key, mix);
      if (place == kNowhere) {
        missing.push_back({key, mix, static_cast<uint32_t>(at)});
        continue;
      }
      rows.policy->hit(place);
      if (next_use) rows.policy->due(place, next_use[at]);
      ++rows.mark(place).pins;
      held.places[at] = place;
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
    counters_.asked += asked;
    counters_.hits += asked - missed;
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
        ++counters_.misses;
      } else {
        fresh_.row(key.key, shard.rows.row(place), life_->clock.load(std::memory_order_relaxed));
        mark.version = stamp;
        mark.dirty = 1;
        ++count_;
        ++counters_.fresh;
      }
    }
    if (next_use) shard.rows.policy->due(place, next_use[key.place]);
    ++shard.rows.mark(place).pins;
    held.places[key.place] = place;
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
    if (places.empty()) throw TableFull("its rows in memory are all in use by batches that are under way");
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
  if (next_use && next_use->size() != keys.size()) throw std::invalid_argument("next uses are not one a key");
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
    if ((*it)->keys.size() != keys.size() || !std::equal(keys.begin(), keys.end(), (*it)->keys.begin())) continue;
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
  std::vector<uint32_t> at;
  for (size_t k = 0; k < held.keys.size(); ++k)
    if (held.places[k] == kNowhere && held.keys[k] != 0) at.push_back(static_cast<uint32_t>(k));
  hold_too(held, at, false);
}

// Load more of a batch's keys, into it.
void SparseTable::hold_too(Held& held, const std::vector<uint32_t>& at, bool create) {
  if (at.empty()) return;
  std::vector<int64_t> keys;
  keys.reserve(at.size());
  for (uint32_t k : at) keys.push_back(held.keys[k]);
  const auto more = load_now(keys, create, false);  // its pins are the batch's from here on
  for (size_t k = 0; k < at.size(); ++k) held.places[at[k]] = more->places[k];
}

// The first `floats` of every row.
void SparseTable::gather(const Held& held, float* out, size_t floats) const {
  parallel_for(threads_for(held.keys.size()), kShards, [&](size_t s) {
    const Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    const size_t end = held.bounds[s + 1];
    for (size_t k = held.bounds[s]; k < end; ++k) {
      if (k + kAhead < end && held.places[held.at(k + kAhead)] != kNowhere)
        __builtin_prefetch(shard.rows.row(held.places[held.at(k + kAhead)]));
      const size_t at = held.at(k);
      float* to = out + at * floats;
      if (held.places[at] != kNowhere)
        std::memcpy(to, shard.rows.row(held.places[at]), floats * sizeof(float));
      else if (held.keys[at] != 0)
        fresh_.values(held.keys[at], to);  // not admitted yet
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
    for (size_t k = held->bounds[s]; k < held->bounds[s + 1]; ++k) {
      const size_t at = held->at(k);
      const int64_t key = keys[at];
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
  const bool same =
      last_ && last_->keys.size() == keys.size() && std::equal(keys.begin(), keys.end(), last_->keys.begin());
  if (!same) {
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
    for (size_t k = held.bounds[s]; k < end; ++k) {
      if (k + kAhead < end && held.places[held.at(k + kAhead)] != kNowhere) {
        __builtin_prefetch(shard.rows.row(held.places[held.at(k + kAhead)]));
        __builtin_prefetch(&shard.rows.mark(held.places[held.at(k + kAhead)]));
      }
      const size_t at = held.at(k);
      const uint32_t place = held.places[at];
      const bool skipped = bad >= 0 && keys[at] != 0 && !all_finite(gradients + at * width_, width_);
      counters_.skipped += skipped;
      if (place == kNowhere) continue;
      Mark& mark = shard.rows.mark(place);
      --mark.pins;
      if (skipped) continue;
      step(shard.rows.row(place), gradients + at * width_);
      count(shard.rows.row(place), shown.shows_of(at), shown.clicks_of(at));
      mark.dirty = 1;
      mark.version = version;
    }
  });
  last_.reset();
  return -1;
}

}  // namespace cb
