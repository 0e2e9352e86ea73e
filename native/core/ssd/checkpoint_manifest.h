// Which runs are a table: its last checkpoint. CheckedWriter, little-endian:
//
//   8   "CTRSPARS";  4  version, 1  [seal]
//   the head of a saved table, as in table_file.h, with its clock and sketch where it has them  [seal]
//   8   number of the checkpoint;  8  keys;  8  next segment;  8  generation: which folder has the segments  [seal]
//   for each shard:  8 count, count × RunFacts, newest first  [seal]
//   8   "CTRSPEND"  [seal]
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/embed/table_file.h"
#include "core/ssd/sorted_run.h"

namespace cb {

struct Manifest {
  TableShape shape;
  std::shared_ptr<const LifeState> life;  // where rows are counted or admitted
  uint64_t number = 0, keys = 0, next_segment = 1, generation = 0;
  std::array<std::vector<RunFacts>, kShards> runs;
};

// Whole or not at all: written aside, synced, renamed, the folder synced.
void write_manifest(const std::string& folder, const Manifest& manifest);
Manifest read_manifest(const std::string& folder);
std::string segments_folder(const std::string& folder, uint64_t generation);
bool has_manifest(const std::string& folder);

}  // namespace cb
