#include "core/ssd/segment_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include "core/system/checked_file.h"

namespace cb {

namespace {

// Without the system's cache, where the file system can do that.
template <class Open>
int open_direct(Open open) {
#if defined(O_DIRECT)
  try {
    return open(O_DIRECT);
  } catch (const std::system_error& e) {
    if (e.code().value() != EINVAL && e.code().value() != EOPNOTSUPP) throw;
  }
#endif
  return open(0);
}

int create_direct(const std::string& path) {
  return open_direct([&](int more) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | more, 0666);
    if (file < 0) throw_errno();
    return file;
  });
}

int open_existing(const std::string& path) {
  try {
    return open_direct([&](int more) { return open_regular(path, O_RDONLY | more); });
  } catch (const DamagedFile& e) {
    throw DamagedFile(path + ": " + e.what());
  }
}

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------------------

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

void AlignedBuffer::reserve(size_t bytes) {
  bytes = whole_blocks(bytes);
  if (bytes <= size_) return;
  void* more = std::aligned_alloc(kBlock, bytes);
  if (!more) throw std::bad_alloc();
  if (size_) std::memcpy(more, data_, size_);
  std::free(data_);
  data_ = static_cast<char*>(more);
  size_ = bytes;
}

// ---- one file -------------------------------------------------------------------------------------------------

Segment::Segment(std::string path_, uint64_t id_, bool create) : id(id_), path(std::move(path_)), process_(::getpid()) {
  file_ = create ? create_direct(path) : open_existing(path);
}

Segment::~Segment() {
  ::close(file_);
  if (!keep.load() && ::getpid() == process_) ::unlink(path.c_str());
}

void Segment::write(const char* data, size_t bytes, uint64_t at) const {
  while (bytes > 0) {
    ssize_t n = ::pwrite(file_, data, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno();
    if (n == 0) throw std::system_error(ENOSPC, std::generic_category());
    data += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
    // The rest of a write that ended within a block is no longer aligned: the whole block again.
    const size_t odd = static_cast<size_t>(n) % kBlock;
    if (odd && bytes) {
      data -= odd;
      at -= odd;
      bytes += odd;
      if (static_cast<size_t>(n) == odd) throw std::system_error(ENOSPC, std::generic_category());
    }
  }
}

void Segment::read(char* to, size_t bytes, uint64_t at) const {
  while (bytes > 0) {
    ssize_t n = ::pread(file_, to, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno();
    if (n == 0 || static_cast<size_t>(n) % kBlock != 0)
      throw DamagedFile(path + " ends before byte " + std::to_string(at + bytes));
    to += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void Segment::sync() const {
  if (::fsync(file_) != 0) throw_errno();
}

void sync_folder(const std::string& path) {
  int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) throw_errno();
  const int failed = ::fsync(folder) != 0 ? errno : 0;
  ::close(folder);
  if (failed) throw std::system_error(failed, std::generic_category());
}

// ---- all of them ----------------------------------------------------------------------------------------------

Segments::Segments(std::string folder, size_t segment_bytes)
    : folder_(std::move(folder)), segment_bytes_(segment_bytes) {}

Segments::~Segments() {
  for (auto& [id, segment] : named_) segment->keep.store(true);
}

std::string Segments::path_of(uint64_t id) const {
  std::string digits = std::to_string(id);
  return folder_ + "/" + std::string(digits.size() < 10 ? 10 - digits.size() : 0, '0') + digits + ".seg";
}

SegmentPtr Segments::make() {
  auto segment = std::make_shared<Segment>(path_of(next_), next_, true);
  ++next_;
  all_[segment->id] = segment;
  return segment;
}

Place Segments::append(const char* data, size_t bytes, const std::function<void(uint64_t, uint64_t)>& seal) {
  Place place;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!current_ || (current_->bytes() > 0 && current_->bytes() + bytes > segment_bytes_)) current_ = make();
    place = {current_, current_->bytes_.fetch_add(bytes)};
  }
  seal(place.segment->id, place.offset);
  place.segment->write(data, bytes, place.offset);
  wrote_all(place.segment);
  written.fetch_add(bytes, std::memory_order_relaxed);
  return place;
}

// Only now: a sync before the last byte was written would have been too early.
void Segments::wrote_all(const SegmentPtr& segment) {
  std::lock_guard<std::mutex> hold(mutex_);
  for (const auto& each : unsynced_)
    if (each.lock() == segment) return;
  unsynced_.push_back(segment);
}

SegmentPtr Segments::begin_own() {
  std::lock_guard<std::mutex> hold(mutex_);
  return make();
}

void Segments::wrote(const SegmentPtr& own, uint64_t bytes) {
  own->bytes_.fetch_add(bytes);
  written.fetch_add(bytes, std::memory_order_relaxed);
}

void Segments::roll() {
  std::lock_guard<std::mutex> hold(mutex_);
  current_.reset();
}

void Segments::sync() {
  std::vector<SegmentPtr> pending;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    for (const auto& each : unsynced_)
      if (SegmentPtr segment = each.lock()) pending.push_back(std::move(segment));
    current_.reset();
  }
  for (const SegmentPtr& segment : pending) segment->sync();
  sync_folder(folder_);
  std::lock_guard<std::mutex> hold(mutex_);
  std::erase_if(unsynced_, [&](const std::weak_ptr<Segment>& each) {
    const SegmentPtr segment = each.lock();
    return !segment || std::find(pending.begin(), pending.end(), segment) != pending.end();
  });
}

void Segments::hold(const std::vector<SegmentPtr>& segments) {
  std::lock_guard<std::mutex> hold(mutex_);
  for (const SegmentPtr& segment : segments) named_[segment->id] = segment;
}

void Segments::name(std::vector<SegmentPtr> segments) {
  std::map<uint64_t, SegmentPtr> named;
  for (SegmentPtr& segment : segments) named[segment->id] = std::move(segment);
  std::lock_guard<std::mutex> hold(mutex_);
  named_.swap(named);  // what no manifest and no run holds any more goes with `named`
}

SegmentPtr Segments::open(uint64_t id, uint64_t bytes) {
  std::lock_guard<std::mutex> hold(mutex_);
  const std::string path = path_of(id);
  auto enough = [&](uint64_t met) {
    if (met < bytes)
      throw DamagedFile(path + " has " + std::to_string(met) + " bytes, expected " + std::to_string(bytes));
  };
  if (const auto found = all_.find(id); found != all_.end())
    if (SegmentPtr known = found->second.lock()) {
      enough(known->bytes());
      return known;
    }
  struct stat facts;
  if (::stat(path.c_str(), &facts) != 0) {
    if (errno == ENOENT) throw DamagedFile(path + " is missing");
    throw_errno();
  }
  enough(static_cast<uint64_t>(facts.st_size));
  auto segment = std::make_shared<Segment>(path, id, false);
  segment->keep.store(true);
  segment->bytes_.store(static_cast<uint64_t>(facts.st_size));
  all_[id] = segment;
  return segment;
}

void Segments::remove_others() {
  DIR* folder = ::opendir(folder_.c_str());
  if (!folder) throw_errno();
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name.size() > 4 && name.ends_with(".seg")) names.push_back(name);
  }
  ::closedir(folder);
  std::lock_guard<std::mutex> hold(mutex_);
  for (const std::string& name : names) {
    const uint64_t id = std::strtoull(name.c_str(), nullptr, 10);
    auto known = all_.find(id);
    if (known == all_.end() || known->second.expired()) ::unlink((folder_ + "/" + name).c_str());
  }
  // Opened ones are deleted, from now on, when no run and no manifest holds them.
  for (auto& [id, segment] : all_)
    if (SegmentPtr held = segment.lock()) held->keep.store(false);
}

void Segments::next_id_is(uint64_t id) {
  std::lock_guard<std::mutex> hold(mutex_);
  next_ = id;
}

uint64_t Segments::next_id() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return next_;
}

uint64_t Segments::disk_bytes() const {
  std::lock_guard<std::mutex> hold(mutex_);
  uint64_t sum = 0;
  for (auto it = all_.begin(); it != all_.end();) {
    if (SegmentPtr segment = it->second.lock()) {
      sum += segment->bytes();
      ++it;
    } else {
      it = all_.erase(it);
    }
  }
  return sum;
}

bool Segments::is_named(uint64_t id) const {
  std::lock_guard<std::mutex> hold(mutex_);
  return named_.contains(id);
}

uint64_t Segments::bytes_held_by_name_alone() const {
  std::lock_guard<std::mutex> hold(mutex_);
  uint64_t sum = 0;
  for (const auto& [id, segment] : named_)
    if (segment->live.load() == 0) sum += segment->bytes();
  return sum;
}

}  // namespace cb
