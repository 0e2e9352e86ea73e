#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <cerrno>
#include <system_error>

#include "bindings/bindings.h"
#include "core/checked_file.h"
#include "core/memory_table.h"
#include "core/parallel.h"
#include "core/table_file.h"

using namespace cb;

namespace {

using Keys = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Gradients = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Optimizer = std::pair<uint32_t, std::array<double, kOptimizerParameters>>;
using Shape = std::tuple<uint32_t, bool, Optimizer, Optimizer, double, uint64_t>;

std::span<const int64_t> span_of(const Keys& keys) { return {keys.data(), keys.size()}; }

OptimizerSpec spec_of(const Optimizer& o) {
  if (o.first < 1 || o.first > kMostOptimizerKind) throw nb::value_error("no such kind of optimizer");
  return {static_cast<OptimizerKind>(o.first), o.second};
}

Optimizer tuple_of(const OptimizerSpec& spec) { return {static_cast<uint32_t>(spec.kind), spec.parameters}; }

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

}  // namespace

void bind_embed(nb::module_& m) {
  nb::exception<TableFull>(m, "TableFull", PyExc_MemoryError);
  nb::exception<DamagedFile>(m, "DamagedFile", PyExc_ValueError);

  nb::class_<MemoryTable>(m, "MemoryTable", "Keys to rows of floats and their optimizers' states, in memory.")
      .def(
          "__init__",
          [](MemoryTable* self, uint32_t dim, bool linear, Optimizer weight, Optimizer vector, double init,
             uint64_t seed, size_t budget, size_t threads) {
            new (self)
                MemoryTable(TableShape{dim, linear, spec_of(weight), spec_of(vector), init, seed}, budget, threads);
          },
          nb::arg("dim"), nb::arg("linear"), nb::arg("weight"), nb::arg("vector"), nb::arg("init"), nb::arg("seed"),
          nb::arg("budget"), nb::arg("threads"))
      .def_static(
          "load",
          [](const std::string& path, size_t budget, size_t threads) {
            return with_file(path, [&] { return MemoryTable::load(path, budget, threads); });
          },
          nb::arg("path"), nb::arg("budget"), nb::arg("threads"))
      .def_static(
          "saved_shape",
          [](const std::string& path) -> Shape {
            TableShape s = with_file(path, [&] { return saved_shape(path); });
            return {s.dim, s.linear, tuple_of(s.weight), tuple_of(s.vector), s.init, s.seed};
          },
          nb::arg("path"), "dim, linear, optimizer of the weight, of the vector, init, seed.")
      .def(
          "save", [](MemoryTable& t, const std::string& path) { with_file(path, [&] { t.save(path); }); },
          nb::arg("path"))
      .def(
          "prefetch",
          [](MemoryTable& t, Keys keys) {
            nb::gil_scoped_release free;
            t.prefetch(span_of(keys));
          },
          nb::arg("keys"))
      .def(
          "pull",
          [](MemoryTable& t, Keys keys, bool create) {
            auto rows = std::make_shared<Buffer<float>>();
            {
              nb::gil_scoped_release free;
              rows->resize(keys.size() * t.shape().width());
              t.pull(span_of(keys), rows->data(), create);
            }
            return shared_array(rows->data(), {keys.size(), t.shape().width()}, rows);
          },
          nb::arg("keys"), nb::arg("create"))
      .def(
          "push",
          [](MemoryTable& t, Keys keys, Gradients gradients, double factor) {
            if (gradients.shape(0) != keys.size() || gradients.shape(1) != t.shape().width())
              throw nb::value_error("gradients are not (keys, width)");
            nb::gil_scoped_release free;
            return t.push(span_of(keys), gradients.data(), factor);
          },
          nb::arg("keys"), nb::arg("gradients"), nb::arg("factor"),
          "-1, or the place of the first gradient that is not finite: then nothing was changed.")
      .def("export",
           [](MemoryTable& t) {
             const size_t room = t.size(), width = t.shape().width(), states = t.shape().states();
             auto keys = std::make_shared<std::vector<int64_t>>(room);
             auto values = std::make_shared<std::vector<float>>(room * width);
             auto rest = std::make_shared<std::vector<float>>(room * states);
             size_t n;
             {
               nb::gil_scoped_release free;
               n = t.copy_out(keys->data(), values->data(), rest->data(), room);
             }
             return nb::make_tuple(shared_array(keys->data(), {n}, keys),
                                   shared_array(values->data(), {n, width}, values),
                                   shared_array(rest->data(), {n, states}, rest));
           })
      .def_prop_ro("size", &MemoryTable::size)
      .def_prop_ro("bytes", &MemoryTable::bytes);

  // Rows of a table that lies elsewhere, in the same file: (keys, floats of a row) as the file has them.
  m.def(
      "save_rows",
      [](const std::string& path, const Shape& shape, Keys keys, Gradients rows) {
        const auto& [dim, linear, weight, vector, init, seed] = shape;
        const TableShape s{dim, linear, spec_of(weight), spec_of(vector), init, seed};
        if (rows.shape(0) != keys.size() || rows.shape(1) != s.floats())
          throw nb::value_error("rows are not (keys, floats of a row)");
        with_file(path, [&] { save_rows(path, s, span_of(keys), rows.data(), usable_cores()); });
      },
      nb::arg("path"), nb::arg("shape"), nb::arg("keys"), nb::arg("rows"));
  m.def(
      "load_rows",
      [](const std::string& path) {
        auto saved = std::make_shared<SavedRows>(with_file(path, [&] { return load_rows(path); }));
        const size_t n = saved->keys.size(), floats = saved->shape.floats();
        return nb::make_tuple(shared_array(saved->keys.data(), {n}, saved),
                              shared_array(saved->rows.data(), {n, floats}, saved));
      },
      nb::arg("path"), "Keys by shard, ascending within one, and their rows.");
}
