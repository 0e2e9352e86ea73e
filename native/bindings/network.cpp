#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "core/embed/unique_keys.h"
#include "core/network/adam_of_dense_weights.h"
#include "core/network/dropout.h"
#include "core/network/forward_and_training_step.h"
#include "core/network/keys_by_field.h"
#include "core/network/log_of_dense_columns.h"

using namespace cb;

namespace {

using Flat = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flat2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Moments = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Columns = std::vector<std::tuple<size_t, int, bool>>;  // field, kind of pooling, whether it is wide

void expect(bool fits, const char* what) {
  if (!fits) throw nb::value_error(what);
}

// What a step knows of its batch before it sees a weight: built while the step before it runs.
struct NetworkIndex {
  const Lookup* lookup;  // kept alive by Python
  Columns columns;
  FieldIndex fields;
};

// Weights and their gradients are arrays that the caller keeps: a model's parameters, which this reads in place.
struct Network {
  size_t dim = 0, dense = 0;
  bool linear = false, pairs = false;
  Columns columns;
  std::optional<Out> first, first_gradient;
  std::optional<Out2> pair_weights, pair_gradient;
  Out bias, bias_gradient;
  std::optional<Moments> seen, mean, spread;
  struct Layer {
    Out2 weight, weight_gradient;
    std::optional<Out> bias, bias_gradient;
    float drop;
  };
  std::vector<Layer> layers;
  NetworkSeconds seconds;  // of all steps learned

  void add_layer(Out2 weight, Out2 weight_gradient, std::optional<Out> b, std::optional<Out> b_gradient, float drop) {
    expect(weight.shape(0) == weight_gradient.shape(0) && weight.shape(1) == weight_gradient.shape(1),
           "a layer's gradient has the shape of its weights");
    expect(!b || (b_gradient && b->size() == weight.shape(1) && b_gradient->size() == b->size()),
           "a layer's bias has one number an output, and a gradient");
    expect(drop >= 0.0f && drop < 1.0f, "dropout is from 0 to less than 1");
    layers.push_back({weight, weight_gradient, b, b_gradient, drop});
  }

  void check_columns(const Lookup& lookup) const {
    std::vector<bool> seen_field(lookup.fields());
    for (auto [field, kind, wide] : columns) {
      expect(field < lookup.fields() && !seen_field[field], "each field is read once, and must exist");
      expect(kind >= 0 && kind <= 2, "a kind of pooling is 0 (sum), 1 (mean) or 2 (max)");
      seen_field[field] = true;
    }
  }

  NetworkStep step(const Lookup& lookup, const NetworkIndex* index, const Flat2& rows, const Flat2& logs,
                   const Out& logits) const {
    NetworkStep s;
    check_columns(lookup);
    s.lookup = &lookup;
    if (index) {
      expect(index->lookup == &lookup && index->columns == columns, "the index belongs to another batch or model");
      s.index = &index->fields;
    }
    for (auto [field, kind, wide] : columns) {
      s.columns.push_back({field, static_cast<Pool>(kind)});
      s.wide.push_back(wide);
    }
    s.dim = dim;
    s.linear = linear;
    expect(rows.shape(0) == lookup.keys.size() && rows.shape(1) == dim + linear,
           "rows are one per key, linear + dim floats each");
    expect(logs.shape(0) == lookup.rows && logs.shape(1) == dense, "dense columns do not fit the batch");
    expect(logits.size() == lookup.rows, "logits are one per row");
    s.rows = rows.data();
    s.dense = dense;
    s.logs = logs.data();
    if (dense) s.moments = {seen->data(), mean->data(), spread->data()};
    s.first = first ? first->data() : nullptr;
    s.has_pairs = pairs;
    s.pairs = pair_weights ? pair_weights->data() : nullptr;
    s.bias = bias.data();
    s.logits = logits.data();
    for (const Layer& l : layers)
      s.layers.push_back({l.weight.shape(0), l.weight.shape(1), l.weight.data(), l.bias ? l.bias->data() : nullptr,
                          l.weight_gradient.data(), l.bias_gradient ? l.bias_gradient->data() : nullptr, l.drop, 0});
    return s;
  }
};

double learn(Network& t, const Lookup& lookup, const NetworkIndex* index, Flat2 rows, Flat2 logs, Flat label,
             std::optional<Flat> weight, const std::vector<uint64_t>& seeds, Out logits, Out2 gradient, size_t threads,
             bool merges_moments) {
  NetworkStep s = t.step(lookup, index, rows, logs, logits);
  expect(label.size() == lookup.rows && (!weight || weight->size() == lookup.rows),
         "labels and weights are one per row");
  expect(gradient.shape(0) == rows.shape(0) && gradient.shape(1) == rows.shape(1), "gradients have the shape of rows");
  expect(seeds.size() == s.layers.size(), "seeds are one per layer");
  s.label = label.data();
  s.weight = weight ? weight->data() : nullptr;
  s.first_gradient = t.first_gradient ? t.first_gradient->data() : nullptr;
  s.pairs_gradient = t.pair_gradient ? t.pair_gradient->data() : nullptr;
  s.bias_gradient = t.bias_gradient.data();
  s.row_gradient = gradient.data();
  s.seconds = &t.seconds;
  s.merges_moments = merges_moments;
  for (size_t l = 0; l < seeds.size(); ++l) s.layers[l].seed = seeds[l];
  nb::gil_scoped_release release;
  return s.run(threads);
}

void score(const Network& t, const Lookup& lookup, const NetworkIndex* index, Flat2 rows, Flat2 logs, Out logits,
           size_t threads) {
  NetworkStep s = t.step(lookup, index, rows, logs, logits);
  nb::gil_scoped_release release;
  s.run(threads);
}

NetworkIndex index_of(const Network& t, const Lookup& lookup, size_t threads) {
  t.check_columns(lookup);
  NetworkIndex found{&lookup, t.columns, {}};
  std::vector<size_t> fields;
  for (auto [field, kind, wide] : t.columns) fields.push_back(field);
  nb::gil_scoped_release release;
  found.fields.build(lookup, fields, threads);
  return found;
}

// Weights, their gradients and the state of Adam, all in place: tensors that torch's optimizer has.
struct Adam {
  struct Weights {
    Out weight, gradient, mean, square, steps;
  };
  std::vector<Weights> kept;
  std::vector<AdamWeights> all;

  void add(Out weight, Out gradient, Out mean, Out square, Out steps) {
    const size_t n = weight.size();
    expect(gradient.size() == n && mean.size() == n && square.size() == n && steps.size() == 1,
           "gradient, mean and square have the shape of their weight, and steps is one number");
    kept.push_back({weight, gradient, mean, square, steps});
    all.push_back({n, weight.data(), gradient.data(), mean.data(), square.data(), steps.data()});
  }
};

}  // namespace

void bind_network(nb::module_& m) {
  nb::class_<NetworkIndex>(m, "NetworkIndex", "Which rows of a batch have which key of a field.");
  nb::class_<Adam>(m, "Adam", "Dense weights and their state, in place, and the steps of Adam.")
      .def(nb::init<>())
      .def("add", &Adam::add, nb::arg("weight"), nb::arg("gradient"), nb::arg("mean"), nb::arg("square"),
           nb::arg("steps"))
      .def(
          "step",
          [](Adam& a, double lr, double beta1, double beta2, double eps, double l2, size_t threads) {
            nb::gil_scoped_release release;
            adam_step(a.all, {lr, beta1, beta2, eps, l2}, threads);
          },
          nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"), nb::arg("l2"), nb::arg("threads"));
  nb::class_<Network>(m, "Network", "The weights of a usual click model, in place, and its steps.")
      .def(
          "__init__",
          [](Network* t, size_t dim, bool linear, const Columns& columns, size_t dense, std::optional<Moments> seen,
             std::optional<Moments> mean, std::optional<Moments> spread, Out bias, Out bias_gradient) {
            expect(bias.size() == 1 && bias_gradient.size() == 1, "the bias is one number");
            expect(!dense || (seen && mean && spread && seen->size() == 1 && mean->size() == dense &&
                              spread->size() == dense),
                   "moments are one a dense column");
            new (t) Network{dim, dense, linear,        false, columns, {},     {}, {},
                            {},  bias,  bias_gradient, seen,  mean,    spread, {}, {}};
          },
          nb::arg("dim"), nb::arg("linear"), nb::arg("columns"), nb::arg("dense"), nb::arg("seen").none(),
          nb::arg("mean").none(), nb::arg("spread").none(), nb::arg("bias"), nb::arg("bias_gradient"))
      .def(
          "set_first",
          [](Network& t, Out weight, Out gradient) {
            expect(weight.size() == t.dense && gradient.size() == t.dense,
                   "first-order weights are one a dense column");
            t.first = weight;
            t.first_gradient = gradient;
          },
          nb::arg("weight"), nb::arg("gradient"))
      .def(
          "set_pairs",
          [](Network& t, Out2 weight, Out2 gradient) {
            expect(weight.shape(0) == t.dense && weight.shape(1) == t.dim && gradient.shape(0) == t.dense &&
                       gradient.shape(1) == t.dim,
                   "pair weights are (dense columns, dim)");
            t.pairs = true;
            t.pair_weights = weight;
            t.pair_gradient = gradient;
          },
          nb::arg("weight"), nb::arg("gradient"))
      .def("add_layer", &Network::add_layer, nb::arg("weight"), nb::arg("weight_gradient"), nb::arg("bias").none(),
           nb::arg("bias_gradient").none(), nb::arg("drop"))
      .def("index", &index_of, nb::arg("lookup"), nb::arg("threads"), nb::keep_alive<0, 2>(),
           "What a step of this batch needs, whatever the weights are.")
      .def("learn", &learn, nb::arg("lookup"), nb::arg("index").none(), nb::arg("rows"), nb::arg("logs"),
           nb::arg("label"), nb::arg("weight").none(), nb::arg("seeds"), nb::arg("logits"), nb::arg("gradient"),
           nb::arg("threads"), nb::arg("merges_moments") = true,
           "Gradients of the mean loss, which is returned; the moments of dense columns are brought up to date, unless "
           "they "
           "count the rows of this batch already.")
      .def("score", &score, nb::arg("lookup"), nb::arg("index").none(), nb::arg("rows"), nb::arg("logs"),
           nb::arg("logits"), nb::arg("threads"))
      .def_prop_ro(
          "seconds",
          [](const Network& t) {
            const NetworkSeconds& s = t.seconds;
            return std::map<std::string, double>{
                {"prepare", s.prepare}, {"inputs", s.inputs}, {"rows", s.rows}, {"keys", s.keys}, {"sum", s.sum}};
          },
          "Seconds on the clock of the parts of all steps learned so far, by name.");
  m.def("network_instructions", &network_instructions);
  m.def(
      "dense_logs",
      [](Flat x, Out out, size_t threads) {
        expect(x.size() == out.size(), "logs are one a number");
        nb::gil_scoped_release release;
        return dense_logs({x.data(), x.size()}, {out.data(), out.size()}, threads);
      },
      nb::arg("x"), nb::arg("out"), nb::arg("threads"), "sign(x)·log(1 + |x|); whether every x is finite.");
  m.def(
      "dropout_mask",
      [](uint64_t seed, size_t rows, size_t columns, float drop, Out2 out) {
        expect(out.shape(0) == rows && out.shape(1) == columns, "the mask has another shape");
        expect(drop >= 0.0f && drop < 1.0f, "dropout is from 0 to less than 1");
        nb::gil_scoped_release release;
        const uint32_t threshold = dropout_threshold(drop);
        const float scale = 1.0f / (1.0f - drop);
        for (size_t r = 0; r < rows; ++r) {
          const uint32_t row = dropout_row(seed, r);
          for (size_t c = 0; c < columns; ++c)
            out.data()[r * columns + c] = dropout_keeps(row, static_cast<uint32_t>(c), threshold) ? scale : 0.0f;
        }
      },
      nb::arg("seed"), nb::arg("rows"), nb::arg("columns"), nb::arg("drop"), nb::arg("out"),
      "What dropout multiplies the outputs of a layer with: 0, or 1 / (1 - drop).");
}
