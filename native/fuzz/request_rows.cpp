// Bodies of requests. The first byte chooses the reader, and whether bytes from 0x80 on stand for themselves or for
// whole words of a request. What the fast reader takes, the scanner of JSON reads as well, with the same values.
#include "core/request_rows.h"

#include "core/tables.h"
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
  Reader(std::vector<RequestRows::Column> given, const std::vector<std::string>& ignored, int64_t most_)
      : columns(std::move(given)), most(most_), rows(columns, ignored, most) {
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
  Run run{1, &pool, &scratch, &warnings, -1};
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
  const std::string text = how & 4 ? spelled(in.rest()) : std::string(in.rest());
  std::optional<RequestRows::Read> found;
  {
    fuzz::Heap heap;  // gone before the frame is looked at: it must have all it needs
    found = reader.rows.read({heap.copy(text), text.size()});
  }
  if (!found) return 0;
  const size_t begin = found->context_begin, end = found->context_end;
  EXPECT(found->rows > 0 && found->rows <= reader.most && found->frame->rows() == found->rows);
  EXPECT(begin <= end && end <= text.size());
  EXPECT(begin == end || (text[begin] == '{' && (text[end - 1] == '}' || text[end - 1] == ']')));
  EXPECT(found->frame->columns().size() == reader.columns.size());
  // The context is left to whoever needs it, and need not be JSON.
  const std::string rest = begin == end ? text : text.substr(0, begin) + "{}" + text.substr(end);
  const size_t candidates = rest.find_first_of("[{", rest.find("\"candidates\""));
  agree(reader, *found->frame, rest[candidates] == '[' ? *reader.objects : *reader.lists, rest);
  return 0;
}
