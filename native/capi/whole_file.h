// Reads whole files, and writes files atomically.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace cb {

// errno in words: "No such file or directory".
struct CannotRead : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct CannotWrite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A regular file; its size bounds everything that it may claim.
class FileBytes {
 public:
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  uint64_t size() const { return size_; }
  void read(void* to, size_t bytes, uint64_t at) const;  // DamagedFile where the file has become shorter

 private:
  int file_;
  uint64_t size_;
};

// Whole or not at all: a file beside `path`, synced, renamed.
void write_aside(const std::string& path, const uint8_t* bytes, size_t size);

}  // namespace cb
