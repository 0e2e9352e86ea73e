#include "core/join/spilled_view.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/system/checked_file.h"

namespace cb {

using namespace spill;

namespace {

constexpr size_t kWindow = size_t{4} << 20;  // of blocks, read at once by a thread

}  // namespace

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

}  // namespace cb
