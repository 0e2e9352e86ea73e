#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings/bindings.h"
#include "core/join/view_rows.h"
#include "core/program/decimals.h"
#include "core/program/frame.h"
#include "core/system/reused_buffers.h"

using namespace cb;

namespace {

std::shared_ptr<Frame> import_arrow(nb::object rows) {
  nb::tuple pair = nb::cast<nb::tuple>(rows.attr("__arrow_c_array__")());
  auto* schema = static_cast<ArrowSchema*>(PyCapsule_GetPointer(nb::object(pair[0]).ptr(), "arrow_schema"));
  auto* array = static_cast<ArrowArray*>(PyCapsule_GetPointer(nb::object(pair[1]).ptr(), "arrow_array"));
  if (!schema || !array) throw nb::python_error();
  return Frame::from_arrow(schema, array);
}

using Bytes = std::vector<char>;

template <class T>
nb::object array_of(Bytes&& bytes) {
  auto owner = std::make_shared<Bytes>(std::move(bytes));
  return shared_array(reinterpret_cast<const T*>(owner->data()), {owner->size() / sizeof(T)}, owner);
}

template <class T>
void append(Bytes& to, const T* from, size_t n) {
  if (!n) return;
  const char* p = reinterpret_cast<const char*>(from);
  to.insert(to.end(), p, p + n * sizeof(T));
}

struct TextColumn {
  Bytes offsets, bytes;
  int64_t end = 0;
  TextColumn() { append(offsets, &end, 1); }
  void add(Str s) {
    append(bytes, s.p, s.n);
    end += s.n;
    append(offsets, &end, 1);
  }
  nb::tuple arrays() {
    return nb::make_tuple(array_of<int64_t>(std::move(offsets)), array_of<uint8_t>(std::move(bytes)));
  }
};

// (kind, valid or None, arrays…): values; offsets, bytes of strings; offsets and the elements' arrays of lists.
nb::tuple export_column(const std::shared_ptr<Frame>& frame, size_t column) {
  const FrameColumn& c = frame->columns().at(column);
  if (c.storage != Storage::Entries) throw std::invalid_argument("only kept columns can be exported");
  size_t rows = static_cast<size_t>(c.rows);
  nb::object valid = nb::none();
  if (c.bytes_valid) valid = shared_array(c.bytes_valid, {rows}, frame);
  std::string kind = c.is_list ? std::string("*") + c.kind : std::string(1, c.kind);
  if (!c.is_list) {
    switch (c.kind) {
      case 's': {
        TextColumn text;
        for (size_t r = 0; r < rows; ++r) text.add(static_cast<const Str*>(c.values)[r]);
        return nb::make_tuple(kind, valid, text.arrays());
      }
      case 'b':
        return nb::make_tuple(kind, valid,
                              nb::make_tuple(shared_array(static_cast<const uint8_t*>(c.values), {rows}, frame)));
      case 'f':
        return nb::make_tuple(kind, valid,
                              nb::make_tuple(shared_array(static_cast<const double*>(c.values), {rows}, frame)));
      case 'k':
        return nb::make_tuple(kind, valid,
                              nb::make_tuple(shared_array(static_cast<const uint64_t*>(c.values), {rows}, frame)));
      default:
        return nb::make_tuple(kind, valid,
                              nb::make_tuple(shared_array(static_cast<const int64_t*>(c.values), {rows}, frame)));
    }
  }
  const auto* lists = static_cast<const List<uint64_t>*>(c.values);
  Bytes offsets, values;
  int64_t end = 0;
  append(offsets, &end, 1);
  TextColumn text;
  for (size_t r = 0; r < rows; ++r) {
    if (c.kind == 's')
      for (uint32_t k = 0; k < lists[r].n; ++k) text.add(reinterpret_cast<const Str*>(lists[r].p)[k]);
    else
      append(values, reinterpret_cast<const char*>(lists[r].p), lists[r].n * (c.kind == 'b' ? 1 : 8));
    end += lists[r].n;
    append(offsets, &end, 1);
  }
  nb::object elements;
  switch (c.kind) {
    case 's':
      elements = text.arrays();
      break;
    case 'b':
      elements = nb::make_tuple(array_of<uint8_t>(std::move(values)));
      break;
    case 'f':
      elements = nb::make_tuple(array_of<double>(std::move(values)));
      break;
    case 'k':
      elements = nb::make_tuple(array_of<uint64_t>(std::move(values)));
      break;
    default:
      elements = nb::make_tuple(array_of<int64_t>(std::move(values)));
  }
  return nb::make_tuple(kind, valid, nb::make_tuple(array_of<int64_t>(std::move(offsets)), elements));
}

nb::object doubles_of_decimals(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> values, int width,
                               int64_t scale) {
  if (width != 4 && width != 8 && width != 16 && width != 32)
    throw std::invalid_argument("a decimal has 4, 8, 16 or 32 bytes");
  const size_t rows = values.size() / static_cast<size_t>(width);
  if (rows * static_cast<size_t>(width) != values.size())
    throw std::invalid_argument("the bytes of decimals end in the middle of a value");
  auto made = std::make_shared<Buffer<double>>();
  {
    nb::gil_scoped_release release;
    made->resize(rows);
    decimals_to_doubles(values.data(), width, static_cast<int64_t>(rows), scale, made->data());
  }
  return shared_array(made->data(), {rows}, made);
}

}  // namespace

void bind_frame(nb::module_& m) {
  m.def(
      "decimals_to_doubles", &doubles_of_decimals, nb::arg("values"), nb::arg("width"), nb::arg("scale"),
      nb::sig(
          "def decimals_to_doubles(values: NDArray[numpy.uint8], width: int, scale: int) -> NDArray[numpy.float64]"),
      "Convert little-endian two's complement integers of `width` bytes, divided by 10^scale, to the nearest doubles.");
  nb::class_<Frame>(m, "Frame", "Columns of equal length that a program reads.")
      .def_static("from_arrow", &import_arrow, nb::arg("rows"), "A record batch, without copying.")
      .def_prop_ro("rows", &Frame::rows)
      .def_prop_ro(
          "columns", [](const Frame& f) { return f.columns().size(); }, "Number of columns.")
      .def_prop_ro("bytes", &Frame::bytes, "Bytes that the frame holds itself.")
      .def(
          "selected",
          [](const std::shared_ptr<Frame>& f, const std::vector<size_t>& columns) {
            return Frame::selected(f, columns);
          },
          nb::arg("columns"), "Some columns of a frame of kept columns, without copying.")
      .def("compacted", &Frame::compacted, "A copy that holds just its own bytes and needs no other frame.")
      .def(
          "export", [](std::shared_ptr<Frame> f, size_t column) { return export_column(f, column); },
          nb::arg("column"));
  nb::class_<Records>(m, "Records", "Rows of a dimension view, one record each.")
      .def("__init__",
           [](Records* self, const std::vector<std::string>& kinds, const std::vector<bool>& nullable) {
             std::vector<RecordField> fields;
             for (size_t k = 0; k < kinds.size(); ++k) fields.push_back({kinds[k], nullable[k]});
             new (self) Records(std::move(fields));
           })
      .def(
          "place",
          [](Records& r, Records& other) {
            if (&r == &other) throw nb::value_error("records cannot be appended to themselves");
            nb::gil_scoped_release free;
            const Records::Place place = r.place(other);
            return std::make_tuple(place.at, place.row);
          },
          nb::arg("other"),
          "Make room behind the rows for those of other records with the same fields and return their place, for "
          "put(). "
          "To be called by one thread, in the order of the rows.")
      .def(
          "put",
          [](Records& r, std::tuple<size_t, size_t> place, Records& other) {
            nb::gil_scoped_release free;
            r.put({std::get<0>(place), std::get<1>(place)}, std::move(other));
          },
          nb::arg("place"), nb::arg("other"),
          "Copy the rows of other records, which are empty afterwards, to the place that place() made for them. "
          "Several "
          "threads may do so at once.")
      .def(
          "add_blank", [](Records& r) { r.add(r.fixed_bytes()); }, "A row of zeros and nulls.")
      .def_prop_ro("rows", &Records::rows)
      .def_prop_ro("fixed_bytes", &Records::fixed_bytes)
      .def_prop_ro(
          "null_row", [](const Records& r) { return r.handles().empty() ? 0 : r.handles().back(); },
          "The handle of the row added last.")
      .def_prop_ro("bytes", &Records::bytes)
      .def_prop_ro(
          "layout",
          [](const Records& r) {
            std::vector<std::tuple<uint32_t, int64_t, bool, std::string>> fields;
            for (const RecordField& f : r.fields())
              fields.emplace_back(f.offset, f.nullable ? int64_t{f.valid_offset} : -1, f.inside(), f.kind);
            return fields;
          },
          "A field each: offset of its entry in a block, of its validity byte (-1: never null), whether its elements\n"
          "lie in the block, kind.")
      .def_prop_ro("image_bytes", &Records::image_bytes)
      .def("image", &image_array<Records>, nb::arg("device_base"), nb::sig(kImageSignature), kImage);
}
