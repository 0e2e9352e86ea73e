#include "core/ssd/damaged_files.h"

#include <algorithm>
#include <system_error>

#include "core/ssd/checkpoint_manifest.h"
#include "core/system/checked_file.h"

namespace cb {

void check_run(const RowRun& run, unsigned shard, const PageShape& shape,
               const std::function<void(const std::string&)>& tell) {
  AlignedBuffer page(shape.bytes);
  uint64_t rows = 0, before = 0;
  bool whole = true;
  for (uint32_t p = 0; p < run.pages; ++p) {
    try {
      run.place.segment->read(page.data(), shape.bytes, run.offset_of(p));
      check_page(run, p, page.data(), shape);
    } catch (const std::exception& error) {
      tell(error.what() + (" (shard " + std::to_string(shard) + ")"));
      whole = false;
      continue;
    }
    const uint32_t n = PageShape::rows(page.data());
    rows += n;
    for (uint32_t k = 0; k < n; ++k) {
      const uint64_t mix = mix_of(shape.keys(page.data())[k]);
      if (mix <= before || shard_of_mix(mix) != shard || !run.filter.maybe(mix))
        tell(run.place.segment->path + " at byte " + std::to_string(run.offset_of(p)) + ": keys out of order");
      before = mix;
    }
  }
  if (rows != run.rows && whole)
    tell(run.place.segment->path + ": a run has " + std::to_string(rows) + " rows, expected " +
         std::to_string(run.rows));
  // The footer lies behind the pages; its copy in memory was checked when it was read or written.
  try {
    check_footer(run);
  } catch (const std::exception& error) {
    tell(error.what());
  }
}

std::map<uint64_t, std::string> damaged_segments(const std::string& folder) {
  const Manifest manifest = read_manifest(folder);
  const PageShape shape(manifest.shape.floats());
  Segments segments(segments_folder(folder, manifest.generation));
  std::map<uint64_t, std::string> found;
  for (unsigned s = 0; s < kShards; ++s)
    for (const RunFacts& facts : manifest.runs[s]) {
      try {
        const RunPtr run = open_run(segments, facts, shape);
        check_run(*run, s, shape, [&](const std::string& what) { found.emplace(facts.segment, what); });
      } catch (const DamagedFile& error) {
        found.emplace(facts.segment, error.what());
      }
    }
  return found;
}

std::map<uint64_t, std::vector<std::string>> runs_by_segment(const std::string& folder) {
  const Manifest manifest = read_manifest(folder);
  std::map<uint64_t, std::vector<std::string>> out;
  for (const auto& runs : manifest.runs)
    for (const RunFacts& facts : runs)
      out[facts.segment].emplace_back(reinterpret_cast<const char*>(&facts), sizeof facts);
  return out;
}

}  // namespace cb
