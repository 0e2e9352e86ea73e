// A plan for requests, without Python: the native programs of a plan that was split into the part of the context and
// the part of the candidates (ctrbox/compiled_plan/split_for_requests.py), with the columns that a request brings. With
// a Deep FFM it turns the bytes of a request into scores (request_scorer.h). The server makes one in memory; libctrbox
// reads one from a file.
//
// The file. Little-endian, CheckedWriter, [seal] is the checksum of the block before it; texts, views and programs as
// in core/program/program_file.h:
//
//   8  "CTRREQPL"   4  version, 1   4  merged sources, which a request has no rows of
//   columns of the context, then those of the candidates: 4 n, each: text name, 1 kind (b i f s t), 8 lowest, 8
//   highest,
//     1 float32, 8 microseconds of a unit of a time; 4 n, each: text name of a column that may come and is not read
//   text  fingerprint of the plan   [seal]
//   views
//   once, shared (1 flag: whether there is one), each; a part is
//     4 n, n × 4  numbers of the columns that its source 0 has, of the context's; of `each` the candidates', all of
//     them 1 flag, and if set the filter: 4 n, each: text kind, 1 nullable; program. It emits a mask to slot -1 4 n,
//     slots of its batch: 1 what (0 dense, 1 keys), text kind, 4 width, text name. `shared` has none program
//   8  "CTREND.."   [seal]
//
// Refused as DamagedFile: whatever core/program/program_file.h refuses, a slot without a value, a column that a program
// reads and the request does not bring. Threads: everything is constant after reading; any number may score at once.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/program/program_file.h"
#include "core/program/result_sinks.h"
#include "core/request/request_rows.h"

namespace cb {

// A part of a plan: what one program makes of the context or of the candidates.
struct RequestPart {
  struct Filter {
    std::shared_ptr<const Program> program;
    std::vector<std::string> kinds;  // of what it keeps for the program
    std::vector<bool> nullable;
  };

  std::vector<size_t> columns;
  std::optional<Filter> filter;
  std::vector<BatchSlot> slots;    // dense and keys
  std::vector<std::string> names;  // of the features, slot by slot
  std::shared_ptr<const Program> program;

  // Filled from the slots.
  uint32_t dense_width = 0;
  std::vector<std::string> sparse, dense;  // names; the columns of a vector are numbered: "v.0", "v.1"
  void name_features();
};

struct RequestPlan {
  static constexpr int64_t kMostCandidates = int64_t{1} << 24;

  RequestRows context{{}, {}, 1}, candidates{{}, {}, kMostCandidates};
  uint32_t merged = 0;
  std::string fingerprint;
  std::vector<JoinedRows> views;  // to be written; a plan that was read has them in its programs
  RequestPart once, each;
  std::optional<RequestPart> shared;
  std::vector<std::string> shared_kinds;  // of what `shared` emits
  std::vector<bool> shared_nullable;

  void write(const std::string& path) const;
  static std::shared_ptr<const RequestPlan> read(const std::string& path);

 private:
  void put_part(CheckedWriter& to, ProgramWriter& programs, const RequestPart& part) const;
};

}  // namespace cb
