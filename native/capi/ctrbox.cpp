// Implements the C interface over core/ffm and core/publish: checks arguments, turns exceptions into status and text.
#include "capi/ctrbox.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "capi/exceptions_to_status.h"
#include "capi/weight_file.h"

using namespace cb;

struct ctrbox_context {
  FfmContext context;
};

namespace {

thread_local std::string last_error;

std::string shown(const char* p, size_t n) {
  std::string out;
  for (size_t k = 0; k < n && k < 40; ++k) out += p[k] >= ' ' && p[k] <= '~' ? p[k] : '?';
  return n > 40 ? out + "..." : out;
}

void check_field(const ctrbox_model& model, uint32_t field) {
  if (field >= model.salts.size())
    throw BadArgument("field " + std::to_string(field) + "; the model has fields 0 to " +
                      std::to_string(model.salts.size() - 1));
}

// The function that makes the keys of a kind.
const char* function_for(KeyKind kind) {
  switch (kind) {
    case KeyKind::kInt:
      return "ctrbox_key_of_int";
    case KeyKind::kString:
      return "ctrbox_key_of_string";
    case KeyKind::kText:
      return "ctrbox_key_of_text";
    case KeyKind::kDense:
      return "ctrbox_key_of_dense";
    default:
      return "ctrbox_key_of_key";
  }
}

// Refuses a key of another kind than those that the field was trained on; a file may not know them.
void check_kind(const ctrbox_model& model, uint32_t field, std::initializer_list<KeyKind> fitting) {
  const KeyKind kind = model.head.key_kind(field);
  if (kind == KeyKind::kUnknown || std::find(fitting.begin(), fitting.end(), kind) != fitting.end()) return;
  const std::string& name = model.head.fields[field];
  throw BadArgument("field '" + shown(name.data(), name.size()) + "' was trained on " + described(kind).told +
                    "; use " + function_for(kind));
}

// fitting: kinds of fields that the key is for.
template <class F>
ctrbox_status keyed(const ctrbox_model* model, uint32_t field, uint64_t* key, std::initializer_list<KeyKind> fitting,
                    F value) noexcept {
  return guarded([&] {
    need(model, "model");
    need(key, "key");
    check_field(*model, field);
    check_kind(*model, field, fitting);
    *key = feature_key(value(model->salts[field]), model->salts[field]);
  });
}

uint64_t hash_of(const void* p, size_t n, const char* name) {
  if (n) need(p, name);
  if (n > UINT32_MAX) throw BadArgument(std::string(name) + " has more than 4 GiB");
  return hash_bytes(static_cast<const char*>(p), static_cast<uint32_t>(n));
}

// ---- examples

Examples examples_of(const ctrbox_model& model, const ctrbox_examples& given) {
  Examples out;
  if (given.rows == 0) return out;
  need(given.offsets, "examples->offsets");
  if (given.rows > UINT32_MAX) throw BadArgument("the call has more than 4,294,967,295 examples; split it");
  if (given.offsets[0] != 0) throw BadArgument("offsets[0] must be 0");
  if (given.offsets[given.rows] > UINT32_MAX)
    throw BadArgument("the call has more than 4,294,967,295 features; split it");
  for (size_t e = 0; e < given.rows; ++e) {
    const uint64_t begin = given.offsets[e], end = given.offsets[e + 1];
    const auto where = [&] { return "example " + std::to_string(e) + ": "; };
    if (end < begin) throw BadArgument(where() + "its features end before they begin");
    if (end - begin > kMostFeatures) throw BadArgument(where() + "it has more than 65,535 features");
    if (end > begin) {
      need(given.fields, "examples->fields");
      need(given.keys, "examples->keys");
    }
    for (uint64_t i = begin; i < end; ++i) {
      const uint32_t field = given.fields[i];
      if (field >= model.salts.size())
        throw BadArgument(where() + "field " + std::to_string(field) + "; the model has " +
                          std::to_string(model.salts.size()));
      const float x = given.values ? given.values[i] : 1.0f;
      if (!std::isfinite(x)) throw BadArgument(where() + "a value is not finite");
      out.add(given.keys[i], static_cast<uint16_t>(field), x);
    }
    out.close(std::numeric_limits<float>::quiet_NaN(), 1.0f);
  }
  return out;
}

// Of a request: fields of the context, or none of them.
Examples part_of(const ctrbox_model& model, const ctrbox_examples& given, bool context) {
  Examples out = examples_of(model, given);
  const uint32_t first = model.head.settings.context;
  for (uint16_t f : out.fields)
    if ((f < first) != context)
      throw BadArgument("field " + std::to_string(f) + (context ? " of a context" : " of a candidate") +
                        "; the fields below " + std::to_string(first) + " are the context's");
  return out;
}

void check_finite(const std::optional<size_t>& broken) {
  if (broken) throw NotFinite("the score of example " + std::to_string(*broken) + " is not finite");
}

}  // namespace

namespace cb {

ctrbox_status failed(ctrbox_status status, const char* why) noexcept {
  try {
    last_error = why;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

std::unique_ptr<ctrbox_model> opened_model(const std::string& path) {
  auto out = std::make_unique<ctrbox_model>();
  out->model =
      reading(path, [&] { return is_weight_file(path) ? load_weights(path, out->head) : load_ffm(path, out->head); });
  for (const std::string& name : out->head.fields)
    out->salts.push_back(hash_bytes(name.data(), static_cast<uint32_t>(name.size())));
  return out;
}

}  // namespace cb

extern "C" {

int32_t ctrbox_abi(void) { return CTRBOX_ABI; }
const char* ctrbox_version(void) { return CTRBOX_VERSION; }
const char* ctrbox_last_error(void) { return last_error.c_str(); }

ctrbox_status ctrbox_open(const char* path, ctrbox_model** model) {
  return guarded([&] {
    need(model, "model");
    *model = nullptr;
    need(path, "path");
    *model = opened_model(path).release();
  });
}

void ctrbox_close(ctrbox_model* model) { delete model; }

uint32_t ctrbox_fields(const ctrbox_model* model) {
  return model ? static_cast<uint32_t>(model->head.fields.size()) : 0;
}

const char* ctrbox_field_name(const ctrbox_model* model, uint32_t field, size_t* bytes) {
  if (!model || field >= model->head.fields.size()) return nullptr;
  if (bytes) *bytes = model->head.fields[field].size();
  return model->head.fields[field].c_str();
}

ctrbox_status ctrbox_field(const ctrbox_model* model, const char* name, size_t bytes, uint32_t* field) {
  return guarded([&] {
    need(model, "model");
    need(field, "field");
    if (bytes) need(name, "name");
    const std::string_view wanted(bytes ? name : "", bytes);
    for (size_t f = 0; f < model->head.fields.size(); ++f)
      if (model->head.fields[f] == wanted) {
        *field = static_cast<uint32_t>(f);
        return;
      }
    throw BadArgument("the model has no field '" + shown(name, bytes) + "'");
  });
}

uint64_t ctrbox_learned(const ctrbox_model* model) { return model ? model->head.examples : 0; }

ctrbox_status ctrbox_key_of_text(const ctrbox_model* model, uint32_t field, const void* name, size_t bytes,
                                 uint64_t* key) {
  return keyed(model, field, key, {KeyKind::kText}, [&](uint64_t) { return hash_of(name, bytes, "name"); });
}

ctrbox_status ctrbox_key_of_string(const ctrbox_model* model, uint32_t field, const void* value, size_t bytes,
                                   uint64_t* key) {
  return keyed(model, field, key, {KeyKind::kString},
               [&](uint64_t salt) { return key_of(hash_of(value, bytes, "value"), salt); });
}

ctrbox_status ctrbox_key_of_int(const ctrbox_model* model, uint32_t field, int64_t value, uint64_t* key) {
  return keyed(model, field, key, {KeyKind::kInt}, [&](uint64_t salt) { return key_of(hash_int(value), salt); });
}

ctrbox_status ctrbox_key_of_key(const ctrbox_model* model, uint32_t field, uint64_t plan_key, uint64_t* key) {
  return keyed(model, field, key, {KeyKind::kInt, KeyKind::kString, KeyKind::kPlan}, [&](uint64_t) {
    if (plan_key == 0) throw BadArgument("key 0 stands for a missing value and cannot be a feature");
    return plan_key;
  });
}

ctrbox_status ctrbox_key_of_dense(const ctrbox_model* model, uint32_t field, uint64_t* key) {
  return keyed(model, field, key, {KeyKind::kDense}, [](uint64_t) { return uint64_t{1}; });
}

ctrbox_status ctrbox_key_of_interaction(const ctrbox_model* model, uint32_t field, const uint64_t* keys, size_t count,
                                        uint64_t* key) {
  return keyed(model, field, key, {KeyKind::kText}, [&](uint64_t) {
    need(keys, "keys");
    if (count < 2) throw BadArgument("an interaction must have two or more features");
    uint64_t out = 0;
    for (size_t k = 0; k < count; ++k) out = fold(out, keys[k]);
    return out;
  });
}

ctrbox_status ctrbox_score(const ctrbox_model* model, const ctrbox_examples* examples, float* scores) {
  return guarded([&] {
    need(model, "model");
    need(examples, "examples");
    if (examples->rows) need(scores, "scores");
    const Examples found = examples_of(*model, *examples);
    check_finite(model->model->predict(found, scores, 1));
  });
}

uint32_t ctrbox_context_fields(const ctrbox_model* model) { return model ? model->head.settings.context : 0; }

ctrbox_status ctrbox_context_make(const ctrbox_model* model, const ctrbox_examples* example, ctrbox_context** context) {
  return guarded([&] {
    need(context, "context");
    *context = nullptr;
    need(model, "model");
    need(example, "example");
    if (example->rows != 1) throw BadArgument("a context is one example; got " + std::to_string(example->rows));
    auto made = std::make_unique<ctrbox_context>();
    made->context = model->model->context(part_of(*model, *example, true));
    *context = made.release();
  });
}

void ctrbox_context_free(ctrbox_context* context) { delete context; }
size_t ctrbox_context_bytes(const ctrbox_context* context) { return context ? context->context.bytes() : 0; }

ctrbox_status ctrbox_context_score(const ctrbox_model* model, const ctrbox_context* context,
                                   const ctrbox_examples* candidates, float* scores) {
  return guarded([&] {
    need(model, "model");
    need(context, "context");
    need(candidates, "candidates");
    if (candidates->rows) need(scores, "scores");
    if (context->context.weights != model->model->state()) throw BadArgument("the context belongs to another model");
    check_finite(model->model->score(context->context, part_of(*model, *candidates, false), scores));
  });
}

ctrbox_status ctrbox_apply_patch(const char* base, const char* patch, const char* result, uint64_t most_bytes) {
  return guarded([&] {
    need(base, "base");
    need(patch, "patch");
    need(result, "result");
    apply_patch(base, patch, result, most_bytes);
  });
}

}  // extern "C"
