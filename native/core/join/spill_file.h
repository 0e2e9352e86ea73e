// The files of a joined view on a disk: what the writer (spill_writer.h) and the view (spilled_view.h, which describes
// the format) share, such as descriptors, checksums, and records in the form of the file.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "core/join/view_rows.h"
#include "core/system/checked_file.h"

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

namespace spill {

constexpr size_t kBlockHead = 16;  // checksum, entries, bytes

inline void write_at(int file, const char* data, size_t bytes, uint64_t at) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(file, data, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno();
    if (n == 0) throw std::system_error(ENOSPC, std::generic_category());
    data += n;
    bytes -= static_cast<size_t>(n);
    at += static_cast<uint64_t>(n);
  }
}

// False if the file ends before.
inline bool read_at(int file, char* to, size_t bytes, uint64_t at) {
  while (bytes > 0) {
    const ssize_t n = ::pread(file, to, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno();
    if (n == 0) return false;
    to += n;
    bytes -= static_cast<size_t>(n);
    at += static_cast<uint64_t>(n);
  }
  return true;
}

// Whether the file is from now on read and written past the page cache.
inline bool past_the_cache(int file, bool on) {
#if defined(O_DIRECT)
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
#else
  (void)file, (void)on;
  return false;
#endif
}

inline uint64_t sum_of(uint64_t seed, const char* data, size_t bytes) {
  Checksum sum(seed);
  sum.add(data, bytes);
  return sum.value();
}

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void append(std::vector<char>& to, const T& value) {
  const char* p = reinterpret_cast<const char*>(&value);
  to.insert(to.end(), p, p + sizeof value);
}

inline size_t aligned(size_t n) { return (n + 7) / 8 * 8; }

// Bytes of an entry in the head of its block.
inline size_t entry_bytes(bool as_of) { return as_of ? 24 : 16; }
inline size_t fence_bytes(bool as_of) { return as_of ? 20 : 12; }

[[noreturn]] inline void too_long() { throw std::length_error("a row of a joined view has 4 GiB or more"); }

}  // namespace spill

}  // namespace cb
