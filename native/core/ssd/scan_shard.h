// Scans one shard, some rows at a time, in the order of their mixes (SparseTable::scan_next).
//
// Between two steps rows may be changed, evicted and merged: each row is given as it is when its turn comes, and each
// key that is in the table all the time is given once. Keys that come during the scan may be given or not. A scan holds
// the keys that were resident when it began (16 bytes each), a buffer for each run, and nothing of the rows.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ssd/read_missing_rows.h"
#include "core/ssd/sorted_run.h"

namespace cb {

struct Scan {
  Scan(unsigned shard_, uint64_t since_) : shard(shard_), since(since_) {}
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  const unsigned shard;
  const uint64_t since;  // rows changed after this checkpoint

  struct Here {
    uint64_t mix;
    int64_t key;
  };
  bool begun = false;
  std::vector<Here> here;  // resident keys, in the order of mixes
  size_t next = 0;
  uint64_t after = 0;  // mix of the last row; mixes are never 0 but for key 0
  std::shared_ptr<const Fetch::Runs> runs;
  std::vector<std::unique_ptr<RunReader>> readers;  // newest first
};

}  // namespace cb
