// The state behind history columns: for each key a bounded ring of earlier events, and running totals of them.
//
// The state knows nothing of batches or of Python: feed(event) and read(key, time) are all. Reading a log
// (core/history/read_then_feed.h) calls read and then feed for each row. The online loop can feed the same state from
// its stream, a server can read it for a request, and a checkpoint can hold it (core/history/state_file.h): equal
// sequences of calls give equal bits.
//
// Threads: a key belongs to one of kPastShards shards, chosen by its bits alone. Shards share nothing but the texts,
// whose numbers are given before shards run, so threads may work on different shards at once and their number changes
// no result. Whoever reads and feeds at the same time holds a lock for each shard.
//
// Memory: bytes() counts rings, keys, slots and texts. Without spill_to() the state sets no limit; whoever feeds it
// compares bytes() with a budget. A key holds at most `last` events that every later read may see, those of the last
// gap + lateness + back, and, where there is a longest age, only events of that age and one before them.
//
// Failure: a row whose time lies more than `lateness` before the newest time is not taken (late()); running out of
// memory leaves a state that must be thrown away.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/history/state_shard.h"
#include "core/history/text_pool.h"

namespace cb {

inline constexpr unsigned kPastShards = 16;

class HistoryState {
 public:
  explicit HistoryState(PastShape shape);
  HistoryState(HistoryState&&) = default;
  HistoryState& operator=(HistoryState&&) = default;

  static unsigned shard_of(uint64_t key) { return static_cast<unsigned>(finish(key) >> 60); }

  const PastShape& shape() const { return shape_; }
  PastShard& shard(unsigned k) { return shards_[k]; }
  const PastShard& shard(unsigned k) const { return shards_[k]; }
  TextPool& texts() { return texts_; }
  const TextPool& texts() const { return texts_; }

  void feed(uint64_t key, int64_t time, const uint64_t* values) {
    reach(time);
    shards_[shard_of(key)].feed(key, time, values);
  }
  PastSeen read(uint64_t key, int64_t time) { return shards_[shard_of(key)].read(key, time); }

  // The newest time that was reached; none before the first.
  std::optional<int64_t> newest() const { return newest_; }
  void reach(int64_t time) {
    if (!newest_ || time > *newest_) newest_ = time;
  }

  // The first of some rows that comes too late, or -1; the others are reached up to that row. valid: null means all.
  int64_t late(const int64_t* times, const uint8_t* valid, size_t rows);

  // Forgets texts that no event holds, where their number has doubled since the last time. If the disk fails while the
  // numbers of texts change, some events have the old numbers and some the new ones: nothing is read any more.
  void forget_texts();
  void check_texts() const;  // DamagedFile after such a failure

  // From now on, events are moved to files in a folder where the state would take more than `budget` bytes of memory.
  // Keys, slots and texts stay in memory, about 50 bytes a key; what they leave of the budget is divided among the
  // shards. std::system_error if no file can be made there.
  void spill_to(const std::string& folder, size_t budget);
  bool spills() const { return budget_ > 0; }
  const std::string& spill_folder() const { return folder_; }
  size_t spill_budget() const { return budget_; }
  int spill_error() const;         // of the last write that failed, else 0
  void try_disk_again();           // after such a failure
  uint64_t spilled_bytes() const;  // of the files
  void share_room();               // gives each shard its part of what texts leave of the budget

  size_t keys() const;
  uint64_t events() const;
  size_t bytes() const;

 private:
  PastShape shape_;
  std::vector<PastShard> shards_;
  TextPool texts_;
  std::optional<int64_t> newest_;
  size_t texts_kept_ = 4096;
  bool texts_mixed_ = false;
  std::string folder_;
  size_t budget_ = 0;  // 0: nothing is moved to a disk
};

}  // namespace cb
