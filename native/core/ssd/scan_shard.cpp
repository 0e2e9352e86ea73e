#include "core/ssd/scan_shard.h"

#include <algorithm>

#include "core/ssd/sparse_table.h"

namespace cb {

namespace {

constexpr size_t kStepBytes = size_t{8} << 20;  // of rows that one step gives

}  // namespace

// The next rows, none at the end.
Scanned SparseTable::scan_next(Scan& scan) {
  std::lock_guard<std::mutex> hold(calls_);
  std::lock_guard<std::mutex> hold_loads(loading_);
  Shard& shard = shards_[scan.shard];
  std::lock_guard<std::mutex> hold_shard(shard.lock);
  const Resident& rows = shard.rows;
  if (!scan.begun) {
    scan.begun = true;
    scan.here.reserve(rows.count());
    for (uint32_t place = 0; place < rows.places(); ++place)
      if (const int64_t key = rows.mark(place).key) scan.here.push_back({mix_of(key), key});
    std::sort(scan.here.begin(), scan.here.end(), [](const auto& a, const auto& b) { return a.mix < b.mix; });
  }
  uint64_t read_before = 0, read_after = 0;  // new readers read their first pages here
  for (const auto& reader : scan.readers) read_before += reader->bytes_read();
  if (scan.runs != shard.runs) {  // rows were written or merged since the last step
    read_before = 0;
    scan.runs = shard.runs;
    scan.readers.clear();
    for (const RunPtr& run : *scan.runs) {
      if (run->newest <= scan.since) continue;
      const auto [first, last] = run->pages_of(scan.after);
      auto reader = std::make_unique<RunReader>(run, page_, size_t{256} << 10, first <= last ? first : 0);
      while (reader->valid() && reader->mix() <= scan.after) reader->next();
      scan.readers.push_back(std::move(reader));
    }
  }
  Scanned out;
  const auto give = [&](int64_t key, uint32_t version, const float* row) {
    if (version <= scan.since) return;
    out.keys.push_back(key);
    out.versions.push_back(version);
    out.rows.insert(out.rows.end(), row, row + row_floats_);
  };
  const size_t most = std::clamp<size_t>(kStepBytes / (row_floats_ * sizeof(float)), 64, size_t{1} << 16);
  while (out.keys.size() < most) {
    RunReader* newest = nullptr;  // of those with the least mix
    for (const auto& reader : scan.readers)
      if (reader->valid() && (!newest || reader->mix() < newest->mix())) newest = reader.get();
    const bool resident = scan.next < scan.here.size() && (!newest || scan.here[scan.next].mix <= newest->mix());
    if (!newest && !resident) break;
    const uint64_t mix = resident ? scan.here[scan.next].mix : newest->mix();
    const int64_t key = resident ? scan.here[scan.next].key : newest->key();
    // What is in memory is newer than any run; a resident key that is no longer there was written to a run, or expired.
    const uint32_t place = rows.find(key, mix);
    if (place != kNowhere)
      give(key, rows.mark(place).version, rows.row(place));
    else if (newest && newest->mix() == mix)
      give(key, version_of(newest->stamp()), newest->row());
    for (const auto& reader : scan.readers)
      if (reader->valid() && reader->mix() == mix) reader->next();
    scan.next += resident;
    scan.after = mix;
  }
  for (const auto& reader : scan.readers) read_after += reader->bytes_read();
  counters_.bytes_read += read_after - read_before;
  if (out.keys.empty()) scan.readers.clear();
  return out;
}

}  // namespace cb
