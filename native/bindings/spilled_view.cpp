#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <span>
#include <string>

#include "bindings/bindings.h"
#include "bindings/shared_by_tables.h"
#include "core/join/spill_writer.h"

using namespace cb;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> all_of(const Array<T>& array) {
  return {array.data(), array.size()};
}

void add_run(SpillWriter& w, const Records& records, Array<uint64_t> hashes, std::optional<Array<int64_t>> times,
             Array<uint64_t> rows, size_t threads) {
  const std::span<const int64_t> when = times ? all_of(*times) : std::span<const int64_t>{};
  with_file("", [&] { w.add_run(records, all_of(hashes), when, all_of(rows), threads); });
}

}  // namespace

void bind_spilled_view(nb::module_& m) {
  // Its text is the least budget, in bytes, for what was written so far.
  nb::exception<IndexTooLarge>(m, "IndexTooLarge", PyExc_ValueError);

  nb::class_<SpilledView>(m, "SpilledView", "A joined view that lies on a local disk.")
      .def_prop_ro("null_row", &SpilledView::null_row, "Stands for the row for missing keys.")
      .def_prop_ro("rows", &SpilledView::rows)
      .def_prop_ro("file_bytes", &SpilledView::file_bytes)
      .def_prop_ro("memory_bytes", &SpilledView::memory_bytes, "Bytes of its index and its cache.")
      .def_prop_ro(
          "counts",
          [](const SpilledView& v) {
            const SpilledView::Counts c = v.counts();
            return std::make_tuple(c.looked, c.cached, c.read);
          },
          "Distinct keys of chunks that were looked up so far, those that the cache had, and blocks that were read.");

  nb::class_<SpillWriter>(m, "SpillWriter", "Writes the records of a joined view to a disk, sorted by key.")
      .def(
          "__init__",
          [](SpillWriter* self, int runs_file, int view_file, const Records& records, bool as_of, bool keep_last,
             uint64_t budget) {
            with_file("", [&] { new (self) SpillWriter(runs_file, view_file, records, as_of, keep_last, budget); });
          },
          nb::arg("runs_file"), nb::arg("view_file"), nb::arg("records"), nb::arg("as_of"), nb::arg("keep_last"),
          nb::arg("budget"))
      .def("add_run", &add_run, nb::arg("records"), nb::arg("hashes"), nb::arg("times").none(), nb::arg("rows"),
           nb::arg("threads"), "Sort the rows of some records and write them; rows: their numbers in the source.")
      .def(
          "merge", [](SpillWriter& w, size_t entries) { return with_file("", [&] { return w.merge(entries); }); },
          nb::arg("entries"), "Merge up to so many rows more; return whether some are left.")
      .def_prop_ro("runs_bytes", &SpillWriter::runs_bytes)
      .def_prop_ro(
          "duplicate", [](const SpillWriter& w) { return std::make_tuple(w.duplicate().first, w.duplicate().second); },
          "Rows of the source with the same key: the first that repeats a key, and the one before it (-1, -1: none).")
      .def(
          "finish",
          [](SpillWriter& w, const std::string& name, const Records& null_row) {
            return with_file("", [&] { return w.finish(name, null_row); });
          },
          nb::arg("name"), nb::arg("null_row"),
          "The view, which errors call by this name; the last row of the records is the one for missing keys.");
}
