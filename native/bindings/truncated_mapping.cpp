#include "core/system/truncated_mapping.h"
#include "bindings/bindings.h"

using namespace cb;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The range ends before the mapping is let go.
struct HeldRange {
  explicit HeldRange(Bytes bytes) : held(std::move(bytes)), range(held.data(), held.size()) {}
  Bytes held;
  MappedRange range;
};

}  // namespace

void bind_truncated_mapping(nb::module_& m) {
  nb::class_<HeldRange>(m, "MappedRange",
                        "A mapped file that may be cut while it is read: its lost pages are zeros then.")
      .def(nb::init<Bytes>(), nb::arg("mapping"))
      .def_prop_ro(
          "cut", [](const HeldRange& held) { return held.range.cut(); },
          "Whether a page was read that the file has no longer. What was read is to be thrown away then.");
}
