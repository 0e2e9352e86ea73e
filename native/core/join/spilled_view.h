// A joined view that lies on a local disk: the records of a view that does not fit into its memory budget.
//
// How it comes about. The engine loads the view part by part into Records, as it does for a view in memory. When those
// reach the budget, SpillWriter::add_run() sorts them by key and appends them to a first file as a *run*; the memory is
// then free for the next run. When the view has ended, SpillWriter::merge() merges the runs into a second file, the
// view's own, and finish() returns a SpilledView that looks up keys in it. Memory while writing: one run, 64 KiB a run
// while merging, 4 MiB for writing. Disk while writing: up to twice the size of the records.
//
//   runs file     entries in blocks of about 64 KiB, sorted by (key hash, time, row) within a run
//     block       u64 checksum of what follows; u32 bytes of entries, u32 their number; the entries
//     entry       u64 hash; i64 time (0 unless as-of); u64 row of the source; u64 bytes of the record; the record
//
//   view's file   pages of 4,096 bytes
//     page 0      "ctrbjoin"; u32 version 1; u32 1 if as-of; u64 rows; u64 blocks; u64 checksum of these; zeros
//     block       one page, or more for one larger record; sorted by (hash, time), also among each other:
//                 u64 checksum of what follows up to the end of the last page, seeded by the number of the first page;
//                 u32 entries n; u32 bytes in use; n × u64 hash; only if as-of n × i64 time; n × {u32 at, u32 bytes};
//                 the records, each at a multiple of 8
//     record      as in core/join/view_rows.h, except that a list of strings is {u32 at, u32 n} in the record as other
//                 lists are: there lie n × u32 lengths, then the bytes of the strings
//
// In memory are the *fences*, hash (and time) of the first entry of every block and the page it begins at, which tell
// the only block that can hold a key; and a cache of the records that were read last (core/join/recently_read.h). Both
// come out of the budget. Beyond it are 4 MiB of read buffers a thread, and the rows of the chunk at hand.
//
// A look-up takes the keys of a chunk (1,024 rows). It sorts them, takes what the cache has, reads the blocks of the
// others in the order of the file with up to 64 reads in flight (core/ssd/block_reader.h), and copies each record
// once into the chunk's pool. A row is known by the address of that copy; it is valid until the pool is reset, so a
// stage of a plan never hands it to the next one. Missing and null keys give the address of the null row.
//
// Threads. SpillWriter: one. SpilledView: any number; each takes a Reading (reader and buffers) from a free list, the
// cache has a lock for each of its 64 shards, everything else is constant. The rows do not depend on the budget, the
// runs, the cache or the threads.
//
// Files are given by descriptors that the caller opened without a name, so that the system removes them, whatever ends
// the process. The view's file is read past the page cache where the file system can do that (O_DIRECT).
//
// Failures. While writing: a disk that is full is std::system_error, a run that is not as it was written DamagedFile,
// fences that would take more than half of the budget IndexTooLarge. While looking up: SpilledViewError, which names
// the view, for a block that is not as it was written and for whatever the system refuses.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/join/hash_index.h"
#include "core/join/recently_read.h"
#include "core/join/spill_file.h"
#include "core/ssd/block_reader.h"
#include "core/ssd/segment_files.h"

namespace cb {

struct SpilledViewError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class SpilledView {
 public:
  struct Fences {
    std::vector<uint64_t> hashes;
    std::vector<int64_t> times;   // only if as-of
    std::vector<uint32_t> pages;  // where blocks begin, and the end of the last one
    size_t bytes() const { return hashes.capacity() * 8 + times.capacity() * 8 + pages.capacity() * 4; }
  };
  struct Counts {
    uint64_t looked = 0;  // distinct keys of chunks
    uint64_t cached = 0;  // those that the cache had
    uint64_t read = 0;    // blocks that were read
  };

  // name: what errors call it.
  SpilledView(std::string name, SpillShape shape, OwnedFile file, Fences fences, uint64_t rows, uint64_t record_bytes,
              std::vector<char> null_record, uint64_t budget);

  // For each row the address of its record, which lies in `pool`, or null_row(). `valid` and `times` may be null.
  // Returns how many rows that have a key (and a time) have a record.
  uint32_t look_up(uint32_t rows, const uint64_t* hashes, const int64_t* times, const uint8_t* const valid[2],
                   Bump& pool, int64_t* out) const;

  const SpillShape& shape() const { return shape_; }
  int64_t null_row() const { return reinterpret_cast<int64_t>(null_row_); }
  uint64_t rows() const { return rows_; }
  uint64_t file_bytes() const { return uint64_t{fences_.pages.back()} * kBlock; }
  uint64_t memory_bytes() const { return fences_.bytes() + recent_.bytes() + null_pool_.capacity(); }
  Counts counts() const;

 private:
  struct Wanted {
    EntryKey key;
    uint32_t row;
  };
  // The buffers with which one thread reads; they are kept for the next call.
  struct Reading {
    BlockReader reader{64};
    AlignedBuffer buffer;
    std::vector<Wanted> wanted;
    std::vector<BlockRead> blocks;
    Counts counts;
  };
  // Keys that lie in one block, if anywhere: wanted[begin … end).
  struct Group {
    uint32_t block, begin, end;
  };

  std::unique_ptr<Reading> take_reading() const;
  void give_back(std::unique_ptr<Reading> reading) const;
  size_t block_of(const EntryKey& key) const;  // or kNoBlock
  uint32_t block_bytes(size_t block) const {
    return (fences_.pages[block + 1] - fences_.pages[block]) * static_cast<uint32_t>(kBlock);
  }
  void check_block(size_t block, const char* bytes) const;
  // The record of a key in a block, as an empty span if it has none.
  std::span<const char> find_in(size_t block, const char* bytes, const EntryKey& key) const;
  void read_groups(Reading& reading, std::span<const Group> groups, Bump& pool, std::vector<const char*>& found) const;
  void take_from(size_t block, const char* bytes, Reading& reading, const Group& group, Bump& pool, bool fresh,
                 std::vector<const char*>& found) const;

  static constexpr size_t kNoBlock = SIZE_MAX;

  const std::string name_;
  const SpillShape shape_;
  const OwnedFile file_;
  const Fences fences_;
  const uint64_t rows_;
  Bump null_pool_;
  const char* null_row_;
  mutable Recent recent_;  // records by hash; if as-of, blocks by number
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Reading>> idle_;
  mutable Counts counts_;
};

}  // namespace cb
