// Describes the damaged files of a table.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/ssd/sorted_run.h"

namespace cb {

// Reads every page of a run, and its footer again; tell(what) for what is wrong.
void check_run(const RowRun& run, unsigned shard, const PageShape& shape,
               const std::function<void(const std::string&)>& tell);

// Segments that a folder's MANIFEST names and that are damaged, with the first thing that is wrong in each. DamagedFile
// where the manifest itself is.
std::map<uint64_t, std::string> damaged_segments(const std::string& folder);

// The runs that a folder's MANIFEST has in each segment, as the bytes of their facts.
std::map<uint64_t, std::vector<std::string>> runs_by_segment(const std::string& folder);

}  // namespace cb
