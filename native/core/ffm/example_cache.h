// The file of parsed examples. Little-endian, CheckedWriter; [seal] is the checksum of the block before it:
//
//   8  "CTREXAMP"   4  version, 1   [seal]
//   blocks of examples, each:
//     4  1   4  rows   4  features   4  flags: 1 values, 2 weights, 4 fields of two bytes
//     4  new fields; each 2 length, bytes of its name; they are numbered on from those of earlier blocks
//     rows × 2  features of an example      rows × 1  label: 0, 1, 2 for none     rows × 4  weights, if any
//     features × 1 or 2  fields     features × 6  keys     features × 4  values, if any   [seal]
//   4  2   8  rows in all   8  without a label   8  lines read   8  bad ones   [seal]
//
// Keys do not depend on a model's size, so one file serves every model over its fields.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ffm/examples.h"
#include "core/system/checked_file.h"

namespace cb {

class ExampleWriter {
 public:
  explicit ExampleWriter(const std::string& path);
  // `fields`: all names so far, those of earlier blocks first.
  void put(const Examples& examples, const std::vector<std::string>& fields);
  void close(uint64_t lines, uint64_t bad);

 private:
  CheckedWriter file_;
  size_t named_ = 0;
  uint64_t rows_ = 0, unlabeled_ = 0;
};

// One block as the file holds it, whose checksum fits.
struct PackedExamples {
  std::vector<uint16_t> counts, wide;
  std::vector<uint8_t> labels, narrow, keys;  // fields are wide or narrow
  std::vector<float> values, weights;
  size_t fields = 0;  // known so far
  std::string block;  // its name in errors

  // Any thread may do this while the reader goes on: it takes about as long as reading.
  Examples unpack() const;
};

class ExampleReader {
 public:
  explicit ExampleReader(const std::string& path);
  // Block by block; nothing after the last. Damage is thrown before a block is given out, or when it is unpacked.
  std::optional<PackedExamples> read();
  std::optional<Examples> next() {
    const auto packed = read();
    return packed ? std::optional<Examples>(packed->unpack()) : std::nullopt;
  }

  const std::vector<std::string>& fields() const { return fields_; }  // so far
  struct Totals {
    uint64_t rows = 0, unlabeled = 0, lines = 0, bad = 0;
  };
  const Totals& totals() const { return totals_; }  // after the last block

 private:
  CheckedReader file_;
  std::vector<std::string> fields_;
  Totals totals_;
  uint64_t rows_ = 0;
  bool done_ = false;
};

}  // namespace cb
