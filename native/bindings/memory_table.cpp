#include <nanobind/stl/unique_ptr.h>

#include "bindings/shared_by_tables.h"
#include "core/embed/memory_table.h"
#include "core/embed/table_file.h"
#include "core/system/checked_file.h"
#include "core/system/parallel.h"

using namespace cb;

void bind_memory_table(nb::module_& m) {
  nb::exception<TableFull>(m, "TableFull", PyExc_MemoryError);
  nb::exception<DamagedFile>(m, "DamagedFile", PyExc_ValueError);

  m.attr("REPEATED_KEY") = MemoryTable::kRepeatedKey;
  nb::class_<MemoryTable> table(m, "MemoryTable", "Keys to rows of floats and their optimizers' states, in memory.");
  bind_life(table);
  bind_pull_and_push(table);
  table
      .def(
          "join_life",
          [](MemoryTable& t, const std::string& path, bool first) {
            with_file(path, [&] {
              if (const auto life = saved_life(path)) t.join_life(*life, first);
            });
          },
          nb::arg("path"), nb::arg("first"), "Take the clock and the sketch of one part of a saved table.")
      .def(
          "__init__",
          [](MemoryTable* self, const Shape& shape, size_t budget, size_t threads) {
            new (self) MemoryTable(shape_of(shape), budget, threads);
          },
          nb::arg("shape"), nb::arg("budget"), nb::arg("threads"))
      .def_static(
          "load",
          [](const std::string& path, size_t budget, size_t threads) {
            return with_file(path, [&] { return MemoryTable::load(path, budget, threads); });
          },
          nb::arg("path"), nb::arg("budget"), nb::arg("threads"))
      .def_static(
          "saved_shape",
          [](const std::string& path) -> Shape { return tuple_of(with_file(path, [&] { return saved_shape(path); })); },
          nb::arg("path"), "dim, linear, optimizer of the weight, of the vector, init, seed, life.")
      .def(
          "set_optimizers",
          [](MemoryTable& t, const Shape& shape) {
            const TableShape s = shape_of(shape);
            t.set_optimizers(s.weight, s.vector);
          },
          nb::arg("shape"), "The settings of this shape's optimizers, which are of the same kinds, from now on.")
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
      .def("export",
           [](MemoryTable& t) {
             const size_t room = t.size(), width = t.shape().width(), states = t.shape().floats() - width;
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
      .def_prop_ro("skipped", &MemoryTable::skipped)
      .def_prop_ro("not_admitted", &MemoryTable::not_admitted)
      .def_prop_ro("size", &MemoryTable::size)
      .def_prop_ro("bytes", &MemoryTable::bytes);

  // Rows of a table that lies elsewhere, in the same file: (keys, floats of a row) as the file has them.
  m.def(
      "save_rows",
      [](const std::string& path, const Shape& shape, Keys keys, Gradients rows) {
        const TableShape s = shape_of(shape);
        if (rows.shape(0) != keys.size() || rows.shape(1) != s.floats())
          throw nb::value_error("rows must have the shape (keys, floats of a row)");
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
