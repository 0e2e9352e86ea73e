// Maintains the Sparse Table outside of pull and push: memory, checkpoints and full scans.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>
#include <system_error>

#include "core/ssd/damaged_files.h"
#include "core/ssd/sparse_table.h"
#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr double kIndexFill = 0.9;  // of the filters' share, before merged runs let go of what they replace
constexpr size_t kBatches = 8;      // of the largest so far, whose rows must still fit
constexpr uint32_t kNarrower = 64;  // a part of a shard's places that is worth giving up at once

}  // namespace

// ---- runs -----------------------------------------------------------------------------------------------------

double SparseTable::fences(double rows) const { return rows / static_cast<double>(page_.room) * 4 * 1.1; }

// Bytes that the filters and fences of so many rows on disk should have.
double SparseTable::index_budget(double rows) const {
  const double wanted = (rows * options_.filter_bits / 8 + fences(rows)) / kIndexFill;
  const double ram = static_cast<double>(options_.ram);
  return std::clamp(wanted, ram * kLeastIndex, ram * kMostIndex);
}

uint32_t SparseTable::places_within(size_t bytes) const {
  return static_cast<uint32_t>(
      std::min<size_t>((bytes - std::min(bytes, life_->bytes())) / place_bytes_ / kShards, kMostPlaces));
}

// Gives up places whose memory the filters of what is on disk by now need, before `need` more rows would take it. Under
// the shard's lock; rows that are pinned stay.
void SparseTable::narrow(Shard& shard, size_t need) {
  Resident& rows = shard.rows;
  const double index = index_budget(static_cast<double>(disk_rows_.load()));
  const uint32_t places = places_within(static_cast<size_t>(static_cast<double>(options_.ram) - index));
  if (rows.places() + need <= places || places + rows.capacity() / kNarrower >= rows.capacity()) return;
  if (places < std::max<size_t>(kLeastPlaces, kBatches * shard.most_asked)) return;
  write_cut(shard);
  std::vector<uint32_t> above, dirty;
  for (uint32_t place = places; place < rows.places(); ++place) {
    const Mark& mark = rows.mark(place);
    if (mark.key == 0 || mark.pins > 0) continue;
    above.push_back(place);
    if (mark.dirty) dirty.push_back(place);
  }
  if (RunPtr run = written(shard, dirty)) add_run(shard, std::move(run));
  for (uint32_t place : above) {
    rows.policy->remove(place);
    rows.erase(place);
  }
  counters_.evicted += above.size();
  places_ -= rows.capacity() - places;
  rows.narrow(places);
}

// Of a table that is opened, and whose filters need what they needed before.
void SparseTable::narrow_for(uint64_t index_bytes) {
  const double ram = static_cast<double>(options_.ram);
  const double index = std::min(static_cast<double>(index_bytes) / kIndexFill, ram * kMostIndex);
  if (index <= ram * kLeastIndex) return;
  const uint32_t places = std::max(kLeastPlaces, places_within(static_cast<size_t>(ram - index)));
  for (unsigned s = 0; s < kShards; ++s) {
    if (places >= shards_[s].rows.capacity()) continue;
    places_ -= shards_[s].rows.capacity() - places;
    shards_[s].rows.narrow(places);
  }
}

// Bits a key for the filter of a run of so many rows. A key that is nowhere asks the filters of all runs, so what
// counts is the sum of their errors: least, within the same memory, where a run's error is as its share of the rows
// (Dayan et al., Monkey, 2017). A filter's error falls to 0.618 of it by a bit: a run of half the size has 1.44 bits
// more.
double SparseTable::bits_for(const Runs& runs, const Runs& replaced, size_t rows) const {
  constexpr double kBitsToHalve = 1.44;
  constexpr double kMostBits = 16;  // beyond it a blocked filter gains little
  double all = static_cast<double>(disk_rows_.load() + rows);
  for (const RunPtr& run : replaced) all -= static_cast<double>(run->rows);
  // Slots, and what the policy keeps, stay where places were given up.
  const size_t stays = place_bytes_ - sizeof(Mark) - row_floats_ * sizeof(float);
  const size_t taken = places_ * place_bytes_ + (places_at_start_ - places_) * stays + life_->bytes();
  const double left = static_cast<double>(options_.ram) - static_cast<double>(taken);
  const double bytes = std::min(index_budget(all), left) * kIndexFill - fences(all);
  const double mean = std::min(options_.filter_bits, bytes * 8 / std::max(1.0, all));
  std::vector<double> sizes{std::max(1.0, static_cast<double>(rows))};
  for (const RunPtr& run : runs)
    if (std::find(replaced.begin(), replaced.end(), run) == replaced.end())
      sizes.push_back(static_cast<double>(run->rows));
  double sum = 0, entropy = 0;
  for (double size : sizes) sum += size;
  for (double size : sizes) entropy += size / sum * std::log2(sum / size);
  const double bits = mean + kBitsToHalve * (std::log2(sum / sizes.front()) - entropy);
  return bits < 2 ? 0 : std::min(kMostBits, bits);
}

void SparseTable::flush() {
  std::lock_guard<std::mutex> hold(calls_);
  std::lock_guard<std::mutex> hold_loads(loading_);
  let_go();
  wait_for_compaction();
  parallel_for(threads_, kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold_shard(shard.lock);
    write_cut(shard);
    Resident& rows = shard.rows;
    std::vector<uint32_t> places, dirty;
    for (uint32_t place = 0; place < rows.places(); ++place)
      if (rows.mark(place).key != 0 && rows.mark(place).pins == 0) {
        places.push_back(place);
        if (rows.mark(place).dirty) dirty.push_back(place);
      }
    if (RunPtr run = written(shard, dirty)) add_run(shard, std::move(run));
    for (uint32_t place : places) {
      rows.policy->remove(place);
      rows.erase(place);
    }
    counters_.evicted += places.size();
  });
}

// The batch whose push has not come.
void SparseTable::let_go() {
  if (last_) release(*last_);
  last_.reset();
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

// The manifest of what the table is now. Loads and pushes wait for the cut alone; then a shard's dirty rows are written
// by this thread, or by the first call that would change one of them.
Manifest SparseTable::checkpoint_to_runs(std::vector<SegmentPtr>& named) {
  Manifest manifest;
  {
    std::lock_guard<std::mutex> hold(calls_);
    std::lock_guard<std::mutex> hold_loads(loading_);
    if (number_ + 2 > kMostVersion)
      throw std::length_error("the table has had more than 268 million checkpoints; save it to a new folder");
    if (!shape_.life.none()) manifest.life = std::make_shared<LifeState>(*life_);
    manifest.shape = shape_;
    manifest.generation = generation_;
    manifest.keys = count_;
    manifest.number = ++number_;
    cutting_ = true;
    for (unsigned s = 0; s < kShards; ++s) {
      std::lock_guard<std::mutex> hold_shard(shards_[s].lock);
      shards_[s].cut = true;
    }
  }
  std::array<std::shared_ptr<const Runs>, kShards> runs;
  try {
    parallel_for(threads_, kShards, [&](size_t s) {
      std::lock_guard<std::mutex> hold(shards_[s].lock);
      write_cut(shards_[s]);
      runs[s] = std::move(shards_[s].cut_runs);
    });
  } catch (...) {
    for (unsigned s = 0; s < kShards; ++s) {
      std::lock_guard<std::mutex> hold(shards_[s].lock);
      shards_[s].cut = false;
      shards_[s].cut_runs.reset();
    }
    cutting_ = false;
    throw;
  }
  cutting_ = false;
  for (unsigned s = 0; s < kShards; ++s)
    for (const RunPtr& run : *runs[s]) {
      manifest.runs[s].push_back(facts_of(*run));
      named.push_back(run->place.segment);
    }
  return manifest;
}

// Before a call changes rows: a full disk stops it here, with nothing changed.
void SparseTable::write_cuts(const Held& held) {
  if (!cutting_) return;
  parallel_for(threads_, kShards, [&](size_t s) {
    if (held.bounds[s] == held.bounds[s + 1]) return;
    std::lock_guard<std::mutex> hold(shards_[s].lock);
    write_cut(shards_[s]);
  });
}

// Under the shard's lock, before anything of it changes: rows that the checkpoint under way has to hold.
void SparseTable::write_cut(Shard& shard) {
  if (!shard.cut) return;
  Resident& rows = shard.rows;
  const uint32_t last = static_cast<uint32_t>(number_.load());
  std::vector<uint32_t> dirty;
  for (uint32_t place = 0; place < rows.places(); ++place) {
    const Mark& mark = rows.mark(place);
    if (mark.key != 0 && mark.dirty && mark.version <= last) dirty.push_back(place);
  }
  if (RunPtr run = written(shard, dirty)) add_run(shard, std::move(run));
  for (uint32_t place : dirty) rows.mark(place).dirty = 0;
  shard.cut_runs = shard.runs;
  shard.cut = false;
}

uint64_t SparseTable::checkpoint() {
  std::lock_guard<std::mutex> alone(checkpointing_);
  std::vector<SegmentPtr> named;  // holds the segments until the manifest names them
  Manifest manifest = checkpoint_to_runs(named);
  segments_.sync();
  manifest.next_segment = segments_.next_id();
  segments_.hold(named);  // whatever of the next step fails, both manifests keep their files
  write_manifest(folder_, manifest);
  segments_.name(std::move(named));
  durable_.store(manifest.number);
  return manifest.number;
}

void SparseTable::save(const std::string& folder) {
  std::lock_guard<std::mutex> alone(checkpointing_);
  std::vector<SegmentPtr> named;
  Manifest manifest = checkpoint_to_runs(named);
  segments_.sync();
  manifest.next_segment = segments_.next_id();
  segments_.hold(named);
  write_manifest(folder_, manifest);
  segments_.name(named);
  durable_.store(manifest.number);
  manifest.generation = 0;
  const std::string there = segments_folder(folder, 0);
  if (::mkdir(there.c_str(), 0777) != 0) throw_errno();
  std::set<uint64_t> done;
  for (const SegmentPtr& segment : named) {
    if (!done.insert(segment->id).second) continue;
    const std::string path = there + segment->path.substr(segment->path.rfind('/'));
    if (::link(segment->path.c_str(), path.c_str()) == 0) continue;
    if (errno != EXDEV && errno != EPERM && errno != EMLINK && errno != ENOTSUP) throw_errno();
    Segment copy(path, segment->id, true);
    copy.keep.store(true);
    AlignedBuffer buffer(size_t{1} << 20);
    const uint64_t size = whole_blocks(segment->bytes());
    for (uint64_t at = 0; at < size; at += buffer.size()) {
      const size_t part = static_cast<size_t>(std::min<uint64_t>(buffer.size(), size - at));
      segment->read(buffer.data(), part, at);
      copy.write(buffer.data(), part, at);
    }
    copy.sync();
  }
  sync_folder(there);
  write_manifest(folder, manifest);
}

// ---- everything -----------------------------------------------------------------------------------------------

std::vector<std::string> SparseTable::verify() {
  std::vector<std::string> found;
  std::mutex found_lock;
  const auto tell = [&](const std::string& what) {
    std::lock_guard<std::mutex> hold(found_lock);
    found.push_back(what);
  };
  parallel_for(threads_, kShards, [&](size_t s) {
    std::shared_ptr<const Runs> runs;
    {
      std::lock_guard<std::mutex> hold(shards_[s].lock);
      runs = shards_[s].runs;
    }
    for (const RunPtr& run : *runs) check_run(*run, static_cast<unsigned>(s), page_, tell);
  });
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace cb
