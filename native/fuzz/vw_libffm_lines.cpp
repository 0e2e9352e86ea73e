// Lines of Vowpal Wabbit (the first byte even) and libffm; with fields to be found, or a few that are given.
#include "core/ffm/vw_libffm_lines.h"

#include "core/ffm/example_cache.h"
#include "fuzz/fuzz.h"

using namespace cb;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  fuzz::Heap heap;
  const uint8_t how = in.byte();
  const std::string_view text = in.rest();
  ExampleParser parser(how & 1, how & 2 ? std::vector<std::string>{"user", "ad", "0", "1"} : std::vector<std::string>{},
                       how & 4 ? std::vector<std::string>{"c", "2"} : std::vector<std::string>{});
  const size_t cut = how & 8 ? text.size() / 2 : text.size();
  parser.feed({heap.copy(text.substr(0, cut)), cut});
  parser.feed({heap.copy(text.substr(cut)), text.size() - cut});
  const Examples found = parser.take();
  EXPECT(found.rows() + parser.bad() <= parser.lines());
  EXPECT(parser.first_bad().size() == std::min<uint64_t>(parser.bad(), ExampleParser::kNamed));
  EXPECT(found.labels.size() == found.rows() && found.offsets.back() == found.keys.size());
  EXPECT(found.keys.size() == found.fields.size());
  EXPECT(found.values.empty() || found.values.size() == found.keys.size());
  EXPECT(found.weights.empty() || found.weights.size() == found.rows());
  for (float x : found.values) EXPECT(std::isfinite(x) && x != 0.0f);
  for (float w : found.weights) EXPECT(std::isfinite(w) && w >= 0.0f);
  for (size_t e = 0; e < found.rows(); ++e)
    for (size_t i = found.offsets[e]; i < found.offsets[e + 1]; ++i)
      EXPECT(found.fields[i] < parser.fields().size() &&
             (i == found.offsets[e] || found.fields[i - 1] <= found.fields[i]));

  // What was parsed comes back from a cache as it is; its keys lose nothing. Not always: files cost more than lines.
  static fuzz::MemoryFile file;
  if (found.rows() == 0 || how >> 4 != 1) return 0;
  ExampleWriter writer(file.path());
  writer.put(found, parser.fields());
  writer.close(parser.lines(), parser.bad());
  ExampleReader reader(file.path());
  const auto again = reader.next();
  EXPECT(again && again->keys == found.keys && again->fields == found.fields && again->offsets == found.offsets);
  EXPECT(again->values == found.values && again->unlabeled == found.unlabeled && !reader.next());
  return 0;
}
