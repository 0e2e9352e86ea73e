#include "core/ssd/read_missing_rows.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cb {

namespace {

constexpr size_t kWindowBytes = size_t{4} << 20;  // pages on their way to one thread
constexpr unsigned kDepth = 128;                  // with busy cores a shorter queue drains before its caller runs again
constexpr size_t kHandful = 64;      // pages that are handed over at once: every call tells the device anew
constexpr size_t kFiltersAhead = 8;  // keys between asking for the lines of their filters and looking at them

}  // namespace

PageReading::PageReading(size_t page_bytes)
    : reader(kDepth), pages(std::max<size_t>(16, kWindowBytes / page_bytes)), buffer(pages * page_bytes) {}

Fetch::Fetch(const PageShape& shape, unsigned first, unsigned end, Look look, Found found, Absent absent)
    : shape_(shape),
      next_shard_(first),
      end_(end),
      look_(std::move(look)),
      found_(std::move(found)),
      absent_(std::move(absent)) {}

bool Fetch::needs_pages() {
  while (at_hand_.empty() && prepare()) {
  }
  return !at_hand_.empty();
}

void Fetch::read(PageReading& reading) {
  buffer_ = reading.buffer.data();
  coming_.resize(reading.pages);
  free_.resize(reading.pages);
  for (size_t k = 0; k < free_.size(); ++k) free_[k] = static_cast<uint32_t>(free_.size() - 1 - k);
  reading.reader.read(*this);
}

// The next page that may hold the key, from run `from` on; false: there is none.
bool Fetch::aim(Key& key, size_t from) const {
  const Runs& all = *runs_[key.shard];
  for (size_t r = from; r < all.size(); ++r) {
    if (!all[r]->filter.maybe(key.mix)) continue;
    const auto [first, last] = all[r]->pages_of(key.mix);
    if (first > last) continue;
    key.run = static_cast<uint16_t>(r);
    key.page = first;
    key.last_page = last;
    return true;
  }
  return false;
}

bool Fetch::prepare() {
  if (first_ == at_hand_.size()) {
    at_hand_.clear();
    first_ = 0;
  }
  while (next_shard_ < end_ && at_hand_.size() - first_ < kHandful) look_through(next_shard_++);
  return next_shard_ < end_;
}

void Fetch::look_through(unsigned shard) {
  const size_t begin = keys_.size();
  runs_[shard] = look_(shard, keys_);
  const size_t end = keys_.size();
  size_t kept = begin;
  for (size_t k = begin; k < end; ++k) {
    if (k + kFiltersAhead < end)
      for (const RunPtr& run : *runs_[shard]) run->filter.prefetch(keys_[k + kFiltersAhead].mix);
    Key key = keys_[k];
    key.shard = static_cast<uint16_t>(shard);
    if (aim(key, 0))
      keys_[kept++] = key;
    else
      absent_(key);
  }
  keys_.resize(kept);
  std::sort(keys_.begin() + static_cast<ptrdiff_t>(begin), keys_.end(),
            [](const Key& a, const Key& b) { return std::tie(a.run, a.page) < std::tie(b.run, b.page); });
  for (size_t k = begin; k < kept;) {
    size_t stop = k + 1;
    while (stop < kept && keys_[stop].run == keys_[k].run && keys_[stop].page == keys_[k].page) ++stop;
    at_hand_.push_back({static_cast<uint32_t>(k), static_cast<uint32_t>(stop)});
    k = stop;
  }
}

bool Fetch::next(BlockRead& block) {
  if (first_ == at_hand_.size() || free_.empty()) return false;
  const uint32_t to = free_.back();
  free_.pop_back();
  coming_[to] = at_hand_[first_++];
  const Key& key = keys_[coming_[to].begin];
  const RowRun& run = *(*runs_[key.shard])[key.run];
  const Segment& segment = *run.place.segment;
  block = {segment.file(),
           run.offset_of(key.page),
           buffer_ + to * shape_.bytes,
           static_cast<uint32_t>(shape_.bytes),
           to,
           segment.path.c_str()};
  ++reads_;
  return true;
}

void Fetch::done(uint64_t tag) {
  const Some some = coming_[tag];
  const char* page = buffer_ + tag * shape_.bytes;
  const Key& first = keys_[some.begin];
  check_page(*(*runs_[first.shard])[first.run], first.page, page, shape_);
  for (uint32_t k = some.begin; k < some.end; ++k) {
    Key& key = keys_[k];
    const int row = find_on(page, shape_, key.key);
    if (row >= 0) {
      found_(key, shape_.stamps(page)[row], shape_.row(page, static_cast<size_t>(row)));
      continue;
    }
    bool again = key.page < key.last_page;
    if (again) {
      ++key.page;
    } else {
      ++false_positives_;
      again = aim(key, size_t{key.run} + 1);
    }
    if (again)
      at_hand_.push_back({k, k + 1});
    else
      absent_(key);
  }
  free_.push_back(static_cast<uint32_t>(tag));
}

}  // namespace cb
