#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"

using namespace cb;

namespace {

template <class T>
std::vector<T> column(nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu> a) {
  return std::vector<T>(a.data(), a.data() + a.size());
}

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_operator_tables(nb::module_& m) {
  nb::class_<Table>(m, "Table", "What an operator was given besides columns.")
      .def_prop_ro("bytes", &Table::bytes)
      .def_prop_ro("image_bytes", &Table::image_bytes)
      .def("image", &image_array<Table>, nb::arg("device_base"), nb::sig(kImageSignature), kImage);
  nb::class_<IntSet, Table>(m, "IntSet").def(nb::init<const std::vector<int64_t>&>());
  nb::class_<FloatSet, Table>(m, "FloatSet").def(nb::init<const std::vector<double>&>());
  nb::class_<StrSet, Table>(m, "StrSet").def("__init__", [](StrSet* self, nb::list members) {
    std::vector<std::string> strings;
    for (nb::handle h : members) {
      nb::bytes b = nb::cast<nb::bytes>(h);
      strings.emplace_back(b.c_str(), b.size());
    }
    new (self) StrSet(strings);
  });
  nb::class_<Boundaries, Table>(m, "Boundaries").def(nb::init<std::vector<double>>());
  nb::class_<JsonPaths, Table>(m, "JsonPaths")
      .def(nb::init<const std::vector<std::string>&, const std::vector<std::string>&>());
  nb::class_<Dictionary, Table>(m, "Dictionary")
      .def("__init__",
           [](Dictionary* self, Array<uint64_t> hashes, Array<int64_t> ids, Array<double> vectors, uint32_t width) {
             new (self) Dictionary(column<uint64_t>(hashes), column<int64_t>(ids), column<double>(vectors), width);
           });
  nb::class_<History, Table>(m, "History")
      .def("__init__", [](History* self, Array<uint64_t> hashes, Array<int64_t> buckets, Array<int64_t> shows,
                          Array<int64_t> clicks) {
        new (self) History(column<uint64_t>(hashes), column<int64_t>(buckets), column<int64_t>(shows),
                           column<int64_t>(clicks));
      });
}
