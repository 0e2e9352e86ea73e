// The JSON scanner on hostile documents, and the kernel's outputs, counts and pool.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/program/operator_tables.h"
#include "tests/check.h"

using namespace cb;

namespace {

// The document in memory of its exact size: a sanitizer then sees any read past its end.
bool valid(const std::string& doc, const JsonPaths& paths, std::vector<JsonSlice>* slots = nullptr) {
  std::vector<JsonSlice> local(kJsonPaths);
  std::vector<char> exact(doc.begin(), doc.end());
  bool ok = JsonScan::scan(*static_cast<const JsonPathsView*>(paths.view()),
                           Str{exact.data(), static_cast<uint32_t>(exact.size())}, local.data());
  if (slots) {
    static std::vector<char> keep;
    keep = exact;
    *slots = local;
    for (JsonSlice& s : *slots)
      if (s.type != kJsonMissing) s.p = keep.data() + (s.p - exact.data());
  }
  return ok;
}

bool valid(const std::string& doc) {
  static const JsonPaths paths({"$.a.b"}, {"s"});
  return valid(doc, paths);
}

std::string text(const std::string& doc, const std::string& path) {
  JsonPaths paths({path}, {"s"});
  std::vector<JsonSlice> slots;
  if (!valid(doc, paths, &slots)) return "malformed";
  if (slots[0].type == kJsonMissing) return "missing";
  if (!slots[0].escaped) return std::string(slots[0].p, slots[0].n);
  std::string out(slots[0].n, '\0');
  out.resize(json_unescape(slots[0], out.data()));
  return out;
}

std::string refusal(const std::string& path, const std::string& kind = "s") {
  try {
    JsonPaths({path}, {kind});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

void grammar_is_rfc_8259() {
  for (const char* doc : {"0",
                          "-0",
                          "1",
                          "12.5",
                          "1e5",
                          "1E+05",
                          "-1.25e-7",
                          "true",
                          "false",
                          "null",
                          "\"\"",
                          "[]",
                          "{}",
                          " [ ] ",
                          "\t{\n}\r",
                          "[1,2]",
                          "{\"a\":1}",
                          "{\"a\":{\"b\":[]}}",
                          "\"\\u00e9\\n\\/\"",
                          "\"\x7f\"",
                          "\"\xff\xfe\"",
                          "{\"\":0}",
                          "\"12345678\"",
                          "\"1234567\"",
                          "[\"\\\"\"]",
                          "\"\\\\\""})
    CHECK(valid(doc));
  for (const char* doc : {"",          " ",         "-",         "+1",          "01",
                          "-01",       "1.",        ".5",        "1e",          "1e+",
                          "1.e5",      "0x1",       "NaN",       "Infinity",    "-Infinity",
                          "nan",       "tr",        "truee",     "True",        "nul",
                          "fa",        "[",         "]",         "{",           "}",
                          "[1",        "[1,",       "[1,]",      "[,1]",        "[1 2]",
                          "{\"a\"",    "{\"a\":",   "{\"a\":1",  "{\"a\":1,",   "{\"a\":1,}",
                          "{a:1}",     "{\"a\" 1}", "{1:2}",     "{,}",         "[1}",
                          "{\"a\":1]", "1 2",       "[] []",     "\"",          "\"\\\"",
                          "\"\\",      "\"\\x\"",   "\"\\u12\"", "\"\\u12g4\"", "\"\\u123",
                          "\"a\nb\"",  "\"a\tb\"",  "'a'",       "/**/1",       "\xef\xbb\xbf{}",
                          "\v1",       "\f1"})
    CHECK(!valid(doc));
  CHECK(!valid(std::string("\"a\0b\"", 5)));
  CHECK(!valid(std::string("1\0", 2)));
}

void every_cut_of_a_document_is_malformed() {
  const std::string doc =
      "{\"a\":{\"b\":[1,-2.5e+3,true,false,null,\"\\ud83d\\ude00 text\\n\"]},\"c\":\"0123456789abcdef\"}";
  CHECK(valid(doc));
  for (size_t n = 0; n < doc.size(); ++n) CHECK(!valid(doc.substr(0, n)));
}

void depth_ends_at_64() {
  for (int n : {1, 63, 64}) CHECK(valid(std::string(n, '[') + std::string(n, ']')));
  for (int n : {65, 66, 1000, 100000}) CHECK(!valid(std::string(n, '[') + std::string(n, ']')));
  std::string objects = "1";
  for (int n = 0; n < 64; ++n) objects = "{\"a\":" + objects + "}";
  CHECK(valid(objects));
  CHECK(!valid("[" + objects + "]"));
}

void values_are_found() {
  const std::string doc =
      "{\"a\":{\"b\":\"x\",\"c\":[10,{\"d\":[1, 2]},30]},\"a "
      "b\":true,\"\\u0065\":5,\"long_key_name_1\":null}";
  CHECK(text(doc, "$.a.b") == "x");
  CHECK(text(doc, "$.a.c[0]") == "10");
  CHECK(text(doc, "$.a.c[1].d") == "[1, 2]");
  CHECK(text(doc, "$.a.c[1].d[1]") == "2");
  CHECK(text(doc, "$.a.c[2]") == "30");
  CHECK(text(doc, "$.a.c[3]") == "missing");
  CHECK(text(doc, "$['a b']") == "true");
  CHECK(text(doc, "$[\"a b\"]") == "true");
  CHECK(text(doc, "$.e") == "5");
  CHECK(text(doc, "$.long_key_name_1") == "null");
  CHECK(text(doc, "$.long_key_name_2") == "missing");
  CHECK(text(doc, "$.a.b.c") == "missing");
  CHECK(text(doc, "$.a[0]") == "missing");
  CHECK(text(doc, "$") == doc);
  CHECK(text("  7 ", "$") == "7");
}

void the_last_of_equal_keys_wins() {
  CHECK(text("{\"a\":{\"b\":1},\"a\":{\"c\":2}}", "$.a.b") == "missing");
  CHECK(text("{\"a\":{\"b\":1},\"a\":{\"b\":2}}", "$.a.b") == "2");
  CHECK(text("{\"a\":{\"b\":1},\"a\":3}", "$.a.b") == "missing");
  CHECK(text("{\"a\":{\"b\":1},\"\\u0061\":3}", "$.a") == "3");
  CHECK(text("{\"a\":{\"b\":1,\"b\":null}}", "$.a.b") == "null");
}

void escapes_are_undone() {
  CHECK(text("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "$") == "\"\\/\b\f\n\r\t");
  CHECK(text("\"\\u00e9\\u20AC\\ud83d\\ude00\"", "$") == "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(text("\"\\ud800\"", "$") == "\xef\xbf\xbd");
  CHECK(text("\"\\ud800x\\udc00\\ud800\\ud800\\udc00\"", "$") ==
        "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd\xf0\x90\x80\x80");
  CHECK(text("\"\\u0000\"", "$") == std::string(1, '\0'));
}

void bad_paths_are_refused_with_a_position() {
  CHECK(refusal("a").find("position 0") != std::string::npos);
  CHECK(refusal("").find("starts with '$'") != std::string::npos);
  CHECK(refusal("$.a[-1]").find("an index that counts from the end is not supported at position 4") !=
        std::string::npos);
  CHECK(refusal("$..a").find("'..'") != std::string::npos);
  CHECK(refusal("$.a.*").find("'*'") != std::string::npos);
  CHECK(refusal("$.a[*]").find("position 4") != std::string::npos);
  CHECK(refusal("$.a[").find("position 4") != std::string::npos);
  CHECK(refusal("$.a[1").find("']'") != std::string::npos);
  CHECK(refusal("$['a").find("not closed") != std::string::npos);
  CHECK(refusal("$a").find("position 1") != std::string::npos);
  CHECK(refusal("$.a b").find("position 3") != std::string::npos);
  CHECK(refusal("$[99999999999]").find("too large") != std::string::npos);
  CHECK(refusal("$.a", "*b").find("no result of kind") != std::string::npos);
  CHECK(refusal("$.a['it\\'s'].\xc3\xa9[0]") == "");
  bool refused = false;
  try {
    JsonPaths(std::vector<std::string>(33, "$.a"), std::vector<std::string>(33, "s"));
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

void the_kernel_fills_every_output() {
  JsonPaths paths({"$.s", "$.i", "$.f", "$.b", "$.l", "$.l", "$.l"}, {"s", "i", "f", "b", "*s", "*i", "*f"});
  const std::string docs[] = {
      "{\"s\":\"a\\tb\",\"i\":1e3,\"f\":0.1,\"b\":true,\"l\":[1,\"x\\n\",2.5,null,{\"y\":\"]\"},[],3.0]}",
      "{}",
      "{\"s\":null,\"i\":1.5,\"f\":\"1\",\"b\":0,\"l\":{}}",
      "{broken",
      "",
      "{\"l\":[]}",
  };
  const uint32_t rows = 7;
  std::vector<Str> entry(rows, Str{});
  for (uint32_t r = 0; r < 6; ++r) entry[r] = {docs[r].data(), static_cast<uint32_t>(docs[r].size())};
  std::vector<uint8_t> has = {1, 1, 1, 1, 1, 1, 0};
  Column in{entry.data(), has.data()};
  std::vector<std::vector<uint64_t>> data(7, std::vector<uint64_t>(2 * rows, 0xabababababababab));
  std::vector<std::vector<uint8_t>> ok(7, std::vector<uint8_t>(rows, 7));
  std::vector<Column> out;
  for (int k = 0; k < 7; ++k) out.push_back({data[k].data(), ok[k].data()});
  Bump pool, scratch;
  uint64_t warnings = 0;
  Run run{rows, &pool, &scratch, &warnings, -1, nullptr};
  Params q{};
  q.table = paths.view();
  Catalogue lines;
  add_json(lines);
  lines[0].kernel(run, q, &in, out.data());

  CHECK(warnings == 2 && run.bad_row == 3);
  auto str = [](const Str& s) { return std::string(s.p, s.n); };
  CHECK(str(static_cast<Str*>(out[0].data)[0]) == "a\tb");
  CHECK(static_cast<int64_t*>(out[1].data)[0] == 1000);
  CHECK(static_cast<double*>(out[2].data)[0] == 0.1);
  CHECK(static_cast<uint8_t*>(out[3].data)[0] == 1);
  auto texts = static_cast<List<Str>*>(out[4].data)[0];
  CHECK(texts.n == 6 && str(texts.p[0]) == "1" && str(texts.p[1]) == "x\n" && str(texts.p[2]) == "2.5" &&
        str(texts.p[3]) == "{\"y\":\"]\"}" && str(texts.p[4]) == "[]" && str(texts.p[5]) == "3.0");
  auto ints = static_cast<List<int64_t>*>(out[5].data)[0];
  CHECK(ints.n == 2 && ints.p[0] == 1 && ints.p[1] == 3);
  auto floats = static_cast<List<double>*>(out[6].data)[0];
  CHECK(floats.n == 3 && floats.p[1] == 2.5);
  for (int k = 0; k < 7; ++k) {
    CHECK(ok[k][0] == 1);
    for (uint32_t r = 1; r < rows; ++r) CHECK(ok[k][r] == (r == 5 && k >= 4));
    if (k == 1 || k == 2)
      for (uint32_t r = 1; r < rows; ++r) CHECK(data[k][r] == 0);
    if (k == 0 || k == 4)
      for (uint32_t r = 1; r < 5; ++r) CHECK(static_cast<Str*>(out[k].data)[r].n == 0);
  }
}

// Bytes of valid documents overwritten, cut and doubled: nothing may be read out of bounds, whatever the
// verdict.
void mutants_do_no_harm() {
  const std::string seed = "{\"a\":{\"b\":[1,-2.5e+3,true,false,null,\"\\ud83d\\ude00\"]},\"c\":[{},[],\"\\\\\"]}";
  const std::string alphabet = "{}[]\",:\\u0123eE+-.tfn ab\n\xff";
  JsonPaths paths({"$.a.b", "$.a.b[5]", "$.c[2]", "$.a", "$"}, {"*s", "s", "s", "s", "*f"});
  uint64_t state = 88172645463325252ull;
  auto next = [&](size_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<size_t>(state % below);
  };
  for (int round = 0; round < 200000; ++round) {
    std::string doc = seed;
    for (size_t k = next(4) + 1; k-- > 0;) {
      size_t at = next(doc.size());
      switch (next(3)) {
        case 0:
          doc[at] = alphabet[next(alphabet.size())];
          break;
        case 1:
          doc.erase(at, next(3) + 1);
          break;
        default:
          doc.insert(at, 1, alphabet[next(alphabet.size())]);
      }
    }
    std::vector<char> exact(doc.begin(), doc.end());
    JsonSlice slots[kJsonPaths];
    if (!JsonScan::scan(*static_cast<const JsonPathsView*>(paths.view()),
                        Str{exact.data(), static_cast<uint32_t>(exact.size())}, slots))
      continue;
    for (int k = 0; k < 5; ++k) {
      if (slots[k].type == kJsonArray) {
        const char* p = slots[k].p + 1;
        uint32_t bytes = 1;
        for (JsonSlice item; json_next(&p, slots[k].p + slots[k].n, &item);) bytes += item.n + 1;
        CHECK(bytes <= slots[k].n + 1);
      }
      if (slots[k].type == kJsonString) {
        std::string out(slots[k].n, '\0');
        CHECK(json_unescape(slots[k], out.data()) <= slots[k].n);
      }
    }
  }
}

}  // namespace

int main() {
  grammar_is_rfc_8259();
  every_cut_of_a_document_is_malformed();
  depth_ends_at_64();
  values_are_found();
  the_last_of_equal_keys_wins();
  escapes_are_undone();
  bad_paths_are_refused_with_a_position();
  the_kernel_fills_every_output();
  mutants_do_no_harm();
  std::puts("json: ok");
}
