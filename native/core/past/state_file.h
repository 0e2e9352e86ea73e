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

#include "core/past/state.h"

namespace cb {

void save_past(const PastState& state, const std::string& path);

// The state must have been saved with the same shape; std::invalid_argument otherwise.
PastState load_past(const PastShape& shape, const std::string& path);

}  // namespace cb
