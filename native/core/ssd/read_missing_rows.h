// Rows that a call misses in memory, read from the runs of their shards. A shard is looked through while pages of the
// shards before it are on their way, so the disk and the core work at the same time, and the queue of the disk stays
// full from one shard to the next.
//
//   look(shard, missing)   adds the keys of the shard that are not in memory; gives the runs as they are then
//   found(key, stamp, row) a row came
//   absent(key)            no run has the key
//
// Each page is read once for all keys of a shard that it may hold, in the order of the file; a key that a filter took
// for another's is looked for in the next older run, alone. All calls on the thread that reads; one object a call.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/ssd/block_reader.h"
#include "core/ssd/sorted_run.h"

namespace cb {

// A reader and the memory that pages come to, for one thread at a time.
struct PageReading {
  explicit PageReading(size_t page_bytes);
  BlockReader reader;
  const size_t pages;
  AlignedBuffer buffer;
};

class Fetch final : public BlockSource {
 public:
  using Runs = std::vector<RunPtr>;  // newest first
  struct Key {
    int64_t key;
    uint64_t mix;
    uint32_t place;  // in the call
    uint16_t shard = 0;
    uint16_t run = 0;
    uint32_t page = 0, last_page = 0;
  };
  using Look = std::function<std::shared_ptr<const Runs>(unsigned shard, std::vector<Key>& missing)>;
  using Found = std::function<void(const Key& key, uint32_t stamp, const float* row)>;
  using Absent = std::function<void(const Key& key)>;

  // Of the shards first ... end-1.
  Fetch(const PageShape& shape, unsigned first, unsigned end, Look look, Found found, Absent absent);

  // Looks through shards until a page is needed; false: all are done.
  bool needs_pages();
  void read(PageReading& reading);
  uint64_t reads() const { return reads_; }
  uint64_t false_positives() const { return false_positives_; }

  bool next(BlockRead& block) override;
  bool prepare() override;
  void done(uint64_t tag) override;

 private:
  struct Some {  // of keys_: those that one page may hold
    uint32_t begin, end;
  };
  bool aim(Key& key, size_t from) const;
  void look_through(unsigned shard);

  const PageShape& shape_;
  char* buffer_ = nullptr;
  unsigned next_shard_;
  const unsigned end_;
  const Look look_;
  const Found found_;
  const Absent absent_;

  std::array<std::shared_ptr<const Runs>, kShards> runs_;
  std::vector<Key> keys_;
  std::vector<Some> at_hand_;  // from first_ on
  size_t first_ = 0;
  std::vector<uint32_t> free_;  // pages of the buffer
  std::vector<Some> coming_;    // by page of the buffer
  uint64_t reads_ = 0, false_positives_ = 0;
};

}  // namespace cb
