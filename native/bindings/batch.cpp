#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "core/program/result_sinks.h"

using namespace cb;

void bind_batch(nb::module_& m) {
  // Arrays point into the batch's buffers and keep it alive; the buffers return to the pool with the last array.
  nb::class_<Batch>(m, "Batch")
      .def_ro("rows", &Batch::rows)
      .def_prop_ro("label",
                   [](std::shared_ptr<Batch> b) { return shared_array(b->label.data(), {b->label.size()}, b); })
      .def_prop_ro("weight",
                   [](std::shared_ptr<Batch> b) { return shared_array(b->weight.data(), {b->weight.size()}, b); })
      .def_prop_ro("group",
                   [](std::shared_ptr<Batch> b) { return shared_array(b->group.data(), {b->group.size()}, b); })
      .def_prop_ro("dense",
                   [](std::shared_ptr<Batch> b) {
                     return shared_array(b->dense.data(), {static_cast<size_t>(b->rows), size_t{b->dense_width}}, b);
                   })
      .def_prop_ro(
          "values_per_row",
          [](const Batch& b) {
            std::vector<double> found;
            for (const Batch::Field& f : b.fields)
              found.push_back(static_cast<double>(f.values.size()) / static_cast<double>(std::max<int64_t>(b.rows, 1)));
            return found;
          },
          "Average number of keys per row, by field.")
      .def("values",
           [](std::shared_ptr<Batch> b, size_t k) {
             Batch::Field& f = b->fields.at(k);
             return shared_array(f.values.data(), {f.values.size()}, b);
           })
      .def("offsets", [](std::shared_ptr<Batch> b, size_t k) -> nb::object {
        Batch::Field& f = b->fields.at(k);
        if (!f.ragged) return nb::none();
        return shared_array(f.offsets.data(), {f.offsets.size()}, b);
      });
}
