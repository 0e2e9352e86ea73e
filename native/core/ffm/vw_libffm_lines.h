// Parses Vowpal Wabbit and libffm text lines into examples.
//
//   vw      label [importance] ['tag]|namespace[:scale] name[:value] … |namespace …
//   libffm  label field:name:value …
//
// Labels are 1, and 0 or -1; a line may have none (then it cannot be learned from). Numbers must be finite, an
// importance not negative. A namespace's whole name is its field. Empty lines are nothing. A line that does not read so
// is counted and left out, and the first ten are kept with the reason. Fields are those given, or, where none are
// given, numbered as they are met, up to kMostFields.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ffm/examples.h"
#include "core/ffm/weight_layout.h"

namespace cb {

struct BadLine {
  uint64_t line;
  std::string why;
};

class ExampleParser {
 public:
  // Lines with a namespace in `ignored`, none of the fields, are read as if it were not there.
  ExampleParser(bool libffm, std::vector<std::string> fields, const std::vector<std::string>& ignored);

  // Whole lines, but for the last one of all. Gives the number of bad lines among them.
  size_t feed(std::string_view text);
  Examples take();  // what was fed since the last time

  const std::vector<std::string>& fields() const { return fields_; }
  size_t rows() const { return examples_.rows(); }
  uint64_t lines() const { return line_; }
  uint64_t bad() const { return bad_; }
  const std::vector<BadLine>& first_bad() const { return first_bad_; }

  static constexpr size_t kNamed = 10;

 private:
  static constexpr uint16_t kIgnored = 0xffff;
  struct Field {
    uint16_t number;
    uint64_t salt;
  };

  void vw(std::string_view line);
  void ffm(std::string_view line);
  void features(std::string_view text, Field field, float scale);
  Field field(std::string_view name);
  void add(Field field, std::string_view name, float value);

  bool libffm_, open_;
  std::vector<std::string> fields_;
  std::unordered_map<std::string, Field> known_;
  std::vector<uint64_t> salts_;
  std::string name_;
  size_t last_ = 0;  // the field of the namespace before
  Examples examples_;
  uint64_t line_ = 0, bad_ = 0;
  std::vector<BadLine> first_bad_;
};

}  // namespace cb
