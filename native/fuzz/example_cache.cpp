// The file of parsed examples; what is read of it is put through a model.
#include "core/ffm/example_cache.h"

#include "core/ffm/engine.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

DeepFfm small_model() {
  FfmSettings s;
  s.fields = 8;
  s.k = 2;
  s.bits = 10;
  s.hidden = {3, 2};
  return DeepFfm(s);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  static fuzz::MemoryFile file;
  static const DeepFfm model = small_model();
  try {
    ExampleReader reader(file.holding({reinterpret_cast<const char*>(data), size}));
    uint64_t rows = 0;
    while (const auto found = reader.next()) {
      rows += found->rows();
      EXPECT(found->labels.size() == found->rows() && found->offsets.back() == found->keys.size());
      EXPECT(found->fields.size() == found->keys.size());
      uint16_t most = 0;
      for (uint16_t f : found->fields) most = std::max(most, f);
      EXPECT(found->keys.empty() || most < reader.fields().size());
      if (most >= model.settings().fields) continue;
      std::vector<float> out(found->rows());
      model.predict(*found, out.data(), 1);
    }
    EXPECT(reader.totals().rows == rows);
  } catch (const DamagedFile&) {
  }
  return 0;
}
