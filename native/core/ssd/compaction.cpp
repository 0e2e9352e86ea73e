// Compacts a Sparse Table: merges the runs of a shard, and rewrites files that hold few live runs.
//
// Merging. Threads in the background take shards that need it, one thread a shard. A shard needs it when it has
// kTrigger runs, or when its runs hold more than kMostVersions rows for each of its keys. Then runs of similar size are
// merged in the first case, and all of them in the second, so that the rows on disk are at most about
// kMostVersions times the keys.
//
// Files. A segment is deleted when no run lies in it and no checkpoint names it. When all files together, those that
// only the last checkpoint holds included, have more than kMostReplication times the bytes of the runs, the runs of the
// emptiest files are written anew. The next checkpoint then lets go of the old files.
//
// Keeping up. What the threads write in the background is limited in bytes per second. Calls that load rows wait
// while a shard has kMostRuns runs or the files have twice the bytes that are allowed, as long as the background makes
// progress. So the disk that a table takes is bounded whatever the load.
//
// Errors (a full disk, damage) have no caller: CompactionErrors counts them, and the table goes on with the runs it
// has. A shard whose compaction failed is tried again when it has twice as many runs, and after the next checkpoint.
#include <algorithm>
#include <chrono>
#include <map>
#include <system_error>
#include <tuple>

#include "core/ssd/sparse_table.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kTrigger = 6;                      // runs of a shard, from which on some are merged
constexpr size_t kMostRuns = 24;                    // runs of a shard, from which on loads wait
constexpr double kMostVersions = 2.0;               // rows on disk for each key
constexpr size_t kWorthMerging = size_t{64} << 10;  // bytes of a shard's runs; 4 MB of all shards
constexpr double kMostReplication = 2.5;            // bytes of all files over bytes of runs
constexpr double kSparse = 0.7;                     // part of a file in use below which its runs may be written anew
constexpr size_t kStep = size_t{1} << 20;           // bytes written between two looks at the limit

}  // namespace

// ---- which runs -----------------------------------------------------------------------------------------------

// The newest runs that should be merged; none where nothing is to be done.
SparseTable::Runs SparseTable::runs_to_merge(const Runs& runs) const {
  uint64_t all = 0, largest = 0, bytes = 0;
  for (const RunPtr& run : runs) {
    all += run->rows;
    bytes += run->bytes();
    largest = std::max(largest, run->rows);
  }
  // Keys are spread evenly over the shards, and a run has each of its keys once.
  const double keys = std::max(static_cast<double>(largest), static_cast<double>(count_.load()) / kShards);
  if (runs.size() > 1 && bytes > kWorthMerging && static_cast<double>(all) > kMostVersions * keys) return runs;
  if (runs.size() < kTrigger) return {};
  // From the newest on as long as the next is not larger than those before it together.
  Runs some;
  uint64_t sum = 0;
  for (const RunPtr& run : runs) {
    if (some.size() >= 2 && run->rows > sum) break;
    some.push_back(run);
    sum += run->rows;
  }
  return some;
}

// Under the shard's lock.
void SparseTable::set_runs(Shard& shard, std::shared_ptr<const Runs> runs) {
  crowded_shards_ += (runs->size() >= kMostRuns) - (shard.runs->size() >= kMostRuns);
  shard.runs = std::move(runs);
}

// Under the shard's lock.
void SparseTable::add_run(Shard& shard, RunPtr run) {
  disk_rows_ += run->rows;
  index_bytes_ += run->memory();
  auto runs = std::make_shared<Runs>();
  runs->reserve(shard.runs->size() + 1);
  runs->push_back(std::move(run));
  runs->insert(runs->end(), shard.runs->begin(), shard.runs->end());
  const bool wanted = runs->size() >= shard.retry_at && !runs_to_merge(*runs).empty();
  set_runs(shard, std::move(runs));
  if (wanted) ask_for_compaction(static_cast<unsigned>(&shard - shards_.get()));
}

void SparseTable::ask_for_compaction(unsigned shard) {
  std::lock_guard<std::mutex> hold(work_lock_);
  work_asked_.set(shard);
  work_wake_->notify_one();
}

// `old` stand side by side among the shard's runs; newer ones may have come before them.
void SparseTable::swap_runs(Shard& shard, const Runs& old, RunPtr merged) {
  auto runs = std::make_shared<Runs>();
  std::lock_guard<std::mutex> hold(shard.lock);
  for (const RunPtr& run : *shard.runs) {
    if (run == old.front() && merged) {
      disk_rows_ += merged->rows;
      index_bytes_ += merged->memory();
      runs->push_back(merged);
    }
    if (std::find(old.begin(), old.end(), run) == old.end()) {
      runs->push_back(run);
      continue;
    }
    disk_rows_ -= run->rows;
    index_bytes_ -= run->memory();
  }
  set_runs(shard, std::move(runs));
  shard.retry_at = 0;
}

// ---- merging --------------------------------------------------------------------------------------------------

// False: the table is being closed, and nothing was changed. `limited`: at the speed of the background.
bool SparseTable::merge(Shard& shard, const Runs& some, bool limited) {
  uint64_t most = 0, read = 0;
  for (const RunPtr& run : some) most += run->rows;
  std::shared_ptr<const Runs> all;
  {
    std::lock_guard<std::mutex> hold(shard.lock);
    all = shard.runs;
  }
  RunWriter writer(segments_, page_, most, bits_for(*all, some, most));
  const size_t rows_a_step = std::max<size_t>(1, kStep / page_.bytes * page_.room);
  size_t rows = 0;
  bool stopped = false;
  merge_runs(
      some, page_, &read, [&] { return stopped = stopped || stopping_; },
      [&](uint64_t mix, int64_t key, uint32_t stamp, const float* row) {
        writer.add(mix, key, stamp, row);
        if (limited && ++rows % rows_a_step == 0) stopped = !wait_for_bandwidth(kStep);
      });
  counters_.bytes_read += read;
  if (stopped) return false;
  RunPtr merged = writer.finish();
  if (merged) counters_.compacted_bytes += merged->bytes();
  ++counters_.compactions;
  swap_runs(shard, some, std::move(merged));
  return true;
}

// Merges what runs_to_merge names; `all`: everything. False: there was nothing to do.
bool SparseTable::compact_some(Shard& shard, bool all) {
  std::lock_guard<std::mutex> alone(shard.compacting);
  std::shared_ptr<const Runs> runs;
  {
    std::lock_guard<std::mutex> hold(shard.lock);
    runs = shard.runs;
  }
  const Runs some = all ? (runs->size() > 1 ? *runs : Runs{}) : runs_to_merge(*runs);
  return !some.empty() && merge(shard, some, !all);
}

// ---- files ----------------------------------------------------------------------------------------------------

// Where the files hold too much that is not in use, the runs of the emptiest one are written anew. False: there is no
// such file.
bool SparseTable::rewrite_sparse_segment(bool limited) {
  struct Inside {
    uint64_t live = 0;
    std::vector<std::pair<unsigned, RunPtr>> runs;
  };
  std::map<Segment*, Inside> segments;
  uint64_t used = 0;
  for (unsigned s = 0; s < kShards; ++s) {
    std::lock_guard<std::mutex> hold(shards_[s].lock);
    for (const RunPtr& run : *shards_[s].runs) {
      Inside& inside = segments[run->place.segment.get()];
      inside.live += run->bytes();
      inside.runs.emplace_back(s, run);
      used += run->bytes();
    }
  }
  const auto over = [&](double times) {
    return static_cast<double>(segments_.disk_bytes()) > times * kMostReplication * static_cast<double>(used);
  };
  disk_crowded_ = over(2) && used > 0;
  if (!over(1)) return false;
  // A file that no checkpoint names goes at once, any other with the next checkpoint: those come second.
  using Rank = std::tuple<bool, double, Segment*>;
  Rank emptiest{true, 1.0, nullptr};
  for (const auto& [segment, inside] : segments) {
    const double share =
        static_cast<double>(inside.live) / static_cast<double>(std::max<uint64_t>(1, segment->bytes()));
    if (share >= kSparse) continue;
    emptiest = std::min(emptiest, Rank{segments_.is_named(segment->id), share, segment});
  }
  Segment* const chosen = std::get<Segment*>(emptiest);
  if (!chosen) {
    disk_crowded_ = false;  // waiting would not help
    return false;
  }
  segments_.roll();  // or its runs could be written to where they are
  for (const auto& [s, run] : segments[chosen].runs) {
    std::lock_guard<std::mutex> alone(shards_[s].compacting);
    {
      std::lock_guard<std::mutex> hold(shards_[s].lock);
      const Runs& now = *shards_[s].runs;
      if (std::find(now.begin(), now.end(), run) == now.end()) continue;
    }
    if (!merge(shards_[s], {run}, limited)) return false;
  }
  return true;
}

// ---- in the background ----------------------------------------------------------------------------------------

// False: the table is being closed.
bool SparseTable::wait_for_bandwidth(uint64_t bytes) {
  const auto then = bandwidth_.pass(bytes, RateLimit::Clock::now());
  std::unique_lock<std::mutex> hold(work_lock_);
  return !stop_wake_->wait_until(hold, then, [&] { return stopping_.load(); });
}

// One of the threads in the background. Shards come before files: merging empties files by itself.
void SparseTable::work() {
  std::unique_lock<std::mutex> hold(work_lock_);
  for (;;) {
    work_wake_->wait(hold, [&] { return stopping_ || work_asked_.any() || (rewrite_asked_ && !rewriting_); });
    if (stopping_) return;
    ++working_;
    if (work_asked_.any()) {
      unsigned s = next_shard_;  // in turns, so that no shard waits for ever
      while (!work_asked_.test(s)) s = (s + 1) % kShards;
      next_shard_ = (s + 1) % kShards;
      work_asked_.reset(s);
      hold.unlock();
      const bool fine = guarded([&] {
        while (compact_some(shards_[s], false)) {
        }
      });
      if (!fine) {
        std::lock_guard<std::mutex> look_at(shards_[s].lock);
        shards_[s].retry_at = 2 * shards_[s].runs->size();
      }
      hold.lock();
      rewrite_asked_ = !rewrite_failed_;
    } else {
      rewriting_ = true;
      rewrite_asked_ = false;
      hold.unlock();
      bool more = false;
      const bool fine = guarded([&] { more = rewrite_sparse_segment(true); });
      hold.lock();
      rewriting_ = false;
      rewrite_failed_ = !fine;
      rewrite_asked_ = rewrite_asked_ || (more && fine);
      if (!fine) disk_crowded_ = false;
    }
    --working_;
    work_wake_->notify_one();  // for what was asked meanwhile
    work_done_->notify_all();
  }
}

// Counts what `job` throws; false where it threw.
template <class Job>
bool SparseTable::guarded(Job job) {
  try {
    job();
    return true;
  } catch (const std::system_error& error) {
    errors_.add("cannot read or write the files in " + segments_.folder() + ": " + error.code().message());
  } catch (const std::exception& error) {
    errors_.add(error.what());
  }
  return false;
}

CompactionErrors::News SparseTable::take_compaction_errors() {
  CompactionErrors::News news = errors_.take();
  for (unsigned s = 0; s < kShards; ++s) {
    bool wanted = false;
    {
      std::lock_guard<std::mutex> hold(shards_[s].lock);
      wanted = shards_[s].retry_at > 0;
      shards_[s].retry_at = 0;
    }
    if (wanted) ask_for_compaction(s);
  }
  std::lock_guard<std::mutex> hold(work_lock_);
  rewrite_failed_ = false;
  rewrite_asked_ = true;  // files that the checkpoint before held are gone: another look at those that are left
  work_wake_->notify_one();
  return news;
}

// Before rows are loaded: what they push to the disk must not grow faster than it is merged. Ends when nobody works in
// the background, or an error came: the call then goes on.
void SparseTable::wait_for_compaction() {
  if ((crowded_shards_ == 0 && !disk_crowded_) || compactors_.empty()) return;
  const uint64_t errors = errors_.count();
  const auto began = std::chrono::steady_clock::now();
  {
    std::unique_lock<std::mutex> hold(work_lock_);
    work_done_->wait(hold, [&] {
      const bool busy = working_ > 0 || work_asked_.any() || rewrite_asked_;
      return !busy || (crowded_shards_ == 0 && !disk_crowded_) || errors_.count() != errors;
    });
  }
  counters_.compaction_wait_us += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count());
}

void SparseTable::start_compactors() {
  if (options_.read_only) return;
  const size_t threads = std::clamp<size_t>(threads_ / 4, 1, 8);
  for (size_t t = 0; t < threads; ++t) compactors_.emplace_back([this] { work(); });
}

void SparseTable::stop_compactors() {
  {
    std::lock_guard<std::mutex> hold(work_lock_);
    stopping_ = true;
  }
  work_wake_->notify_all();
  stop_wake_->notify_all();
  for (std::thread& each : compactors_) each.join();
}

// A forked child has none of these threads, and must not wait for them.
void SparseTable::forget_compactors() {
  for (std::thread& each : compactors_) each.detach();
  (void)work_wake_.release();
  (void)work_done_.release();
  (void)stop_wake_.release();
}

// ---- asked for ------------------------------------------------------------------------------------------------

void SparseTable::compact() {
  parallel_for(threads_, kShards, [&](size_t s) { compact_some(shards_[s], true); });
  while (rewrite_sparse_segment(false)) {
  }
  errors_.clear();
}

}  // namespace cb
