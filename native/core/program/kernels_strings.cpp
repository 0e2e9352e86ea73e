// String operators: which kernel runs which body.
#include <algorithm>

#include "core/program/kernel_shapes.h"
#include "operators/edit_distance.h"
#include "operators/strings.h"

namespace cb {
namespace {

// Most strings of a log are lower case already. They are passed on as views; the others are copied.
void lower_rows(Run& run, const Params&, const Column* in, Column* out) {
  const Str* from = entries<Str>(in[0]);
  Str* to = static_cast<Str*>(out->data);
  for (uint32_t r = 0; r < run.rows; ++r) {
    Str s = from[r];
    uint32_t kept = Lower::unchanged(s);
    if (kept == s.n) {
      to[r] = s;
      continue;
    }
    char* at = run.pool->reserve_bytes(Lower::bound(Params{}, s));
    kept = std::min(kept, Lower::kMost);
    copy_bytes(at, s.p, kept);
    uint32_t used = Lower::write_from(kept, at, Lower::head(s));
    run.pool->commit(used);
    to[r] = Str{at, used};
    *run.warnings += Lower::cut(Params{}, s);
  }
  propagate(run.rows, in, 1, out->valid);
  blank_nulls(run.rows, to, out->valid);
}

// For short strings and replacements a loose bound costs less than counting.
uint32_t replace_bound(const Params& q, Str s) {
  if (s.n <= 256 && q.s[1].n <= 16) return s.n + s.n * q.s[1].n;
  return Replace::bound(q, s);
}

// The same for replace: a string without the old text is a view.
void replace_rows(Run& run, const Params& q, const Column* in, Column* out) {
  const Str* from = entries<Str>(in[0]);
  Str* to = static_cast<Str*>(out->data);
  for (uint32_t r = 0; r < run.rows; ++r) {
    Str s = from[r];
    if (q.s[0].n == 0 || s.n == 0 || find_bytes(s, q.s[0], 0) == s.n) {
      to[r] = s;
      continue;
    }
    char* at = run.pool->reserve_bytes(replace_bound(q, s));
    uint32_t used = Replace::write(q, at, s);
    run.pool->commit(used);
    to[r] = Str{at, used};
    *run.warnings += Replace::cut(q, s);
  }
  propagate(run.rows, in, 1, out->valid);
  blank_nulls(run.rows, to, out->valid);
}

// The body counts separators for a tight bound, which a GPU needs. Here a reservation costs nothing, so short
// strings skip that pass.
struct SplitLoosely : Split {
  static uint32_t bound(const Params& q, Str s) { return s.n <= 256 ? s.n + 1 : Split::bound(q, s); }
};

}  // namespace

void add_strings(Catalogue& c) {
  Lines strings(c, "strings.h"), edit_distance(c, "edit_distance.h");
  strings.add("length", "s", "i", CB_RUN(map, Length));
  strings.add("byte_length", "s", "i", CB_RUN(map, ByteLength));
  strings.add("lower", "s", "s", special("lower", lower_rows));
  strings.add("strip", "s", "s", CB_RUN(map, Strip));
  strings.add("prefix", "s", "s", CB_RUN(map, Prefix));
  strings.add("suffix", "s", "s", CB_RUN(map, Suffix));
  strings.add("substring", "s", "s", CB_RUN(map, Substring));
  strings.add("contains", "s", "b", CB_RUN(map, StrContains));
  strings.add("starts_with", "s", "b", CB_RUN(map, StartsWith));
  strings.add("ends_with", "s", "b", CB_RUN(map, EndsWith));
  strings.add("replace", "s", "s", special("replace", replace_rows));
  strings.add("concat", "s,s", "s", CB_RUN(items, Concat));
  strings.add("split", "s", "*s", CB_RUN(items, Split).by(items<SplitLoosely>));
  strings.add("words", "s", "*s", CB_RUN(items, Words));
  strings.add("ngrams", "s", "*s", CB_RUN(items, StrNgrams));
  edit_distance.add("edit_distance", "s,s", "i", CB_RUN(map, EditDistance));
  strings.add("eq", "s,s", "b", CB_RUN(map, StrEq));
  strings.add("ne", "s,s", "b", CB_RUN(map, StrNe));
  strings.add("lt", "s,s", "b", CB_RUN(map, StrLt));
  strings.add("le", "s,s", "b", CB_RUN(map, StrLe));
  strings.add("gt", "s,s", "b", CB_RUN(map, StrGt));
  strings.add("ge", "s,s", "b", CB_RUN(map, StrGe));
}

}  // namespace cb
