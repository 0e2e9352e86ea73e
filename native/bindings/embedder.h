// What the bindings of all tables of trainable rows share: keys, gradients, shapes, files.
#pragma once
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cerrno>
#include <system_error>

#include "bindings/bindings.h"
#include "core/table_file.h"

namespace cb {

using Keys = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Gradients = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Optimizer = std::pair<uint32_t, std::array<double, kOptimizerParameters>>;
using Shape = std::tuple<uint32_t, bool, Optimizer, Optimizer, double, uint64_t>;

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
  const auto& [dim, linear, weight, vector, init, seed] = shape;
  return TableShape{dim, linear, spec_of(weight), spec_of(vector), init, seed};
}

inline Shape tuple_of(const TableShape& s) {
  return {s.dim, s.linear, tuple_of(s.weight), tuple_of(s.vector), s.init, s.seed};
}

}  // namespace cb
