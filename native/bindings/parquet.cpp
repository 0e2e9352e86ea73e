#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "bindings/bindings.h"
#include "core/parquet/column_chunk.h"
#include "core/parquet/footer.h"
#include "core/parquet/page_list.h"
#include "core/program/frame.h"
#include "core/system/parallel.h"

using namespace cb;
using namespace cb::parquet;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

ColumnShape shape_of(int codec, uint32_t width, bool nullable, int64_t rows) {
  if (codec < 0 || codec > static_cast<int>(Codec::Snappy)) throw std::invalid_argument("no such codec");
  if (width != 0 && width != 4 && width != 8) throw std::invalid_argument("values of 4 or 8 bytes, or strings (0)");
  return {static_cast<Codec>(codec), width, nullable, rows};
}

// A decoded column as a child of an Arrow array; whoever holds the child holds the column.
struct ArrowColumn {
  DecodedColumn column;
  const void* buffers[3];

  static void give(DecodedColumn&& decoded, const ColumnShape& shape, ArrowArray& to) {
    static const uint64_t nothing = 0;  // an empty buffer has no address, Arrow wants one
    auto own = std::make_unique<ArrowColumn>(ArrowColumn{std::move(decoded), {}});
    const DecodedColumn& c = own->column;
    const void* values = c.values.data() ? static_cast<const void*>(c.values.data()) : &nothing;
    own->buffers[0] = c.nulls ? c.valid.data() : nullptr;
    own->buffers[1] = shape.width ? values : c.offsets.data();
    own->buffers[2] = values;
    to = {};
    to.length = shape.rows;
    to.null_count = c.nulls;
    to.n_buffers = shape.width ? 2 : 3;
    to.buffers = own->buffers;
    to.release = [](ArrowArray* array) {
      delete static_cast<ArrowColumn*>(array->private_data);
      array->release = nullptr;
    };
    to.private_data = own.release();
  }
};

// Columns of equal length as an Arrow struct.
struct ArrowColumns {
  std::vector<ArrowArray> columns;
  std::vector<ArrowArray*> children;
  const void* buffers[1] = {nullptr};

  ~ArrowColumns() {
    for (ArrowArray& column : columns)
      if (column.release) column.release(&column);
  }

  static nb::capsule capsule(std::unique_ptr<ArrowColumns> own, int64_t rows) {
    for (ArrowArray& column : own->columns) own->children.push_back(&column);
    auto array = std::make_unique<ArrowArray>();
    array->length = rows;
    array->n_buffers = 1;
    array->buffers = own->buffers;
    array->n_children = static_cast<int64_t>(own->children.size());
    array->children = own->children.data();
    array->release = [](ArrowArray* held) {
      delete static_cast<ArrowColumns*>(held->private_data);
      held->release = nullptr;
    };
    array->private_data = own.release();
    return nb::capsule(array.release(), "arrow_array", [](void* p) noexcept {
      auto* held = static_cast<ArrowArray*>(p);
      if (held->release) held->release(held);
      delete held;
    });
  }
};

bool read_fully(int file, uint8_t* to, int64_t size, int64_t start) {
  while (size > 0) {
    const ssize_t n = ::pread(file, to, static_cast<size_t>(size), start);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    start += n;
    size -= n;
  }
  return true;
}

// (first byte, bytes, codec, width, nullable) of a column chunk.
using ChunkPlace = std::tuple<int64_t, int64_t, int, uint32_t, bool>;

nb::tuple read_columns(int file, const std::vector<ChunkPlace>& chunks, int64_t rows) {
  std::vector<bool> done(chunks.size());
  auto made = std::make_unique<ArrowColumns>();
  {
    nb::gil_scoped_release release;
    const WorkerPool::Elsewhere here;
    made->columns.reserve(chunks.size());
    struct stat facts;
    const int64_t end = ::fstat(file, &facts) == 0 ? facts.st_size : 0;
    Buffer<uint8_t> stored;
    for (size_t k = 0; k < chunks.size(); ++k) {
      const auto& [start, size, codec, width, nullable] = chunks[k];
      const ColumnShape shape = shape_of(codec, width, nullable, rows);
      if (start < 0 || size < 0 || size > end || start > end - size) continue;
      stored.resize(0);
      stored.resize(static_cast<size_t>(size));
      if (!read_fully(file, stored.data(), size, start)) continue;
      std::optional<DecodedColumn> decoded = decode(stored.data(), static_cast<size_t>(size), shape);
      if (!decoded) continue;
      made->columns.emplace_back();
      ArrowColumn::give(std::move(*decoded), shape, made->columns.back());
      done[k] = true;
    }
  }
  return nb::make_tuple(done, ArrowColumns::capsule(std::move(made), rows));
}

// (first byte, bytes, codec, width, nullable, rows, place in the buffer) of a column chunk that is staged as it is.
using StagedPlace = std::tuple<int64_t, int64_t, int, uint32_t, bool, int64_t, int64_t>;

constexpr size_t kPageFields = 8;

// The pages of a chunk, kPageFields numbers each; see stage_parquet_pages.
std::vector<int64_t> page_fields(const std::vector<Page>& pages, const uint8_t* base, Codec codec) {
  std::vector<int64_t> fields;
  fields.reserve(pages.size() * kPageFields);
  for (const Page& page : pages) {
    const PageHeader& h = page.header;
    const bool v2 = h.kind == static_cast<int32_t>(PageKind::DataV2);
    const bool dictionary = h.kind == static_cast<int32_t>(PageKind::Dictionary);
    const int64_t kind = dictionary ? 0 : v2 ? 2 : 1, coded = !dictionary && dictionary_coded(h);
    const int64_t as = h.compressed ? static_cast<int64_t>(codec) : 0;
    for (const int64_t field : {int64_t{page.stored - base}, int64_t{h.stored_size}, int64_t{h.raw_size},
                                int64_t{h.values}, int64_t{v2 ? h.definition_bytes : 0}, kind, coded, as})
      fields.push_back(field);
  }
  return fields;
}

nb::tuple stage_pages(int file, const std::vector<StagedPlace>& chunks,
                      nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> into) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::shared_ptr<std::vector<int64_t>>> found(chunks.size());
  Clock::duration listing{};
  {
    nb::gil_scoped_release release;
    const WorkerPool::Elsewhere here;
    struct stat facts;
    const int64_t end = ::fstat(file, &facts) == 0 ? facts.st_size : 0, room = static_cast<int64_t>(into.size());
    for (size_t k = 0; k < chunks.size(); ++k) {
      const auto& [start, size, codec, width, nullable, rows, at] = chunks[k];
      const ColumnShape shape = shape_of(codec, width, nullable, rows);
      if (at < 0 || size < 0 || size > room || at > room - size)
        throw std::invalid_argument("a column chunk does not fit into the buffer");
      if (start < 0 || size > end || start > end - size) continue;
      uint8_t* const stored = into.data() + at;
      if (!read_fully(file, stored, size, start)) continue;
      const Clock::time_point began = Clock::now();
      const std::optional<std::vector<Page>> pages = pages_of(stored, static_cast<size_t>(size), shape);
      if (pages) found[k] = std::make_shared<std::vector<int64_t>>(page_fields(*pages, into.data(), shape.codec));
      listing += Clock::now() - began;
    }
  }
  nb::list given;
  for (const auto& fields : found) {
    if (!fields)
      given.append(nb::none());
    else
      given.append(shared_array(fields->data(), {fields->size() / kPageFields, kPageFields}, fields));
  }
  return nb::make_tuple(given, std::chrono::duration<double>(listing).count());
}

nb::object decode_column(Bytes chunk, int codec, uint32_t width, bool nullable, int64_t rows) {
  const ColumnShape shape = shape_of(codec, width, nullable, rows);
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
  m.def(
      "read_parquet_columns", &read_columns, nb::arg("file"), nb::arg("chunks"), nb::arg("rows"),
      nb::sig("def read_parquet_columns(file: int, chunks: list[tuple[int, int, int, int, bool]], rows: int)"
              " -> tuple[list[bool], object]"),
      "Read and decode column chunks of one row group from an open file. A chunk is (first byte, bytes, codec, width, "
      "nullable), the last three as for decode_parquet_column. Return for each chunk whether it was decoded, and those "
      "that were as the children of an Arrow struct, in a capsule named arrow_array. pyarrow has to read the others.");
  m.def(
      "stage_parquet_pages", &stage_pages, nb::arg("file"), nb::arg("chunks"), nb::arg("into"),
      nb::sig("def stage_parquet_pages(file: int, chunks: list[tuple[int, int, int, int, bool, int, int]], into: "
              "NDArray[numpy.uint8]) -> tuple[list[NDArray[numpy.int64] | None], float]"),
      "Read column chunks from an open file as they are stored. A chunk is (first byte, bytes, codec, width, nullable, "
      "rows, place in `into`). Return for each chunk its pages, or None where decode_parquet_column would not read it "
      "either. A page is a row of eight numbers: the place of its bytes in `into`, their number, the number of bytes "
      "after decompression, values, bytes of levels in front that are not compressed, kind (0 dictionary, 1 data, 2 "
      "data "
      "V2), whether it is coded by a dictionary, codec. The second result is the seconds that checking and listing "
      "took.");
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
