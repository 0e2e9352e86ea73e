// The embedder that keeps its rows on an SSD and frequently used ones in memory (docs/how_it_works/sparse_tables.md).
//
// Who may call what at once: prefetch, pull, push, checkpoint and stats from any threads; pushes and pulls that create
// take turns (calls_), loads of missing rows take turns (loading_), a shard's rows and slots are touched under its
// lock. Locks are taken in the order calls_, loading_, a shard's. Only loads insert and evict; so what a load does not
// find resident stays not resident until it inserts it, and a shard's room cannot shrink while it reads.
#pragma once
#include <array>
#include <atomic>
#include <bitset>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/embed/memory_table.h"
#include "core/embed/table_file.h"
#include "core/embed/table_row.h"
#include "core/ssd/checkpoint_manifest.h"
#include "core/ssd/compaction_errors.h"
#include "core/ssd/keys_by_shard.h"
#include "core/ssd/memory_allocated_on_first_use.h"
#include "core/ssd/memory_budget.h"
#include "core/ssd/rate_limit.h"
#include "core/ssd/read_missing_rows.h"
#include "core/ssd/rows_in_memory.h"
#include "core/ssd/scan_shard.h"
#include "core/ssd/segment_files.h"
#include "core/ssd/sorted_run.h"

namespace cb {

struct SparseOptions {
  size_t ram = size_t{2} << 30;
  size_t threads = 0;  // 0: every core this process may use
  std::string policy = "default";
  size_t segment_bytes = size_t{64} << 20;
  double filter_bits = 10;
  double compaction_bytes_per_s = 512e6;  // that the background may write; 0: no limit
  bool read_only = false;                 // no file is written or removed
};

struct Scanned {
  std::vector<int64_t> keys;
  std::vector<uint32_t> versions;
  std::vector<float> rows;  // (keys, shape.floats())
};

class SparseTable {
 public:
  // Opens what the folder's MANIFEST names, or begins an empty table in a folder that has none; the folder exists.
  SparseTable(std::string folder, const TableShape& shape, const SparseOptions& options);
  ~SparseTable();

  // Next uses, where they are given: for each key in how many batches it is asked for again, 1 ... 127, and 0 where
  // nobody knows. Batches are counted by calls that load all keys of one, from the first that gave next uses on.
  using NextUse = std::optional<std::span<const uint8_t>>;
  void prefetch(std::span<const int64_t> keys, NextUse next_use = {});
  void pull(std::span<const int64_t> keys, float* out, bool create);
  // -1, or the place in `gradients` of the first number that is not finite. `factor` scales the learning rates.
  // With `skip` keys with such numbers are left as they are, and counted.
  int64_t push(std::span<const int64_t> keys, const float* gradients, double factor, const Shown& shown = {},
               bool skip = false);

  // ---- how rows come and go (row_lifetime.h)
  void advance(uint64_t periods);
  uint64_t clock() const { return life_->clock.load(); }
  void join_life(const LifeState& part, bool first);  // see LifeState::join
  size_t expire(const Expiry& rule);                  // how many rows went; every shard is one run then
  // The last `shape.counters()` floats of rows; of keys that are not there 0, 0, -1.
  void counters(std::span<const int64_t> keys, float* out);

  // Whole rows, (keys, shape.floats()): values, then states. Reading creates what is not there, and pins nothing.
  void read(std::span<const int64_t> keys, float* out);
  // `known`: keys that were read before and have not expired; what lies on disk of them is not looked at.
  void write(std::span<const int64_t> keys, const float* rows, bool known);
  void write_known(std::span<const int64_t> keys, const float* rows);

  uint64_t checkpoint();                 // its number
  void save(const std::string& folder);  // a checkpoint elsewhere: a manifest, and links to the segments it names
  void flush();                          // all rows that nobody has pinned leave memory
  void compact();                        // every shard is one run
  std::vector<std::string> verify();
  Scanned scan_next(Scan& scan);  // the next rows of a scan; none at its end

  const TableShape& shape() const { return shape_; }
  size_t size() const { return count_.load(std::memory_order_relaxed); }
  size_t memory() const;
  uint64_t number() const { return durable_.load(); }  // of the last checkpoint that is on the disk
  std::map<std::string, uint64_t> stats() const;
  std::string last_compaction_error() const { return errors_.last(); }
  // Errors since the last call, which comes after a checkpoint; what failed is tried again from now on.
  CompactionErrors::News take_compaction_errors();

 private:
  using Runs = Fetch::Runs;  // a new vector for every change
  struct alignas(64) Shard {
    mutable std::mutex lock;
    Resident rows;
    size_t most_asked = 0;  // keys of one load
    std::shared_ptr<const Runs> runs = std::make_shared<Runs>();
    std::mutex compacting;
    size_t retry_at = 0;  // runs from which on a compaction that failed is tried again
    bool cut = false;     // a checkpoint has begun, and rows it has to hold are not written yet
    std::shared_ptr<const Runs> cut_runs;
  };
  using Held = BatchKeys;

  std::unique_ptr<Held> held_for(std::span<const int64_t> keys) const;
  std::unique_ptr<Held> load(std::span<const int64_t> keys, bool create, bool batch, NextUse next_use = {});
  std::unique_ptr<Held> load_now(std::span<const int64_t> keys, bool create, bool batch = true);
  void load_shards(unsigned first, unsigned end, Held& held, bool create);
  void find_again(Held& held);
  void admit(Held& held, const float* gradients, const Shown& shown, bool some_bad);
  void hold_too(Held& held, const std::vector<uint32_t>& at, bool create);
  void let_go();
  void release(Held& held);
  std::unique_ptr<Held> take_prefetched(std::span<const int64_t> keys);
  void make_room(Shard& shard, size_t need);
  void narrow(Shard& shard, size_t need);
  void narrow_for(uint64_t index_bytes);
  uint32_t places_within(size_t bytes) const;
  double index_budget(double rows) const;
  double fences(double rows) const;
  void gather(const Held& held, float* out, size_t floats) const;
  template <class PlaceOf>
  void put_rows(std::span<const int64_t> keys, const float* rows, const Held& held, PlaceOf place_of);
  void look(std::span<const int64_t> keys, float* out, size_t first, size_t floats);
  void fetch(unsigned first, unsigned end, const Fetch::Look& look, const Fetch::Found& found,
             const Fetch::Absent& absent);
  std::unique_ptr<PageReading> take_reading();
  void give_reading(std::unique_ptr<PageReading> reading);

  RunPtr written(Shard& shard, std::vector<uint32_t>& places);  // dirty rows as a new run
  void write_cut(Shard& shard);
  void write_cuts(const Held& held);
  size_t expire_shard(Shard& shard, const Expiry& rule);

  // ---- compaction.cpp
  Runs runs_to_merge(const Runs& runs) const;
  void set_runs(Shard& shard, std::shared_ptr<const Runs> runs);
  void add_run(Shard& shard, RunPtr run);
  void swap_runs(Shard& shard, const Runs& old, RunPtr merged);
  bool merge(Shard& shard, const Runs& some, bool limited);
  bool compact_some(Shard& shard, bool all);
  bool rewrite_sparse_segment(bool limited);
  void ask_for_compaction(unsigned shard);
  bool wait_for_bandwidth(uint64_t bytes);
  void wait_for_compaction();
  void work();
  template <class Job>
  bool guarded(Job job);
  void start_compactors();
  void stop_compactors();
  void forget_compactors();

  double bits_for(const Runs& runs, const Runs& replaced, size_t rows) const;
  void open(const Manifest& manifest);
  Manifest checkpoint_to_runs(std::vector<SegmentPtr>& named);
  size_t threads_for(size_t keys) const;

  const std::string folder_;
  const TableShape shape_;
  const SparseOptions options_;
  const size_t width_, row_floats_, threads_;
  const PageShape page_;
  const NewRows fresh_;
  const size_t place_bytes_;  // of memory, for a row

  const uint64_t generation_;
  Segments segments_;
  LazyBlock slots_memory_, marks_memory_, rows_memory_;
  std::unique_ptr<Shard[]> shards_;
  std::unique_ptr<LifeState> life_;
  std::atomic<uint64_t> count_{0}, number_{0}, durable_{0};
  const int process_;
  std::atomic<uint64_t> disk_rows_{0}, index_bytes_{0};
  uint64_t places_at_start_ = 0;
  std::atomic<uint64_t> places_{0};  // of all shards

  std::mutex calls_, loading_, checkpointing_;
  std::atomic<bool> reads_{true};  // whether the last load needed the disk
  uint64_t foreseen_ = 0;          // batches since the first of which next uses are known; under loading_
  std::atomic<bool> cutting_{false};
  std::unique_ptr<Held> last_;
  std::mutex prefetched_lock_;
  std::deque<std::unique_ptr<Held>> prefetched_;
  std::mutex readings_lock_;
  std::vector<std::unique_ptr<PageReading>> readings_;

  struct Counters {
    std::atomic<uint64_t> asked{0}, hits{0}, fresh{0}, misses{0}, false_positives{0}, reads{0}, bytes_read{0},
        crowded{0}, evicted{0}, skipped{0}, not_admitted{0}, expired{0}, flushes{0}, compactions{0}, compacted_bytes{0},
        compaction_wait_us{0};
  };
  Counters counters_;

  CompactionErrors errors_;
  RateLimit bandwidth_;
  std::atomic<int> crowded_shards_{0};     // shards with so many runs that loads wait
  std::atomic<bool> disk_crowded_{false};  // files have so many bytes that loads wait
  std::mutex work_lock_;                   // of what follows; may be taken under a shard's lock, not the other way
  std::bitset<kShards> work_asked_;        // shards whose runs should be merged
  unsigned next_shard_ = 0;                // whose turn it is
  bool rewrite_asked_ = false, rewriting_ = false, rewrite_failed_ = false;
  size_t working_ = 0;  // threads at work
  std::atomic<bool> stopping_{false};
  std::unique_ptr<std::condition_variable> work_wake_ = std::make_unique<std::condition_variable>(),
                                           work_done_ = std::make_unique<std::condition_variable>(),
                                           stop_wake_ = std::make_unique<std::condition_variable>();
  std::vector<std::thread> compactors_;
};

}  // namespace cb
