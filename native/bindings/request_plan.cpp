#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/join/spilled_view.h"
#include "core/request/request_scorer.h"
#include "core/request/v2_request.h"

// Behind the core, whose names its own would hide.
#include "bindings/bindings.h"
#include "bindings/shared_by_tables.h"

using namespace cb;

namespace {

// name, kind, lowest and highest whole number, whether float32, microseconds that a number counts
using Described = std::tuple<std::string, std::string, int64_t, int64_t, bool, int64_t>;
using Columns = std::tuple<std::vector<Described>, std::vector<std::string>>;  // and those that are not read
using View = std::tuple<std::shared_ptr<Table>, std::shared_ptr<Records>>;
using Filter = std::tuple<std::shared_ptr<Program>, std::vector<std::string>, std::vector<bool>>;
using Slot = std::tuple<bool, std::string, uint32_t, std::string>;  // whether keys, kind, width, name
using Part = std::tuple<std::vector<size_t>, std::optional<Filter>, std::vector<Slot>, std::shared_ptr<Program>>;

RequestRows rows_from(Columns given, int64_t most) {
  std::vector<RequestRows::Column> columns;
  for (auto& [name, kind, low, high, single, unit] : std::get<0>(given))
    columns.push_back({std::move(name), kind.at(0), low, high, single, unit});
  return {std::move(columns), std::move(std::get<1>(given)), most};
}

RequestPart part_from(Part given) {
  RequestPart out;
  auto& [columns, filter, slots, program] = given;
  out.columns = std::move(columns);
  if (filter) out.filter = {std::get<0>(*filter), std::get<1>(*filter), std::get<2>(*filter)};
  for (auto& [keys, kind, width, name] : slots) {
    out.slots.push_back({keys ? BatchSlot::What::Keys : BatchSlot::What::Dense, std::move(kind), 0, width});
    out.names.push_back(std::move(name));
  }
  out.program = std::move(program);
  return out;
}

nb::tuple scores_of(const RequestScorer& scorer, nb::bytes body) {
  auto out = std::make_shared<std::vector<float>>();
  std::string wrong;
  {
    nb::gil_scoped_release release;
    try {
      const RequestScorer::Request request = scorer.read({body.c_str(), body.size()});
      out->resize(request.rows);
      scorer.score(request, out->data());
    } catch (const BadRequest& e) {
      wrong = e.what();
    } catch (const BadScore& e) {
      wrong = e.what();
    }
  }
  return nb::make_tuple(shared_array(out->data(), {out->size()}, out), wrong);
}

// Errors reach Python as BadPart(message, of_context, row) for a part of a request, and as BadScore(position) for a
// score that is not finite.
nb::object bad_part_type, bad_score_type;

std::shared_ptr<const RequestPlan> plan_from(const RequestRows& context, const RequestRows& candidates, uint32_t merged,
                                             Part once, std::optional<Part> shared,
                                             const std::vector<std::string>& shared_kinds,
                                             const std::vector<bool>& shared_nullable, Part each) {
  auto plan = std::make_shared<RequestPlan>();
  plan->context = context;
  plan->candidates = candidates;
  plan->merged = merged;
  plan->once = part_from(std::move(once));
  plan->once.name_features();
  if (shared) plan->shared = part_from(std::move(*shared));
  plan->shared_kinds = shared_kinds;
  plan->shared_nullable = shared_nullable;
  plan->each = part_from(std::move(each));
  plan->each.name_features();
  return plan;
}

// Calls `answer` without the interpreter's lock. Returns the scores, or None.
template <class Answer>
nb::object scored(Answer answer) {
  std::optional<std::vector<float>> found;
  std::optional<BadPart> part;
  std::optional<BadScore> score;
  try {
    const nb::gil_scoped_release release;
    found = answer();
  } catch (const BadPart& e) {
    part = e;
  } catch (const BadScore& e) {
    score = e;
  } catch (const SpilledViewError& e) {
    raise_source_error(e.what());
  }
  if (part || score) {
    const nb::object type = part ? bad_part_type : bad_score_type;
    const nb::object error = part ? type(part->what(), part->of_context, part->row) : type(score->position);
    PyErr_SetObject(type.ptr(), error.ptr());
    throw nb::python_error();
  }
  if (!found) return nb::none();
  const auto out = std::make_shared<std::vector<float>>(std::move(*found));
  return shared_array(out->data(), {out->size()}, out);
}

std::string_view text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::object answer_of(const RequestScorer& scorer, nb::bytes body, nb::bytes versions, ContextCache& cache,
                     RequestTimes* times) {
  return scored([&] { return scorer.answer(text_of(body), text_of(versions), cache, times); });
}

nb::object infer_answer_of(const RequestScorer& scorer, nb::bytes body, size_t json_bytes, nb::bytes versions,
                           ContextCache& cache, RequestTimes* times) {
  const std::string_view all = text_of(body);
  if (json_bytes > all.size()) return nb::none();
  std::optional<InferRequest> request;
  const nb::object scores = scored([&]() -> std::optional<std::vector<float>> {
    request = InferRequest::read(all.substr(0, json_bytes), all.substr(json_bytes));
    if (!request) return std::nullopt;
    return scorer.answer(request->inputs, text_of(versions), cache, times);
  });
  if (scores.is_none()) return nb::none();
  return nb::make_tuple(scores, nb::str(request->id.data(), request->id.size()), request->binary);
}

using Tensor =
    std::tuple<std::string, std::string, std::vector<int64_t>, nb::bytes>;  // name, datatype, shape, elements

nb::object tensors_answer_of(const RequestScorer& scorer, const std::vector<Tensor>& given, nb::bytes versions,
                             ContextCache& cache, RequestTimes* times) {
  std::vector<InputTensor> tensors;
  for (const auto& [name, datatype, shape, data] : given) tensors.push_back({name, datatype, shape, text_of(data)});
  return scored([&] { return scorer.answer(tensors, text_of(versions), cache, times); });
}

}  // namespace

void bind_request_plan(nb::module_& m) {
  bad_part_type = nb::exception<BadPart>(m, "BadPart", PyExc_ValueError);
  bad_score_type = nb::exception<BadScore>(m, "BadScore", PyExc_ValueError);
  m.def(
      "write_request_plan",
      [](const std::string& path, Columns context, Columns candidates, uint32_t merged, const std::string& fingerprint,
         const std::vector<View>& views, Part once, std::optional<Part> shared, Part each) {
        RequestPlan plan;
        plan.context = rows_from(std::move(context), 1);
        plan.candidates = rows_from(std::move(candidates), RequestPlan::kMostCandidates);
        plan.merged = merged;
        plan.fingerprint = fingerprint;
        for (const auto& [index, records] : views) plan.views.push_back({index, records});
        plan.once = part_from(std::move(once));
        if (shared) plan.shared = part_from(std::move(*shared));
        plan.each = part_from(std::move(each));
        with_file(path, [&] { plan.write(path); });
      },
      nb::arg("path"), nb::arg("context"), nb::arg("candidates"), nb::arg("merged"), nb::arg("fingerprint"),
      nb::arg("views"), nb::arg("once"), nb::arg("shared").none(), nb::arg("each"),
      "Write the native programs of a plan that was split for requests (core/request/request_plan.h).");
  nb::class_<RequestPlan>(m, "RequestPlan", "A plan for requests, read from its file, as libctrbox reads it.")
      .def_static(
          "read", [](const std::string& path) { return with_file(path, [&] { return RequestPlan::read(path); }); },
          nb::arg("path"))
      .def_ro("fingerprint", &RequestPlan::fingerprint);
  nb::class_<RequestTimes>(m, "RequestTimes", "How long the parts of a request took, in nanoseconds, for traces.")
      .def(nb::init<>())
      .def_ro("reading", &RequestTimes::reading)
      .def_ro("plan", &RequestTimes::plan)
      .def_ro("engine", &RequestTimes::engine)
      .def_ro("cached", &RequestTimes::cached, "Whether the cache had the context.");
  nb::class_<RequestScorer>(m, "RequestScorer",
                            "A plan for requests with a Deep FFM: the bytes of a request in, scores out.")
      .def(
          "__init__",
          [](RequestScorer* self, std::shared_ptr<const RequestPlan> plan, std::shared_ptr<const DeepFfm> model,
             const std::vector<std::string>& fields) {
            new (self) RequestScorer(std::move(plan), std::move(model), fields);
          },
          nb::arg("plan"), nb::arg("model"), nb::arg("fields"))
      .def_static(
          "of_parts",
          [](const RequestRows& context, const RequestRows& candidates, uint32_t merged, Part once,
             std::optional<Part> shared, const std::vector<std::string>& shared_kinds,
             const std::vector<bool>& shared_nullable, Part each, std::shared_ptr<const DeepFfm> model,
             const std::vector<std::string>& fields) {
            return std::make_shared<RequestScorer>(
                plan_from(context, candidates, merged, std::move(once), std::move(shared), shared_kinds,
                          shared_nullable, std::move(each)),
                std::move(model), fields);
          },
          nb::arg("context"), nb::arg("candidates"), nb::arg("merged"), nb::arg("once"), nb::arg("shared").none(),
          nb::arg("shared_kinds"), nb::arg("shared_nullable"), nb::arg("each"), nb::arg("model"), nb::arg("fields"),
          "A scorer of the parts of a plan, without a file.")
      .def_prop_ro("shares", &RequestScorer::shares, "Whether the model works out a context once.")
      .def("answer", &answer_of, nb::arg("body"), nb::arg("versions"), nb::arg("cache"),
           nb::arg("times").none() = nb::none(),
           nb::sig("def answer(self, body: bytes, versions: bytes, cache: ContextCache, times: RequestTimes | None = "
                   "None) -> NDArray[numpy.float32] | None"),
           "Scores of the candidates, as POST /v1/score takes them; None: the request is left to the slow path.")
      .def("answer_infer", &infer_answer_of, nb::arg("body"), nb::arg("json_bytes"), nb::arg("versions"),
           nb::arg("cache"), nb::arg("times").none() = nb::none(),
           nb::sig("def answer_infer(self, body: bytes, json_bytes: int, versions: bytes, cache: ContextCache, times: "
                   "RequestTimes | None = None) -> "
                   "tuple[NDArray[numpy.float32], str, bool] | None"),
           "Scores, id and whether the scores are wanted as binary, of a request of the Open Inference Protocol whose "
           "JSON has json_bytes bytes; None: it is left to the slow path.")
      .def("answer_tensors", &tensors_answer_of, nb::arg("tensors"), nb::arg("versions"), nb::arg("cache"),
           nb::arg("times").none() = nb::none(),
           nb::sig("def answer_tensors(self, tensors: Sequence[tuple[str, str, Sequence[int], bytes]], versions: "
                   "bytes, cache: ContextCache, times: RequestTimes | None = None) -> NDArray[numpy.float32] | None"),
           "The same for tensors: name, datatype, shape and binary elements of each.")
      .def("scores", &scores_of, nb::arg("body"),
           nb::sig("def scores(self, body: bytes) -> tuple[NDArray[numpy.float32], str]"),
           "Scores of the candidates, NaN where a filter drops one; and what is wrong with the request, if anything.");
}
