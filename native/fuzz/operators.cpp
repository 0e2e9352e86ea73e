// Every kernel of the catalogue over hostile rows: strings of any bytes, any floats, nulls, empty lists. CTRBOX_HEADERS
// names the headers of native/operators whose bodies this target runs.
#include <map>

#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

std::vector<const Entry*> chosen() {
  const std::string wanted = " " CTRBOX_HEADERS " ";
  std::vector<const Entry*> out;
  for (const Entry& e : catalogue())
    if (wanted.find(" " + e.header + " ") != std::string::npos && e.name != "json") out.push_back(&e);
  EXPECT(!out.empty());
  return out;
}

size_t width_of(std::string_view kind) { return kind == "b" ? 1 : kind.size() == 1 && kind != "s" ? 8 : 16; }

struct Rows {
  fuzz::Input& in;
  fuzz::Heap& heap;
  const uint32_t rows;

  Str text() {
    const std::string_view bytes = in.piece(in.byte() % 64);
    return {heap.copy(bytes), static_cast<uint32_t>(bytes.size())};
  }
  // Elements of one kind in memory of just their size.
  void* elements(char kind, uint32_t n) {
    std::vector<char> bytes(n * width_of({&kind, 1}));
    for (uint32_t k = 0; k < n; ++k) {
      char* at = bytes.data() + k * width_of({&kind, 1});
      if (kind == 's') {
        const Str s = text();
        std::memcpy(at, &s, sizeof s);
      } else if (kind == 'b') {
        *at = in.byte() & 1;
      } else {
        // Small numbers meet each other more often than any.
        const uint8_t how = in.byte();
        int64_t v = how & 1 ? in.take<int64_t>() : in.take<int8_t>();
        const double x = static_cast<double>(v);
        if (kind == 'f' && !(how & 1)) std::memcpy(&v, &x, sizeof v);
        std::memcpy(at, &v, sizeof v);
      }
    }
    return heap.copy(bytes.data(), bytes.size());
  }
  Column column(std::string_view kind, bool nulls) {
    Column out{nullptr, nullptr};
    if (kind[0] == '*') {
      auto* lists = heap.zeros<List<char>>(rows);
      for (uint32_t r = 0; r < rows; ++r) {
        const uint32_t n = in.byte() % 12;
        if (n) lists[r] = {static_cast<const char*>(elements(kind[1], n)), n};
      }
      out.data = lists;
    } else {
      out.data = elements(kind[0], rows);
    }
    if (!nulls) return out;
    out.valid = heap.zeros<uint8_t>(rows);
    const size_t width = width_of(kind);
    for (uint32_t r = 0; r < rows; ++r) {
      out.valid[r] = in.byte() & 1;
      if (!out.valid[r]) std::memset(static_cast<char*>(out.data) + r * width, 0, width);
    }
    return out;
  }
};

std::vector<std::string> split(const std::string& args) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= args.size();) {
    const size_t end = std::min(args.find(',', at), args.size());
    out.push_back(args.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

const void* table_for(const Entry& e, bool large) {
  static const IntSet ints({1, -1, 0}), many_ints([] {
    std::vector<int64_t> v(100);
    for (size_t k = 0; k < v.size(); ++k) v[k] = static_cast<int64_t>(k * k);
    return v;
  }());
  static const FloatSet floats({0.0, -1.5, 1e300});
  static const StrSet few({"", "a", "ios"}), many([] {
    std::vector<std::string> v;
    for (int k = 0; k < 100; ++k) v.push_back(std::to_string(k));
    return v;
  }());
  static const Boundaries none(std::vector<double>{}), some({-1.0, 0.0, 0.0, 7.0});
  static const Dictionary ids({hash_int(1), hash_int(2), 0}, {5, 6, 7}, {}, 0);
  static const Dictionary vectors({hash_int(1), 3}, {}, {1, 2, 3, 4}, 2);
  static const History history({0, 0, 3, 3}, {-5, 2, 0, 7}, {1, 2, 3, 4}, {0, 1, 1, 2});
  if (e.name == "is_in" && e.args == "s") return (large ? many : few).view();
  if (e.name == "is_in" && e.args == "f") return floats.view();
  if (e.name == "is_in") return (large ? many_ints : ints).view();
  if (e.name == "bucketize") return (large ? some : none).view();
  if (e.name == "dictionary_vector") return vectors.view();
  if (e.name.starts_with("dictionary")) return ids.view();
  if (e.name.starts_with("history")) return history.view();
  return nullptr;
}

// Draws parameters that plan/language/check_parameters.py accepts.
Params params_for(const Entry& e, Rows& from) {
  constexpr int64_t kMost = int64_t{1} << 62;
  fuzz::Input& in = from.in;
  Params q{};
  const uint8_t how = in.byte();
  for (int64_t& i : q.i) i = how & 1 ? std::clamp(in.take<int64_t>(), -kMost, kMost) : in.take<int8_t>();
  if (e.name == "ngrams") q.i[0] = 1 + (q.i[0] & 63);
  if (e.name == "edit_distance") q.i[0] = (q.i[0] & 127) % 65;
  if (e.name == "round") q.i[0] &= 15;
  if (e.name == "cross") q.i[0] = 1 + (q.i[0] & 0xffff);
  if (e.name.starts_with("history")) {
    q.i[0] = std::max<int64_t>(1, q.i[0]);
    q.i[1] = std::max<int64_t>(0, q.i[1]);
  }
  for (double& f : q.f) f = how & 2 ? in.take<double>() : in.take<int8_t>();
  for (Str& s : q.s) s = from.text();
  if (e.name == "split" && q.s[0].n == 0) q.s[0] = {" ", 1};
  q.table = table_for(e, how & 4);
  return q;
}

void look_at(std::string_view kind, const void* entries, uint32_t row) {
  if (width_of(kind) != 16)
    return fuzz::look_at(static_cast<const char*>(entries) + row * width_of(kind), width_of(kind));
  const auto& list = static_cast<const List<char>*>(entries)[row];
  if (kind == "s" || kind == "*b") return fuzz::look_at(list.p, list.n);
  if (kind != "*s") return fuzz::look_at(list.p, list.n * size_t{8});
  for (uint32_t k = 0; k < list.n; ++k) {
    const Str& s = reinterpret_cast<const Str*>(list.p)[k];
    fuzz::look_at(s.p, s.n);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<const Entry*> kernels = chosen();
  static Bump pool, scratch;
  fuzz::Input in(data, size);
  fuzz::Heap heap;
  const Entry& e = *kernels[in.below(kernels.size())];
  Rows rows{in, heap, 1u + in.byte() % 5};
  const uint8_t nulls = in.byte();
  const Params q = params_for(e, rows);
  std::vector<Column> columns;
  const std::vector<std::string> kinds = split(e.args);
  for (size_t k = 0; k < kinds.size(); ++k) columns.push_back(rows.column(kinds[k], nulls >> k & 1));
  bool nullable = e.makes_nulls;
  for (const Column& c : columns) nullable = nullable || c.valid;
  Column out{heap.zeros<char>(rows.rows * width_of(e.result)), nullable ? heap.zeros<uint8_t>(rows.rows) : nullptr};
  uint64_t warnings = 0;
  Run run{rows.rows, &pool, &scratch, &warnings, -1, nullptr};
  e.kernel(run, q, columns.data(), &out);
  const size_t width = width_of(e.result);
  static const char zeros[8] = {};
  for (uint32_t r = 0; r < rows.rows; ++r) {
    look_at(e.result, out.data, r);
    if (!out.valid || out.valid[r]) continue;
    // A null row's entry is zero, or empty.
    const char* at = static_cast<const char*>(out.data) + r * width;
    EXPECT(std::memcmp(at + (width == 16 ? 8 : 0), zeros, width == 1 ? 1 : width == 16 ? 4 : 8) == 0);
  }
  pool.reset();
  scratch.reset();
  return 0;
}
