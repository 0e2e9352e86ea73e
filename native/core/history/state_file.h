// Saves a state of past events to a file and reads it again, for checkpoints.
//
//   head     "CTRBPAST", version, shape, newest time; sealed
//   texts    count, then length and bytes of each; sealed
//   shard    16 times: newest time, keys after the last sweep, number of keys, then for each key: key, number of
//            events, events as they are stored (time and words); sealed
//   end      "CTRBPEND", number of events; sealed
//
// Numbers are little-endian. Seals are chained 64-bit checksums (core/system/checked_file.h). Reading bounds every
// count by the bytes that are left before it allocates, and throws DamagedFile for anything that was not written.
#pragma once
#include <string>

#include "core/history/state.h"

namespace cb {

// Several states can lie in one file, one behind the other. `append`: add the state behind what the file holds.
void save_past(const HistoryState& state, const std::string& path, bool append = false);

// Loads the state that begins at byte `begin` and puts the place of the byte behind it into `end`; without `end`, the
// state must be the last of its file. It must have been saved with the same shape; std::invalid_argument otherwise.
HistoryState load_past(const PastShape& shape, const std::string& path, uint64_t begin = 0, uint64_t* end = nullptr);

// Loads into an empty state, which may move events to a disk while it is filled.
HistoryState load_past(HistoryState empty, const std::string& path, uint64_t begin = 0, uint64_t* end = nullptr);

}  // namespace cb
