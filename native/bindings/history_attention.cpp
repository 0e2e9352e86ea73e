#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "core/request/history_attention.h"

using namespace cb;

namespace {

template <size_t N>
using In = nb::ndarray<const float, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Targets = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

std::unique_ptr<HistoryAttention> made(In<3> maps, In<2> fixed, In<1> above, In<1> below, In<2> vectors, float bias) {
  const size_t items = maps.shape(0), dim = maps.shape(1), width = maps.shape(2);
  if (items > HistoryAttention::kMostItems || dim > HistoryAttention::kMostWide || width > HistoryAttention::kMostWide)
    throw nb::value_error("attention takes at most 2^20 items, and vectors and units of at most 4,096 floats");
  if (dim == 0 || width == 0) throw nb::value_error("an attention needs a dim and a width of at least 1");
  if (fixed.shape(0) != items || fixed.shape(1) != width || above.shape(0) != width || below.shape(0) != width ||
      vectors.shape(0) != items || vectors.shape(1) != dim)
    throw nb::value_error("maps are (items, dim, width); the other parts do not fit them");
  return std::make_unique<HistoryAttention>(items, dim, width, maps.data(), fixed.data(), above.data(), below.data(),
                                            vectors.data(), bias);
}

nb::object attend(const std::vector<const HistoryAttention*>& units, const std::vector<Targets>& targets,
                  const std::string& simd) {
  const FfmKernels* kernels = simd.empty() ? &ffm_kernels() : ffm_kernels_named(simd);
  if (!kernels) throw nb::value_error(("this machine has no " + simd).c_str());
  if (units.empty() || units.size() != targets.size()) throw nb::value_error("each unit needs targets");
  const size_t rows = targets[0].shape(0);
  size_t step = 0;
  for (size_t n = 0; n < units.size(); ++n) {
    if (!units[n]) throw nb::value_error("a unit is None");
    const Targets& q = targets[n];
    if (q.shape(0) != rows || q.shape(1) != units[n]->dim())
      throw nb::value_error(("targets are (" + std::to_string(q.shape(0)) + ", " + std::to_string(q.shape(1)) +
                             "); expected (" + std::to_string(rows) + ", " + std::to_string(units[n]->dim()) + ")")
                                .c_str());
    if (rows > 0 && ((q.shape(1) > 1 && q.stride(1) != 1) || q.stride(0) < 0))
      throw nb::value_error("targets must be contiguous in memory");
    step += units[n]->dim();
  }
  std::shared_ptr<float[]> out(new float[rows * step]);
  {
    nb::gil_scoped_release release;
    size_t at = 0;
    for (size_t n = 0; n < units.size() && rows > 0; at += units[n++]->dim())
      units[n]->attend(targets[n].data(), static_cast<size_t>(targets[n].stride(0)), rows, out.get() + at, step,
                       *kernels);
  }
  return shared_array(out.get(), {rows, step}, out);
}

}  // namespace

void bind_history_attention(nb::module_& m) {
  nb::class_<HistoryAttention>(m, "HistoryAttention", "Units of PReLU over one history; any number of threads.")
      .def(nb::new_(&made), nb::arg("maps"), nb::arg("fixed"), nb::arg("above"), nb::arg("below"), nb::arg("vectors"),
           nb::arg("bias"))
      .def_prop_ro("nbytes", &HistoryAttention::bytes);
  m.def("attend", &attend, nb::arg("units"), nb::arg("targets"), nb::arg("simd") = "",
        nb::sig("def attend(units: Sequence[HistoryAttention], targets: Sequence[numpy.ndarray], simd: str = '') -> "
                "NDArray[numpy.float32]"),
        "Targets (rows, dim) of each unit to what it attends to, side by side; simd asks for scalar, neon, avx2 or "
        "avx512.");
}
