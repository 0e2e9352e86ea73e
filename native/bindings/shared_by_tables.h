// Code that the bindings of all tables share: keys, gradients, shapes and files.
#pragma once
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "bindings/bindings.h"
#include "core/embed/table_file.h"

namespace cb {

using Keys = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Gradients = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Optimizer = std::pair<uint32_t, std::array<double, kOptimizerParameters>>;
using LifeTuple = std::tuple<double, uint32_t, double, uint64_t>;  // decay, count, probability, bytes of the sketch
using Shape = std::tuple<uint32_t, bool, Optimizer, Optimizer, double, uint64_t, LifeTuple>;
using Counts = std::optional<nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

inline std::span<const int64_t> span_of(const Keys& keys) { return {keys.data(), keys.size()}; }

inline OptimizerSpec spec_of(const Optimizer& o) {
  if (o.first < 1 || o.first > kMostOptimizerKind) throw nb::value_error("no such kind of optimizer");
  return {static_cast<OptimizerKind>(o.first), o.second};
}

inline Optimizer tuple_of(const OptimizerSpec& spec) { return {static_cast<uint32_t>(spec.kind), spec.parameters}; }

// Without the GIL; a failure of the system becomes an OSError that names the file.
template <class F>
auto with_file(const std::string& path, F f) {
  try {
    nb::gil_scoped_release free;
    return f();
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
  }
}

inline TableShape shape_of(const Shape& shape) {
  const auto& [dim, linear, weight, vector, init, seed, life] = shape;
  const auto& [decay, count, probability, sketch] = life;
  return TableShape{dim, linear, spec_of(weight), spec_of(vector), init, seed, Life{decay, count, probability, sketch}};
}

inline Shape tuple_of(const TableShape& s) {
  const LifeTuple life{s.life.decay, s.life.count, s.life.probability, s.life.sketch_bytes};
  return {s.dim, s.linear, tuple_of(s.weight), tuple_of(s.vector), s.init, s.seed, life};
}

inline Shown shown_of(const Counts& shows, const Counts& clicks, size_t keys) {
  if ((shows && shows->size() != keys) || (clicks && clicks->size() != keys))
    throw nb::value_error("shows and clicks are not one per key");
  return {shows ? shows->data() : nullptr, clicks ? clicks->data() : nullptr};
}

// A table is a MemoryTable or a SparseTable.
template <class Table>
void bind_pull_and_push(nb::class_<Table>& table) {
  table
      .def(
          "pull",
          [](Table& t, Keys keys, bool create) {
            auto rows = std::make_shared<Buffer<float>>();
            with_file("", [&] {
              rows->resize(keys.size() * t.shape().width());
              t.pull(span_of(keys), rows->data(), create);
            });
            return shared_array(rows->data(), {keys.size(), t.shape().width()}, rows);
          },
          nb::arg("keys"), nb::arg("create"))
      .def(
          "push",
          [](Table& t, Keys keys, Gradients gradients, double factor, Counts shows, Counts clicks, bool skip) {
            if (gradients.shape(0) != keys.size() || gradients.shape(1) != t.shape().width())
              throw nb::value_error("gradients are not (keys, width)");
            const Shown shown = shown_of(shows, clicks, keys.size());
            return with_file("", [&] { return t.push(span_of(keys), gradients.data(), factor, shown, skip); });
          },
          nb::arg("keys"), nb::arg("gradients"), nb::arg("factor"), nb::arg("shows") = nb::none(),
          nb::arg("clicks") = nb::none(), nb::arg("skip") = false,
          "-1, or the place of the first gradient that is not finite: then nothing was changed, but where it is "
          "skipped.");
}

// Parts that all tables share besides pull and push.
template <class Table>
void bind_life(nb::class_<Table>& table) {
  table
      .def(
          "advance", [](Table& t, uint64_t periods) { with_file("", [&] { t.advance(periods); }); }, nb::arg("periods"))
      .def(
          "expire",
          [](Table& t, int64_t unseen, double least, double click, double nonclick) {
            if (!t.shape().life.counts()) throw nb::value_error("a table without counters");
            return with_file("", [&] { return t.expire({unseen, least, click, nonclick}); });
          },
          nb::arg("unseen"), nb::arg("least"), nb::arg("click"), nb::arg("nonclick"))
      .def(
          "counters",
          [](Table& t, Keys keys) {
            if (!t.shape().life.counts()) throw nb::value_error("a table without counters");
            auto out = std::make_shared<Buffer<float>>();
            with_file("", [&] {
              out->resize(keys.size() * kCounterFloats);
              t.counters(span_of(keys), out->data());
            });
            return shared_array(out->data(), {keys.size(), kCounterFloats}, out);
          },
          nb::arg("keys"), "Shows, clicks and period of the last push (n, 3), not faded since then.")
      .def_prop_ro("clock", &Table::clock);
}

}  // namespace cb
