#include "capi/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/system/checked_file.h"

namespace cb {

namespace {

std::string words_of(int error) { return std::generic_category().message(error); }

}  // namespace

FileBytes::FileBytes(const std::string& path) {
  // A pipe that nobody writes to would keep open() waiting.
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) throw CannotRead(words_of(errno));
  struct stat facts;
  const int failed = ::fstat(file_, &facts) != 0 ? errno : 0;
  if (failed || !S_ISREG(facts.st_mode)) {
    ::close(file_);
    throw CannotRead(failed ? words_of(failed) : "it is not a regular file");
  }
  size_ = static_cast<uint64_t>(facts.st_size);
}

FileBytes::~FileBytes() { ::close(file_); }

void FileBytes::read(void* to, size_t bytes, uint64_t at) const {
  char* p = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(file_, p, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw CannotRead(words_of(errno));
    if (n == 0) throw DamagedFile("it was truncated: it ends at byte " + std::to_string(at));
    p += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void write_aside(const std::string& path, const uint8_t* bytes, size_t size) {
  static std::atomic<unsigned> number{0};
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::string aside =
      folder + "/." + name + "." + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".partial";
  const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) throw CannotWrite(words_of(errno));
  int failed = 0;
  while (size > 0 && !failed) {
    const ssize_t n = ::write(file, bytes, size);
    if (n < 0 && errno != EINTR) failed = errno;
    if (n > 0) {
      bytes += n;
      size -= static_cast<size_t>(n);
    }
  }
  if (!failed && ::fsync(file) != 0) failed = errno;
  if (::close(file) != 0 && !failed) failed = errno;
  if (!failed && ::rename(aside.c_str(), path.c_str()) != 0) failed = errno;
  if (failed) {
    ::unlink(aside.c_str());
    throw CannotWrite(words_of(failed));
  }
  const int parent = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent >= 0) {
    ::fsync(parent);  // the new name too
    ::close(parent);
  }
}

}  // namespace cb
