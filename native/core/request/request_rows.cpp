#include "core/request/request_rows.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include "core/request/json_cursor.h"
#include "core/request/request_column.h"
#include "operators/times.h"

namespace cb {
namespace {

using Cursor = JsonCursor;

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

bool value(Cursor& c, const RequestRows::Column& column, Filling& to, Bump& pool) {
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
      if (!c.text(text, &pool)) return false;
      to.add(Str{text.data(), static_cast<uint32_t>(text.size())});
      return true;
    }
    case 't':
      if (*c.p == '"') {
        std::string_view text;
        int64_t time;
        if (!c.text(text) || !parse_time({text.data(), static_cast<uint32_t>(text.size())}, &time)) return false;
        to.add(time);
        return true;
      }
      if (!column.unit) return false;
      [[fallthrough]];
    case 'i': {
      if (!c.number(begin, whole) || !whole) return false;
      int64_t number;
      auto done = std::from_chars(begin, c.p, number);
      if (done.ec != std::errc() || done.ptr != c.p || number < column.low || number > column.high) return false;
      to.add(column.kind == 't' ? number * column.unit : number);
      return true;
    }
    default: {
      if (!c.number(begin, whole)) return false;
      double number;
      auto done = std::from_chars(begin, c.p, number);
      if (done.ec != std::errc() || done.ptr != c.p) return false;
      if (whole && number == 0) number = 0;  // -0 is a whole number, which has no negative zero
      if (column.single) number = static_cast<double>(static_cast<float>(number));
      if (!std::isfinite(number)) return false;
      to.add(number);
      return true;
    }
  }
}

constexpr int kIgnored = -1, kUnknown = -2;

// Returns the values that a column accepts, in words, for the message of a refused request.
std::string expected(const RequestRows::Column& column) {
  const std::string range = " from " + std::to_string(column.low) + " to " + std::to_string(column.high);
  switch (column.kind) {
    case 'b':
      return "true, false or null";
    case 's':
      return "a string of UTF-8 without control characters, or null";
    case 'i':
      return "a whole number" + range + ", or null";
    case 't':
      return column.unit ? "a time as text, a whole number" + range + ", or null" : "a time as text, or null";
    default:
      return column.single ? "a number that fits float32, or null" : "a number that fits float64, or null";
  }
}

// The bytes at a place, as far as a message shows them.
std::string shown(const char* p, const char* end) {
  std::string out;
  for (; p < end && out.size() < 40; ++p) out += *p >= ' ' && *p <= '~' ? *p : '?';
  return p < end ? out + "..." : out;
}

std::string quoted(std::string_view name) {
  std::string out(1, '\'');
  out += shown(name.data(), name.data() + name.size());
  out += '\'';
  return out;
}

}  // namespace

RequestRows::RequestRows(std::vector<Column> columns, std::vector<std::string> ignored, int64_t most)
    : columns_(std::move(columns)), ignored_(std::move(ignored)), most_(most) {}

// The state of reading the rows of one request.
struct RequestRows::Reading {
  const RequestRows& rows_of;
  std::string_view body;
  std::string* why;
  Cursor c{body.data(), body.data() + body.size()};
  std::vector<Filling> filled = std::vector<Filling>(rows_of.columns_.size());
  // The names of the first object, or of the lists of columns, each with the number of its column. Each name occurs
  // once, and no column is missing.
  std::vector<std::pair<std::string_view, int>> order{};
  int64_t rows = 0;
  Bump written{256};  // texts that had escapes

  // The first reason counts: it was met deepest. Asked for rarely, so it is a function that makes the text.
  template <class F>
  bool refuse(F reason) {
    if (why && why->empty()) *why = reason();
    return false;
  }
  // JSON has something else here.
  bool wanted(const char* what) {
    return refuse([&] {
      const std::string place = " at byte " + std::to_string(c.p - body.data());
      return "expected " + std::string(what) + place +
             (c.p < c.end ? ", met " + shown(c.p, c.end) : ", where the request ends");
    });
  }

  int column_named(std::string_view name) const {
    for (size_t k = 0; k < rows_of.columns_.size(); ++k)
      if (rows_of.columns_[k].name == name) return static_cast<int>(k);
    for (const std::string& other : rows_of.ignored_)
      if (other == name) return kIgnored;
    return kUnknown;
  }
  bool meet(std::string_view name) {
    int at = column_named(name);
    if (at == kUnknown) return refuse([&] { return "there is no column " + quoted(name) + " here"; });
    for (const auto& [other, _] : order)
      if (other == name) return refuse([&] { return "column " + quoted(name) + " occurs twice"; });
    order.emplace_back(name, at);
    return true;
  }
  bool complete() {
    size_t met = 0;
    for (const auto& [_, at] : order) met += at >= 0;
    if (met == rows_of.columns_.size()) return true;
    for (size_t k = 0; k < rows_of.columns_.size(); ++k) {
      bool here = false;
      for (const auto& [_, at] : order) here = here || at == static_cast<int>(k);
      if (!here) return refuse([&] { return "column " + quoted(rows_of.columns_[k].name) + " is missing"; });
    }
    return false;
  }
  bool entry(std::string_view name, int at, int64_t row) {
    c.blank();
    const char* begin = c.p;
    if (at == kIgnored) return scalar(c) || wanted("a string, a number, true, false or null");
    auto k = static_cast<size_t>(at);
    if (value(c, rows_of.columns_[k], filled[k], written)) return true;
    return refuse([&] {
      return "row " + std::to_string(row) + ": column " + quoted(name) + " must be " + expected(rows_of.columns_[k]) +
             "; met " + shown(begin, c.end);
    });
  }

  // Reads one object. All objects have the names of the first one, in the same order.
  bool object() {
    if (!c.take('{')) return wanted("an object of columns");
    size_t place = 0;
    if (!c.peek('}')) do {
        std::string_view name;
        c.blank();
        if (!c.text(name)) return wanted("the name of a column, without escapes");
        if (!c.take(':')) return wanted("a colon");
        if (rows == 0 && !meet(name)) return false;
        if (place == order.size() || order[place].first != name)
          return refuse([&] {
            return "row " + std::to_string(rows) + " has column " + quoted(name) +
                   " where row 0 has another one; all rows need the same columns in the same order";
          });
        if (!entry(name, order[place++].second, rows)) return false;
      } while (c.take(','));
    if (!c.take('}')) return wanted("a comma or the end of the object");
    if (place != order.size())
      return refuse([&] {
        return "row " + std::to_string(rows) + " lacks column " + quoted(order[place].first) + ", which row 0 has";
      });
    if (rows == 0 && !complete()) return false;
    ++rows;
    return true;
  }
  bool too_many() {
    return refuse([&] { return "the request has more than " + std::to_string(rows_of.most_) + " candidates"; });
  }
  bool objects() {
    if (!c.take('[')) return wanted("a list of objects, or an object of lists");
    if (c.take(']')) return true;
    do {
      if (rows == rows_of.most_) return too_many();
      if (!object()) return false;
    } while (c.take(','));
    return c.take(']') || wanted("a comma or the end of the list");
  }
  bool lists() {
    if (!c.take('{')) return wanted("an object of lists");
    if (!c.peek('}')) do {
        std::string_view name;
        c.blank();
        if (!c.text(name)) return wanted("the name of a column, without escapes");
        if (!c.take(':')) return wanted("a colon");
        if (!meet(name)) return false;
        if (!c.take('[')) return wanted("a list of values");
        int64_t met = 0;
        if (!c.peek(']')) do {
            if (met == rows_of.most_) return too_many();
            if (!entry(name, order.back().second, met)) return false;
            ++met;
          } while (c.take(','));
        if (!c.take(']')) return wanted("a comma or the end of the list");
        if (order.size() > 1 && met != rows)
          return refuse([&] {
            return "column " + quoted(order[0].first) + " has " + std::to_string(rows) + " values, but column " +
                   quoted(name) + " has " + std::to_string(met);
          });
        rows = met;
      } while (c.take(','));
    if (!c.take('}')) return wanted("a comma or the end of the object");
    return complete();
  }

  // Returns the rows as a frame, with a copy of the bytes that its texts point into.
  std::shared_ptr<Frame> frame() {
    auto made = std::make_shared<Frame>();
    made->rows_ = rows;
    made->entries_.emplace_back(body.begin(), body.end());
    const char* own = made->entries_.back().data();
    for (size_t k = 0; k < filled.size(); ++k) {
      FrameColumn column;
      column.storage = Storage::Entries;
      column.kind = rows_of.columns_[k].kind;
      column.rows = rows;
      if (column.kind == 's')
        for (size_t r = 0; r < filled[k].valid.size(); ++r) {
          auto* text = reinterpret_cast<Str*>(filled[k].entries.data()) + r;
          if (text->p && !written.owns(text->p)) text->p = own + (text->p - body.data());
        }
      made->entries_.push_back(std::move(filled[k].entries));
      column.values = made->entries_.back().data();
      if (filled[k].nulls) {
        made->entries_.push_back(std::move(filled[k].valid));
        column.bytes_valid = reinterpret_cast<const uint8_t*>(made->entries_.back().data());
      }
      made->columns_.push_back(std::move(column));
    }
    made->memory_ = std::move(written);
    return made;
  }
};

std::optional<RequestRows::Read> RequestRows::read(std::string_view body, std::string* why) const {
  if (why) why->clear();
  Reading reading{*this, body, why};
  Cursor& c = reading.c;
  Read found;
  bool context = false, candidates = false;
  auto unless = [&](bool right, const char* what) {
    if (!right) reading.wanted(what);
    return right;
  };
  if (!unless(c.take('{'), "an object with context and candidates")) return std::nullopt;
  do {
    std::string_view name;
    c.blank();
    if (!unless(c.text(name), "\"context\" or \"candidates\"") || !unless(c.take(':'), "a colon")) return std::nullopt;
    if (name == "context" && !context) {
      context = true;
      if (!unless(c.peek('{'), "an object of columns")) return std::nullopt;
      found.context_begin = static_cast<size_t>(c.p - body.data());
      if (!unless(c.over_object(), "the end of the context")) return std::nullopt;
      found.context_end = static_cast<size_t>(c.p - body.data());
    } else if (name == "candidates" && !candidates) {
      candidates = true;
      if (!(c.peek('{') ? reading.lists() : reading.objects())) {
        if (why) *why = "candidates: " + *why;
        return std::nullopt;
      }
    } else {
      reading.refuse([&] {
        return name == "context" || name == "candidates"
                   ? quoted(name) + " occurs twice"
                   : "a request has a context and candidates, but no " + quoted(name);
      });
      return std::nullopt;
    }
  } while (c.take(','));
  if (!unless(c.take('}'), "a comma or the end of the request")) return std::nullopt;
  if (!candidates) {
    reading.refuse([] { return std::string("the request has no candidates"); });
    return std::nullopt;
  }
  c.blank();
  if (!unless(c.p == c.end, "nothing behind the request")) return std::nullopt;
  found.rows = reading.rows;
  found.frame = reading.frame();
  return found;
}

std::shared_ptr<Frame> RequestRows::row(std::string_view object, std::string* why) const {
  if (why) why->clear();
  Reading reading{*this, object, why};
  if (!reading.object()) return nullptr;
  reading.c.blank();
  if (reading.c.p == reading.c.end) return reading.frame();
  reading.wanted("nothing behind the context");
  return nullptr;
}

}  // namespace cb
