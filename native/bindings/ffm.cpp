#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/shared_by_tables.h"
#include "core/ffm/example_cache.h"
#include "core/ffm/examples_from_batch.h"
#include "core/ffm/interactions.h"
#include "core/ffm/model_file.h"
#include "core/ffm/progressive_validation.h"
#include "core/ffm/vw_libffm_lines.h"

using namespace cb;

namespace {

using Octets = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scored = std::tuple<nb::object, int64_t>;

template <class T>
nb::object copied(const std::vector<T>& column) {
  auto held = std::make_shared<std::vector<T>>(column);
  return shared_array(held->data(), {held->size()}, held);
}

nb::object copied(const float* p, std::initializer_list<size_t> shape) {
  size_t n = 1;
  for (size_t side : shape) n *= side;
  auto held = std::make_shared<std::vector<float>>(p, p + n);
  return shared_array(held->data(), shape, held);
}

// Context and candidates have fields of their own.
template <class F>
Scored scored(const Examples& examples, F run) {
  auto out = std::make_shared<std::vector<float>>();
  int64_t broken = -1;
  {
    nb::gil_scoped_release release;
    out->resize(examples.rows());
    if (const auto met = run(out->data())) broken = static_cast<int64_t>(*met);
  }
  return {shared_array(out->data(), {out->size()}, out), broken};
}

void bind_examples(nb::module_& m) {
  nb::class_<Examples>(m, "Examples", "Features as mixed keys, in columns; what Deep FFM learns from.")
      .def_static(
          "from_batch",
          [](const std::vector<std::tuple<Integers, Integers>>& sparse, const Matrix& dense,
             const std::vector<uint64_t>& salts, const Floats& label, const Floats& weight,
             const std::vector<std::string>& dense_names) {
            BatchColumns columns;
            for (const auto& [values, offsets] : sparse)
              columns.sparse.push_back({{values.data(), values.size()}, {offsets.data(), offsets.size()}});
            columns.dense = dense.data();
            columns.rows = dense.shape(0);
            columns.width = dense.shape(1);
            columns.label = {label.data(), label.size()};
            columns.weight = {weight.data(), weight.size()};
            columns.dense_names = dense_names;
            nb::gil_scoped_release release;
            return examples_of(columns, salts);
          },
          nb::arg("sparse"), nb::arg("dense"), nb::arg("salts"), nb::arg("label"), nb::arg("weight"),
          nb::arg("dense_names") = std::vector<std::string>(),
          "Fields of keys, then columns of numbers; salts are the hashes of their names. An empty label or weight: "
          "none. Errors use the names of the dense columns.")
      .def(
          "crossed",
          [](const Examples& e, const std::vector<std::tuple<std::vector<uint16_t>, uint16_t, uint64_t>>& given) {
            std::vector<Interaction> interactions;
            for (const auto& [fields, to, salt] : given) interactions.push_back({fields, to, salt});
            nb::gil_scoped_release release;
            return crossed(e, interactions);
          },
          nb::arg("interactions"), "With hashed interactions: of each its fields, its own field, the hash of its name.")
      .def("renumbered", &Examples::renumbered, nb::arg("to"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("rows", &Examples::rows)
      .def_prop_ro("features", [](const Examples& e) { return e.keys.size(); })
      .def_ro("unlabeled", &Examples::unlabeled)
      .def_prop_ro(
          "offsets", [](const Examples& e) { return copied(e.offsets); },
          nb::for_getter(nb::sig("def offsets(self, /) -> NDArray[numpy.uint32]")))
      .def_prop_ro(
          "keys", [](const Examples& e) { return copied(e.keys); },
          nb::for_getter(nb::sig("def keys(self, /) -> NDArray[numpy.uint64]")))
      .def_prop_ro(
          "fields", [](const Examples& e) { return copied(e.fields); },
          nb::for_getter(nb::sig("def fields(self, /) -> NDArray[numpy.uint16]")))
      .def_prop_ro(
          "values", [](const Examples& e) { return copied(e.values); },
          nb::for_getter(nb::sig("def values(self, /) -> NDArray[numpy.float32]")), "Empty: all 1.")
      .def_prop_ro(
          "labels", [](const Examples& e) { return copied(e.labels); },
          nb::for_getter(nb::sig("def labels(self, /) -> NDArray[numpy.float32]")))
      .def_prop_ro(
          "weights", [](const Examples& e) { return copied(e.weights); },
          nb::for_getter(nb::sig("def weights(self, /) -> NDArray[numpy.float32]")), "Empty: all 1.");

  nb::class_<ExampleParser>(m, "ExampleParser", "Lines of Vowpal Wabbit's or libffm's text to examples.")
      .def(nb::init<bool, std::vector<std::string>, const std::vector<std::string>&>(), nb::arg("libffm"),
           nb::arg("fields"), nb::arg("ignored"))
      .def(
          "feed",
          [](ExampleParser& p, nb::bytes text) {
            const std::string_view view(text.c_str(), text.size());
            nb::gil_scoped_release release;
            return p.feed(view);
          },
          nb::arg("text"), "Whole lines, but for the last one of all; gives the number of bad ones.")
      .def("take", &ExampleParser::take)
      .def_prop_ro("fields", &ExampleParser::fields)
      .def_prop_ro("rows", &ExampleParser::rows)
      .def_prop_ro("lines", &ExampleParser::lines)
      .def_prop_ro("bad", &ExampleParser::bad)
      .def_prop_ro("first_bad", [](const ExampleParser& p) {
        std::vector<std::tuple<uint64_t, std::string>> out;
        for (const BadLine& b : p.first_bad()) out.emplace_back(b.line, b.why);
        return out;
      });

  nb::class_<ExampleWriter>(m, "ExampleWriter")
      .def(
          "__init__",
          [](ExampleWriter* self, const std::string& path) {
            with_file(path, [&] {
              new (self) ExampleWriter(path);
              return 0;
            });
          },
          nb::arg("path"))
      .def(
          "put",
          [](ExampleWriter& w, const Examples& examples, const std::vector<std::string>& fields) {
            with_file("", [&] { w.put(examples, fields); });
          },
          nb::arg("examples"), nb::arg("fields"))
      .def(
          "close", [](ExampleWriter& w, uint64_t lines, uint64_t bad) { with_file("", [&] { w.close(lines, bad); }); },
          nb::arg("lines"), nb::arg("bad"));

  nb::class_<PackedExamples>(m, "PackedExamples", "A block of a file of examples, to be unpacked by any thread.")
      .def("unpack", [](const PackedExamples& packed) { return with_file("", [&] { return packed.unpack(); }); });

  nb::class_<ExampleReader>(m, "ExampleReader")
      .def(
          "__init__",
          [](ExampleReader* self, const std::string& path) {
            with_file(path, [&] {
              new (self) ExampleReader(path);
              return 0;
            });
          },
          nb::arg("path"))
      .def(
          "read",
          [](ExampleReader& r) -> std::unique_ptr<PackedExamples> {
            return with_file("", [&]() -> std::unique_ptr<PackedExamples> {
              auto found = r.read();
              return found ? std::make_unique<PackedExamples>(std::move(*found)) : nullptr;
            });
          },
          nb::sig("def read(self) -> PackedExamples | None"))
      .def_prop_ro("fields", &ExampleReader::fields)
      .def_prop_ro("totals", [](const ExampleReader& r) {
        const auto& t = r.totals();
        return std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>(t.rows, t.unlabeled, t.lines, t.bad);
      });
}

void bind_validation(nb::module_& m) {
  auto same_length = [](const Floats& labels, const Floats& predictions) {
    if (labels.size() != predictions.size()) throw nb::value_error("expected one label for each prediction");
  };
  m.def(
      "validation_sums",
      [same_length](const Floats& labels, const Floats& predictions, double clip) {
        same_length(labels, predictions);
        nb::gil_scoped_release release;
        const ValidationSums sums = validation_sums(labels.data(), predictions.data(), labels.size(), clip);
        return std::tuple<double, double>(sums.loss, sums.predicted);
      },
      nb::arg("labels"), nb::arg("predictions"), nb::arg("clip"),
      "Return the sums of the log losses and of the predictions, which are clipped to [clip, 1 - clip].");
  m.def(
      "auc",
      [same_length](const Floats& labels, const Floats& predictions) {
        same_length(labels, predictions);
        nb::gil_scoped_release release;
        return auc_of(labels.data(), predictions.data(), labels.size());
      },
      nb::arg("labels"), nb::arg("predictions"),
      "Return the AUC of predictions between 0 and 1, where ties count half; NaN where there is no pair.");
}

}  // namespace

void bind_ffm(nb::module_& m) {
  nb::dict kinds;
  for (const KeyKindName& one : kKeyKinds)
    if (one.kind != KeyKind::kUnknown) kinds[nb::str(one.name.data(), one.name.size())] = one.told;
  m.attr("KEY_KINDS") = kinds;

  bind_examples(m);
  bind_validation(m);

  nb::class_<BlockRates>(m, "BlockRates")
      .def(nb::init<float, float, float>(), nb::arg("rate"), nb::arg("power_t"), nb::arg("initial"))
      .def_ro("rate", &BlockRates::rate)
      .def_ro("power_t", &BlockRates::power_t)
      .def_ro("initial", &BlockRates::initial);

  nb::class_<FfmSettings>(m, "FfmSettings")
      .def(nb::init<>())
      .def_rw("fields", &FfmSettings::fields)
      .def_rw("context", &FfmSettings::context)
      .def_rw("k", &FfmSettings::k)
      .def_rw("bits", &FfmSettings::bits)
      .def_rw("lr", &FfmSettings::lr)
      .def_rw("ffm", &FfmSettings::ffm)
      .def_rw("hidden", &FfmSettings::hidden)
      .def_rw("norm", &FfmSettings::norm)
      .def_rw("residual", &FfmSettings::residual)
      .def_rw("lr_rates", &FfmSettings::lr_rates)
      .def_rw("ffm_rates", &FfmSettings::ffm_rates)
      .def_rw("nn_rates", &FfmSettings::nn_rates)
      .def_rw("ffm_init", &FfmSettings::ffm_init)
      .def_rw("seed", &FfmSettings::seed)
      .def("wrong", &wrong_with, "What is wrong with these settings, or an empty string.")
      .def(
          "weights", [](const FfmSettings& s) { return weights_of(FfmLayout(s)); },
          "How many weights a model of these settings has, none of which are wrong.");

  nb::class_<FfmContext>(m, "FfmContext", "The context of a request, worked out once for its candidates.")
      .def_prop_ro("bytes", &FfmContext::bytes);

  nb::class_<DeepFfm>(m, "DeepFfm", "lr, ffm and a network on both, learned one example at a time.")
      .def(
          "__init__",
          [](DeepFfm* self, const FfmSettings& settings, bool learns) {
            const std::string wrong = wrong_with(settings);
            if (!wrong.empty()) throw nb::value_error(wrong.c_str());
            nb::gil_scoped_release release;
            new (self) DeepFfm(settings, learns, learns);
          },
          nb::arg("settings"), nb::arg("learns") = true,
          "One that does not learn has no accumulators, and weights of 0 until they are given.")
      .def(
          "__init__",
          [](DeepFfm* self, const FfmSettings& settings, const Octets& mapped, uint64_t lr_at, uint64_t ffm_at,
             const Floats& dense) {
            const std::string wrong = wrong_with(settings);
            if (!wrong.empty()) throw nb::value_error(wrong.c_str());
            const FfmLayout layout(settings, false);
            const uint64_t lr_bytes = layout.lr_size * sizeof(float);
            const uint64_t ffm_bytes = (layout.rows * layout.stride + kBehind * layout.latent) * sizeof(float);
            const auto within = [&](uint64_t at, uint64_t bytes) {
              const bool aligned = (reinterpret_cast<uintptr_t>(mapped.data()) + at) % 64 == 0;
              return aligned && at <= mapped.size() && bytes <= mapped.size() - at;
            };
            if (!within(lr_at, lr_bytes) || !within(ffm_at, ffm_bytes))
              throw nb::value_error("the weights lie outside the mapped file");
            if (dense.size() != weights_of(layout) - layout.lr_size - layout.rows * layout.stride)
              throw nb::value_error("the number of dense weights differs from that of the model");
            nb::gil_scoped_release release;
            new (self) DeepFfm(settings, reinterpret_cast<const float*>(mapped.data() + lr_at),
                               reinterpret_cast<const float*>(mapped.data() + ffm_at));
            try {
              give_dense(*self, dense.data());
            } catch (...) {
              self->~DeepFfm();
              throw;
            }
          },
          nb::arg("settings"), nb::arg("mapped"), nb::arg("lr_at"), nb::arg("ffm_at"), nb::arg("dense"),
          nb::keep_alive<1, 3>(),
          nb::sig("def __init__(self, settings: FfmSettings, mapped: NDArray[numpy.uint8], lr_at: int, ffm_at: int, "
                  "dense: NDArray[numpy.float32]) -> None"),
          "One that predicts from lr and ffm at these places of a mapped file, which it does not copy. The file has "
          "some "
          "bytes behind ffm: kBehind of core/ffm/weight_layout.h.")
      .def(
          "learn",
          [](DeepFfm& model, const Examples& examples, size_t threads, bool sparse, size_t block, uint64_t learned) {
            if (!model.layout().learns())
              throw nb::value_error("this model has no optimizer state, so it cannot learn or be saved");
            if (examples.unlabeled || examples.labels.size() != examples.rows())
              throw nb::value_error("an example has no label");
            return scored(examples, [&](float* out) {
              model.check_fields(examples, 0, examples.rows());
              return block > 1 ? model.learn_blocks(examples, out, threads, sparse, block, learned)
                               : model.learn(examples, out, sparse);
            });
          },
          nb::arg("examples"), nb::arg("threads"), nb::arg("sparse"), nb::arg("block") = 1, nb::arg("learned") = 0,
          nb::sig(
              "def learn(self, examples: Examples, threads: int, sparse: bool, block: int = 1, learned: int = 0) -> "
              "tuple[NDArray[numpy.float32], int]"),
          "Predictions before learning, and the first example whose output was not finite, or -1.")
      .def(
          "predict",
          [](const DeepFfm& model, const Examples& examples, size_t threads) {
            return scored(examples, [&](float* out) { return model.predict(examples, out, threads); });
          },
          nb::arg("examples"), nb::arg("threads"),
          nb::sig("def predict(self, examples: Examples, threads: int) -> tuple[NDArray[numpy.float32], int]"))
      .def(
          "context",
          [](const DeepFfm& model, const Examples& example) {
            if (example.rows() != 1) throw nb::value_error("a context must be exactly one example");
            nb::gil_scoped_release release;
            model.check_part(example, true);
            return model.context(example);
          },
          nb::arg("example"))
      .def(
          "score",
          [](const DeepFfm& model, const FfmContext& context, const Examples& candidates) {
            if (context.weights != model.state())
              throw nb::value_error(
                  "the context was made with other weights: of another model, or of this one before it learned");
            return scored(candidates, [&](float* out) {
              model.check_part(candidates, false);
              return model.score(context, candidates, out);
            });
          },
          nb::arg("context"), nb::arg("candidates"),
          nb::sig("def score(self, context: FfmContext, candidates: Examples) -> tuple[NDArray[numpy.float32], int]"))
      .def_prop_ro("learns", [](const DeepFfm& model) { return model.layout().learns(); })
      .def(
          "save",
          [](const DeepFfm& model, const std::string& path, const std::vector<std::string>& fields, uint64_t learned,
             const std::vector<std::string>& keys) {
            if (!model.layout().learns())
              throw nb::value_error("this model has no optimizer state, so it cannot learn or be saved");
            FfmHead head{model.settings(), fields, learned};
            for (const std::string& name : keys) {
              const auto kind = key_kind_named(name);
              if (!kind) throw nb::value_error("a kind of key has an unknown name");
              head.keys.push_back(*kind);
            }
            if (!keys.empty() && keys.size() != fields.size())
              throw nb::value_error("expected one kind of key for each field");
            with_file(path, [&] { save_ffm(path, model, head); });
          },
          nb::arg("path"), nb::arg("fields"), nb::arg("learned"), nb::arg("keys") = std::vector<std::string>())
      .def_static(
          "load",
          [](const std::string& path) {
            FfmHead head;
            auto model = with_file(path, [&] { return load_ffm(path, head); });
            std::vector<std::string> keys;
            for (size_t f = 0; f < head.fields.size(); ++f) keys.emplace_back(described(head.key_kind(f)).name);
            return nb::make_tuple(nb::cast(std::move(model)), head.fields, head.examples, keys);
          },
          nb::arg("path"), nb::sig("def load(path: str) -> tuple[DeepFfm, list[str], int, list[str]]"))
      .def(
          "weights",
          [](const DeepFfm& model) {
            const size_t n = weights_of(model.layout());
            std::shared_ptr<float[]> out(new float[n]);
            {
              nb::gil_scoped_release release;
              take_weights(model, out.get());
            }
            return shared_array(out.get(), {n}, out);
          },
          nb::sig("def weights(self) -> NDArray[numpy.float32]"),
          "A copy without accumulators: lr, ffm, dense, as in the file.")
      .def(
          "give_weights",
          [](DeepFfm& model, const Floats& weights) {
            if (weights.size() != weights_of(model.layout()))
              throw nb::value_error("the number of weights differs from that of the model");
            if (!model.owns()) throw nb::value_error("the weights of this model belong to a mapped file");
            nb::gil_scoped_release release;
            give_weights(model, weights.data());
          },
          nb::arg("weights"), "Of such a copy; accumulators stay as they are.")
      .def(
          "use",
          [](DeepFfm& model, const std::string& name) {
            const FfmKernels* found = ffm_kernels_named(name);
            if (found) model.use(*found);
            return found != nullptr;
          },
          nb::arg("simd"), "Ask for scalar, neon, avx2 or avx512; False where this machine has not got it.")
      .def_prop_ro("simd", [](const DeepFfm& model) { return model.kernels().name; })
      .def_prop_ro("settings", [](const DeepFfm& model) { return model.settings(); })
      .def_prop_ro("bytes", &DeepFfm::bytes)
      .def_prop_ro(
          "parts",
          [](const DeepFfm& model) {
            const FfmLayout& l = model.layout();
            return std::tuple<uint64_t, uint64_t, uint64_t>(l.lr_size, l.rows,
                                                            weights_of(l) - l.lr_size - l.rows * l.stride);
          },
          "Weights of lr, rows of ffm, weights of dense.")
      .def_prop_ro("stride", [](const DeepFfm& model) { return model.layout().stride; })
      .def(
          "lr", [](const DeepFfm& d) { return copied(d.lr(), {d.layout().lr_size, d.layout().lr_step}); },
          "A copy: weight, accumulator.")
      .def(
          "ffm",
          [](const DeepFfm& d) { return copied(d.ffm(), {d.layout().rows, d.layout().lr_step, d.layout().stride}); },
          "A copy: rows of weights and of accumulators.")
      .def("dense", [](const DeepFfm& d) { return copied(d.dense(), {d.layout().dense}); }, "A copy; weight_layout.h.");
}
