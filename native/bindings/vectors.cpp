#include <fcntl.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings/bindings.h"
#include "core/parquet/crc32.h"
#include "core/vectors/best_products.h"

using namespace cb;

namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple best(Rows rows, Vector vector, std::optional<Places> places, size_t k, size_t threads,
               const std::string& simd) {
  const ProductKernel kernel = simd.empty() ? product_kernel() : product_kernel_named(simd);
  if (!kernel) throw nb::value_error(("this machine has no " + simd).c_str());
  const size_t there = rows.shape(0), width = rows.shape(1), count = places ? places->shape(0) : there;
  if (vector.shape(0) != width) throw nb::value_error("the vector and the rows have different widths");
  if (threads == 0) throw nb::value_error("threads must be at least 1");
  std::shared_ptr<int64_t[]> positions;
  std::shared_ptr<float[]> products;
  size_t found = 0;
  bool outside = false;
  {
    nb::gil_scoped_release release;
    for (size_t n = 0; places && n < count; ++n) outside |= static_cast<uint64_t>(places->data()[n]) >= there;
    if (!outside) {
      const auto kept = best_products(rows.data(), width, vector.data(), places ? places->data() : nullptr, count, k,
                                      threads, kernel);
      found = kept.size();
      positions = std::shared_ptr<int64_t[]>(new int64_t[found]);
      products = std::shared_ptr<float[]>(new float[found]);
      for (size_t n = 0; n < found; ++n) {
        positions[n] = kept[n].position;
        products[n] = kept[n].product;
      }
    }
  }
  if (outside) throw nb::index_error("a row number is outside the table");
  return nb::make_tuple(shared_array(positions.get(), {found}, positions),
                        shared_array(products.get(), {found}, products));
}

using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;

nb::object row_checksums(ByteRows rows) {
  const size_t n = rows.shape(0), width = rows.shape(1);
  const int64_t apart = rows.stride(0);
  if (width > 1 && rows.stride(1) != 1) throw nb::value_error("the bytes of a row must be contiguous in memory");
  auto sums = std::shared_ptr<uint32_t[]>(new uint32_t[n]);
  {
    nb::gil_scoped_release release;
    for (size_t k = 0; k < n; ++k) sums[k] = parquet::crc32(rows.data() + static_cast<int64_t>(k) * apart, width);
  }
  return shared_array(sums.get(), {n}, sums);
}

void begin_writeback(int file) {
  nb::gil_scoped_release release;
#ifdef __linux__
  // Only a hint: what goes wrong is told by the fsync at the end.
  (void)sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);
#else
  (void)file;
#endif
}

}  // namespace

void bind_vectors(nb::module_& m) {
  m.def("best_products", &best, nb::arg("rows"), nb::arg("vector"), nb::arg("places").none(), nb::arg("k"),
        nb::arg("threads") = 1, nb::arg("simd") = "",
        nb::sig("def best_products(rows: NDArray[numpy.float32], vector: NDArray[numpy.float32], places: "
                "NDArray[numpy.int64] | None, k: int, threads: int = 1, simd: str = '') -> "
                "tuple[NDArray[numpy.int64], NDArray[numpy.float32]]"),
        "Return the positions of the best k rows by inner product, best first and equal ones in their order, and the "
        "products; simd asks for scalar, wide, avx2 or avx512.");
  m.def("row_checksums", &row_checksums, nb::arg("rows"),
        nb::sig("def row_checksums(rows: NDArray[numpy.uint8]) -> NDArray[numpy.uint32]"),
        "Return the CRC-32 of each row of bytes, as zlib.crc32 does. Rows may lie apart, such as parts of records.");
  m.def("begin_writeback", &begin_writeback, nb::arg("file"),
        "Let the system begin to write what an open file holds to the disk, and do not wait; an fsync later takes less "
        "time.");
}
