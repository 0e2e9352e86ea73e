// Fuzzes calls of the C interface with arbitrary arrays, on a small model.
#include "capi/ctrbox.h"
#include "core/ffm/model_file.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

ctrbox_model* small_model() {
  static fuzz::MemoryFile file;
  FfmSettings s;
  s.fields = 3;
  s.k = 2;
  s.bits = 8;
  s.hidden = {3, 2};
  s.context = 1;
  save_ffm(file.path(), DeepFfm(s), FfmHead{s, {"user", "ad", ""}, 7});
  ctrbox_model* model = nullptr;
  EXPECT(ctrbox_open(file.path().c_str(), &model) == CTRBOX_OK && model);
  return model;
}

struct Given {
  ctrbox_examples examples;
  float* scores;
};

// Arrays of just the size they claim; some left out, some numbers from anywhere.
Given given(fuzz::Input& in, fuzz::Heap& heap, uint8_t how) {
  const size_t rows = how & 64 ? 1 : in.byte() % 6;
  std::vector<uint64_t> offsets(rows + 1);
  uint64_t most = 0, at = 0;
  for (size_t e = 0; e <= rows; ++e) {
    offsets[e] = how & 1 ? in.byte() % 32 : at;
    at += in.byte() % 5;
    most = std::max(most, offsets[e]);
  }
  if (how & 1 && in.byte() % 4 == 0) offsets[in.below(rows + 1)] = in.take<uint64_t>() | uint64_t{1} << 33;
  std::vector<uint32_t> fields(most);
  std::vector<uint64_t> keys(most);
  std::vector<float> values(most);
  for (auto& f : fields)
    f = how & 2 ? in.take<uint32_t>() % 5 : how & 64 ? 0 : how & 128 ? 1 + in.byte() % 2 : in.byte() % 3;
  for (auto& k : keys) k = in.take<uint64_t>();
  for (auto& v : values) v = how & 4 ? in.take<float>() : static_cast<float>(in.byte() % 4);
  Given out{{rows, heap.copy(offsets.data(), rows + 1), heap.copy(fields.data(), most), heap.copy(keys.data(), most),
             how & 8 ? nullptr : heap.copy(values.data(), most)},
            heap.zeros<float>(rows)};
  const uint8_t missing = how & 16 ? in.byte() : 0;
  if (missing & 1) out.examples.offsets = nullptr;
  if (missing & 2) out.examples.fields = nullptr;
  if (missing & 4) out.examples.keys = nullptr;
  if (missing & 8) out.scores = nullptr;
  return out;
}

bool known(ctrbox_status status) {
  return status == CTRBOX_OK ||
         ((status == CTRBOX_BAD_ARGUMENT || status == CTRBOX_NOT_FINITE) && *ctrbox_last_error());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ctrbox_model* const model = small_model();
  fuzz::Input in(data, size);
  fuzz::Heap heap;
  const uint8_t how = in.byte();
  const Given whole = given(in, heap, how);
  const ctrbox_model* const asked = how & 32 && in.byte() % 8 == 0 ? nullptr : model;
  EXPECT(known(ctrbox_score(asked, &whole.examples, whole.scores)));

  // A context out of field 0, and candidates of the others, or of any.
  const Given context = given(in, heap, how), candidates = given(in, heap, in.byte());
  ctrbox_context* made = nullptr;
  EXPECT(known(ctrbox_context_make(asked, &context.examples, &made)));
  EXPECT(known(ctrbox_context_score(asked, made, &candidates.examples, candidates.scores)));
  ctrbox_context_free(made);

  const std::string_view name = in.piece(in.byte() % 16);
  uint64_t key = 0;
  uint32_t field = in.byte() % 5;
  const char* text = heap.copy(name);
  EXPECT(known(ctrbox_key_of_text(asked, field, text, name.size(), &key)));
  EXPECT(known(ctrbox_key_of_string(asked, field, text, name.size(), &key)));
  EXPECT(known(ctrbox_key_of_key(asked, field, in.byte(), &key)));
  std::vector<uint64_t> parts(in.byte() % 5);
  for (uint64_t& part : parts) part = in.take<uint64_t>();
  const uint64_t* given_parts = in.byte() % 8 ? heap.copy(parts.data(), parts.size()) : nullptr;
  EXPECT(known(ctrbox_key_of_interaction(asked, field, given_parts, parts.size(), &key)));
  EXPECT(known(ctrbox_field(asked, text, name.size(), &field)));
  ctrbox_field_name(asked, field, nullptr);
  return 0;
}
