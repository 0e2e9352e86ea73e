// String operators: which kernel runs which body.
#include <algorithm>

#include "core/kernel.h"
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
  c.push_back({"length", "s", "i", map<Length>, false});
  c.push_back({"byte_length", "s", "i", map<ByteLength>, false});
  c.push_back({"lower", "s", "s", lower_rows, false});
  c.push_back({"strip", "s", "s", map<Strip>, false});
  c.push_back({"prefix", "s", "s", map<Prefix>, false});
  c.push_back({"suffix", "s", "s", map<Suffix>, false});
  c.push_back({"substring", "s", "s", map<Substring>, false});
  c.push_back({"contains", "s", "b", map<StrContains>, false});
  c.push_back({"starts_with", "s", "b", map<StartsWith>, false});
  c.push_back({"ends_with", "s", "b", map<EndsWith>, false});
  c.push_back({"replace", "s", "s", replace_rows, false});
  c.push_back({"concat", "s,s", "s", items<Concat>, false});
  c.push_back({"split", "s", "*s", items<SplitLoosely>, false});
  c.push_back({"words", "s", "*s", items<Words>, false});
  c.push_back({"ngrams", "s", "*s", items<StrNgrams>, false});
  c.push_back({"edit_distance", "s,s", "i", map<EditDistance>, false});
  c.push_back({"eq", "s,s", "b", map<StrEq>, false});
  c.push_back({"ne", "s,s", "b", map<StrNe>, false});
  c.push_back({"lt", "s,s", "b", map<StrLt>, false});
  c.push_back({"le", "s,s", "b", map<StrLe>, false});
  c.push_back({"gt", "s,s", "b", map<StrGt>, false});
  c.push_back({"ge", "s,s", "b", map<StrGe>, false});
}

}  // namespace cb
