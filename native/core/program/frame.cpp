#include "core/program/frame.h"

#include <cstring>

namespace cb {

namespace {

[[noreturn]] void refuse(const char* name, const char* format) {
  throw std::invalid_argument(std::string("column '") + (name ? name : "") + "' has Arrow format '" + format +
                              "', which the engine does not read");
}

void set_fixed(FrameColumn& c, Storage storage, char kind, const ArrowArray* a) {
  c.storage = storage;
  c.kind = kind;
  c.values = a->buffers[1];
}

FrameColumn import_column(const ArrowSchema* s, const ArrowArray* a) {
  FrameColumn c;
  c.offset = a->offset;
  c.rows = a->length;
  c.bitmap = a->null_count != 0 && a->n_buffers > 0 ? static_cast<const uint8_t*>(a->buffers[0]) : nullptr;
  const char* f = s->format;
  if (s->dictionary) {
    c.storage = Storage::Dictionary;
    switch (f[0]) {
      case 'c':
      case 'C':
        c.index_width = 1;
        break;
      case 's':
      case 'S':
        c.index_width = 2;
        break;
      case 'i':
      case 'I':
        c.index_width = 4;
        break;
      case 'l':
      case 'L':
        c.index_width = 8;
        break;
      default:
        refuse(s->name, f);
    }
    c.values = a->buffers[1];
    c.child = std::make_unique<FrameColumn>(import_column(s->dictionary, a->dictionary));
    if (c.child->storage != Storage::Utf8 && c.child->storage != Storage::LargeUtf8)
      refuse(s->name, s->dictionary->format);
    c.kind = 's';
    return c;
  }
  switch (f[0]) {
    case 'b':
      set_fixed(c, Storage::Bool, 'b', a);
      return c;
    case 'c':
      set_fixed(c, Storage::I8, 'i', a);
      return c;
    case 's':
      set_fixed(c, Storage::I16, 'i', a);
      return c;
    case 'i':
      set_fixed(c, Storage::I32, 'i', a);
      return c;
    case 'l':
      set_fixed(c, Storage::I64, 'i', a);
      return c;
    case 'C':
      set_fixed(c, Storage::U8, 'i', a);
      return c;
    case 'S':
      set_fixed(c, Storage::U16, 'i', a);
      return c;
    case 'I':
      set_fixed(c, Storage::U32, 'i', a);
      return c;
    case 'f':
      set_fixed(c, Storage::F32, 'f', a);
      return c;
    case 'g':
      set_fixed(c, Storage::F64, 'f', a);
      return c;
    case 'u':
    case 'z':
      set_fixed(c, Storage::Utf8, 's', a);
      c.text = static_cast<const char*>(a->buffers[2]);
      return c;
    case 'U':
    case 'Z':
      set_fixed(c, Storage::LargeUtf8, 's', a);
      c.text = static_cast<const char*>(a->buffers[2]);
      return c;
    case 't':
      if (std::strncmp(f, "tsu:", 4) == 0) {
        set_fixed(c, Storage::I64, 't', a);
        return c;
      }
      refuse(s->name, f);
    case '+':
      if (f[1] == 'l' || f[1] == 'L' || f[1] == 'w') {
        c.storage = f[1] == 'l' ? Storage::List : f[1] == 'L' ? Storage::LargeList : Storage::FixedList;
        if (f[1] == 'w')
          c.fixed = std::strtoll(f + 3, nullptr, 10);
        else
          c.values = a->buffers[1];
        c.child = std::make_unique<FrameColumn>(import_column(s->children[0], a->children[0]));
        if (c.child->is_list) refuse(s->name, f);
        c.is_list = true;
        c.kind = c.child->kind;
        return c;
      }
      refuse(s->name, f);
    default:
      refuse(s->name, f);
  }
}

inline Str text_at(const FrameColumn& c, int64_t row) {
  int64_t k = row + c.offset, from, to;
  if (c.storage == Storage::Utf8) {
    const int32_t* o = static_cast<const int32_t*>(c.values);
    from = o[k];
    to = o[k + 1];
  } else {
    const int64_t* o = static_cast<const int64_t*>(c.values);
    from = o[k];
    to = o[k + 1];
  }
  if (to - from > INT32_MAX) throw std::length_error("a string of 2 GiB or more");
  return Str{c.text + from, static_cast<uint32_t>(to - from)};
}

inline int64_t dictionary_index(const FrameColumn& c, int64_t row) {
  int64_t k = row + c.offset;
  switch (c.index_width) {
    case 1:
      return static_cast<const int8_t*>(c.values)[k];
    case 2:
      return static_cast<const int16_t*>(c.values)[k];
    case 4:
      return static_cast<const int32_t*>(c.values)[k];
    default:
      return static_cast<const int64_t*>(c.values)[k];
  }
}

int64_t checked_index(const FrameColumn& c, int64_t row) {
  int64_t k = dictionary_index(c, row);
  if (k < 0 || k >= c.child->rows) throw std::out_of_range("a dictionary index outside its dictionary");
  return k;
}

Str string_at(const FrameColumn& c, int64_t row) {
  if (c.storage != Storage::Dictionary) return text_at(c, row);
  return text_at(*c.child, checked_index(c, row));
}

// The rows of a frame that a load is about.
struct Picked {
  const int32_t* rows;  // or nullptr: from `base` on
  bool missing;         // some of them are -1
  int64_t base;
};

// Calls f(position, row) for present rows and null(position) for the others; returns the first null position or -1.
// What is wrong with a row becomes a BadEntry that tells its position.
template <class F, class N>
int64_t each_row(const FrameColumn& c, const Picked& index, uint32_t rows, F f, N null) {
  int64_t first = -1;
  uint32_t r = 0;
  try {
    if (c.whole() && !index.missing) {
      if (index.rows)
        for (; r < rows; ++r) f(r, index.rows[r]);
      else
        for (; r < rows; ++r) f(r, index.base + r);
      return first;
    }
    for (; r < rows; ++r) {
      int64_t row = index.rows ? index.rows[r] : index.base + r;
      if (row >= 0 && c.has(row)) {
        f(r, row);
      } else {
        if (first < 0) first = r;
        null(r);
      }
    }
  } catch (const std::logic_error& e) {  // out_of_range, length_error, invalid_argument: damaged or oversized
    throw BadEntry(r, first, e.what());
  }
  return first;
}

// Calls put(position, row, present) for every row without a branch on what is null; row is one of the frame's in any
// case. For nullable registers only: nobody asks which row was the first null.
template <class F>
void each_row_steadily(const FrameColumn& c, const Picked& index, uint32_t rows, F put) {
  const uint8_t* bitmap = c.bitmap;
  for (uint32_t r = 0; r < rows; ++r) {
    const int64_t row = index.rows ? index.rows[r] : index.base + r;
    const bool there = row >= 0;
    const int64_t safe = there ? row : 0;
    const int64_t k = safe + c.offset;
    put(r, safe, there & (!bitmap || (bitmap[k >> 3] >> (k & 7) & 1)));
  }
}

// Nulls of the kind that each_row_steadily() knows: of a bitmap, or missing rows.
bool steady(const FrameColumn& c, const Column& out) {
  return out.valid && c.rows > 0 && !c.bytes_valid && c.storage != Storage::Dictionary;
}

template <class T, class From>
int64_t load_fixed(const FrameColumn& c, const Picked& index, uint32_t rows, Column& out) {
  const From* from = static_cast<const From*>(c.values) + c.offset;
  T* to = static_cast<T*>(out.data);
  uint8_t* valid = out.valid;
  if constexpr (std::is_same_v<T, From>) {
    if (!index.rows && c.whole()) {
      if (valid) std::memset(valid, 1, rows);
      out.data = const_cast<From*>(from + index.base);
      return -1;
    }
  }
  if (steady(c, out) && !(c.whole() && !index.missing)) {
    each_row_steadily(c, index, rows, [&](uint32_t r, int64_t row, bool present) {
      const T value = static_cast<T>(from[row]);
      to[r] = present ? value : T{};
      valid[r] = present;
    });
    return -1;
  }
  if (valid) std::memset(valid, 1, rows);
  return each_row(
      c, index, rows, [&](uint32_t r, int64_t row) { to[r] = static_cast<T>(from[row]); },
      [&](uint32_t r) {
        to[r] = T{};
        if (valid) valid[r] = 0;
      });
}

int64_t load_bool(const FrameColumn& c, const Picked& index, uint32_t rows, Column& out) {
  const uint8_t* bits = static_cast<const uint8_t*>(c.values);
  uint8_t* to = static_cast<uint8_t*>(out.data);
  if (out.valid) std::memset(out.valid, 1, rows);
  return each_row(
      c, index, rows,
      [&](uint32_t r, int64_t row) {
        int64_t k = row + c.offset;
        to[r] = bits[k >> 3] >> (k & 7) & 1;
      },
      [&](uint32_t r) {
        to[r] = 0;
        if (out.valid) out.valid[r] = 0;
      });
}

int64_t load_strings(const FrameColumn& c, const Picked& index, uint32_t rows, Column& out) {
  Str* to = static_cast<Str*>(out.data);
  if (out.valid) std::memset(out.valid, 1, rows);
  auto null = [&](uint32_t r) {
    to[r] = Str{};
    if (out.valid) out.valid[r] = 0;
  };
  if (c.storage == Storage::Utf8 && steady(c, out) && !(c.whole() && !index.missing)) {
    const int32_t* o = static_cast<const int32_t*>(c.values) + c.offset;
    each_row_steadily(c, index, rows, [&](uint32_t r, int64_t row, bool present) {
      const Str value{c.text + o[row], static_cast<uint32_t>(o[row + 1] - o[row])};
      to[r] = present ? value : Str{};
      out.valid[r] = present;
    });
    return -1;
  }
  if (c.storage == Storage::Utf8)  // the usual case, without the switch inside
    return each_row(
        c, index, rows,
        [&, o = static_cast<const int32_t*>(c.values) + c.offset, text = c.text](uint32_t r, int64_t row) {
          to[r] = Str{text + o[row], static_cast<uint32_t>(o[row + 1] - o[row])};
        },
        null);
  return each_row(c, index, rows, [&](uint32_t r, int64_t row) { to[r] = string_at(c, row); }, null);
}

template <class T>
T element_at(const FrameColumn& e, int64_t k) {
  if constexpr (std::is_same_v<T, Str>) {
    return string_at(e, k);
  } else {
    int64_t at = k + e.offset;
    switch (e.storage) {
      case Storage::Bool:
        return static_cast<T>(static_cast<const uint8_t*>(e.values)[at >> 3] >> (at & 7) & 1);
      case Storage::I8:
        return static_cast<T>(static_cast<const int8_t*>(e.values)[at]);
      case Storage::I16:
        return static_cast<T>(static_cast<const int16_t*>(e.values)[at]);
      case Storage::I32:
        return static_cast<T>(static_cast<const int32_t*>(e.values)[at]);
      case Storage::I64:
        return static_cast<T>(static_cast<const int64_t*>(e.values)[at]);
      case Storage::U8:
        return static_cast<T>(static_cast<const uint8_t*>(e.values)[at]);
      case Storage::U16:
        return static_cast<T>(static_cast<const uint16_t*>(e.values)[at]);
      case Storage::U32:
        return static_cast<T>(static_cast<const uint32_t*>(e.values)[at]);
      case Storage::F32:
        return static_cast<T>(static_cast<const float*>(e.values)[at]);
      default:
        return static_cast<T>(static_cast<const double*>(e.values)[at]);
    }
  }
}

template <class T>
int64_t load_list(const FrameColumn& c, const Picked& index, uint32_t rows, Column& out, Bump& pool) {
  List<T>* to = static_cast<List<T>*>(out.data);
  const FrameColumn& e = *c.child;
  bool direct = e.whole() && ((std::is_same_v<T, int64_t> && e.storage == Storage::I64) ||
                              (std::is_same_v<T, double> && e.storage == Storage::F64));
  if (out.valid) std::memset(out.valid, 1, rows);
  return each_row(
      c, index, rows,
      [&](uint32_t r, int64_t row) {
        int64_t k = row + c.offset, from, n;
        if (c.storage == Storage::List) {
          const int32_t* o = static_cast<const int32_t*>(c.values);
          from = o[k];
          n = o[k + 1] - from;
        } else if (c.storage == Storage::LargeList) {
          const int64_t* o = static_cast<const int64_t*>(c.values);
          from = o[k];
          n = o[k + 1] - from;
        } else {
          from = k * c.fixed;
          n = c.fixed;
        }
        if (n > INT32_MAX) throw std::length_error("a list of 2^31 elements or more");
        if (direct) {
          to[r] = List<T>{static_cast<const T*>(e.values) + e.offset + from, static_cast<uint32_t>(n)};
          return;
        }
        T* at = pool.take<T>(static_cast<size_t>(n));
        uint32_t used = 0;
        for (int64_t j = 0; j < n; ++j)
          if (e.has(from + j)) at[used++] = element_at<T>(e, from + j);
        if (used < n && c.storage == Storage::FixedList)  // dropping it would shift the others
          throw std::invalid_argument("a null inside a list of fixed size; a vector needs all its elements");
        to[r] = List<T>{at, used};
      },
      [&](uint32_t r) {
        to[r] = List<T>{};
        if (out.valid) out.valid[r] = 0;
      });
}

template <class T>
int64_t load_entries(const FrameColumn& c, const Picked& index, uint32_t rows, Column& out) {
  const T* from = static_cast<const T*>(c.values);
  if (!index.rows) {  // already in register format: point at it
    const int64_t base = index.base;
    out.data = const_cast<T*>(from + base);
    if (!out.valid) {
      if (c.bytes_valid)
        for (uint32_t r = 0; r < rows; ++r)
          if (!c.bytes_valid[base + r]) return r;
      return -1;
    }
    if (c.bytes_valid)
      std::memcpy(out.valid, c.bytes_valid + base, rows);
    else
      std::memset(out.valid, 1, rows);
    return -1;
  }
  T* to = static_cast<T*>(out.data);
  if (out.valid) std::memset(out.valid, 1, rows);
  return each_row(
      c, index, rows, [&](uint32_t r, int64_t row) { to[r] = from[row]; },
      [&](uint32_t r) {
        to[r] = T{};
        if (out.valid) out.valid[r] = 0;
      });
}

}  // namespace

bool FrameColumn::has_value(int64_t row) const { return child->has(checked_index(*this, row)); }

std::shared_ptr<Frame> Frame::from_arrow(ArrowSchema* schema, ArrowArray* array) {
  auto frame = std::make_shared<Frame>();
  frame->array_ = *array;
  array->release = nullptr;  // ours now; ~Frame releases
  frame->rows_ = frame->array_.length;
  if (frame->rows_ > INT32_MAX) throw std::invalid_argument("a record batch has 2^31 rows or more; expected fewer");
  if (std::strcmp(schema->format, "+s") != 0) throw std::invalid_argument("expected a record batch (Arrow struct)");
  for (int64_t k = 0; k < schema->n_children; ++k) {
    FrameColumn c = import_column(schema->children[k], frame->array_.children[k]);
    c.offset += frame->array_.offset;
    frame->columns_.push_back(std::move(c));
  }
  return frame;
}

std::shared_ptr<Frame> Frame::of_entries(int64_t rows, const std::vector<char>& kinds,
                                         std::vector<std::vector<char>> entries) {
  auto made = std::make_shared<Frame>();
  made->rows_ = rows;
  made->entries_ = std::move(entries);
  for (size_t k = 0; k < kinds.size(); ++k) {
    FrameColumn column;
    column.storage = Storage::Entries;
    column.kind = kinds[k];
    column.rows = rows;
    column.values = made->entries_.at(k).data();
    made->columns_.push_back(std::move(column));
  }
  return made;
}

std::shared_ptr<Frame> Frame::selected(const std::shared_ptr<const Frame>& of, const std::vector<size_t>& columns) {
  auto out = std::make_shared<Frame>();
  out->rows_ = of->rows_;
  out->keep_.push_back(of);
  out->columns_.reserve(columns.size());
  for (size_t k : columns) {
    const FrameColumn& c = of->columns_.at(k);
    if (c.storage != Storage::Entries) throw std::invalid_argument("only kept columns can be selected");
    FrameColumn same;
    same.storage = c.storage;
    same.kind = c.kind;
    same.is_list = c.is_list;
    same.rows = c.rows;
    same.bytes_valid = c.bytes_valid;
    same.values = c.values;
    out->columns_.push_back(std::move(same));
  }
  return out;
}

Frame::~Frame() {
  if (array_.release) array_.release(&array_);
}

int64_t load_column(const FrameColumn& c, const int32_t* picked, bool missing, int64_t base, uint32_t rows, Column& out,
                    Bump& pool) {
  const Picked index{picked, missing, base};
  if (c.storage == Storage::Entries) {
    if (c.is_list) return load_entries<List<uint64_t>>(c, index, rows, out);
    if (c.kind == 's') return load_entries<Str>(c, index, rows, out);
    if (c.kind == 'b') return load_entries<uint8_t>(c, index, rows, out);
    return load_entries<uint64_t>(c, index, rows, out);
  }
  if (c.is_list) {
    switch (c.kind) {
      case 's':
        return load_list<Str>(c, index, rows, out, pool);
      case 'f':
        return load_list<double>(c, index, rows, out, pool);
      case 'b':
        return load_list<uint8_t>(c, index, rows, out, pool);
      default:
        return load_list<int64_t>(c, index, rows, out, pool);
    }
  }
  switch (c.storage) {
    case Storage::Bool:
      return load_bool(c, index, rows, out);
    case Storage::I8:
      return load_fixed<int64_t, int8_t>(c, index, rows, out);
    case Storage::I16:
      return load_fixed<int64_t, int16_t>(c, index, rows, out);
    case Storage::I32:
      return load_fixed<int64_t, int32_t>(c, index, rows, out);
    case Storage::I64:
      return load_fixed<int64_t, int64_t>(c, index, rows, out);
    case Storage::U8:
      return load_fixed<int64_t, uint8_t>(c, index, rows, out);
    case Storage::U16:
      return load_fixed<int64_t, uint16_t>(c, index, rows, out);
    case Storage::U32:
      return load_fixed<int64_t, uint32_t>(c, index, rows, out);
    case Storage::F32:
      return load_fixed<double, float>(c, index, rows, out);
    case Storage::F64:
      return load_fixed<double, double>(c, index, rows, out);
    default:
      return load_strings(c, index, rows, out);
  }
}

}  // namespace cb
