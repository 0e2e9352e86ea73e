// Fuzzes the reader of published weights: what it loads must predict.
#include "capi/weight_file.h"

#include "fuzz/fuzz.h"

using namespace cb;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  static fuzz::MemoryFile file;
  const std::string path = file.holding({reinterpret_cast<const char*>(data), size});
  FfmHead head;
  try {
    is_weight_file(path);
    const auto model = load_weights(path, head);
    EXPECT(head.fields.size() == model->settings().fields);
    Examples examples;
    for (uint32_t f = 0; f < std::min(head.settings.fields, 20u); ++f)
      examples.add(feature_key(f, 7), static_cast<uint16_t>(f), 1.0f);
    examples.close(1.0f, 1.0f);
    float out;
    model->predict(examples, &out, 1);
  } catch (const DamagedFile&) {
  }
  return 0;
}
