#include "core/request/v2_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/request/json_cursor.h"
#include "operators/times.h"
#include "operators/unicode.h"

namespace cb {
namespace {

using Column = RequestRows::Column;

// One column that is being filled; without one, values are checked for their datatype alone, and not kept. Every `add`
// returns false for a value that the column does not take.
struct Filler {
  const Column* of;
  Filling& to;

  bool add(int64_t value) {
    if (!of) return true;
    const Column& column = *of;
    switch (column.kind) {
      case 'i':
      case 't':
        if ((column.kind == 't' && !column.unit) || value < column.low || value > column.high) return false;
        to.add(column.kind == 't' ? value * column.unit : value);
        return true;
      case 'f':
        return add(static_cast<double>(value));  // a whole number becomes the nearest fraction
      default:
        return false;
    }
  }
  bool add(double value) {
    if (!of) return true;
    const Column& column = *of;
    if (column.kind != 'f') return false;
    if (column.single) value = static_cast<double>(static_cast<float>(value));
    if (!std::isfinite(value)) return false;
    to.add(value);
    return true;
  }
  bool add(uint8_t value) {
    if (!of) return true;
    if (of->kind != 'b') return false;
    to.add(value);
    return true;
  }
  bool add(std::string_view text) {
    if (!of) return true;
    const Column& column = *of;
    if (text.size() > std::numeric_limits<uint32_t>::max()) return false;
    const Str given{text.data(), static_cast<uint32_t>(text.size())};
    if (column.kind == 't') {
      int64_t time;
      if (!parse_time(given, &time)) return false;
      to.add(time);
      return true;
    }
    if (column.kind != 's' || !valid_utf8(text)) return false;
    to.add(given);
    return true;
  }
  static bool valid_utf8(std::string_view text) {
    const char *p = text.data(), *end = p + text.size();
    while (p < end) {
      if (static_cast<uint8_t>(*p) < 0x80) {
        ++p;
        continue;
      }
      const uint32_t length = unit_length(p, end);
      if (length < 2) return false;
      p += length;
    }
    return true;
  }
};

// The elements of a tensor of one datatype.
enum class Type { Bool, Whole, Unsigned64, Single, Double, Bytes };
struct Datatype {
  std::string_view name;
  Type type;
  size_t width;       // bytes of an element in binary; 0: each has its own
  int64_t low, high;  // of whole numbers
};

template <class T>
constexpr Datatype whole(std::string_view name) {
  return {name, Type::Whole, sizeof(T), static_cast<int64_t>(std::numeric_limits<T>::min()),
          static_cast<int64_t>(std::numeric_limits<T>::max())};
}

// FP16 is missing: the slow path reads it.
constexpr Datatype kDatatypes[] = {
    whole<int64_t>("INT64"),
    {"BYTES", Type::Bytes, 0, 0, 0},
    {"FP64", Type::Double, 8, 0, 0},
    {"FP32", Type::Single, 4, 0, 0},
    {"BOOL", Type::Bool, 1, 0, 0},
    whole<int32_t>("INT32"),
    whole<int16_t>("INT16"),
    whole<int8_t>("INT8"),
    {"UINT64", Type::Unsigned64, 8, 0, std::numeric_limits<int64_t>::max()},
    whole<uint32_t>("UINT32"),
    whole<uint16_t>("UINT16"),
    whole<uint8_t>("UINT8"),
};

const Datatype* datatype_named(std::string_view name) {
  for (const Datatype& one : kDatatypes)
    if (one.name == name) return &one;
  return nullptr;
}

uint64_t little_endian(const char* p, size_t width) {
  uint64_t out = 0;
  for (size_t k = width; k-- > 0;) out = out << 8 | static_cast<uint8_t>(p[k]);
  return out;
}

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(&out, &from, sizeof out);
  return out;
}

bool element(const Datatype& type, const char* p, Filler& to) {
  const uint64_t bits = little_endian(p, type.width);
  switch (type.type) {
    case Type::Bool:
      return bits <= 1 && to.add(static_cast<uint8_t>(bits));
    case Type::Whole: {
      // A negative number of fewer than 8 bytes gets its sign back.
      const unsigned spare = type.low < 0 ? 64 - 8 * static_cast<unsigned>(type.width) : 0;
      return to.add(static_cast<int64_t>(bits << spare) >> spare);
    }
    case Type::Unsigned64:
      return bits <= static_cast<uint64_t>(type.high) && to.add(static_cast<int64_t>(bits));
    case Type::Single:
      return to.add(static_cast<double>(bits_as<float>(static_cast<uint32_t>(bits))));
    default:
      return to.add(bits_as<double>(bits));
  }
}

bool binary(const Datatype& type, std::string_view data, size_t rows, Filler& to) {
  if (type.width) {
    // No product of rows and width: rows come from the client.
    if (data.size() % type.width || data.size() / type.width != rows) return false;
    for (size_t r = 0; r < rows; ++r)
      if (!element(type, data.data() + r * type.width, to)) return false;
    return true;
  }
  for (size_t r = 0; r < rows; ++r) {
    if (data.size() < 4) return false;
    const uint64_t length = little_endian(data.data(), 4);
    data.remove_prefix(4);
    if (length > data.size() || !to.add(data.substr(0, length))) return false;
    data.remove_prefix(length);
  }
  return data.empty();
}

bool json_value(const Datatype& type, JsonCursor& c, Filler& to, Bump& texts) {
  const char* begin;
  bool is_whole;
  c.blank();
  switch (type.type) {
    case Type::Bool:
      if (c.word("true")) return to.add(uint8_t{1});
      return c.word("false") && to.add(uint8_t{0});
    case Type::Bytes: {
      std::string_view text;
      return c.text(text, &texts) && to.add(text);
    }
    case Type::Whole:
    case Type::Unsigned64: {
      int64_t number;
      if (!c.number(begin, is_whole) || !is_whole) return false;
      const auto done = std::from_chars(begin, c.p, number);
      return done.ec == std::errc() && done.ptr == c.p && number >= type.low && number <= type.high && to.add(number);
    }
    default: {
      double number;
      if (!c.number(begin, is_whole)) return false;
      const auto done = std::from_chars(begin, c.p, number);
      if (done.ec != std::errc() || done.ptr != c.p) return false;
      if (is_whole && number == 0) number = 0;  // -0 is a whole number, which has no negative zero
      if (type.type == Type::Single) number = static_cast<double>(static_cast<float>(number));
      return std::isfinite(number) && to.add(number);
    }
  }
}

bool json_list(const Datatype& type, std::string_view data, size_t rows, bool nests, Filler& to, Bump& texts) {
  JsonCursor c{data.data(), data.data() + data.size()};
  if (!c.take('[')) return false;
  const bool nested = nests && c.peek('[');
  for (size_t r = 0; r < rows; ++r) {
    if (r && !c.take(',')) return false;
    if (nested && !c.take('[')) return false;
    if (!json_value(type, c, to, texts)) return false;
    if (nested && !c.take(']')) return false;
  }
  return c.take(']') && c.p == c.end;
}

std::shared_ptr<Frame> frame_of(const std::vector<Column>& columns, std::vector<Filling>& filled, int64_t rows) {
  std::vector<std::vector<char>> entries;
  std::vector<char> kinds;
  for (size_t k = 0; k < columns.size(); ++k) {
    entries.push_back(std::move(filled[k].entries));
    kinds.push_back(columns[k].kind);
  }
  return Frame::of_entries(rows, kinds, std::move(entries));
}

int64_t number_named(const std::vector<Column>& columns, std::string_view name) {
  for (size_t k = 0; k < columns.size(); ++k)
    if (columns[k].name == name) return static_cast<int64_t>(k);
  return -1;
}

bool among(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<RequestTensors::Read> RequestTensors::read(const std::vector<InputTensor>& tensors) const {
  Read out;
  Filling nothing;
  size_t columns = 0;
  std::vector<std::string_view> seen;
  out.context.resize(context_.size());
  out.candidates.resize(candidates_.size());
  for (const InputTensor& tensor : tensors) {
    const std::vector<int64_t>& shape = tensor.shape;
    if (shape.empty() || shape.size() > 2 || (shape.size() == 2 && shape[1] != 1)) return std::nullopt;
    const int64_t once = number_named(context_, tensor.name);
    const int64_t each = once < 0 ? number_named(candidates_, tensor.name) : -1;
    const int64_t rows = shape[0];
    if (rows < 1 || rows > most_) return std::nullopt;
    if (std::find(seen.begin(), seen.end(), tensor.name) != seen.end()) return std::nullopt;
    seen.push_back(tensor.name);
    if (once >= 0) {
      if (rows != 1) return std::nullopt;
    } else if (each >= 0) {
      if (out.rows && rows != out.rows) return std::nullopt;
      out.rows = rows;
    } else if (!among(*ignored_[0], tensor.name) && !among(*ignored_[1], tensor.name)) {
      return std::nullopt;
    }
    columns += once >= 0 || each >= 0;
    const Datatype* type = datatype_named(tensor.datatype);
    if (!type) return std::nullopt;
    Filler to = once >= 0   ? Filler{&context_[static_cast<size_t>(once)], out.context[static_cast<size_t>(once)]}
                : each >= 0 ? Filler{&candidates_[static_cast<size_t>(each)], out.candidates[static_cast<size_t>(each)]}
                            : Filler{nullptr, nothing};
    const auto count = static_cast<size_t>(rows);
    if (!(tensor.json ? json_list(*type, tensor.data, count, shape.size() == 2, to, out.texts)
                      : binary(*type, tensor.data, count, to)))
      return std::nullopt;
  }
  // No column came twice, so each came once.
  if (!out.rows || columns != context_.size() + candidates_.size()) return std::nullopt;
  return out;
}

std::string RequestTensors::key(const Read& read) const {
  std::string out = "values ";
  for (size_t k = 0; k < context_.size(); ++k) {
    const std::vector<char>& entry = read.context[k].entries;
    if (context_[k].kind == 's') {
      Str text;
      std::memcpy(&text, entry.data(), sizeof text);
      for (int byte = 0; byte < 4; ++byte) out += static_cast<char>(text.n >> 8 * byte);
      out.append(text.p, text.n);
    } else {
      out.append(entry.data(), entry.size());
    }
  }
  return out;
}

std::shared_ptr<Frame> RequestTensors::context(Read& read) const { return frame_of(context_, read.context, 1); }

std::shared_ptr<Frame> RequestTensors::candidates(Read& read) const {
  return frame_of(candidates_, read.candidates, read.rows);
}

}  // namespace cb
