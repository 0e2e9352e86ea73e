#include "core/join/spill_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

using namespace spill;

namespace {

constexpr size_t kRunBlock = size_t{64} << 10;        // entries of a run are read and checked in such blocks
constexpr size_t kOut = size_t{4} << 20;              // of the view's file, written at once
constexpr uint64_t kLeastBudget = uint64_t{1} << 16;  // a smaller budget counts as this much for the fences
constexpr size_t kRunHead = 16;                       // checksum, bytes, entries
constexpr size_t kEntryHead = 32;                     // hash, time, row, bytes
constexpr uint32_t kVersion = 1;

}  // namespace

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
  if (merging_) throw std::logic_error("the runs have already been merged");
  if (handles.size() != hashes.size() || rows.size() != hashes.size() ||
      times.size() != (shape_.as_of ? hashes.size() : 0))
    throw std::invalid_argument("expected a hash, a row and, for an as-of join, a time for each record");
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
  if (page + size / kBlock > UINT32_MAX) throw std::length_error("a joined view has 16 TiB or more");
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
    throw std::invalid_argument("expected a null row with the fields of the view");
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
