// Helpers of the fuzz targets: splitting bytes, files in memory, and a check that ends the program.
//
// A target is one file with LLVMFuzzerTestOneInput. Hostile input may only be read or refused, by the exceptions the
// parser promises; anything else ends the program. A *_forged target is the same source with every checksum taken for
// true (checked_file.h), so that what lies behind the checksums is reached too.
#pragma once
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/checked_file.h"

#define EXPECT(what)                                                           \
  do {                                                                         \
    if (!(what)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #what); \
      std::abort();                                                            \
    }                                                                          \
  } while (0)

namespace fuzz {

// Numbers and pieces from the front of the input; zeros and nothing behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  template <class T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof(T), left());
    if (n) std::memcpy(&value, at_, n);
    at_ += n;
    return value;
  }
  uint8_t byte() { return take<uint8_t>(); }
  size_t below(size_t n) { return n ? take<uint16_t>() % n : 0; }
  std::string_view piece(size_t n) {
    n = std::min(n, left());
    const std::string_view out(reinterpret_cast<const char*>(at_), n);
    at_ += n;
    return out;
  }
  std::string_view rest() { return piece(left()); }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

 private:
  const uint8_t *at_, *end_;
};

// Copies of just their size, alive until the end: a read behind one is seen.
class Heap {
 public:
  template <class T>
  T* copy(const T* from, size_t n) {
    std::unique_ptr<char[]> block(new char[n * sizeof(T)]);
    if (n) std::memcpy(block.get(), from, n * sizeof(T));
    T* out = reinterpret_cast<T*>(block.get());
    blocks_.push_back(std::move(block));
    return out;
  }
  const char* copy(std::string_view text) { return copy(text.data(), text.size()); }
  template <class T>
  T* zeros(size_t n) {
    const std::vector<T> none(n);
    return copy(none.data(), n);
  }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
};

// A file that only this process sees, used for all runs.
class MemoryFile {
 public:
  MemoryFile() : file_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(file_)) {
    EXPECT(file_ >= 0);
    ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // else every small model costs the zeroing of whole huge pages
  }
  const std::string& holding(std::string_view bytes) {
    put(file_, bytes);
    return path_;
  }
  std::string contents() const {
    std::string out(static_cast<size_t>(::lseek(file_, 0, SEEK_END)), 0);
    EXPECT(::pread(file_, out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()));
    return out;
  }
  const std::string& path() const { return path_; }

  static void put(int file, std::string_view bytes) {
    EXPECT(::ftruncate(file, 0) == 0);
    EXPECT(::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  int file_;
  std::string path_;
};

// At the start of a target that reads checked files.
inline void begin() {
#ifdef CTRBOX_FORGED
  cb::every_seal_fits = true;
#endif
}
#ifdef CTRBOX_FORGED
inline constexpr bool kForged = true;
#else
inline constexpr bool kForged = false;
#endif

// Reads every byte, so that one outside its memory is found.
inline void look_at(const void* p, size_t n) {
  uint64_t sum = 0;
  for (size_t k = 0; k < n; ++k) sum += static_cast<const uint8_t*>(p)[k];
  asm volatile("" : : "r"(sum));
}

}  // namespace fuzz
