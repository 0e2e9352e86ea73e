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
//     record      as in core/join/records.h, except that a list of strings is {u32 at, u32 n} in the record as other
//                 lists are: there lie n × u32 lengths, then the bytes of the strings
//
// In memory are the *fences*, hash (and time) of the first entry of every block and the page it begins at, which tell
// the only block that can hold a key; and a cache of the records that were read last (core/join/recent.h). Both come
// out of the budget. Beyond it are 4 MiB of read buffers a thread, and the rows of the chunk at hand.
//
// A look-up takes the keys of a chunk (1,024 rows). It sorts them, takes what the cache has, reads the blocks of the
// others in the order of the file with up to 64 reads in flight (core/sparse/block_reader.h), and copies each record
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
#include <utility>
#include <vector>

#include "core/join/hash_index.h"
#include "core/join/recent.h"
#include "core/join/records.h"
#include "core/sparse/block_reader.h"
#include "core/sparse/segments.h"

namespace cb {

// A descriptor of its own.
class OwnedFile {
 public:
  explicit OwnedFile(int borrowed);  // duplicates it
  OwnedFile(OwnedFile&& o) noexcept : file_(std::exchange(o.file_, -1)) {}
  OwnedFile& operator=(OwnedFile&&) = delete;
  ~OwnedFile();
  int number() const { return file_; }

 private:
  int file_;
};

// The fences of so many bytes of records do not fit into half of the budget.
struct IndexTooLarge : std::runtime_error {
  // The message is a budget, in bytes, that would do for what was written so far.
  explicit IndexTooLarge(uint64_t budget) : std::runtime_error(std::to_string(budget)) {}
};

struct SpilledViewError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Key and time of an entry; time is 0 unless the join is as-of.
struct EntryKey {
  uint64_t hash;
  int64_t time;
  auto operator<=>(const EntryKey&) const = default;
};

struct SpillShape {
  std::vector<RecordField> fields;  // with their offsets, as Records has them
  uint32_t fixed_bytes;
  bool as_of;

  // Appends the record that begins at `block` and has `bytes` bytes to `out` in the form of the file.
  void put(const char* block, size_t bytes, std::vector<char>& out) const;
  // Copies a record of the file into a pool in the form of Records, and returns where it lies. Throws DamagedFile if it
  // has fewer bytes than its fields say.
  const char* get(const char* record, size_t bytes, Bump& pool) const;
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

class SpillWriter {
 public:
  // `records` gives the fields. Both files are empty and open for reading and writing.
  SpillWriter(int runs_file, int view_file, const Records& records, bool as_of, bool keep_last, uint64_t budget);

  // Sorts the rows of `records` and writes them. rows: their numbers in the source, ascending from run to run. Throws
  // IndexTooLarge, std::system_error.
  void add_run(const Records& records, std::span<const uint64_t> hashes, std::span<const int64_t> times,
               std::span<const uint64_t> rows, size_t threads);

  // Merges up to `entries` more entries; false: all are merged. After the first call no run may be added.
  bool merge(size_t entries);

  // The rows of the source with a key (and time) that occurred before: the least such row, and the first with its key.
  // -1 and -1 if there are none, or if the last one counts.
  HashIndex::Duplicate duplicate() const { return duplicate_; }
  uint64_t runs_bytes() const { return runs_end_; }

  // The view, after merge() returned false. null_row: records whose last row is the one for missing keys.
  std::shared_ptr<SpilledView> finish(std::string name, const Records& null_row);

 private:
  struct Entry {
    EntryKey key;
    uint64_t row;
    const char* record;
    uint64_t bytes;
  };
  struct Run {
    uint64_t at, end;           // what is still to be read of the runs file
    std::vector<char> block{};  // entries at hand
    size_t next = 0;            // byte of the entry after `entry`
    Entry entry{};
  };

  void close_run_block();
  bool advance(Run& run);
  void take(const Entry& entry);
  void put_held();
  void close_block();
  void drain();
  void check_fences(uint64_t record_bytes, uint64_t rows) const;

  SpillShape shape_;
  OwnedFile runs_, file_;
  const bool keep_last_;
  const uint64_t budget_;
  HashIndex::Duplicate duplicate_;

  // ---- runs
  std::vector<char> run_block_;
  uint32_t run_entries_ = 0;
  uint64_t runs_end_ = 0;
  std::vector<Run> all_;
  uint64_t spilled_rows_ = 0, spilled_bytes_ = 0;

  // ---- merging
  bool merging_ = false, merged_ = false;
  std::vector<size_t> heap_;  // runs by their entry at hand, the least on top
  bool held_ = false;         // an entry waits, because a later one of the same key may count instead
  EntryKey held_key_{};
  uint64_t held_row_ = 0;
  std::vector<char> held_record_;
  std::vector<EntryKey> keys_;  // of the block being filled
  std::vector<std::pair<uint32_t, uint32_t>> places_;
  std::vector<char> block_;  // its records
  SpilledView::Fences fences_;
  AlignedBuffer out_;
  size_t out_used_ = 0;
  uint64_t out_at_ = 0;  // of out_ in the file
  uint64_t rows_ = 0, record_bytes_ = 0;
};

}  // namespace cb
