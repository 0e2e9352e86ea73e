// JSON: paths from the first line, where they are any, and the rest as a document, scanned for them.
#include <stdexcept>

#include "core/program/operator_tables.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

const std::vector<std::string> kKinds = {"s", "i", "f", "b", "*s", "*i", "*f"};

// Column by column, as the kernel is called.
void scan(const JsonPaths& paths, const std::vector<std::string>& kinds, Str doc) {
  static const Kernel kernel = find_kernel("json", "s").kernel;
  static Bump pool, scratch;
  uint64_t warnings = 0;
  Run run{1, &pool, &scratch, &warnings, -1, nullptr};
  Params params{};
  params.table = paths.view();
  struct Wide {
    const void* p;
    uint64_t n;
  };
  std::vector<Wide> entries(kinds.size());
  std::vector<uint8_t> valid(kinds.size());
  std::vector<Column> out;
  for (size_t k = 0; k < kinds.size(); ++k) out.push_back({&entries[k], &valid[k]});
  const Column in{&doc, nullptr};
  kernel(run, params, &in, out.data());
  EXPECT(warnings <= 1 && (run.bad_row == 0) == (warnings == 1));
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (!valid[k]) continue;
    EXPECT(!warnings);
    const uint32_t n = static_cast<uint32_t>(entries[k].n);
    if (kinds[k] == "s") fuzz::look_at(entries[k].p, n);
    if (kinds[k] == "*i" || kinds[k] == "*f") fuzz::look_at(entries[k].p, n * size_t{8});
    if (kinds[k] == "*s")
      for (uint32_t i = 0; i < n; ++i) {
        const Str& s = static_cast<const Str*>(entries[k].p)[i];
        fuzz::look_at(s.p, s.n);
      }
  }
  pool.reset();
  scratch.reset();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> known = {"$",          "$.geo.city", "$.a",       "$.a[0]",     "$.a[1].b",
                                                 "$['x y']",   "$.geo",      "$.numbers", "$.numbers",  "$.numbers",
                                                 "$.words[2]", "$.a",        "$.deep",    "$.deep.deep"};
  static const std::vector<std::string> known_kinds = {"s",  "s",  "*s", "i", "f",  "b", "*s",
                                                       "*i", "*f", "*s", "s", "*f", "s", "f"};
  static const JsonPaths fixed(known, known_kinds);
  fuzz::Heap heap;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  if (line != std::string_view::npos && line < 400 && size > 0 && text[0] == '$') {
    std::vector<std::string> paths, kinds;
    for (size_t at = 0; at < line && paths.size() < 40;) {
      const size_t end = std::min(text.find(' ', at), line);
      paths.emplace_back(text.substr(at, end - at));
      kinds.push_back(kKinds[(end + paths.size()) % kKinds.size()]);
      at = end + 1;
    }
    const std::string_view doc = text.substr(line + 1);
    try {
      const JsonPaths found(paths, kinds);
      scan(found, kinds, Str{heap.copy(doc), static_cast<uint32_t>(doc.size())});
    } catch (const std::invalid_argument&) {
    }
    return 0;
  }
  scan(fixed, known_kinds, Str{heap.copy(text), static_cast<uint32_t>(size)});
  return 0;
}
