#include "core/ssd/compaction_errors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace cb {

namespace {

constexpr size_t kMostText = 2000;  // bytes of an error's text that are kept

}  // namespace

CompactionErrors::CompactionErrors(const std::string& folder) : path_(folder + "/COMPACTION_ERRORS") {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return;
  char text[kMostText + 32];
  const ssize_t read = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (read <= 0) return;
  text[read] = '\0';
  char* end = nullptr;
  count_ = told_ = std::strtoull(text, &end, 10);
  if (*end == '\n') last_.assign(end + 1);
}

void CompactionErrors::add(const std::string& what) {
  std::lock_guard<std::mutex> hold(lock_);
  ++count_;
  last_ = what.substr(0, kMostText);
  keep();
}

void CompactionErrors::clear() {
  std::lock_guard<std::mutex> hold(lock_);
  if (count_ == 0) return;
  count_ = told_ = 0;
  last_.clear();
  kept_ = true;
  ::unlink(path_.c_str());
}

uint64_t CompactionErrors::count() const {
  std::lock_guard<std::mutex> hold(lock_);
  return count_;
}

std::string CompactionErrors::last() const {
  std::lock_guard<std::mutex> hold(lock_);
  return last_;
}

CompactionErrors::News CompactionErrors::take() {
  std::lock_guard<std::mutex> hold(lock_);
  if (!kept_) keep();
  News news{count_ - told_, count_ > told_ ? last_ : std::string()};
  told_ = count_;
  return news;
}

void CompactionErrors::keep() {
  kept_ = false;
  const std::string aside = path_ + ".aside", text = std::to_string(count_) + "\n" + last_;
  const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return;
  const bool whole = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  kept_ = whole && ::rename(aside.c_str(), path_.c_str()) == 0;
  if (!kept_) ::unlink(aside.c_str());
}

}  // namespace cb
