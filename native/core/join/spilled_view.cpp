#include "core/join/spilled_view.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kRunBlock = size_t{64} << 10;        // entries of a run are read and checked in such blocks
constexpr size_t kOut = size_t{4} << 20;              // of the view's file, written at once
constexpr size_t kWindow = size_t{4} << 20;           // of blocks, read at once by a thread
constexpr uint64_t kLeastBudget = uint64_t{1} << 16;  // a smaller budget counts as this much for the fences
constexpr size_t kRunHead = 16;                       // checksum, bytes, entries
constexpr size_t kEntryHead = 32;                     // hash, time, row, bytes
constexpr size_t kBlockHead = 16;                     // checksum, entries, bytes
constexpr uint32_t kVersion = 1;

[[noreturn]] void fail() { throw std::system_error(errno, std::generic_category()); }

void write_at(int file, const char* data, size_t bytes, uint64_t at) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(file, data, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    if (n == 0) throw std::system_error(ENOSPC, std::generic_category());
    data += n;
    bytes -= static_cast<size_t>(n);
    at += static_cast<uint64_t>(n);
  }
}

// False if the file ends before.
bool read_at(int file, char* to, size_t bytes, uint64_t at) {
  while (bytes > 0) {
    const ssize_t n = ::pread(file, to, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    if (n == 0) return false;
    to += n;
    bytes -= static_cast<size_t>(n);
    at += static_cast<uint64_t>(n);
  }
  return true;
}

// Whether the file is from now on read and written past the page cache.
bool past_the_cache(int file, bool on) {
#if defined(O_DIRECT)
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
#else
  (void)file, (void)on;
  return false;
#endif
}

uint64_t sum_of(uint64_t seed, const char* data, size_t bytes) {
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

size_t aligned(size_t n) { return (n + 7) / 8 * 8; }

// Bytes of an entry in the head of its block.
size_t entry_bytes(bool as_of) { return as_of ? 24 : 16; }
size_t fence_bytes(bool as_of) { return as_of ? 20 : 12; }

[[noreturn]] void too_long() { throw std::length_error("a row of a joined view of 4 GiB or more"); }

}  // namespace

OwnedFile::OwnedFile(int borrowed) : file_(::fcntl(borrowed, F_DUPFD_CLOEXEC, 0)) {
  if (file_ < 0) fail();
}

OwnedFile::~OwnedFile() {
  if (file_ >= 0) ::close(file_);
}

// ---- records --------------------------------------------------------------------------------------------------

void SpillShape::put(const char* block, size_t bytes, std::vector<char>& out) const {
  const size_t begin = out.size();
  out.insert(out.end(), block, block + bytes);
  for (const RecordField& f : fields) {
    if (f.kind != "*s") continue;
    const auto list = load<List<Str>>(block + f.offset);
    const size_t at = out.size() - begin;
    if (at > UINT32_MAX) too_long();
    for (uint32_t k = 0; k < list.n; ++k) append(out, list.p[k].n);
    for (uint32_t k = 0; k < list.n; ++k) out.insert(out.end(), list.p[k].p, list.p[k].p + list.p[k].n);
    out.resize(begin + aligned(out.size() - begin));
    const Inside inside{static_cast<uint32_t>(at), list.n};
    std::memset(out.data() + begin + f.offset, 0, sizeof(List<Str>));
    std::memcpy(out.data() + begin + f.offset, &inside, sizeof inside);
  }
  if (out.size() - begin > UINT32_MAX) too_long();
}

const char* SpillShape::get(const char* record, size_t bytes, Bump& pool) const {
  auto need = [&](size_t at, size_t n) {
    if (at > bytes || n > bytes - at) throw DamagedFile("a record ends before its values do");
  };
  need(0, fixed_bytes);
  char* to = pool.reserve(bytes);
  std::memcpy(to, record, bytes);
  pool.commit(bytes);
  for (const RecordField& f : fields) {
    if (f.width() == 8 && f.inside()) {
      const Inside inside = load<Inside>(to + f.offset);
      need(inside.offset, size_t{inside.count} * f.element());
    }
    if (f.kind != "*s") continue;
    const Inside inside = load<Inside>(to + f.offset);
    need(inside.offset, size_t{inside.count} * 4);
    Str* elements = inside.count ? pool.take<Str>(inside.count) : nullptr;
    size_t at = inside.offset + size_t{inside.count} * 4;
    for (uint32_t k = 0; k < inside.count; ++k) {
      const uint32_t n = load<uint32_t>(to + inside.offset + size_t{k} * 4);
      need(at, n);
      elements[k] = Str{to + at, n};
      at += n;
    }
    const List<Str> list{elements, inside.count};
    std::memcpy(to + f.offset, &list, sizeof list);
  }
  return to;
}

// ---- looking up -----------------------------------------------------------------------------------------------

SpilledView::SpilledView(std::string name, SpillShape shape, OwnedFile file, Fences fences, uint64_t rows,
                         uint64_t record_bytes, std::vector<char> null_record, uint64_t budget)
    : name_(std::move(name)),
      shape_(std::move(shape)),
      file_(std::move(file)),
      fences_(std::move(fences)),
      rows_(rows),
      null_pool_(256),
      null_row_(shape_.get(null_record.data(), null_record.size(), null_pool_)),
      recent_(budget - std::min(budget, fences_.bytes() + null_pool_.capacity()), shape_.as_of ? kBlock
                                                                                  : rows       ? record_bytes / rows
                                                                                               : 8) {}

std::unique_ptr<SpilledView::Reading> SpilledView::take_reading() const {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Reading> reading = std::move(idle_.back());
      idle_.pop_back();
      return reading;
    }
  }
  return std::make_unique<Reading>();
}

void SpilledView::give_back(std::unique_ptr<Reading> reading) const {
  if (reading->buffer.size() > 2 * kWindow) reading->buffer = AlignedBuffer();  // one large record came by
  std::lock_guard<std::mutex> hold(mutex_);
  counts_.looked += reading->counts.looked;
  counts_.cached += reading->counts.cached;
  counts_.read += reading->counts.read;
  reading->counts = {};
  idle_.push_back(std::move(reading));
}

SpilledView::Counts SpilledView::counts() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return counts_;
}

// The last block whose first key is not above the key. Hashes are uniform, so the place that the hash suggests is
// nearly right: a few steps from there, each twice as far, enclose it.
size_t SpilledView::block_of(const EntryKey& key) const {
  const std::vector<uint64_t>& hashes = fences_.hashes;
  const size_t n = hashes.size();
  auto above = [&](size_t k) {
    return hashes[k] > key.hash || (hashes[k] == key.hash && shape_.as_of && fences_.times[k] > key.time);
  };
  if (n == 0 || above(0)) return kNoBlock;
  __extension__ typedef unsigned __int128 Wide;
  size_t low = static_cast<size_t>((Wide{key.hash} * n) >> 64), high = low + 1;
  for (size_t step = 1; low > 0 && above(low); step *= 2) {
    high = low;
    low = low > step ? low - step : 0;
  }
  for (size_t step = 1; high < n && !above(high); step *= 2) {
    low = high;
    high = n - high > step ? high + step : n;
  }
  while (high - low > 1) {  // low is not above the key; high is, or the end
    const size_t middle = low + (high - low) / 2;
    (above(middle) ? high : low) = middle;
  }
  return low;
}

void SpilledView::check_block(size_t block, const char* bytes) const {
  const uint32_t page = fences_.pages[block], size = block_bytes(block);
  const uint64_t entries = load<uint32_t>(bytes + 8), used = load<uint32_t>(bytes + 12);
  if (!seal_fits(load<uint64_t>(bytes), sum_of(page, bytes + 8, size - 8)) || used > size ||
      kBlockHead + entries * entry_bytes(shape_.as_of) > used)
    throw DamagedFile("page " + std::to_string(page) + " is not as it was written");
}

std::span<const char> SpilledView::find_in(size_t block, const char* bytes, const EntryKey& key) const {
  const size_t n = load<uint32_t>(bytes + 8), used = load<uint32_t>(bytes + 12);
  const char* hashes = bytes + kBlockHead;
  const char* times = hashes + 8 * n;
  const char* places = times + (shape_.as_of ? 8 * n : 0);
  auto at = [&](size_t k) {
    return EntryKey{load<uint64_t>(hashes + 8 * k), shape_.as_of ? load<int64_t>(times + 8 * k) : 0};
  };
  size_t low = 0, high = n;  // the first entry above the key
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (at(middle) <= key)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == 0 || at(low - 1).hash != key.hash) return {};
  const uint32_t begin = load<uint32_t>(places + 8 * (low - 1)), size = load<uint32_t>(places + 8 * (low - 1) + 4);
  if (begin > used || size > used - begin || size == 0)
    throw DamagedFile("page " + std::to_string(fences_.pages[block]) + " has a record outside of its block");
  return {bytes + begin, size};
}

// Finds the keys of a group in their block; found: by the place of a key in `wanted`.
void SpilledView::take_from(size_t block, const char* bytes, Reading& reading, const Group& group, Bump& pool,
                            bool fresh, std::vector<const char*>& found) const {
  for (uint32_t k = group.begin; k < group.end; ++k) {
    const EntryKey& key = reading.wanted[k].key;
    if (k > group.begin && key == reading.wanted[k - 1].key) {
      found[k] = found[k - 1];
      continue;
    }
    const std::span<const char> record = find_in(block, bytes, key);
    found[k] = record.empty() ? nullptr : shape_.get(record.data(), record.size(), pool);
    if (fresh && !shape_.as_of) recent_.put(key.hash, record.data(), record.size());  // or that there is none
  }
  if (fresh && shape_.as_of) recent_.put(block, bytes, block_bytes(block));
}

void SpilledView::read_groups(Reading& reading, std::span<const Group> groups, Bump& pool,
                              std::vector<const char*>& found) const {
  for (size_t from = 0, to = 0; from < groups.size(); from = to) {
    size_t bytes = 0;
    do {
      bytes += block_bytes(groups[to++].block);
    } while (to < groups.size() && bytes + block_bytes(groups[to].block) <= kWindow);
    reading.buffer.reserve(std::max(bytes, kWindow));
    reading.blocks.clear();
    size_t at = 0;
    for (size_t g = from; g < to; ++g) {
      const uint32_t size = block_bytes(groups[g].block);
      reading.blocks.push_back({file_.number(), uint64_t{fences_.pages[groups[g].block]} * kBlock,
                                reading.buffer.data() + at, size, 0, "the file of a joined view"});
      at += size;
    }
    reading.reader.read(reading.blocks, [&](size_t k) {
      const Group& group = groups[from + k];
      const char* block = static_cast<const char*>(reading.blocks[k].to);
      check_block(group.block, block);
      take_from(group.block, block, reading, group, pool, true, found);
    });
    reading.counts.read += to - from;
  }
}

uint32_t SpilledView::look_up(uint32_t rows, const uint64_t* hashes, const int64_t* times,
                              const uint8_t* const valid[2], Bump& pool, int64_t* out) const {
  std::unique_ptr<Reading> reading = take_reading();
  std::vector<Wanted>& wanted = reading->wanted;
  wanted.clear();
  for (uint32_t r = 0; r < rows; ++r) {
    out[r] = null_row();
    if ((!valid[0] || valid[0][r]) && (!valid[1] || valid[1][r]))
      wanted.push_back({{hashes[r], times ? times[r] : 0}, r});
  }
  std::sort(wanted.begin(), wanted.end(),
            [](const Wanted& a, const Wanted& b) { return std::tie(a.key, a.row) < std::tie(b.key, b.row); });
  std::vector<const char*> found(wanted.size(), nullptr);
  std::vector<Group> groups;
  auto had = [&](uint32_t k, const char* bytes, size_t n) {
    found[k] = n ? shape_.get(bytes, n, pool) : nullptr;
    ++reading->counts.cached;
  };
  for (uint32_t k = 0; k < wanted.size(); ++k) {
    const EntryKey& key = wanted[k].key;
    if (k > 0 && key == wanted[k - 1].key) {
      found[k] = found[k - 1];
      if (!groups.empty() && groups.back().end == k) ++groups.back().end;
      continue;
    }
    ++reading->counts.looked;
    if (!shape_.as_of && recent_.get(key.hash, [&](const char* bytes, size_t n) { had(k, bytes, n); })) continue;
    const size_t block = block_of(key);
    if (block == kNoBlock) continue;
    // A group ends where the cache had a key in between.
    if (!groups.empty() && groups.back().block == block && groups.back().end == k)
      ++groups.back().end;
    else
      groups.push_back({static_cast<uint32_t>(block), k, k + 1});
  }
  if (shape_.as_of)
    std::erase_if(groups, [&](const Group& group) {
      return recent_.get(group.block, [&](const char* bytes, size_t) {
        take_from(group.block, bytes, *reading, group, pool, false, found);
        reading->counts.cached += group.end - group.begin;
      });
    });
  try {
    read_groups(*reading, groups, pool, found);
  } catch (const DamagedFile& e) {
    give_back(std::move(reading));
    throw SpilledViewError(name_ + ": its file is damaged: " + e.what());
  } catch (const std::system_error& e) {
    give_back(std::move(reading));
    throw SpilledViewError(name_ + ": its file cannot be read: " + e.code().message());
  }
  uint32_t met = 0;
  for (size_t k = 0; k < wanted.size(); ++k)
    if (found[k]) {
      out[wanted[k].row] = reinterpret_cast<int64_t>(found[k]);
      ++met;
    }
  give_back(std::move(reading));
  return met;
}

// ---- writing runs ---------------------------------------------------------------------------------------------

SpillWriter::SpillWriter(int runs_file, int view_file, const Records& records, bool as_of, bool keep_last,
                         uint64_t budget)
    : shape_{records.fields(), records.fixed_bytes(), as_of},
      runs_(runs_file),
      file_(view_file),
      keep_last_(keep_last),
      budget_(budget) {}

void SpillWriter::check_fences(uint64_t record_bytes, uint64_t rows) const {
  const uint64_t bytes = record_bytes + rows * entry_bytes(shape_.as_of);
  const uint64_t fences = (bytes / kBlock + 2) * fence_bytes(shape_.as_of);
  if (fences > std::max(budget_, kLeastBudget) / 2) throw IndexTooLarge(2 * fences);
}

void SpillWriter::close_run_block() {
  if (run_entries_ == 0) return;
  const uint32_t bytes = static_cast<uint32_t>(run_block_.size() - kRunHead);
  std::memcpy(run_block_.data() + 8, &bytes, 4);
  std::memcpy(run_block_.data() + 12, &run_entries_, 4);
  const uint64_t sum = sum_of(runs_end_, run_block_.data() + 8, run_block_.size() - 8);
  std::memcpy(run_block_.data(), &sum, 8);
  write_at(runs_.number(), run_block_.data(), run_block_.size(), runs_end_);
  runs_end_ += run_block_.size();
  run_block_.resize(kRunHead);
  run_entries_ = 0;
}

void SpillWriter::add_run(const Records& records, std::span<const uint64_t> hashes, std::span<const int64_t> times,
                          std::span<const uint64_t> rows, size_t threads) {
  const std::vector<uint32_t>& handles = records.handles();
  if (merging_) throw std::logic_error("runs are merged already");
  if (handles.size() != hashes.size() || rows.size() != hashes.size() ||
      times.size() != (shape_.as_of ? hashes.size() : 0))
    throw std::invalid_argument("a hash, a row and a time for each record of an as-of join");
  struct Item {
    EntryKey key;
    uint32_t row;
    auto operator<=>(const Item&) const = default;
  };
  // Ranges of hashes, by their upper bits, are sorted by one thread each.
  constexpr size_t kParts = 64;
  auto part_of = [](uint64_t hash) { return hash >> 58; };
  std::array<size_t, kParts + 1> ends{};
  for (uint64_t hash : hashes) ++ends[part_of(hash) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::array<size_t, kParts> at;
  std::copy_n(ends.begin(), kParts, at.begin());
  auto items = std::make_unique_for_overwrite<Item[]>(hashes.size());
  for (size_t r = 0; r < hashes.size(); ++r)
    items[at[part_of(hashes[r])]++] = {{hashes[r], shape_.as_of ? times[r] : 0}, static_cast<uint32_t>(r)};
  parallel_for(threads, kParts, [&](size_t p) { std::sort(items.get() + ends[p], items.get() + ends[p + 1]); });

  Run run{};
  run.at = runs_end_;
  run_block_.assign(kRunHead, 0);
  for (size_t k = 0; k < hashes.size(); ++k) {
    const Item& item = items[k];
    const size_t next = size_t{item.row} + 1;
    const size_t end = next < handles.size() ? size_t{handles[next]} * 8 : records.blob_bytes();
    const size_t head = run_block_.size();
    append(run_block_, item.key.hash);
    append(run_block_, item.key.time);
    append(run_block_, rows[item.row]);
    append(run_block_, uint64_t{0});
    shape_.put(records.at(handles[item.row]), end - size_t{handles[item.row]} * 8, run_block_);
    const uint64_t bytes = run_block_.size() - head - kEntryHead;
    std::memcpy(run_block_.data() + head + 24, &bytes, 8);
    if (run_block_.size() > UINT32_MAX) too_long();
    ++run_entries_;
    ++spilled_rows_;
    spilled_bytes_ += bytes;
    if (run_block_.size() >= kRunBlock) {
      close_run_block();
      check_fences(spilled_bytes_, spilled_rows_);
    }
  }
  close_run_block();
  run_block_ = {};
  run.end = runs_end_;
  all_.push_back(std::move(run));
}

// ---- merging --------------------------------------------------------------------------------------------------

// Moves to the next entry of the run; false: there is none.
bool SpillWriter::advance(Run& run) {
  if (run.next >= run.block.size()) {
    if (run.at >= run.end) {
      run.block = {};
      return false;
    }
    auto damaged = [&] {
      throw DamagedFile("the sorted rows at byte " + std::to_string(run.at) + " are not as they were written");
    };
    char head[kRunHead];
    if (run.end - run.at < kRunHead || !read_at(runs_.number(), head, kRunHead, run.at)) damaged();
    const uint32_t bytes = load<uint32_t>(head + 8);
    if (bytes > run.end - run.at - kRunHead) damaged();
    run.block.resize(kRunHead + bytes);
    std::memcpy(run.block.data(), head, kRunHead);
    if (!read_at(runs_.number(), run.block.data() + kRunHead, bytes, run.at + kRunHead)) damaged();
    if (!seal_fits(load<uint64_t>(head), sum_of(run.at, run.block.data() + 8, run.block.size() - 8))) damaged();
    run.at += run.block.size();
    run.next = kRunHead;
  }
  const char* entry = run.block.data() + run.next;
  const size_t left = run.block.size() - run.next;
  const uint64_t bytes = left < kEntryHead ? UINT64_MAX : load<uint64_t>(entry + 24);
  if (left < kEntryHead || bytes > left - kEntryHead)
    throw DamagedFile("the sorted rows before byte " + std::to_string(run.at) + " are not as they were written");
  run.entry = {
      {load<uint64_t>(entry), load<int64_t>(entry + 8)}, load<uint64_t>(entry + 16), entry + kEntryHead, bytes};
  run.next += kEntryHead + bytes;
  return true;
}

bool SpillWriter::merge(size_t entries) {
  // The run with the least entry on top; rows differ, so there is one.
  auto later = [&](size_t a, size_t b) {
    return std::tie(all_[a].entry.key, all_[a].entry.row) > std::tie(all_[b].entry.key, all_[b].entry.row);
  };
  if (!merging_) {
    merging_ = true;
    past_the_cache(file_.number(), true);
    out_.reserve(kOut);
    std::memset(out_.data(), 0, kBlock);
    out_used_ = kBlock;  // page 0 is written at the end
    for (size_t k = 0; k < all_.size(); ++k)
      if (advance(all_[k])) heap_.push_back(k);
    std::make_heap(heap_.begin(), heap_.end(), later);
  }
  for (; entries > 0 && !heap_.empty(); --entries) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Run& run = all_[heap_.back()];
    take(run.entry);
    if (advance(run))
      std::push_heap(heap_.begin(), heap_.end(), later);
    else
      heap_.pop_back();
  }
  if (!heap_.empty()) return true;
  if (!merged_) {
    merged_ = true;
    if (held_) put_held();
    close_block();
    drain();
    all_.clear();
  }
  return false;
}

// Holds an entry back until the next key comes: of several with the same key the last one counts, or they are refused.
void SpillWriter::take(const Entry& entry) {
  if (held_ && held_key_ == entry.key) {
    const int64_t row = static_cast<int64_t>(entry.row);
    if (!keep_last_ && (duplicate_.second < 0 || row < duplicate_.second))
      duplicate_ = {static_cast<int64_t>(held_row_), row};
    if (!keep_last_) return;
  } else {
    if (held_) put_held();
    held_ = true;
    held_key_ = entry.key;
    held_row_ = entry.row;
  }
  held_record_.assign(entry.record, entry.record + entry.bytes);
}

void SpillWriter::put_held() {
  const size_t each = entry_bytes(shape_.as_of);
  if (!keys_.empty() && kBlockHead + (keys_.size() + 1) * each + block_.size() + held_record_.size() > kBlock)
    close_block();
  keys_.push_back(held_key_);
  places_.push_back({static_cast<uint32_t>(block_.size()), static_cast<uint32_t>(held_record_.size())});
  block_.insert(block_.end(), held_record_.begin(), held_record_.end());
  ++rows_;
  record_bytes_ += held_record_.size();
  held_ = false;
}

void SpillWriter::close_block() {
  if (keys_.empty()) return;
  const size_t n = keys_.size(), head = kBlockHead + n * entry_bytes(shape_.as_of), used = head + block_.size();
  if (used > UINT32_MAX - kBlock) too_long();
  const size_t size = whole_blocks(used);
  if (out_used_ + size > out_.size()) {
    drain();
    out_.reserve(size);
  }
  const uint64_t page = (out_at_ + out_used_) / kBlock;
  if (page + size / kBlock > UINT32_MAX) throw std::length_error("a joined view of 16 TiB or more");
  fences_.hashes.push_back(keys_[0].hash);
  if (shape_.as_of) fences_.times.push_back(keys_[0].time);
  fences_.pages.push_back(static_cast<uint32_t>(page));
  char* to = out_.data() + out_used_;
  const uint32_t facts[2] = {static_cast<uint32_t>(n), static_cast<uint32_t>(used)};
  std::memcpy(to + 8, facts, sizeof facts);
  char* hashes = to + kBlockHead;
  char* times = hashes + 8 * n;
  char* places = times + (shape_.as_of ? 8 * n : 0);
  for (size_t k = 0; k < n; ++k) {
    std::memcpy(hashes + 8 * k, &keys_[k].hash, 8);
    if (shape_.as_of) std::memcpy(times + 8 * k, &keys_[k].time, 8);
    const uint32_t place[2] = {static_cast<uint32_t>(head) + places_[k].first, places_[k].second};
    std::memcpy(places + 8 * k, place, sizeof place);
  }
  std::memcpy(to + head, block_.data(), block_.size());
  std::memset(to + used, 0, size - used);
  const uint64_t sum = sum_of(page, to + 8, size - 8);
  std::memcpy(to, &sum, sizeof sum);
  out_used_ += size;
  keys_.clear();
  places_.clear();
  block_.clear();
}

void SpillWriter::drain() {
  if (out_used_ == 0) return;
  try {
    write_at(file_.number(), out_.data(), out_used_, out_at_);
  } catch (const std::system_error& e) {
    // A file system may take the flag and refuse the write.
    if (e.code().value() != EINVAL || !past_the_cache(file_.number(), false)) throw;
    write_at(file_.number(), out_.data(), out_used_, out_at_);
  }
  out_at_ += out_used_;
  out_used_ = 0;
}

std::shared_ptr<SpilledView> SpillWriter::finish(std::string name, const Records& null_row) {
  if (!merged_) throw std::logic_error("the runs are not merged yet");
  if (null_row.rows() == 0 || null_row.fields().size() != shape_.fields.size())
    throw std::invalid_argument("a null row with the fields of the view");
  fences_.pages.push_back(static_cast<uint32_t>(out_at_ / kBlock));
  fences_.hashes.shrink_to_fit();
  fences_.times.shrink_to_fit();
  fences_.pages.shrink_to_fit();
  std::memset(out_.data(), 0, kBlock);
  const uint32_t facts[2] = {kVersion, shape_.as_of};
  const uint64_t counts[2] = {rows_, fences_.hashes.size()};
  std::memcpy(out_.data(), "ctrbjoin", 8);
  std::memcpy(out_.data() + 8, facts, sizeof facts);
  std::memcpy(out_.data() + 16, counts, sizeof counts);
  const uint64_t sum = sum_of(0, out_.data(), 32);
  std::memcpy(out_.data() + 32, &sum, sizeof sum);
  write_at(file_.number(), out_.data(), kBlock, 0);
  std::vector<char> record;
  const size_t begin = size_t{null_row.handles().back()} * 8;
  shape_.put(null_row.at(null_row.handles().back()), null_row.blob_bytes() - begin, record);
  return std::make_shared<SpilledView>(std::move(name), shape_, std::move(file_), std::move(fences_), rows_,
                                       record_bytes_, std::move(record), budget_);
}

}  // namespace cb
