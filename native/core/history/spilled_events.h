// Events of keys that did not occur for a while, on a local disk, for a shard whose events need more than its budget.
//
// Layout: a file of cells of 64 bytes. The events of a key lie in a block of a power of two of cells: their 64-bit
// words, oldest event first, and a checksum that begins with the block's place and the number of the write. Whoever
// reads the block gives both, so that what an earlier write left there is refused, whichever key it is of. Freed blocks
// are used again, those of each size by themselves, so the file has at most the size of all events that were ever on
// the disk at once, rounded up.
//
// The file has no name: the system removes it when the process ends, even if it is killed. No other process ever reads
// it; only a saved state outlives the process (core/history/state_file.h). Failures: std::system_error; DamagedFile if
// the words are not those that were written. Only one thread may use it at a time.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "core/system/checked_file.h"
#include "operators/hash.h"

namespace cb {

// Where a block lies, and the number of the write that filled it, which begins again at 0 after 2^32 writes.
struct SpillPlace {
  uint32_t cell = 0, write = 0;
};

class PastSpill {
 public:
  explicit PastSpill(const std::string& folder) {
    std::string name = folder + "/.past-XXXXXX";
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) throw std::system_error(errno, std::generic_category());
    ::unlink(name.c_str());
  }
  PastSpill(const PastSpill&) = delete;
  PastSpill& operator=(const PastSpill&) = delete;
  ~PastSpill() { ::close(file_); }

  // Writes words and returns their place. Nothing changes if it fails.
  SpillPlace put(const uint64_t* words, size_t count) {
    const unsigned size = size_of(count);
    std::vector<uint32_t>& free = free_[size];
    const uint64_t cell = free.empty() ? cells_ : free.back();
    if (cell + (uint64_t{1} << size) > UINT32_MAX) throw std::system_error(EFBIG, std::generic_category());
    const SpillPlace place = write(static_cast<uint32_t>(cell), words, count);
    if (free.empty())
      cells_ += uint64_t{1} << size;
    else
      free.pop_back();
    return place;
  }

  // Replaces the words of a block by as many others, and returns its place from now on.
  SpillPlace write(uint32_t cell, const uint64_t* words, size_t count) {
    const SpillPlace place{cell, ++writes_};
    buffer_.assign(words, words + count);
    buffer_.push_back(checksum(place, words, count));
    move(cell, [&](char* at, size_t bytes, off_t where) { return ::pwrite(file_, at, bytes, where); });
    return place;
  }

  void get(SpillPlace place, uint64_t* words, size_t count) {
    buffer_.resize(count + 1);
    move(place.cell, [&](char* at, size_t bytes, off_t where) { return ::pread(file_, at, bytes, where); });
    std::memcpy(words, buffer_.data(), count * sizeof(uint64_t));
    if (buffer_.back() != checksum(place, words, count))
      throw DamagedFile("events of the past that lay on the disk are not those that were written");
  }

  void free(SpillPlace place, size_t count) { free_[size_of(count)].push_back(place.cell); }

  // Tells the system that these words will be read soon.
  void will_need(SpillPlace place, size_t count) const {
    ::posix_fadvise(file_, static_cast<off_t>(place.cell) * kCell, static_cast<off_t>((count + 1) * sizeof(uint64_t)),
                    POSIX_FADV_WILLNEED);
  }

  uint64_t file_bytes() const { return cells_ * kCell; }

 private:
  static constexpr unsigned kCell = 64;

  static unsigned size_of(size_t count) {
    const size_t cells = ((count + 1) * sizeof(uint64_t) + kCell - 1) / kCell;
    return static_cast<unsigned>(std::bit_width(cells - 1));
  }
  static uint64_t checksum(SpillPlace place, const uint64_t* words, size_t count) {
    uint64_t sum = finish((uint64_t{place.write} << 32 | place.cell) ^ 0x9e3779b97f4a7c15ull);
    for (size_t k = 0; k < count; ++k) sum = fold(sum, words[k]);
    return sum;
  }

  template <class F>
  void move(uint32_t cell, F&& call) {
    char* at = reinterpret_cast<char*>(buffer_.data());
    size_t bytes = buffer_.size() * sizeof(uint64_t);
    off_t where = static_cast<off_t>(cell) * kCell;
    while (bytes > 0) {
      const ssize_t moved = call(at, bytes, where);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0) throw std::system_error(errno, std::generic_category());
      if (moved == 0) throw DamagedFile("a file of past events ends too early");
      at += moved;
      where += moved;
      bytes -= static_cast<size_t>(moved);
    }
  }

  int file_;
  uint64_t cells_ = 0;
  uint32_t writes_ = 0;
  std::array<std::vector<uint32_t>, 33> free_;  // places of free blocks by the logarithm of their size
  std::vector<uint64_t> buffer_;
};

}  // namespace cb
