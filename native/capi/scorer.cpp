// Implements the scorers of the C interface over core/request: raw columns in, scores out.
#include <algorithm>
#include <limits>
#include <string_view>

#include "capi/exceptions_to_status.h"

using namespace cb;

struct ctrbox_scorer {
  RequestScorer scorer;
  uint64_t learned;
};

namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of a request

// Refuses a model whose fields were trained on other keys than the plan makes.
void check_kinds(const RequestPlan& plan, const FfmHead& head) {
  for (size_t f = 0; f < head.fields.size(); ++f) {
    const KeyKind kind = head.key_kind(f);
    const std::string& name = head.fields[f];
    const auto among = [&](const std::vector<std::string>& names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    const bool dense = among(plan.once.dense) || among(plan.each.dense);
    if (kind == KeyKind::kText || (kind != KeyKind::kUnknown && dense != (kind == KeyKind::kDense)))
      throw BadArgument("field '" + name.substr(0, 100) + "' was trained on " + described(kind).told +
                        ", but the plan makes " + (dense ? described(KeyKind::kDense).told : "keys of its columns"));
  }
}

ctrbox_scorer* made(std::shared_ptr<const RequestPlan> plan, const char* weights) {
  std::unique_ptr<ctrbox_model> model = opened_model(weights);
  try {
    check_kinds(*plan, model->head);
    return new ctrbox_scorer{{std::move(plan), std::move(model->model), model->head.fields}, model->head.examples};
  } catch (const BadArgument& e) {
    throw BadArgument(std::string(weights) + " does not belong to this plan: " + e.what());
  } catch (const std::invalid_argument& e) {
    throw BadArgument(std::string(weights) + " does not belong to this plan: " + e.what());
  }
}

const RequestRows& rows_of(const ctrbox_scorer& scorer, bool context) {
  return context ? scorer.scorer.plan().context : scorer.scorer.plan().candidates;
}

}  // namespace

extern "C" {

ctrbox_status ctrbox_scorer_open(const char* plan, const char* weights, ctrbox_scorer** scorer) {
  return guarded([&] {
    need(scorer, "scorer");
    *scorer = nullptr;
    need(plan, "plan");
    need(weights, "weights");
    *scorer = made(reading(plan, [&] { return RequestPlan::read(plan); }), weights);
  });
}

ctrbox_status ctrbox_scorer_with(const ctrbox_scorer* of, const char* weights, ctrbox_scorer** scorer) {
  return guarded([&] {
    need(scorer, "scorer");
    *scorer = nullptr;
    need(of, "of");
    need(weights, "weights");
    *scorer = made(of->scorer.shared_plan(), weights);
  });
}

void ctrbox_scorer_close(ctrbox_scorer* scorer) { delete scorer; }

uint64_t ctrbox_scorer_learned(const ctrbox_scorer* scorer) { return scorer ? scorer->learned : 0; }

const char* ctrbox_scorer_fingerprint(const ctrbox_scorer* scorer) {
  return scorer ? scorer->scorer.plan().fingerprint.c_str() : nullptr;
}

uint32_t ctrbox_scorer_columns(const ctrbox_scorer* scorer, int32_t of_context) {
  return scorer ? static_cast<uint32_t>(rows_of(*scorer, of_context).columns().size()) : 0;
}

const char* ctrbox_scorer_column(const ctrbox_scorer* scorer, int32_t of_context, uint32_t column, char* kind) {
  if (!scorer || column >= rows_of(*scorer, of_context).columns().size()) return nullptr;
  const RequestRows::Column& found = rows_of(*scorer, of_context).columns()[column];
  if (kind) *kind = found.kind;
  return found.name.c_str();
}

ctrbox_status ctrbox_scorer_json(const ctrbox_scorer* scorer, const void* body, size_t bytes, float* scores,
                                 size_t capacity, size_t* rows) {
  return guarded([&] {
    need(rows, "rows");
    *rows = 0;
    need(scorer, "scorer");
    if (bytes) need(body, "body");
    if (capacity) need(scores, "scores");
    if (bytes > kMostBytes)
      throw BadArgument("a request may have at most 1 GiB, but this one has " + std::to_string(bytes) + " bytes");
    const RequestScorer::Request request = scorer->scorer.read({bytes ? static_cast<const char*>(body) : "", bytes});
    *rows = request.rows;
    if (request.rows > capacity)
      throw BadArgument("the request has " + std::to_string(request.rows) + " candidates, but there is room for " +
                        std::to_string(capacity) + " scores");
    scorer->scorer.score(request, scores);
  });
}

}  // extern "C"
