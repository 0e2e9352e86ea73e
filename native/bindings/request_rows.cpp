#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <numeric>

#include "bindings/bindings.h"
#include "core/request/model_fields.h"
#include "core/request/request_rows.h"

using namespace cb;

namespace {

FfmContext context_of(const ModelFields& fields, const DeepFfm& model, const Batch& batch) {
  if (batch.rows != 1) throw nb::value_error("a context must be exactly one example");
  nb::gil_scoped_release release;
  Examples example = fields.examples(batch);
  model.check_part(example, true);
  return model.context(example);
}

nb::tuple score_candidates(const ModelFields& fields, const DeepFfm& model, const FfmContext& context,
                           const Batch& batch) {
  if (context.weights != model.state()) throw nb::value_error("the context was made with other weights");
  auto out = std::make_shared<std::vector<float>>();
  int64_t broken = -1;
  {
    nb::gil_scoped_release release;
    Examples examples = fields.examples(batch);
    model.check_part(examples, false);
    out->resize(examples.rows());
    if (const auto met = model.score(context, examples, out->data())) broken = static_cast<int64_t>(*met);
  }
  return nb::make_tuple(shared_array(out->data(), {out->size()}, out), broken);
}

}  // namespace

void bind_request_rows(nb::module_& m) {
  // name, kind, smallest and largest whole number, whether float32, microseconds that a number counts (0: it is no
  // time)
  using Described = std::tuple<std::string, std::string, int64_t, int64_t, bool, int64_t>;
  nb::class_<RequestRows>(m, "RequestRows",
                          "Candidates of a request, or its context, from its JSON straight into a frame.")
      .def(
          "__init__",
          [](RequestRows* self, const std::vector<Described>& described, std::vector<std::string> ignored,
             int64_t most) {
            std::vector<RequestRows::Column> columns;
            for (const auto& [name, kind, low, high, single, unit] : described) {
              if (kind.size() != 1 || std::string_view("bifst").find(kind) == std::string_view::npos)
                throw nb::value_error("a kind must be one of b, i, f, s and t");
              columns.push_back({name, kind[0], low, high, single, unit});
            }
            new (self) RequestRows(std::move(columns), std::move(ignored), most);
          },
          nb::arg("columns"), nb::arg("ignored"), nb::arg("most"))
      .def(
          "read",
          [](const RequestRows& self, nb::bytes body) -> nb::object {
            auto found = self.read({body.c_str(), body.size()});  // some microseconds: not worth the GIL
            if (!found || found->rows == 0) return nb::none();    // no candidates: the slow way, which is fast then
            return nb::make_tuple(found->context_begin, found->context_end, found->frame);
          },
          nb::arg("body"), nb::sig("def read(self, body: bytes) -> tuple[int, int, Frame] | None"),
          "Where the context lies, and the candidates; None: read it the slow way, which also says what is wrong.")
      .def(
          "row", [](const RequestRows& self, nb::bytes object) { return self.row({object.c_str(), object.size()}); },
          nb::arg("object"), nb::sig("def row(self, object: bytes) -> Frame | None"),
          "One object with these columns as a frame of one row; None: read it the slow way.");
  nb::class_<ModelFields>(m, "ModelFields", "Columns of a batch as fields of a Deep FFM.")
      .def(
          "__init__",
          [](ModelFields* self, std::vector<size_t> sparse, std::vector<uint64_t> salts, std::vector<uint16_t> numbers,
             std::vector<std::string> dense_names) {
            if (salts.size() != numbers.size() || sparse.size() > salts.size())
              throw nb::value_error("expected one salt for each number");
            std::vector<size_t> dense(salts.size() - sparse.size());  // all dense columns of the batch
            std::iota(dense.begin(), dense.end(), size_t{0});
            new (self) ModelFields{std::move(sparse), std::move(dense), std::move(salts), std::move(numbers),
                                   std::move(dense_names)};
          },
          nb::arg("sparse"), nb::arg("salts"), nb::arg("numbers"), nb::arg("dense_names") = std::vector<std::string>())
      .def("context", &context_of, nb::arg("model"), nb::arg("batch"),
           nb::sig("def context(self, model: DeepFfm, batch: Batch) -> FfmContext"))
      .def(
          "score", &score_candidates, nb::arg("model"), nb::arg("context"), nb::arg("batch"),
          nb::sig("def score(self, model: DeepFfm, context: FfmContext, batch: Batch) -> tuple[NDArray[numpy.float32], "
                  "int]"));
}
