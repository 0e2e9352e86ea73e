// Reads and writes files that detect damage: bytes in blocks, each sealed by a 64-bit checksum.
//
// The checksum of a block starts from the one of the block before, so blocks cannot change places. Every step of it is
// a bijection of the word it takes, so a block with one changed word never has the same checksum; other damage passes
// with probability 2^-64. Little-endian machines only.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "operators/hash.h"

namespace cb {

static_assert(std::endian::native == std::endian::little);

// The file is not what was written; the message says what was met and where.
struct DamagedFile : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws what the last call of the system reported.
[[noreturn]] inline void throw_errno() { throw std::system_error(errno, std::generic_category()); }

// Opens an existing regular file. A FIFO would be waited for until somebody writes into it, and a device may never end:
// the file is opened without waiting, and anything that is not a regular file is DamagedFile. O_NONBLOCK does nothing
// to regular files.
inline int open_regular(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK);
  const std::string other = "it is a folder, a pipe, a socket or a device; expected a regular file";
  if (file < 0) {
    if (errno == ENXIO) throw DamagedFile(other);  // a socket
    throw_errno();
  }
  struct stat facts;
  const int failed = ::fstat(file, &facts) != 0 ? errno : 0;
  if (failed == 0 && S_ISREG(facts.st_mode)) return file;
  ::close(file);
  if (failed != 0) throw std::system_error(failed, std::generic_category());
  throw DamagedFile(other);
}

// Whether a checksum fits. A fuzzer may take all of them for true, so that what lies behind them is tried as well, and
// its small files must not fit into one buffer; no other build has that switch.
#ifdef CTRBOX_FUZZ
inline bool every_seal_fits = false;
inline bool seal_fits(uint64_t met, uint64_t expected) { return met == expected || every_seal_fits; }
inline constexpr size_t kFileBuffer = size_t{1} << 10;
#else
inline bool seal_fits(uint64_t met, uint64_t expected) { return met == expected; }
inline constexpr size_t kFileBuffer = size_t{1} << 20;
#endif

class Checksum {
 public:
  explicit Checksum(uint64_t seed = 0) { restart(seed); }

  void restart(uint64_t seed) {
    for (unsigned k = 0; k < 4; ++k) lane_[k] = finish(seed + k + 1);
    held_ = 0;
    total_ = 0;
  }

  void add(const void* data, size_t size) {
    if (size == 0) return;  // data may be nullptr then
    const char* p = static_cast<const char*>(data);
    total_ += size;
    if (held_ > 0) {
      size_t part = size < 32 - held_ ? size : 32 - held_;
      std::memcpy(carry_ + held_, p, part);
      held_ += part;
      p += part;
      size -= part;
      if (held_ < 32) return;
      stripe(lane_, carry_);
      held_ = 0;
    }
    uint64_t lane[4];  // in registers: what p points to could be this object's, for all the compiler knows
    std::copy_n(lane_, 4, lane);
    for (; size >= 32; p += 32, size -= 32) stripe(lane, p);
    std::copy_n(lane, 4, lane_);
    std::memcpy(carry_, p, size);
    held_ = size;
  }

  uint64_t value() const {
    Checksum rest = *this;
    std::memset(rest.carry_ + rest.held_, 0, 32 - rest.held_);
    stripe(rest.lane_, rest.carry_);
    uint64_t out = finish(rest.total_ + 1);
    for (uint64_t lane : rest.lane_) out = finish(out ^ lane);
    return out;
  }

 private:
  static void stripe(uint64_t (&lane)[4], const char* p) {
    for (uint64_t& one : lane) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      p += 8;
      one = std::rotl(one ^ (word * 0x9e3779b97f4a7c15ull), 29) * 0xbf58476d1ce4e5b9ull;
    }
  }

  uint64_t lane_[4];
  char carry_[32];
  size_t held_ = 0;
  uint64_t total_ = 0;
};

class CheckedWriter {
 public:
  // `append`: behind what the file holds already, as one of several parts of it.
  explicit CheckedWriter(const std::string& path, bool append = false) : buffer_(new char[kFileBuffer]) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_CLOEXEC, 0666);
    if (file_ < 0) throw_errno();
  }
  CheckedWriter(const CheckedWriter&) = delete;
  CheckedWriter& operator=(const CheckedWriter&) = delete;
  ~CheckedWriter() {
    if (file_ >= 0) ::close(file_);
  }

  void put(const void* data, size_t size) {
    sum_.add(data, size);
    plain(data, size);
  }
  template <class T>
  void put(const T& value) {
    put(&value, sizeof value);
  }

  // The end of a block.
  void seal() {
    uint64_t sum = sum_.value();
    plain(&sum, sizeof sum);
    sum_.restart(sum);
  }

  void close() {
    flush();
    int file = file_;
    file_ = -1;
    if (::close(file) != 0) throw_errno();
  }

 private:
  void plain(const void* data, size_t size) {
    const char* p = static_cast<const char*>(data);
    while (size > 0) {
      if (held_ == kFileBuffer) flush();
      size_t part = size < kFileBuffer - held_ ? size : kFileBuffer - held_;
      std::memcpy(buffer_.get() + held_, p, part);
      held_ += part;
      p += part;
      size -= part;
    }
  }

  void flush() {
    for (size_t done = 0; done < held_;) {
      ssize_t n = ::write(file_, buffer_.get() + done, held_ - done);
      if (n < 0 && errno != EINTR) throw_errno();
      if (n > 0) done += static_cast<size_t>(n);
    }
    held_ = 0;
  }

  int file_ = -1;
  std::unique_ptr<char[]> buffer_;  // not a vector: nobody reads its zeros
  size_t held_ = 0;
  Checksum sum_;
};

class CheckedReader {
 public:
  // `begin`: the byte of the file where the part to be read begins.
  explicit CheckedReader(const std::string& path, uint64_t begin = 0) {
    file_ = open_regular(path, O_RDONLY);
    struct stat facts;
    if (::fstat(file_, &facts) != 0) {
      int reason = errno;
      ::close(file_);
      throw std::system_error(reason, std::generic_category());
    }
    size_ = static_cast<uint64_t>(facts.st_size);
    if (begin > size_ || ::lseek(file_, static_cast<off_t>(begin), SEEK_SET) < 0) {
      ::close(file_);
      throw DamagedFile("it ends at byte " + std::to_string(size_) + ", before its part at byte " +
                        std::to_string(begin));
    }
    left_ = size_ - begin;
    buffer_.resize(size_ < kFileBuffer ? size_ : kFileBuffer);
  }
  CheckedReader(const CheckedReader&) = delete;
  CheckedReader& operator=(const CheckedReader&) = delete;
  ~CheckedReader() { ::close(file_); }

  uint64_t left() const { return left_; }  // bytes not yet taken: an upper bound of everything a count may claim
  uint64_t place() const { return size_ - left_; }  // of the next byte in the file

  void get(void* data, size_t size) {
    plain(data, size);
    sum_.add(data, size);
  }
  template <class T>
  T get() {
    T value;
    get(&value, sizeof value);
    return value;
  }

  void check_seal(const std::string& block) {
    uint64_t met, expected = sum_.value();
    plain(&met, sizeof met);
    if (!seal_fits(met, expected)) throw DamagedFile("the checksum of " + block + " is wrong");
    sum_.restart(met);
  }

 private:
  void plain(void* data, size_t size) {
    if (size > left_) throw DamagedFile("it ends at byte " + std::to_string(size_) + ", before its end mark");
    char* p = static_cast<char*>(data);
    left_ -= size;
    while (size > 0) {
      if (at_ == held_) fill();
      size_t part = size < held_ - at_ ? size : held_ - at_;
      std::memcpy(p, buffer_.data() + at_, part);
      at_ += part;
      p += part;
      size -= part;
    }
  }

  void fill() {
    for (;;) {
      ssize_t n = ::read(file_, buffer_.data(), buffer_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno();
      if (n == 0) throw DamagedFile("it became shorter while it was read");
      at_ = 0;
      held_ = static_cast<size_t>(n);
      return;
    }
  }

  int file_ = -1;
  std::vector<char> buffer_;
  size_t at_ = 0, held_ = 0;
  uint64_t size_ = 0, left_ = 0;
  Checksum sum_;
};

}  // namespace cb
