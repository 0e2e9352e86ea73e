// Manages the files of a table: small runs are grouped into large files that are written sequentially.
//
//   a segment     one file, written once from front to back, then only read; blocks of kBlock bytes
//   its counter   bytes of runs in it that somebody still holds; the last holder's end deletes the file
//   named         segments that the last durable manifest names: held until the next one is durable
//
// After each sync() a new segment begins, so that a file somebody linked elsewhere never changes. Files that are not
// named when a table is opened are left-overs, and are removed.
//
// Files are opened with O_DIRECT where the file system has it: the page cache is memory that nobody budgeted.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace cb {

inline constexpr size_t kBlock = 4096;  // what an SSD reads at once

inline size_t whole_blocks(size_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

// Memory that O_DIRECT can use.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { reserve(bytes); }
  AlignedBuffer(AlignedBuffer&& o) noexcept { swap(o); }
  AlignedBuffer& operator=(AlignedBuffer&& o) noexcept {
    swap(o);
    return *this;
  }
  ~AlignedBuffer();

  char* data() const { return data_; }
  size_t size() const { return size_; }
  void reserve(size_t bytes);  // grows, and keeps what was there

 private:
  void swap(AlignedBuffer& o) {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
  }
  char* data_ = nullptr;
  size_t size_ = 0;
};

class Segment {
 public:
  Segment(std::string path, uint64_t id, bool create);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const uint64_t id;
  const std::string path;
  int file() const { return file_; }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  void write(const char* data, size_t bytes, uint64_t at) const;  // whole blocks
  void read(char* to, size_t bytes, uint64_t at) const;           // whole blocks; DamagedFile where the file is shorter
  void sync() const;

  std::atomic<uint64_t> live{0};  // bytes of runs that are held
  std::atomic<bool> keep{false};  // the file outlives this

 private:
  friend class Segments;
  int file_ = -1;
  const int process_;  // a forked child deletes nothing
  std::atomic<uint64_t> bytes_{0};
};

using SegmentPtr = std::shared_ptr<Segment>;

struct Place {
  SegmentPtr segment;
  uint64_t offset = 0;
};

class Segments {
 public:
  explicit Segments(std::string folder, size_t segment_bytes = size_t{64} << 20);
  ~Segments();

  // Whole blocks at the end of the current segment; `seal` is told segment and offset before they are written. Throws
  // std::system_error, and has then written nothing that counts.
  Place append(const char* data, size_t bytes, const std::function<void(uint64_t, uint64_t)>& seal);
  // A segment of its own for much that comes piece by piece: write() it from its first byte on, tell what was written,
  // and when that is all.
  SegmentPtr begin_own();
  void wrote(const SegmentPtr& own, uint64_t bytes);
  void wrote_all(const SegmentPtr& segment);

  void roll();                                         // what is appended from now on goes to a new segment
  void sync();                                         // all that was appended so far is on the disk
  void hold(const std::vector<SegmentPtr>& segments);  // a manifest is about to name these beside those named now
  void name(std::vector<SegmentPtr> segments);         // a durable manifest names these, and no others
  SegmentPtr open(uint64_t id, uint64_t bytes);        // one that a manifest names; DamagedFile where it is shorter
  void remove_others();                                // files of segments that are not open
  void next_id_is(uint64_t id);
  uint64_t next_id() const;
  const std::string& folder() const { return folder_; }

  uint64_t disk_bytes() const;  // of all segments that are open
  bool is_named(uint64_t id) const;
  uint64_t bytes_held_by_name_alone() const;  // of segments in which no run lies that is in use
  std::atomic<uint64_t> written{0};

  std::string path_of(uint64_t id) const;

 private:
  SegmentPtr make();

  const std::string folder_;
  const size_t segment_bytes_;
  mutable std::mutex mutex_;
  uint64_t next_ = 1;
  SegmentPtr current_;
  std::vector<std::weak_ptr<Segment>> unsynced_;
  std::map<uint64_t, SegmentPtr> named_;
  mutable std::map<uint64_t, std::weak_ptr<Segment>> all_;
};

void sync_folder(const std::string& path);

}  // namespace cb
