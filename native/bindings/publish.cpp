#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/publish/patch.h"
#include "core/publish/quantize.h"
#include "core/system/checked_file.h"

using namespace cb;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Octets = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Regions = std::vector<std::tuple<uint64_t, uint64_t, uint64_t>>;

Bytes span_of(const Octets& bytes) { return {bytes.data(), bytes.size()}; }

std::vector<Region> regions_of(const Regions& given) {
  std::vector<Region> out;
  for (const auto& [base_at, base_size, size] : given) out.push_back({base_at, base_size, size});
  return out;
}

nb::object moved(std::vector<uint8_t>&& bytes) {
  auto held = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  return shared_array(held->data(), {held->size()}, held);
}

void check_bucket(float bucket, int32_t first) {
  if (!(bucket > 0.0f) || first < -kMostFirst || first > kMostFirst)
    throw nb::value_error("the bucket must be above 0 and the first code within 2^21");
}

}  // namespace

void bind_publish(nb::module_& m) {
  nb::exception<BadPatch>(m, "BadPatch");

  m.def(
      "checksum",
      [](const Octets& bytes) {
        nb::gil_scoped_release release;
        Checksum sum;
        sum.add(bytes.data(), bytes.size());
        return sum.value();
      },
      nb::arg("bytes"), "Of core/system/checked_file.h.");

  m.def(
      "range_of",
      [](const Floats& weights) {
        nb::gil_scoped_release release;
        const Range r = range_of(weights.data(), weights.size());
        return std::tuple<float, float, bool>(r.low, r.high, r.finite);
      },
      nb::arg("weights"), "Minimum, maximum, and whether all are finite.");
  m.def(
      "quantize",
      [](const Floats& weights, float bucket, int32_t first) {
        check_bucket(bucket, first);
        std::shared_ptr<uint16_t[]> out(new uint16_t[weights.size()]);
        {
          nb::gil_scoped_release release;
          quantize(weights.data(), weights.size(), bucket, first, out.get());
        }
        return shared_array(out.get(), {weights.size()}, out);
      },
      nb::arg("weights"), nb::arg("bucket"), nb::arg("first"),
      nb::sig("def quantize(weights: NDArray[numpy.float32], bucket: float, first: int) -> NDArray[numpy.uint16]"));
  m.def(
      "dequantize",
      [](const Codes& codes, float bucket, int32_t first) {
        check_bucket(bucket, first);
        std::shared_ptr<float[]> out(new float[codes.size()]);
        {
          nb::gil_scoped_release release;
          dequantize(codes.data(), codes.size(), bucket, first, out.get());
        }
        return shared_array(out.get(), {codes.size()}, out);
      },
      nb::arg("codes"), nb::arg("bucket"), nb::arg("first"),
      nb::sig("def dequantize(codes: NDArray[numpy.uint16], bucket: float, first: int) -> NDArray[numpy.float32]"));

  m.def(
      "diff",
      [](const Octets& base, const Octets& result, unsigned word, const Regions& given) {
        const std::vector<Region> regions = regions_of(given);
        Change change;
        {
          nb::gil_scoped_release release;
          change = diff(span_of(base), span_of(result), word, regions);
        }
        nb::list planes;
        for (unsigned b = 0; b < word; ++b) planes.append(moved(std::move(change.planes[b])));
        return nb::make_tuple(moved(std::move(change.positions)), planes, change.changed);
      },
      nb::arg("base"), nb::arg("result"), nb::arg("word"), nb::arg("regions"),
      nb::sig("def diff(base: NDArray[numpy.uint8], result: NDArray[numpy.uint8], word: int, "
              "regions: Sequence[tuple[int, int, int]]) "
              "-> tuple[NDArray[numpy.uint8], list[NDArray[numpy.uint8]], int]"),
      "Positions, planes, and how many words differ (core/publish/patch.h).");
  m.def(
      "apply",
      [](const Octets& base, unsigned word, const Regions& given, const Octets& positions,
         const std::vector<Octets>& planes, size_t size) {
        const std::vector<Region> regions = regions_of(given);
        std::vector<Bytes> spans;
        for (const Octets& plane : planes) spans.push_back(span_of(plane));
        std::shared_ptr<uint8_t[]> out;
        {
          nb::gil_scoped_release release;
          check_regions(base.size(), size, word ? word : 1, regions);
          out = std::shared_ptr<uint8_t[]>(new uint8_t[size]);
          apply(span_of(base), word, regions, span_of(positions), spans, {out.get(), size});
        }
        return shared_array(out.get(), {size}, out);
      },
      nb::arg("base"), nb::arg("word"), nb::arg("regions"), nb::arg("positions"), nb::arg("planes"), nb::arg("size"),
      nb::sig("def apply(base: NDArray[numpy.uint8], word: int, regions: Sequence[tuple[int, int, int]], "
              "positions: NDArray[numpy.uint8], planes: Sequence[NDArray[numpy.uint8]], size: int) "
              "-> NDArray[numpy.uint8]"));
}
