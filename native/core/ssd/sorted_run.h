// A run: rows of one shard, sorted by the mix of their keys, in pages of a segment. Written once, then only read.
//
//   page   8 checksum of what follows, seeded by segment and place;  4 rows n;  4 zero;
//          m × 8 keys, m × 4 stamps, m rows, of which the first n count; m is the page's room
//   stamp  28 bits: the version of the row's last change; 4 bits above them: what the policy thought of the row
//   footer 8 checksum of what follows, seeded likewise; fences (the 32 bits of the mix below the shard's, of each
//   page's
//          first key), filter words, zeros to the end of its last block
//
// Where a key would be: the last page whose fence is not above the key's. Keys with equal bits stand on one page
// wherever they fit on one; a run of more of them (`straddles`) is searched over all pages that may hold them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/ssd/bloom_filter.h"
#include "core/ssd/segment_files.h"

namespace cb {

// Rows as a page has them.
struct PageShape {
  explicit PageShape(size_t row_floats_)
      : row_floats(row_floats_),
        bytes(whole_blocks(kHead + 12 + row_floats_ * 4)),
        room((bytes - kHead) / (12 + row_floats_ * 4)) {}
  static constexpr size_t kHead = 16;

  const size_t row_floats, bytes, room;

  const int64_t* keys(const char* page) const { return reinterpret_cast<const int64_t*>(page + kHead); }
  const uint32_t* stamps(const char* page) const { return reinterpret_cast<const uint32_t*>(page + kHead + 8 * room); }
  const float* row(const char* page, size_t k) const {
    return reinterpret_cast<const float*>(page + kHead + 12 * room) + k * row_floats;
  }
  static uint32_t rows(const char* page) { return *reinterpret_cast<const uint32_t*>(page + 8); }
};

inline constexpr uint32_t kMostVersion = (1u << 28) - 1;
inline uint32_t stamp_of(uint32_t version, uint8_t worth) { return version | uint32_t{worth} << 28; }
inline uint32_t version_of(uint32_t stamp) { return stamp & kMostVersion; }
inline uint8_t worth_of(uint32_t stamp) { return static_cast<uint8_t>(stamp >> 28); }

// What pages are ordered by; the shard's bits above it are the same in all of a run.
inline uint32_t fence_of(uint64_t mix) { return static_cast<uint32_t>(mix << kShardBits >> 32); }

struct RowRun {
  ~RowRun();

  Place place;
  uint32_t pages = 0;
  uint64_t rows = 0;
  uint64_t footer_bytes = 0;
  uint32_t newest = 0;  // version of the row changed last
  bool straddles = false;
  std::vector<uint32_t> fences;
  BlockedFilter filter;
  size_t page_bytes = 0;

  uint64_t bytes() const { return uint64_t{pages} * page_bytes + footer_bytes; }
  size_t memory() const { return fences.capacity() * 4 + filter.bytes() + sizeof *this; }
  // The first and last page that may hold a key of this mix; first > last: none does.
  std::pair<uint32_t, uint32_t> pages_of(uint64_t mix) const;
  uint64_t offset_of(uint32_t page) const { return place.offset + uint64_t{page} * page_bytes; }
};

using RunPtr = std::shared_ptr<const RowRun>;

// Throws DamagedFile, naming file and place, where a page is not as it was written.
void check_page(const RowRun& run, uint32_t page, const char* bytes, const PageShape& shape);
// The same of a run's footer, a megabyte at a time.
void check_footer(const RowRun& run);
// The row of a key on a page, or -1.
int find_on(const char* page, const PageShape& shape, int64_t key);

// What a manifest keeps of a run; reads its fences and its filter back.
struct RunFacts {
  uint64_t segment, offset, rows, footer_bytes;
  uint32_t pages, newest, hashes, straddles;
  uint64_t fence_words;  // 64-bit words of fences; the filter follows them
  uint64_t filter_words;
};
RunFacts facts_of(const RowRun& run);
RunPtr open_run(Segments& segments, const RunFacts& facts, const PageShape& shape);

// Takes rows in the order of their mixes and makes a run of them: in memory, or where it is large in a segment of its
// own.
class RunWriter {
 public:
  // `bits`: of the filter, a key.
  RunWriter(Segments& segments, const PageShape& shape, size_t most_rows, double bits);
  ~RunWriter();
  void add(uint64_t mix, int64_t key, uint32_t stamp, const float* row);
  RunPtr finish();  // nullptr where no row came

 private:
  void close_page(uint32_t rows);
  void begin_page(uint64_t mix);
  void drain();

  Segments& segments_;
  const PageShape& shape_;
  const double bits_;
  AlignedBuffer buffer_;
  size_t used_ = 0;     // bytes of the buffer that are whole pages
  uint32_t count_ = 0;  // rows of the page being filled
  uint64_t drained_ = 0;
  SegmentPtr own_;
  bool own_allowed_, collects_ = true;
  std::vector<uint64_t> mixes_, here_;  // of all rows, of the page being filled
  BlockedFilter filter_;
  uint64_t rows_ = 0;
  std::vector<uint32_t> fences_;
  uint32_t pages_ = 0, newest_ = 0;
  bool straddles_ = false;
};

// The rows of a run in order, a stretch of pages at a time, each page checked.
class RunReader {
 public:
  RunReader(RunPtr run, const PageShape& shape, size_t buffer_bytes = size_t{256} << 10, uint32_t first_page = 0);
  bool valid() const { return row_ < count_; }
  void next();
  uint64_t mix() const { return mix_; }
  int64_t key() const { return shape_.keys(page_)[row_]; }
  uint32_t stamp() const { return shape_.stamps(page_)[row_]; }
  const float* row() const { return shape_.row(page_, row_); }
  uint64_t bytes_read() const { return read_; }

 private:
  void load();

  RunPtr run_;
  const PageShape& shape_;
  AlignedBuffer buffer_;
  uint32_t next_page_ = 0, held_first_ = 0, held_end_ = 0;
  const char* page_ = nullptr;
  uint32_t row_ = 0, count_ = 0;
  uint64_t mix_ = 0, read_ = 0;
};

// Runs of one shard, newest first, as one: of a key in several the newest row. visit(mix, key, stamp, row) in order
// of mixes; `stop` ends it early.
void merge_runs(const std::vector<RunPtr>& runs, const PageShape& shape, uint64_t* bytes_read,
                const std::function<bool()>& stop,
                const std::function<void(uint64_t, int64_t, uint32_t, const float*)>& visit);

}  // namespace cb
