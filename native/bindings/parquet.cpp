#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "bindings/bindings.h"
#include "core/parquet/column_chunk.h"
#include "core/parquet/footer.h"
#include "core/parquet/page_list.h"
#include "core/parquet/staged_pages.h"
#include "core/program/frame.h"
#include "core/system/parallel.h"

using namespace cb;
using namespace cb::parquet;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

ColumnShape shape_of(int codec, uint32_t width, bool nullable, int64_t rows) {
  if (codec < 0 || codec > static_cast<int>(Codec::Snappy))
    throw std::invalid_argument("the compression codec is not known");
  if (width != 0 && width != 4 && width != 8)
    throw std::invalid_argument("values must have 4 or 8 bytes, or be strings (0)");
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

// The pages of a chunk, eight numbers each; see list_parquet_pages.
nb::object list_pages(Bytes chunk, int codec, uint32_t width, bool nullable, int64_t rows) {
  const ColumnShape shape = shape_of(codec, width, nullable, rows);
  const std::optional<std::vector<Page>> pages = pages_of(chunk.data(), chunk.size(), shape);
  if (!pages) return nb::none();
  auto fields = std::make_shared<std::vector<int64_t>>();
  for (const Page& page : *pages) {
    const PageHeader& h = page.header;
    const bool v2 = h.kind == static_cast<int32_t>(PageKind::DataV2);
    const bool dictionary = h.kind == static_cast<int32_t>(PageKind::Dictionary);
    const int64_t kind = dictionary ? 0 : v2 ? 2 : 1, coded = !dictionary && dictionary_coded(h);
    const int64_t as = h.compressed ? static_cast<int64_t>(shape.codec) : 0;
    for (const int64_t field : {int64_t{page.stored - chunk.data()}, int64_t{h.stored_size}, int64_t{h.raw_size},
                                int64_t{h.values}, int64_t{v2 ? h.definition_bytes : 0}, kind, coded, as})
      fields->push_back(field);
  }
  return shared_array(fields->data(), {pages->size(), 8}, fields);
}

// (first byte, bytes, codec, width, nullable, rows, narrow) of a column chunk that is staged as it is.
using StagedPlace = std::tuple<int64_t, int64_t, int, uint32_t, bool, int64_t, uint32_t>;

void make_staged(StagedPages* self, const std::vector<std::vector<StagedPlace>>& columns) {
  std::vector<std::vector<StagedChunk>> given(columns.size());
  for (size_t k = 0; k < columns.size(); ++k)
    for (const auto& [start, size, codec, width, nullable, rows, narrow] : columns[k]) {
      if (narrow != 0 && (width != 4 || (narrow != 1 && narrow != 2 && narrow != 4)))
        throw std::invalid_argument("of the 4 bytes of a value, 1, 2 or 4 can be kept");
      given[k].push_back({start, size, shape_of(codec, width, nullable, rows), narrow});
    }
  new (self) StagedPages(std::move(given));
}

// Seconds spent on checking and listing pages.
double read_staged(StagedPages& self, int file, nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> into) {
  using Clock = std::chrono::steady_clock;
  if (self.stored_bytes() > into.size()) throw std::invalid_argument("the column chunks do not fit into the buffer");
  const nb::gil_scoped_release release;
  const WorkerPool::Elsewhere here;
  Clock::duration listing{};
  struct stat facts;
  const int64_t end = ::fstat(file, &facts) == 0 ? facts.st_size : 0;
  for (size_t k = 0; k < self.chunks(); ++k) {
    const StagedChunk& chunk = self.chunk(k);
    if (chunk.start < 0 || chunk.size < 0 || chunk.size > end || chunk.start > end - chunk.size) continue;
    uint8_t* const stored = into.data() + self.place(k);
    if (!read_fully(file, stored, chunk.size, chunk.start)) continue;
    const Clock::time_point began = Clock::now();
    self.found(k, stored);
    listing += Clock::now() - began;
  }
  const Clock::time_point began = Clock::now();
  self.lay_out();
  listing += Clock::now() - began;
  return std::chrono::duration<double>(listing).count();
}

void write_staged(const StagedPages& self, nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> into,
                  uint64_t stored, uint64_t held, uint64_t between) {
  if (into.size() < self.table_bytes()) throw std::invalid_argument("the table does not fit into the buffer");
  self.write(into.data(), stored, held, between);
}

nb::list outcome_of_staged(const StagedPages& self, Bytes results, uint64_t held) {
  if (results.size() != self.pages() * sizeof(StagedResult))
    throw std::invalid_argument("expected one result for each page");
  std::vector<StagedResult> found(self.pages());
  if (!found.empty()) std::memcpy(found.data(), results.data(), results.size());
  nb::list given;
  for (const std::optional<StagedPages::Column>& c : self.outcome(found, held)) {
    if (!c)
      given.append(nb::none());
    else
      given.append(nb::make_tuple(c->failed, c->rows, c->width, c->values, c->text, c->bits, c->nulls));
  }
  return given;
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
  m.def("list_parquet_pages", &list_pages, nb::arg("chunk"), nb::arg("codec"), nb::arg("width"), nb::arg("nullable"),
        nb::arg("rows"),
        nb::sig("def list_parquet_pages(chunk: NDArray[numpy.uint8], codec: int, width: int, nullable: bool, rows: int)"
                " -> NDArray[numpy.int64] | None"),
        "List the pages of a column chunk, or return None where decode_parquet_column would not read it either. A page "
        "is a row of eight numbers: the place of its bytes in the chunk, their number, the number of bytes after "
        "decompression, values, bytes of levels in front that are not compressed, kind (0 dictionary, 1 data, 2 data "
        "V2), whether it is coded by a dictionary, codec.");
  nb::class_<StagedPages>(m, "StagedPages",
                          "Column chunks that are staged as they are stored, for a decoder in other memory.")
      .def(
          "__init__", &make_staged, nb::arg("columns"),
          nb::sig("def __init__(self, columns: Sequence[Sequence[tuple[int, int, int, int, bool, int, int]]]) -> None"),
          "Take the chunks of each column: (first byte, bytes, codec, width, nullable, rows, bytes that a narrow "
          "integer keeps or 0).")
      .def_prop_ro("stored_bytes", &StagedPages::stored_bytes, "Number of bytes of all chunks in memory.")
      .def("read", &read_staged, nb::arg("file"), nb::arg("into"),
           nb::sig("def read(self, file: int, into: NDArray[numpy.uint8]) -> float"),
           "Read the chunks from an open file, list their pages and lay them out. Return the seconds without reading.")
      .def_prop_ro("pages", &StagedPages::pages, "Number of pages of the columns that can be decoded.")
      .def_prop_ro("shapes", &StagedPages::shapes, "Number of columns that can be decoded.")
      .def_prop_ro("dictionaries", &StagedPages::dictionaries, "Number of pages that are dictionaries.")
      .def_prop_ro("data", &StagedPages::data, "Number of pages with data.")
      .def_prop_ro("nullable", &StagedPages::nullable, "Whether a column that can be decoded may have nulls.")
      .def_prop_ro("held_bytes", &StagedPages::held_bytes, "Number of bytes of what stays after decoding.")
      .def_prop_ro("between_bytes", &StagedPages::between_bytes, "Number of bytes of working memory.")
      .def_prop_ro("table_bytes", &StagedPages::table_bytes, "Number of bytes that `write` writes.")
      .def("write", &write_staged, nb::arg("into"), nb::arg("stored"), nb::arg("held"), nb::arg("between"),
           nb::sig("def write(self, into: NDArray[numpy.uint8], stored: int, held: int, between: int) -> None"),
           "Write the table of pages and columns for buffers at these addresses.")
      .def("outcome", &outcome_of_staged, nb::arg("results"), nb::arg("held"),
           nb::sig("def outcome(self, results: NDArray[numpy.uint8], held: int)"
                   " -> list[tuple[int, int, int, int, int, int, int] | None]"),
           "Return for each column (failed, rows, bytes of a value or 0 for strings, address of the values, of the "
           "text, of the validity bits or 0, nulls), or None where it was not decoded.");
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
