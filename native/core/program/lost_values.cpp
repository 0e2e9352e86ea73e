#include "core/program/lost_values.h"

#include <algorithm>
#include <cstdio>

namespace cb {
namespace {

constexpr int64_t kDay = 86400000000;                 // microseconds
constexpr int64_t kFebruary1970 = 31 * kDay;          // 1970-02-01
constexpr int64_t kYear2200 = int64_t{84006} * kDay;  // 2200-01-01 is this many days after 1970-01-01

bool is_valid(const Column& c, uint32_t row) { return !c.valid || c.valid[row]; }

// Rows that are valid in `a`, and those among them that are not in `b`.
void count_lost(uint32_t rows, const uint8_t* a, const uint8_t* b, uint64_t& values, uint64_t& lost) {
  uint32_t here = 0, kept = 0;
  for (uint32_t r = 0; r < rows; ++r) {
    const uint8_t in = a ? a[r] : 1;
    here += in;
    kept += in & (b ? b[r] : 1);
  }
  values += here;
  lost += here - kept;
}

std::string cut(Str s) { return {s.p, std::min<size_t>(s.n, Converted::kExample)}; }

std::optional<std::string> shown(Conversion how, const Column& in, uint32_t row) {
  if (how == Conversion::Text) return cut(entries<Str>(in)[row]);
  if (how != Conversion::Number) return {};
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", entries<double>(in)[row]);
  return std::string(text);
}

}  // namespace

void Converted::count(Conversion how, uint32_t rows, const Column& in, const Column& out) {
  switch (how) {
    case Conversion::None:
    case Conversion::Json:  // its kernel counts
      return;
    case Conversion::Text:
    case Conversion::Number:
    case Conversion::Quotient: {
      const uint64_t before = lost;
      count_lost(rows, in.valid, out.valid, values, lost);
      if (before || !lost) return;
      for (uint32_t r = 0; r < rows; ++r)
        if (is_valid(in, r) && !is_valid(out, r)) {
          example = shown(how, in, r);
          return;
        }
      return;
    }
    case Conversion::Lists: {
      const List<Str>* from = entries<List<Str>>(in);
      const List<int64_t>* to = entries<List<int64_t>>(out);  // a list of floats has the same shape
      for (uint32_t r = 0; r < rows; ++r) {
        if (!is_valid(in, r)) continue;
        ++values;
        lost += to[r].n < from[r].n;
      }
      return;
    }
    case Conversion::Times: {
      const int64_t* times = entries<int64_t>(out);
      uint32_t here = 0, soon = 0, far = 0;
      for (uint32_t r = 0; r < rows; ++r) {
        const uint8_t valid = out.valid ? out.valid[r] : 1;
        here += valid;
        soon += valid & static_cast<uint8_t>(times[r] >= 0 && times[r] < kFebruary1970);
        far += valid & static_cast<uint8_t>(times[r] >= kYear2200);
      }
      values += here;
      early += soon;
      late += far;
      for (uint32_t r = 0; !example && r < rows; ++r)
        if (is_valid(out, r)) example = std::to_string(times[r]);
    }
  }
}

void Converted::add(const Converted& other) {
  if (!example) example = other.example;
  values += other.values;
  lost += other.lost;
  early += other.early;
  late += other.late;
}

Conversion conversion_of(const std::string& name, const std::string& args) {
  const bool cast = name == "cast_i" || name == "cast_f" || name == "cast_t";
  if (cast && args == "s") return Conversion::Text;
  if (cast && args == "*s") return Conversion::Lists;
  if (name == "cast_i" && args == "f") return Conversion::Number;
  if (name == "cast_t" && args == "i") return Conversion::Times;
  // A number that its unit puts outside the years 0001 to 9999 is divided by zero before it becomes a time.
  if (name == "floordiv" && args == "i,i") return Conversion::Quotient;
  if (name == "json") return Conversion::Json;
  return Conversion::None;
}

}  // namespace cb
