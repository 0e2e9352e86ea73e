// A record batch through Arrow's C interface, as it comes from a file that was checked (offsets ascend and stay inside,
// text need not be UTF-8) or with indices of a dictionary that nobody checked. Every row that is loaded, in order or
// picked, is what its maker wrote.
#include "core/program/frame.h"

#include <list>
#include <optional>

#include "fuzz/fuzz.h"

using namespace cb;

namespace {

// What a row holds: nothing, or its elements, each as bytes: 8 of a number, 1 of a bool, all of a text.
using Cell = std::optional<std::vector<std::string>>;

struct Made {
  ArrowSchema schema{};
  ArrowArray array{};
  std::vector<const void*> buffers;
  std::vector<ArrowSchema*> schemas;
  std::vector<ArrowArray*> arrays;
  std::string format;
  std::vector<Cell> cells;   // of the rows from the offset on
  bool outside = false;      // a present row's index lies outside its dictionary
  bool null_inside = false;  // a list of fixed size, a row of it present, with a null in it
};

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

class Maker {
 public:
  Maker(fuzz::Input& in, fuzz::Heap& heap) : in_(in), heap_(heap) {}

  // `length` rows behind an offset.
  Made& column(size_t length, bool nested = false) {
    const uint8_t how = in_.byte();
    const size_t offset = how & 1 ? in_.byte() % 11 : 0;
    const size_t kinds = nested ? 14 : 18;
    Made& out = made_.emplace_back();
    std::vector<bool> there(offset + length, true);
    const void* bitmap = nullptr;
    if (how & 2) {
      std::vector<uint8_t> bits((offset + length + 7) / 8);
      for (uint8_t& b : bits) b = in_.byte();
      for (size_t k = 0; k < there.size(); ++k) there[k] = bits[k / 8] >> (k % 8) & 1;
      bitmap = heap_.copy(bits.data(), bits.size());
    }
    out.buffers = {bitmap};
    switch (in_.byte() % kinds) {
        // clang-format off
      case 0: bools(out, there); break;
      case 1: numbers<int8_t, int64_t>(out, "c", there); break;
      case 2: numbers<int16_t, int64_t>(out, "s", there); break;
      case 3: numbers<int32_t, int64_t>(out, "i", there); break;
      case 4: numbers<int64_t, int64_t>(out, "l", there); break;
      case 5: numbers<uint8_t, int64_t>(out, "C", there); break;
      case 6: numbers<uint16_t, int64_t>(out, "S", there); break;
      case 7: numbers<uint32_t, int64_t>(out, "I", there); break;
      case 8: numbers<float, double>(out, "f", there); break;
      case 9: numbers<double, double>(out, "g", there); break;
      case 10: numbers<int64_t, int64_t>(out, how & 4 ? "tsu:" : "tsu:UTC", there); break;
      case 11: texts<int32_t>(out, how & 4 ? "u" : "z", there); break;
      case 12: texts<int64_t>(out, how & 4 ? "U" : "Z", there); break;
      case 13: dictionary(out, how, there); break;
      case 14: lists<int32_t>(out, "+l", there); break;
      case 15: lists<int64_t>(out, "+L", there); break;
      case 16: fixed_lists(out, there); break;
      default: numbers<int64_t, int64_t>(out, kStrange[in_.byte() % std::size(kStrange)], there); strange = true;
        // clang-format on
    }
    out.cells.erase(out.cells.begin(), out.cells.begin() + static_cast<ptrdiff_t>(offset));
    out.schema.format = out.format.c_str();
    out.schema.name = "column";
    out.array.length = static_cast<int64_t>(length);
    out.array.offset = static_cast<int64_t>(offset);
    out.array.null_count = bitmap ? -1 : 0;
    out.array.n_buffers = static_cast<int64_t>(out.buffers.size());
    out.array.buffers = out.buffers.data();
    out.schema.children = out.schemas.data();
    out.array.children = out.arrays.data();
    out.schema.n_children = out.array.n_children = static_cast<int64_t>(out.schemas.size());
    return out;
  }

  Made& batch(size_t rows) {
    Made& out = made_.emplace_back();
    out.format = in_.byte() % 64 == 1 ? "i" : "+s";
    const size_t columns = in_.byte() % 4;
    for (size_t k = 0; k < columns; ++k) {
      Made& child = column(rows);
      out.schemas.push_back(&child.schema);
      out.arrays.push_back(&child.array);
      children.push_back(&child);
    }
    out.buffers = {nullptr};
    out.schema.format = out.format.c_str();
    out.schema.n_children = out.array.n_children = static_cast<int64_t>(columns);
    out.schema.children = out.schemas.data();
    out.array.children = out.arrays.data();
    out.array.length = static_cast<int64_t>(rows);
    out.array.n_buffers = 1;
    out.array.buffers = out.buffers.data();
    out.array.release = [](ArrowArray* a) { a->release = nullptr; };
    return out;
  }

  std::vector<Made*> children;
  bool strange = false;  // a column of a type that nobody reads

 private:
  static constexpr const char* kStrange[] = {"e", "n", "vu", "L", "+s", "+vl", "+m", "d:5,2", "tdD", "tss:", "w:8", ""};

  // Nothing is at nowhere, as Arrow allows.
  template <class T>
  const void* buffer(const std::vector<T>& values) {
    return values.empty() ? nullptr : heap_.copy(values.data(), values.size());
  }

  void bools(Made& out, const std::vector<bool>& there) {
    out.format = "b";
    std::vector<uint8_t> bits((there.size() + 7) / 8);
    for (uint8_t& b : bits) b = in_.byte();
    out.buffers.push_back(buffer(bits));
    for (size_t k = 0; k < there.size(); ++k)
      out.cells.push_back(there[k] ? Cell({bytes_of<uint8_t>(bits[k / 8] >> (k % 8) & 1)}) : Cell());
  }

  template <class From, class To>
  void numbers(Made& out, std::string format, const std::vector<bool>& there) {
    out.format = std::move(format);
    std::vector<From> values(there.size());
    for (From& v : values) v = in_.take<From>();
    out.buffers.push_back(buffer(values));
    for (size_t k = 0; k < there.size(); ++k)
      out.cells.push_back(there[k] ? Cell({bytes_of(static_cast<To>(values[k]))}) : Cell());
  }

  // Places that ascend from anywhere to `most` at the end.
  template <class T>
  std::vector<T> places(size_t rows, size_t most) {
    std::vector<T> out(rows + 1);
    size_t at = in_.byte() % (most + 1);
    for (T& o : out) {
      o = static_cast<T>(at);
      at = std::min(most, at + in_.byte() % 5);
    }
    return out;
  }

  template <class T>
  void texts(Made& out, const char* format, const std::vector<bool>& there) {
    out.format = format;
    const std::string_view bytes = in_.piece(in_.byte() % 40);
    const std::vector<T> offsets = places<T>(there.size(), bytes.size());
    out.buffers.push_back(there.empty() ? nullptr : buffer(offsets));
    out.buffers.push_back(bytes.empty() ? nullptr : heap_.copy(bytes));
    for (size_t k = 0; k < there.size(); ++k) {
      const auto from = static_cast<size_t>(offsets[k]), to = static_cast<size_t>(offsets[k + 1]);
      out.cells.push_back(there[k] ? Cell({std::string(bytes.substr(from, to - from))}) : Cell());
    }
  }

  void dictionary(Made& out, uint8_t how, const std::vector<bool>& there) {
    const size_t words = how & 8 ? 0 : in_.byte() % 7;
    Made& held = made_.emplace_back();
    const std::vector<bool> all(words, true);
    std::vector<bool> some = all;
    const void* bitmap = nullptr;
    if (how & 16) {
      const uint8_t bits = in_.byte();
      for (size_t k = 0; k < words; ++k) some[k] = bits >> k & 1;
      bitmap = heap_.copy(&bits, 1);
    }
    held.buffers = {bitmap};
    if (how & 32)
      texts<int32_t>(held, "u", some);
    else
      texts<int64_t>(held, "U", some);
    held.schema.format = held.format.c_str();
    held.array.length = static_cast<int64_t>(words);
    held.array.null_count = bitmap ? -1 : 0;
    held.array.n_buffers = 3;
    held.array.buffers = held.buffers.data();
    switch (in_.byte() % 8) {
        // clang-format off
      case 0: indices<int8_t>(out, "c", there, held); break;
      case 1: indices<int16_t>(out, "s", there, held); break;
      case 2: indices<int64_t>(out, "l", there, held); break;
      case 3: indices<uint8_t>(out, "C", there, held); break;
      case 4: indices<uint16_t>(out, "S", there, held); break;
      case 5: indices<uint32_t>(out, "I", there, held); break;
      default: indices<int32_t>(out, "i", there, held);
        // clang-format on
    }
    out.schema.dictionary = &held.schema;
    out.array.dictionary = &held.array;
  }

  template <class T>
  void indices(Made& out, const char* format, const std::vector<bool>& there, const Made& held) {
    out.format = format;
    std::vector<T> values(there.size());
    for (T& v : values) {
      v = in_.take<T>();
      if (!held.cells.empty() && in_.byte() % 16) v = static_cast<T>(static_cast<uint64_t>(v) % held.cells.size());
    }
    out.buffers.push_back(buffer(values));
    for (size_t k = 0; k < there.size(); ++k) {
      const bool inside = static_cast<uint64_t>(values[k]) < held.cells.size();
      out.outside = out.outside || (there[k] && !inside);
      out.cells.push_back(there[k] && inside ? held.cells[static_cast<size_t>(values[k])] : Cell());
    }
  }

  void elements(Made& out, const Made& child, const std::vector<std::pair<size_t, size_t>>& spans,
                const std::vector<bool>& there, bool fixed) {
    for (size_t k = 0; k < there.size(); ++k) {
      if (!there[k]) {
        out.cells.emplace_back();
        continue;
      }
      Cell& cell = out.cells.emplace_back(std::in_place);
      for (size_t at = spans[k].first; at < spans[k].second; ++at) {
        if (child.cells[at])
          cell->push_back(child.cells[at]->front());
        else
          out.null_inside = out.null_inside || fixed;
      }
    }
    out.outside = child.outside;
  }

  Made& child_of(Made& out, size_t length) {
    Made& child = column(length, true);
    out.schemas = {&child.schema};
    out.arrays = {&child.array};
    return child;
  }

  template <class T>
  void lists(Made& out, const char* format, const std::vector<bool>& there) {
    out.format = format;
    const size_t length = in_.byte() % 20;
    const Made& child = child_of(out, length);
    const std::vector<T> offsets = places<T>(there.size(), length);
    out.buffers.push_back(there.empty() ? nullptr : buffer(offsets));
    std::vector<std::pair<size_t, size_t>> spans;
    for (size_t k = 0; k < there.size(); ++k) spans.emplace_back(offsets[k], offsets[k + 1]);
    elements(out, child, spans, there, false);
  }

  void fixed_lists(Made& out, const std::vector<bool>& there) {
    const size_t width = in_.byte() % 4;
    out.format = "+w:" + std::to_string(width);
    const Made& child = child_of(out, width * there.size());
    std::vector<std::pair<size_t, size_t>> spans;
    for (size_t k = 0; k < there.size(); ++k) spans.emplace_back(k * width, (k + 1) * width);
    elements(out, child, spans, there, true);
  }

  fuzz::Input& in_;
  fuzz::Heap& heap_;
  std::list<Made> made_;  // structs point at each other
};

size_t width_of(char kind) { return kind == 's' ? 16 : kind == 'b' ? 1 : 8; }

std::string element_of(char kind, const char* at) {
  if (kind != 's') return {at, width_of(kind)};
  Str text;
  std::memcpy(&text, at, sizeof text);
  return {text.p, text.n};
}

void check_row(const FrameColumn& c, const Column& column, size_t r, const Cell& expected) {
  if (column.valid) EXPECT(column.valid[r] == expected.has_value());
  if (!expected) return;
  const char* at = static_cast<const char*>(column.data) + r * (c.is_list ? 16 : width_of(c.kind));
  if (!c.is_list) {
    EXPECT(element_of(c.kind, at) == expected->front());
    return;
  }
  List<char> list;
  std::memcpy(&list, at, sizeof list);
  EXPECT(list.n == expected->size());
  for (size_t k = 0; k < list.n; ++k) EXPECT(element_of(c.kind, list.p + k * width_of(c.kind)) == (*expected)[k]);
}

void load(fuzz::Input& in, fuzz::Heap& heap, const FrameColumn& c, const Made& made, size_t all) {
  static Bump pool;
  const uint8_t how = in.byte();
  const size_t base = how & 1 ? in.byte() % (all + 1) : 0;
  size_t rows = all - base;
  std::vector<int32_t> picked;
  if (how & 2) {
    rows = in.byte() % 9;
    for (size_t r = 0; r < rows; ++r)
      picked.push_back(all == 0 || (how & 4 && in.byte() % 4 == 0) ? -1 : static_cast<int32_t>(in.byte() % all));
  }
  const bool missing = std::find(picked.begin(), picked.end(), -1) != picked.end();
  Column column{heap.zeros<char>(rows * (c.is_list ? 16 : width_of(c.kind))),
                how & 8 ? heap.zeros<uint8_t>(rows) : nullptr};
  int64_t first = -1;
  try {
    first = load_column(c, how & 2 ? heap.copy(picked.data(), picked.size()) : nullptr, missing,
                        static_cast<int64_t>(base), static_cast<uint32_t>(rows), column, pool);
  } catch (const std::out_of_range&) {
    EXPECT(made.outside);
    return;
  } catch (const std::invalid_argument&) {
    EXPECT(made.null_inside);
    return;
  }
  static const Cell none;
  int64_t null = -1;
  for (size_t r = 0; r < rows; ++r) {
    const int64_t row = how & 2 ? picked[r] : static_cast<int64_t>(base + r);
    const Cell& expected = row < 0 ? none : made.cells[static_cast<size_t>(row)];
    if (!expected && null < 0) null = static_cast<int64_t>(r);
    check_row(c, column, r, expected);
  }
  if (!column.valid) EXPECT(first == null);
  pool.reset();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  fuzz::Heap heap;
  Maker maker(in, heap);
  const size_t rows = in.byte() % 13;
  Made& batch = maker.batch(rows);
  std::shared_ptr<Frame> frame;
  try {
    frame = Frame::from_arrow(&batch.schema, &batch.array);
  } catch (const std::invalid_argument&) {
    EXPECT(maker.strange || batch.format != "+s");
    return 0;
  }
  EXPECT(!maker.strange && batch.format == "+s");
  EXPECT(frame->rows() == static_cast<int64_t>(rows) && frame->columns().size() == maker.children.size());
  for (size_t k = 0; k < maker.children.size(); ++k) load(in, heap, frame->columns()[k], *maker.children[k], rows);
  return 0;
}
