// Writes a joined view to a disk: sorted runs first, which are then merged into the file of a SpilledView.
//
// spilled_view.h describes both files, the memory and the failures.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/join/spilled_view.h"

namespace cb {

// The fences of so many bytes of records do not fit into half of the budget.
struct IndexTooLarge : std::runtime_error {
  // The message is a budget, in bytes, that would do for what was written so far.
  explicit IndexTooLarge(uint64_t budget) : std::runtime_error(std::to_string(budget)) {}
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
