#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/parallel.h"
#include "core/parquet/column_chunk.h"
#include "core/parquet/footer.h"

using namespace cb;
using namespace cb::parquet;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object pooled_bytes(size_t n) {
  auto buffer = std::make_shared<Buffer<uint8_t>>();
  buffer->resize(n);
  return shared_array(buffer->data(), {n}, buffer);
}

nb::object decode_column(Bytes chunk, int codec, uint32_t width, bool nullable, int64_t rows) {
  if (codec < 0 || codec > static_cast<int>(Codec::Snappy)) throw std::invalid_argument("no such codec");
  if (width != 0 && width != 4 && width != 8) throw std::invalid_argument("values of 4 or 8 bytes, or strings (0)");
  const ColumnShape shape{static_cast<Codec>(codec), width, nullable, rows};
  std::shared_ptr<DecodedColumn> column;
  {
    nb::gil_scoped_release release;
    const WorkerPool::Elsewhere here;
    if (std::optional<DecodedColumn> decoded = decode(chunk.data(), chunk.size(), shape))
      column = std::make_shared<DecodedColumn>(std::move(*decoded));
  }
  if (!column) return nb::none();
  nb::object offsets = nb::none(), valid = nb::none();
  if (!width) offsets = shared_array(column->offsets.data(), {column->offsets.size()}, column);
  if (column->nulls) valid = shared_array(column->valid.data(), {column->valid.size()}, column);
  return nb::make_tuple(shared_array(column->values.data(), {column->values.size()}, column), offsets, valid,
                        column->nulls);
}

std::vector<bool> sound_columns(nb::bytes footer,
                                const std::vector<std::tuple<int32_t, int64_t, int64_t, int64_t>>& columns) {
  std::vector<StoredColumn> stored;
  for (const auto& [kind, width, repetition, definition] : columns)
    stored.push_back({kind, width, repetition, definition});
  std::vector<uint8_t> sound;
  const auto* bytes = static_cast<const uint8_t*>(footer.data());
  FooterReader reader(bytes, footer.size(), stored);
  if (!reader.read(sound) || reader.at() != bytes + footer.size()) sound.assign(columns.size(), 0);
  return {sound.begin(), sound.end()};
}

}  // namespace

void bind_parquet(nb::module_& m) {
  m.def("pooled_bytes", &pooled_bytes, nb::arg("n"), nb::sig("def pooled_bytes(n: int) -> NDArray[numpy.uint8]"),
        "Memory to read into, which goes back to the pool; its bytes are whatever was there.");
  m.def("decode_parquet_column", &decode_column, nb::arg("chunk"), nb::arg("codec"), nb::arg("width"),
        nb::arg("nullable"), nb::arg("rows"),
        nb::sig(
            "def decode_parquet_column(chunk: NDArray[numpy.uint8], codec: int, width: int, nullable: bool, rows: int)"
            " -> tuple[NDArray[numpy.uint8], NDArray[numpy.int32] | None, NDArray[numpy.uint8] | None, int] | None"),
        "A column chunk's bytes as (values, offsets of strings, bits of rows that are there, nulls), or None: pyarrow "
        "has to read it. codec: 0 none, 1 LZ4_RAW, 2 Snappy; width: bytes of a value, 0 for strings.");
  m.def(
      "sound_parquet_columns", &sound_columns, nb::arg("footer"), nb::arg("columns"),
      "Tell for each stored column, given as (physical type, bytes of a value or -1, highest repetition level, highest "
      "definition level), whether the footer describes all its chunks in a way that pyarrow's accessors can take.");
}
