// The file of a Deep FFM. What loads predicts, and is saved with the same bytes.
#include "core/ffm/model_file.h"

#include "fuzz/fuzz.h"

using namespace cb;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  static fuzz::MemoryFile file, again;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  FfmHead head;
  std::unique_ptr<DeepFfm> model;
  try {
    model = load_ffm(file.holding(bytes), head);
  } catch (const DamagedFile&) {
    return 0;
  }
  EXPECT(head.fields.size() == model->settings().fields);
  Examples examples;
  for (uint32_t e = 0; e < 3; ++e) {
    for (uint32_t f = 0; f < std::min(head.settings.fields, 20u); ++f)
      for (uint32_t n = 0; n < e; ++n) examples.add(feature_key(n * 77, f), static_cast<uint16_t>(f), n ? 0.5f : 1.0f);
    examples.close(1.0f, 1.0f);
  }
  float out[3];
  model->predict(examples, out, 1);
  Examples context;
  for (uint32_t f = 0; f < std::min(head.settings.context, 20u); ++f)
    context.add(feature_key(f, 5), static_cast<uint16_t>(f), 1.0f);
  context.close(1.0f, 1.0f);
  const FfmContext once = model->context(context);
  Examples candidates;
  for (uint32_t f = head.settings.context; f < std::min(head.settings.fields, 40u); ++f)
    candidates.add(feature_key(f, 6), static_cast<uint16_t>(f), 0.5f);
  candidates.close(1.0f, 1.0f);
  model->score(once, candidates, out);
  model->learn(examples, out, 1, true);
  if (!fuzz::kForged) {
    model = load_ffm(file.path(), head);
    save_ffm(again.path(), *model, head);
    EXPECT(again.contents() == bytes);
  }
  return 0;
}
