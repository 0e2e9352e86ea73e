#include "core/request/request_rows.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace cb {
namespace {

// Every step returns false where the bytes are not what the fast way takes.
struct Cursor {
  const char* p;
  const char* end;

  void blank() {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) ++p;
  }
  bool take(char c) {
    blank();
    if (p == end || *p != c) return false;
    ++p;
    return true;
  }
  bool peek(char c) {
    blank();
    return p < end && *p == c;
  }
  bool word(std::string_view w) {
    if (static_cast<size_t>(end - p) < w.size() || std::memcmp(p, w.data(), w.size()) != 0) return false;
    p += w.size();
    return true;
  }
  // Printable ASCII without an escape, between quotes.
  bool text(std::string_view& out) {
    if (!take('"')) return false;
    const char* begin = p;
    for (; p < end && *p != '"'; ++p) {
      auto byte = static_cast<unsigned char>(*p);
      if (byte < 0x20 || byte > 0x7e || byte == '\\') return false;
    }
    if (p == end) return false;
    out = {begin, static_cast<size_t>(p - begin)};
    ++p;
    return true;
  }
  // The extent of a number of JSON's grammar; whole: it has neither fraction nor exponent.
  bool number(const char*& begin, bool& whole) {
    begin = p;
    whole = true;
    if (p < end && *p == '-') ++p;
    if (p == end || *p < '0' || *p > '9') return false;
    if (*p == '0') {
      ++p;
      if (p < end && *p >= '0' && *p <= '9') return false;
    } else {
      digits();
    }
    if (p < end && *p == '.') {
      whole = false;
      ++p;
      if (!digits()) return false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
      whole = false;
      ++p;
      if (p < end && (*p == '+' || *p == '-')) ++p;
      if (!digits()) return false;
    }
    return true;
  }
  bool digits() {
    const char* from = p;
    while (p < end && *p >= '0' && *p <= '9') ++p;
    return p > from;
  }
  // Behind an object, by its brackets and quotes alone.
  bool over_object() {
    int64_t depth = 0;
    while (p < end) {
      char c = *p++;
      if (c == '"') {
        while (p < end && *p != '"') p += *p == '\\' && end - p > 1 ? 2 : 1;
        if (p == end) return false;
        ++p;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        if (--depth == 0) return true;
      }
    }
    return false;
  }
};

struct Filling {
  std::vector<char> entries;
  std::vector<char> valid;
  bool nulls = false;

  template <class T>
  void add(T value) {
    size_t at = entries.size();
    entries.resize(at + sizeof(T));
    std::memcpy(entries.data() + at, &value, sizeof(T));
    valid.push_back(1);
  }
};

bool scalar(Cursor& c) {
  c.blank();
  if (c.p == c.end) return false;
  std::string_view ignored;
  const char* begin;
  bool whole;
  switch (*c.p) {
    case '"':
      return c.text(ignored);
    case 't':
      return c.word("true");
    case 'f':
      return c.word("false");
    case 'n':
      return c.word("null");
    default: {
      if (!c.number(begin, whole)) return false;
      double value;
      auto done = std::from_chars(begin, c.p, value);
      return done.ec == std::errc() && done.ptr == c.p;
    }
  }
}

bool value(Cursor& c, const RequestRows::Column& column, Filling& to) {
  c.blank();
  if (c.p == c.end) return false;
  if (*c.p == 'n') {
    if (!c.word("null")) return false;
    switch (column.kind) {
      case 's':
        to.add(Str{nullptr, 0});
        break;
      case 'b':
        to.add(uint8_t{0});
        break;
      default:
        to.add(int64_t{0});
    }
    to.valid.back() = 0;
    to.nulls = true;
    return true;
  }
  const char* begin;
  bool whole;
  switch (column.kind) {
    case 'b':
      if (c.word("true")) {
        to.add(uint8_t{1});
        return true;
      }
      if (!c.word("false")) return false;
      to.add(uint8_t{0});
      return true;
    case 's': {
      std::string_view text;
      if (!c.text(text)) return false;
      to.add(Str{text.data(), static_cast<uint32_t>(text.size())});
      return true;
    }
    case 'i': {
      if (!c.number(begin, whole) || !whole) return false;
      int64_t number;
      auto done = std::from_chars(begin, c.p, number);
      if (done.ec != std::errc() || done.ptr != c.p || number < column.low || number > column.high) return false;
      to.add(number);
      return true;
    }
    default: {
      if (!c.number(begin, whole)) return false;
      double number;
      auto done = std::from_chars(begin, c.p, number);
      if (done.ec != std::errc() || done.ptr != c.p) return false;
      if (column.single) number = static_cast<double>(static_cast<float>(number));
      if (!std::isfinite(number)) return false;
      to.add(number);
      return true;
    }
  }
}

constexpr int kIgnored = -1, kUnknown = -2;

}  // namespace

RequestRows::RequestRows(std::vector<Column> columns, std::vector<std::string> ignored, int64_t most)
    : columns_(std::move(columns)), ignored_(std::move(ignored)), most_(most) {}

std::optional<RequestRows::Read> RequestRows::read(std::string_view body) const {
  Cursor c{body.data(), body.data() + body.size()};
  std::vector<Filling> filled(columns_.size());
  Read found;
  bool context = false, candidates = false;

  auto column_named = [&](std::string_view name) {
    for (size_t k = 0; k < columns_.size(); ++k)
      if (columns_[k].name == name) return static_cast<int>(k);
    for (const std::string& other : ignored_)
      if (other == name) return kIgnored;
    return kUnknown;
  };
  // The names of the first object, or of a column each: what they stand for. Each comes once, and none is missing.
  std::vector<std::pair<std::string_view, int>> order;
  auto meet = [&](std::string_view name) {
    int at = column_named(name);
    if (at == kUnknown) return false;
    for (const auto& [other, _] : order)
      if (other == name) return false;
    order.emplace_back(name, at);
    return true;
  };
  auto complete = [&] {
    size_t met = 0;
    for (const auto& [_, at] : order) met += at >= 0;
    return met == columns_.size();
  };

  auto objects = [&] {
    if (!c.take('[') || c.peek(']')) return false;
    do {
      if (!c.take('{') || found.rows == most_) return false;
      size_t place = 0;
      do {
        std::string_view name;
        if (!c.text(name) || !c.take(':')) return false;
        if (found.rows == 0 && !meet(name)) return false;
        if (place == order.size() || order[place].first != name) return false;
        int at = order[place++].second;
        if (at == kIgnored ? !scalar(c) : !value(c, columns_[static_cast<size_t>(at)], filled[static_cast<size_t>(at)]))
          return false;
      } while (c.take(','));
      if (!c.take('}') || place != order.size() || (found.rows == 0 && !complete())) return false;
      ++found.rows;
    } while (c.take(','));
    return c.take(']');
  };

  auto lists = [&] {
    if (!c.take('{') || c.peek('}')) return false;
    do {
      std::string_view name;
      if (!c.text(name) || !c.take(':') || !meet(name) || !c.take('[')) return false;
      int at = order.back().second;
      int64_t rows = 0;
      do {
        if (rows == most_) return false;
        if (at == kIgnored ? !scalar(c) : !value(c, columns_[static_cast<size_t>(at)], filled[static_cast<size_t>(at)]))
          return false;
        ++rows;
      } while (c.take(','));
      if (!c.take(']') || (order.size() > 1 && rows != found.rows)) return false;
      found.rows = rows;
    } while (c.take(','));
    return c.take('}') && complete();
  };

  if (!c.take('{')) return std::nullopt;
  do {
    std::string_view name;
    if (!c.text(name) || !c.take(':')) return std::nullopt;
    if (name == "context" && !context) {
      context = true;
      if (!c.peek('{')) return std::nullopt;
      found.context_begin = static_cast<size_t>(c.p - body.data());
      if (!c.over_object()) return std::nullopt;
      found.context_end = static_cast<size_t>(c.p - body.data());
    } else if (name == "candidates" && !candidates) {
      candidates = true;
      if (!(c.peek('{') ? lists() : objects())) return std::nullopt;
    } else {
      return std::nullopt;
    }
  } while (c.take(','));
  if (!c.take('}') || !candidates) return std::nullopt;
  c.blank();
  if (c.p != c.end) return std::nullopt;

  auto frame = std::make_shared<Frame>();
  frame->rows_ = found.rows;
  frame->entries_.emplace_back(body.begin(), body.end());  // what texts point into
  const char* own = frame->entries_.back().data();
  for (size_t k = 0; k < columns_.size(); ++k) {
    if (columns_[k].kind == 's')
      for (size_t r = 0; r < filled[k].valid.size(); ++r) {
        auto* text = reinterpret_cast<Str*>(filled[k].entries.data()) + r;
        if (text->p) text->p = own + (text->p - body.data());
      }
    FrameColumn column;
    column.storage = Storage::Entries;
    column.kind = columns_[k].kind;
    column.rows = found.rows;
    frame->entries_.push_back(std::move(filled[k].entries));
    column.values = frame->entries_.back().data();
    if (filled[k].nulls) {
      frame->entries_.push_back(std::move(filled[k].valid));
      column.bytes_valid = reinterpret_cast<const uint8_t*>(frame->entries_.back().data());
    }
    frame->columns_.push_back(std::move(column));
  }
  found.frame = std::move(frame);
  return found;
}

}  // namespace cb
