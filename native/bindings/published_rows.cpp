#include "core/embed/published_rows.h"

#include <nanobind/stl/unique_ptr.h>

#include "bindings/shared_by_tables.h"

using namespace cb;

namespace {

std::unique_ptr<PublishedRows> published(Keys keys, Gradients rows) {
  if (rows.shape(0) != keys.size()) throw nb::value_error("rows must have the shape (keys, width)");
  if (keys.size() >= PublishedRows::kMost) throw nb::value_error("a published table cannot hold this many keys");
  nb::gil_scoped_release free;
  return std::make_unique<PublishedRows>(span_of(keys), rows.data(), rows.shape(1));
}

nb::tuple find(const PublishedRows& table, Keys keys) {
  auto rows = std::make_shared<Buffer<float>>();
  auto lost = std::make_shared<std::vector<int64_t>>();
  {
    // A request's few keys take less time than handing the GIL over and back.
    std::optional<nb::gil_scoped_release> free;
    if (keys.size() > 2048) free.emplace();
    rows->resize(keys.size() * table.width());
    table.find(span_of(keys), rows->data(), *lost);
  }
  return nb::make_tuple(shared_array(rows->data(), {keys.size(), table.width()}, rows),
                        shared_array(lost->data(), {lost->size()}, lost));
}

}  // namespace

void bind_published_rows(nb::module_& m) {
  nb::class_<PublishedRows>(m, "PublishedRows", "Keys to rows of floats, to look up; any number of threads.")
      .def(nb::new_(&published), nb::arg("keys"), nb::arg("rows"))
      .def_prop_ro("twice", &PublishedRows::twice,
                   "A key that came twice, or None. A table with such a key must not be used.")
      .def_prop_ro("nbytes", &PublishedRows::bytes)
      .def("__len__", &PublishedRows::size)
      .def("find", &find, nb::arg("keys"),
           nb::sig("def find(self, keys: NDArray[numpy.int64]) -> "
                   "tuple[NDArray[numpy.float32], NDArray[numpy.int64]]"),
           "Return the rows of keys, and the positions of the keys that have no row; their rows are 0.");
}
