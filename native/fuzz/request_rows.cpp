// Fuzzes the bodies of requests. The first byte chooses the reader and how the others are spelled: as they are; those
// from 0x80 on as whole words of a request; or as choices of one that is put together. What the fast reader takes, the
// scanner of JSON reads as well, with the same values; and a plain request is taken.
#include "core/request/request_rows.h"

#include <cfloat>
#include <charconv>
#include <cmath>

#include "core/program/operator_tables.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

constexpr std::string_view kWords[] = {R"("candidates": )",
                                       R"("context": )",
                                       R"({"candidates": [)",
                                       R"({"context": {}, "candidates": )",
                                       "[{",
                                       "}, {",
                                       "}]}",
                                       R"({"ad": 1, "slot": 2, "price": 0.5, "rate": 1, "title": "t", "shown": true})",
                                       R"("ad": )",
                                       R"("slot": )",
                                       R"("price": )",
                                       R"("rate": )",
                                       R"("title": )",
                                       R"("shown": )",
                                       R"("extra": )",
                                       R"("x y": )",
                                       R"("a": [)",
                                       "null",
                                       "true",
                                       "false",
                                       "9223372036854775807",
                                       "-9223372036854775808",
                                       "9223372036854775808",
                                       "127",
                                       "-129",
                                       "1e308",
                                       "1e400",
                                       "5e-324",
                                       "-0",
                                       "-0.0",
                                       "3.5e38",
                                       "0.1",
                                       "12345678901234567890.5e-3",
                                       R"("\"")",
                                       R"("plain text")",
                                       R"("")",
                                       "], ",
                                       "}, ",
                                       ": [",
                                       "\n",
                                       "\t",
                                       R"("user": {"a": ["]}"]}})"};

struct Reader {
  Reader(std::vector<RequestRows::Column> given, std::vector<std::string> others, int64_t most_)
      : columns(std::move(given)), ignored(std::move(others)), most(most_), rows(columns, ignored, most) {
    std::vector<std::string> as_objects, as_lists, kinds;
    for (int64_t r = 0; r < most; ++r)
      for (const RequestRows::Column& c : columns) {
        const std::string place = "[" + std::to_string(r) + "]", name = "['" + c.name + "']";
        as_objects.push_back("$.candidates" + place + name);
        as_lists.push_back("$.candidates" + name + place);
        kinds.emplace_back(1, c.kind);
      }
    objects = std::make_unique<JsonPaths>(as_objects, kinds);
    lists = std::make_unique<JsonPaths>(as_lists, kinds);
  }

  std::vector<RequestRows::Column> columns;
  std::vector<std::string> ignored;
  int64_t most;
  RequestRows rows;
  std::unique_ptr<JsonPaths> objects, lists;
};

struct Wide {
  const void* p;
  uint64_t n;
};

size_t width_of(char kind) { return kind == 's' ? 16 : kind == 'b' ? 1 : 8; }

// One value of both: equal to the bit.
void same(const RequestRows::Column& c, const char* mine, const Wide& theirs) {
  if (c.kind == 's') {
    Str text;
    std::memcpy(&text, mine, sizeof text);
    EXPECT(std::string_view(text.p, text.n) ==
           std::string_view(static_cast<const char*>(theirs.p), static_cast<uint32_t>(theirs.n)));
  } else if (c.kind == 'f' && c.single) {
    double exact;
    std::memcpy(&exact, &theirs, sizeof exact);
    exact = static_cast<double>(static_cast<float>(exact));
    EXPECT(std::memcmp(mine, &exact, sizeof exact) == 0);
  } else {
    EXPECT(std::memcmp(mine, &theirs, width_of(c.kind)) == 0);
  }
}

void agree(const Reader& reader, const Frame& frame, const JsonPaths& paths, const std::string& text) {
  static const Kernel kernel = find_kernel("json", "s").kernel;
  static Bump pool, scratch;
  const size_t n = reader.columns.size() * static_cast<size_t>(reader.most);
  std::vector<Wide> entries(n);
  std::vector<uint8_t> valid(n);
  std::vector<Column> out;
  for (size_t k = 0; k < n; ++k) out.push_back({&entries[k], &valid[k]});
  const auto rows = static_cast<uint32_t>(frame.rows());
  uint64_t warnings = 0;
  Run run{1, &pool, &scratch, &warnings, -1, nullptr};
  Params params{};
  params.table = paths.view();
  Str doc{text.data(), static_cast<uint32_t>(text.size())};
  const Column in{&doc, nullptr};
  kernel(run, params, &in, out.data());
  EXPECT(warnings == 0);
  for (size_t k = 0; k < reader.columns.size(); ++k) {
    const size_t width = width_of(reader.columns[k].kind);
    std::vector<uint8_t> there(rows);
    Column column{nullptr, there.data()};  // entries are pointed at, not copied
    EXPECT(frame.columns()[k].rows == frame.rows());
    load_column(frame.columns()[k], nullptr, false, 0, rows, column, pool);
    for (uint32_t r = 0; r < rows; ++r) {
      const size_t at = r * reader.columns.size() + k;
      EXPECT(there[r] == valid[at]);
      if (there[r]) same(reader.columns[k], static_cast<const char*>(column.data) + r * width, entries[at]);
    }
  }
  pool.reset();
  scratch.reset();
}

std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80)
      out += c;
    else
      out += kWords[(byte - 0x80u) % std::size(kWords)];
  }
  return out;
}

// A request of the reader's columns. Now and then something in it is not as it should be: then it is not `plain`.
class Composer {
 public:
  Composer(fuzz::Input& in, const Reader& reader) : plain(true), in_(in), reader_(reader) {}

  std::string request() {
    std::vector<size_t> order;  // reader.columns.size(): a column that is ignored
    const size_t n = reader_.columns.size(), turn = in_.byte();
    for (size_t k = 0; k < n; ++k) order.push_back((k + turn) % n);
    if (!reader_.ignored.empty() && in_.byte() & 1) order.insert(order.begin() + in_.byte() % (n + 1), n);
    if (rarely()) order.pop_back();
    if (rarely()) order.push_back(in_.byte() % n);
    const size_t rows = 1 + in_.byte() % static_cast<size_t>(reader_.most);
    const bool lists = in_.byte() & 1;
    const std::string candidates =
        "\"candidates\":" + blank() +
        (lists ? joined('{', order.size(), '}',
                        [&](size_t k) {
                          const size_t here = rarely() ? in_.byte() % 8 : rows;
                          return name(order[k]) + joined('[', here, ']', [&](size_t) { return value(order[k]); });
                        })
               : joined('[', rarely() ? in_.byte() % 8 : rows, ']', [&](size_t) {
                   return joined('{', order.size(), '}', [&](size_t k) { return name(order[k]) + value(order[k]); });
                 }));
    const uint8_t context = in_.byte();
    const std::string once = "\"context\":" + blank() + R"({"user": [1, {"a": "}\"]"}]})";
    std::string out = context % 4 == 0   ? once + "," + candidates
                      : context % 4 == 1 ? candidates + "," + once
                                         : candidates;
    if (context == 255) out += "," + (odd(), once);
    return blank() + "{" + out + blank() + "}" + blank();
  }

  bool plain;

 private:
  void odd() { plain = false; }
  bool rarely() {
    const bool yes = in_.byte() == 255;
    if (yes) odd();
    return yes;
  }
  std::string blank() { return std::string(in_.byte() % 8 == 7 ? " \n" : ""); }

  template <class One>
  std::string joined(char begin, size_t n, char end, One one) {
    std::string out(1, begin);
    for (size_t k = 0; k < n; ++k) out += (k ? "," : "") + blank() + one(k) + blank();
    return out + end;
  }

  std::string name(size_t column) {
    const bool known = column < reader_.columns.size();
    return "\"" + (known ? reader_.columns[column].name : reader_.ignored.front()) + "\"" + blank() + ":" + blank();
  }

  std::string value(size_t column) {
    const uint8_t how = in_.byte();
    if (how == 255) return odd(), std::string(kWords[in_.byte() % std::size(kWords)]);
    if (how == 254) return odd(), std::string(in_.piece(in_.byte() % 8));
    if (how % 8 == 0) return "null";
    if (column == reader_.columns.size()) return how & 1 ? "-1.5E+7" : "false";
    const RequestRows::Column& c = reader_.columns[column];
    switch (c.kind) {
      case 'b':
        return how & 1 ? "true" : "false";
      case 's': {
        std::string text(in_.piece(in_.byte() % 20));
        for (char& x : text) {
          x = static_cast<char>(x & 0x7f);
          if (x < ' ' || x == 0x7f || x == '"' || x == '\\') x = '.';
        }
        return "\"" + text + "\"";
      }
      case 'i': {
        int64_t whole = how & 1 ? in_.take<int64_t>() : in_.take<int8_t>();
        return std::to_string(std::clamp(whole, c.low, c.high));
      }
      default: {
        double x = how & 1 ? in_.take<double>() : in_.take<int8_t>() / 8.0;
        if (!std::isfinite(x)) x = 0.1;
        if (c.single) x = std::clamp(x, double{-FLT_MAX}, double{FLT_MAX});
        char text[40];
        return {text, std::to_chars(text, text + sizeof text, x).ptr};
      }
    }
  }

  fuzz::Input& in_;
  const Reader& reader_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kLow = INT64_MIN, kHigh = INT64_MAX;
  static const Reader readers[] = {
      {{{"ad", 'i', kLow, kHigh},
        {"slot", 'i', -128, 127},
        {"price", 'f'},
        {"rate", 'f', 0, 0, true},
        {"title", 's'},
        {"shown", 'b'}},
       {"extra", "x y"},
       5},
      {{{"x y", 's'}, {"a", 'i', 0, 4294967295}}, {"ad"}, 3},
      {{{"price", 'f'}}, {}, 1},
  };
  fuzz::Input in(data, size);
  const uint8_t how = in.byte();
  const Reader& reader = readers[how % 4 % std::size(readers)];
  bool plain = false;
  std::string text;
  if (how & 8) {
    Composer composer(in, reader);
    text = composer.request();
    plain = composer.plain;
  } else {
    text = how & 4 ? spelled(in.rest()) : std::string(in.rest());
  }
  std::optional<RequestRows::Read> found;
  {
    fuzz::Heap heap;  // gone before the frame is looked at: it must have all it needs
    const char* body = heap.copy(text);
    std::string why;
    found = reader.rows.read({body, text.size()});
    EXPECT(reader.rows.read({body, text.size()}, &why).has_value() == found.has_value());
    EXPECT(found.has_value() == why.empty());  // what is not taken has a reason
  }
  EXPECT(found || !plain);
  if (!found) return 0;
  const size_t begin = found->context_begin, end = found->context_end;
  EXPECT(found->rows >= 0 && found->rows <= reader.most && found->frame->rows() == found->rows);
  EXPECT(begin <= end && end <= text.size());
  EXPECT(begin == end || (text[begin] == '{' && (text[end - 1] == '}' || text[end - 1] == ']')));
  EXPECT(found->frame->columns().size() == reader.columns.size());
  // The context is left to whoever needs it, and need not be JSON.
  const std::string rest = begin == end ? text : text.substr(0, begin) + "{}" + text.substr(end);
  const size_t candidates = rest.find_first_of("[{", rest.find("\"candidates\""));
  agree(reader, *found->frame, rest[candidates] == '[' ? *reader.objects : *reader.lists, rest);
  return 0;
}
