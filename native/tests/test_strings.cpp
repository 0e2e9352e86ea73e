// String and list bodies and kernels at their edges: every length around a word of eight bytes, every unit of
// malformed UTF-8, exact-size heap copies so that a sanitizer sees one byte read too far.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/program/kernel_shapes.h"
#include "operators/edit_distance.h"
#include "operators/lists.h"
#include "operators/strings.h"
#include "tests/check.h"

using namespace cb;
using Texts = std::vector<std::string>;

namespace {

// A string in memory of exactly its size.
struct Exact {
  std::unique_ptr<char[]> memory;
  Str s;
  explicit Exact(const std::string& text) : memory(new char[text.size()]) {
    std::copy(text.begin(), text.end(), memory.get());
    s = Str{memory.get(), static_cast<uint32_t>(text.size())};
  }
};

std::string text_of(Str s) { return s.n ? std::string(s.p, s.n) : std::string(); }

Params with(int64_t a, int64_t b = 0) {
  Params q{};
  q.i[0] = a;
  q.i[1] = b;
  return q;
}
Params with(const Exact& a) {
  Params q{};
  q.s[0] = a.s;
  return q;
}
Params with(const Exact& a, const Exact& b) {
  Params q = with(a);
  q.s[1] = b.s;
  return q;
}

// A Bytes body into memory of exactly its bound.
template <class Body, class... A>
std::string bytes(const Params& q, A... a) {
  uint32_t bound = Body::bound(q, a...);
  std::unique_ptr<char[]> out(new char[bound]);
  uint32_t used = Body::write(q, out.get(), a...);
  CHECK(used <= bound);
  return std::string(out.get(), used);
}

template <class Body, class T, class... A>
std::vector<T> items_of(const Params& q, A... a) {
  uint32_t bound = Body::bound(q, a...);
  std::unique_ptr<T[]> out(new T[bound]);
  uint32_t used = Body::write(q, out.get(), a...);
  CHECK(used <= bound);
  return std::vector<T>(out.get(), out.get() + used);
}

template <class Body>
Texts strings_of(const Params& q, const std::string& text) {
  Exact e(text);
  Texts out;
  for (Str s : items_of<Body, Str>(q, e.s)) out.push_back(text_of(s));
  return out;
}

std::string lower(const std::string& text) {
  Exact e(text);
  std::string by_body = bytes<Lower>(Params{}, e.s);
  uint32_t kept = Lower::unchanged(e.s);
  CHECK(by_body.substr(0, kept) == text.substr(0, kept));
  CHECK((kept == text.size()) == (by_body == text));
  return by_body;
}

std::string replaced(const std::string& text, const std::string& old, const std::string& fresh) {
  Exact e(text), o(old), f(fresh);
  return bytes<Replace>(with(o, f), e.s);
}

int64_t distance(const std::string& a, const std::string& b, int64_t limit) {
  Exact x(a), y(b);
  return EditDistance::apply(with(limit), x.s, y.s);
}

uint32_t units(const std::string& text) {
  Exact e(text);
  uint32_t n = count_units(e.s), back = 0;
  const char* end = e.s.p + e.s.n;
  while (end > e.s.p) {
    end -= unit_length_before(e.s.p, end);
    ++back;
  }
  CHECK(n == back);
  return n;
}

void units_are_cut_alike_from_both_ends() {
  CHECK(units("") == 0);
  CHECK(units("abc") == 3);
  CHECK(units("Größe") == 5);
  CHECK(units("中文") == 2);
  CHECK(units("👍🏽") == 2);
  CHECK(units("\x80\xbf") == 2);
  CHECK(units("\xc0\x80") == 2);          // overlong
  CHECK(units("\xe0\x9f\xbf") == 3);      // overlong
  CHECK(units("\xed\xa0\x80") == 3);      // surrogate
  CHECK(units("\xf4\x90\x80\x80") == 4);  // above U+10FFFF
  CHECK(units("\xe4\xb8") == 2);          // truncated
  CHECK(units("\xf0\x9f\x91") == 3);
  CHECK(units("\xf0\x9f\x91\x8d\x8d") == 2);
  CHECK(units("\xff"
              "a") == 2);
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    char out[4];
    uint32_t n = encode_unit(code, out);
    Unit u = decode_unit(out, out + n);
    CHECK(u.code == code && u.n == n && unit_length_before(out, out + n) == n);
  }
}

void lower_is_right_at_every_length() {
  std::string upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ@[`{0_ ", low = "abcdefghijklmnopqrstuvwxyz@[`{0_ ";
  for (size_t from = 0; from < upper.size(); ++from)
    for (size_t n = 0; from + n <= upper.size(); ++n) CHECK(lower(upper.substr(from, n)) == low.substr(from, n));
  CHECK(lower("ÄÖÜß ПРИВЕТ ΣΑΣ") == "äöüß привет σασ");
  CHECK(lower("İ") == "İ");
  CHECK(lower("\xc3") == "\xc3");
  CHECK(lower("A\xff"
              "B\xe4\xb8") ==
        "a\xff"
        "b\xe4\xb8");
  CHECK(lower("\u212a\u2126") == "k\u03c9");  // three bytes become one and two
  std::string grows, grown;
  for (int k = 0; k < 100; ++k) {
    grows += "\u023a";
    grown += "\u2c65";
    CHECK(lower(grows) == grown);
  }
}

void find_is_right_at_every_place() {
  for (uint32_t n = 1; n < 40; ++n)
    for (uint32_t m = 1; m <= n && m < 12; ++m)
      for (uint32_t at = 0; at + m <= n; ++at) {
        std::string text(n, 'a'), needle(m, 'b');
        text.replace(at, m, needle);
        Exact e(text), f(needle), g(needle + "c");
        CHECK(find_bytes(e.s, f.s, 0) == at);
        CHECK(find_bytes(e.s, f.s, at) == at);
        CHECK(find_bytes(e.s, f.s, at + 1) == n);
        CHECK(find_bytes(e.s, g.s, 0) == n);
      }
}

void split_and_words() {
  Exact comma(","), two("--");
  CHECK((strings_of<Split>(with(comma), "") == Texts{}));
  CHECK((strings_of<Split>(with(comma), ",") == Texts{"", ""}));
  CHECK((strings_of<Split>(with(comma), ",a,,b") == Texts{"", "a", "", "b"}));
  CHECK((strings_of<Split>(with(two), "a---b--") == Texts{"a", "-b", ""}));
  for (size_t n = 0; n < 200; ++n) {
    std::string text;
    Texts expected;
    for (size_t k = 0; k < n; ++k) {
      std::string part(k % 5, 'x');
      text += (k ? "," : "") + part;
      expected.push_back(part);
    }
    if (text.empty()) expected.clear();
    CHECK(strings_of<Split>(with(comma), text) == expected);
  }
  Params none{};
  CHECK((strings_of<Words>(none, "") == Texts{}));
  CHECK((strings_of<Words>(none, "a b_1, c") == Texts{"a", "b_1", "c"}));
  CHECK((strings_of<Words>(none, "naïve cafe\u0301!") == Texts{"naïve", "cafe\u0301"}));
  CHECK((strings_of<Words>(none, "nike跑步鞋2024") == Texts{"nike", "跑", "步", "鞋", "2024"}));
  CHECK((strings_of<Words>(none, "か\u3099き") == Texts{"か\u3099", "き"}));
  CHECK((strings_of<Words>(none,
                           "I ❤\ufe0f \xff"
                           "x\xe4 y") == Texts{"I", "x", "y"}));
  for (size_t n = 0; n < 150; ++n) {
    CHECK((strings_of<Words>(none, std::string(n, 'w')) == (n ? Texts{std::string(n, 'w')} : Texts{})));
    std::string text = std::string(n, '.') + "word" + std::string(n, ' ') + "é";
    CHECK((strings_of<Words>(none, text) == (n ? Texts{"word", "é"} : Texts{"wordé"})));
  }
}

void parts() {
  Exact e("äbç中\xff");
  CHECK(text_of(Prefix::apply(with(3), e.s)) == "äbç");
  CHECK(text_of(Prefix::apply(with(-1), e.s)).empty());
  CHECK(text_of(Suffix::apply(with(2), e.s)) == "中\xff");
  CHECK(text_of(Suffix::apply(with(99), e.s)) == "äbç中\xff");
  CHECK(text_of(Substring::apply(with(1, 2), e.s)) == "bç");
  CHECK(text_of(Substring::apply(with(-2, -1), e.s)) == "中\xff");
  CHECK(text_of(Substring::apply(with(-99, 1), e.s)) == "ä");
  CHECK(text_of(Substring::apply(with(INT64_MIN, INT64_MAX), e.s)) == "äbç中\xff");
  CHECK(text_of(Substring::apply(with(INT64_MAX, -1), e.s)).empty());
  Exact padded("\u3000\t x \xa0\u2028"), set("ä x");
  CHECK(text_of(Strip::apply(Params{}, padded.s)) == "x \xa0");
  CHECK(text_of(Strip::apply(with(set), Exact("x äbx ä").s)) == "b");
  CHECK((strings_of<StrNgrams>(with(2), "a中b") == Texts{"a中", "中b"}));
  CHECK((strings_of<StrNgrams>(with(4), "a中b") == Texts{}));
  CHECK((strings_of<StrNgrams>(with(INT64_MAX), "a中b") == Texts{}));
  CHECK((strings_of<StrNgrams>(with(0), "ab") == Texts{}));
  Str null{nullptr, 0};
  CHECK(Suffix::apply(with(3), null).n == 0 && Strip::apply(Params{}, null).n == 0);
  CHECK(bytes<Lower>(Params{}, null).empty() && bytes<Concat>(Params{}, null, null).empty());
}

void new_strings() {
  CHECK(replaced("aaaa", "aa", "b") == "bb");
  CHECK(replaced("aaa", "a", "bcd") == "bcdbcdbcd");
  CHECK(replaced("abc", "", "x") == "abc");
  CHECK(replaced("", "a", "x").empty());
  CHECK(replaced("xaxbx", "x", "").compare("ab") == 0);
  Exact a("left"), b("right"), sep(" | ");
  CHECK(bytes<Concat>(with(sep), a.s, b.s) == "left | right");
  Str parts[] = {a.s, Str{nullptr, 0}, b.s};
  CHECK(bytes<Join>(with(sep), List<Str>{parts, 3}) == "left |  | right");
  CHECK(bytes<Join>(with(sep), List<Str>{nullptr, 0}).empty());
}

// Every cell of the matrix.
int64_t slow_distance(const std::string& a, const std::string& b, int64_t limit) {
  std::vector<std::vector<int64_t>> d(a.size() + 1, std::vector<int64_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (!i || !j)
        d[i][j] = static_cast<int64_t>(i + j);
      else
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
    }
  return std::min(d[a.size()][b.size()], limit + 1);
}

void edit_distance_equals_the_whole_matrix() {
  CHECK(distance("kitten", "sitting", 5) == 3);
  CHECK(distance("kitten", "sitting", 2) == 3);
  CHECK(distance("", "", 0) == 0);
  CHECK(distance("", "abc", 64) == 3);
  CHECK(distance("größe", "grosse", 9) == 3);
  CHECK(distance("中文字", "中字", 1) == 1);
  CHECK(distance("\xe4\xb8", "\xe4\xb8\xad", 9) == 2);  // two stray bytes against one character
  CHECK(distance(std::string(300, 'a'), std::string(300, 'b'), 64) == 65);
  std::mt19937 random(7);
  for (int round = 0; round < 4000; ++round) {
    std::string a(random() % 90, 'a'), b;
    for (char& c : a) c = static_cast<char>('a' + random() % 3);
    b = a;
    for (uint32_t edits = random() % 20; edits--;) {
      size_t at = b.empty() ? 0 : random() % b.size();
      switch (random() % 3) {
        case 0:
          b.insert(at, 1, static_cast<char>('a' + random() % 3));
          break;
        case 1:
          if (!b.empty()) b.erase(at, 1);
          break;
        default:
          if (!b.empty()) b[at] = 'c';
      }
    }
    int64_t limit = random() % 65;
    CHECK(distance(a, b, limit) == slow_distance(a, b, limit));
  }
}

void lists() {
  std::mt19937_64 random(11);
  for (uint32_t n : {0u, 1u, 2u, 7u, 32u, 64u, 65u, 83u, 84u, 85u, 86u, 100u, 5000u})
    for (uint64_t range : {1ull, 10ull, 1000ull, 1000000ull}) {
      std::vector<uint64_t> a(n), b(n / 2 + n % 3), expected;
      for (uint64_t& x : a) x = random() % range;
      for (uint64_t& x : b) x = random() % range;
      List<uint64_t> x{a.data(), n}, y{b.data(), static_cast<uint32_t>(b.size())};
      std::set<uint64_t> in_a, in_b(b.begin(), b.end());
      for (uint64_t v : a)
        if (in_a.insert(v).second) expected.push_back(v);
      CHECK((items_of<Distinct<uint64_t>, uint64_t>(Params{}, x) == expected));
      std::set<uint64_t> either = in_a;
      either.insert(in_b.begin(), in_b.end());
      uint64_t both = in_a.size() + in_b.size() - either.size();
      double ratio = either.empty() ? 0.0 : double(both) / double(either.size());
      CHECK(OverlapCount::apply(Params{}, x, y) == static_cast<int64_t>(both));
      CHECK(DistinctCount::apply(Params{}, x) == static_cast<int64_t>(in_a.size()));
      CHECK(Jaccard::apply(Params{}, static_cast<int64_t>(both), static_cast<int64_t>(in_a.size()),
                           static_cast<int64_t>(in_b.size())) == ratio);
      std::unique_ptr<uint64_t[]> memory(new uint64_t[shared_bytes(x.n + y.n) / 8 + 1]);
      Shared s = shared_by_table(x, y, reinterpret_cast<char*>(memory.get()));
      CHECK(s.both == both && s.either == either.size());
      s = shared_by_comparison(x, y);
      CHECK(s.both == both && s.either == either.size());
    }
  uint64_t keys[] = {5, 6, 7};
  List<uint64_t> k{keys, 3};
  CHECK((items_of<ListNgrams, uint64_t>(with(1), k) == std::vector<uint64_t>{5, 6, 7}));
  CHECK((items_of<ListNgrams, uint64_t>(with(3), k) == std::vector<uint64_t>{fold(fold(5, 6), 7)}));
  CHECK((items_of<ListNgrams, uint64_t>(with(4), k).empty()));
  uint64_t got = 0;
  CHECK(Get<uint64_t>::apply(with(-3), &got, k) && got == 5);
  CHECK(!Get<uint64_t>::apply(with(-4), &got, k) && !Get<uint64_t>::apply(with(3), &got, k));
  CHECK(!Get<uint64_t>::apply(with(INT64_MIN), &got, k) && !Get<uint64_t>::apply(with(INT64_MAX), &got, k));
  CHECK(Last<uint64_t>::apply(with(2), k).p == keys + 1 && Last<uint64_t>::apply(with(9), k).n == 3);
  int64_t wraps[] = {INT64_MAX, 1};
  CHECK(SumInt::apply(Params{}, List<int64_t>{wraps, 2}) == INT64_MIN);
  uint8_t flags[] = {0, 0, 1, 0};
  CHECK((items_of<DistinctBool, uint8_t>(Params{}, List<uint8_t>{flags, 4}) == std::vector<uint8_t>{0, 1}));
}

// Kernels keep the invariant of null rows and pass on unchanged strings as views.
void kernels() {
  Catalogue all;
  add_strings(all);
  add_lists(all);
  auto kernel = [&](const std::string& name, const std::string& args) {
    for (const Entry& e : all)
      if (e.name == name && e.args == args) return e.kernel;
    std::fprintf(stderr, "no %s(%s)\n", name.c_str(), args.c_str());
    std::exit(1);
  };
  Bump pool, scratch;
  uint64_t warnings = 0;
  Run run{4, &pool, &scratch, &warnings, -1, nullptr};
  Exact low("lower"), up("UPPER"), x("x"), y("yy");
  Str text[] = {low.s, up.s, Str{nullptr, 0}, Str{nullptr, 0}}, out[4];
  uint8_t valid[] = {1, 1, 0, 1}, out_valid[4];
  Column in{text, valid}, to{out, out_valid};
  kernel("lower", "s")(run, Params{}, &in, &to);
  CHECK(out[0].p == low.s.p && text_of(out[1]) == "upper" && pool.owns(out[1].p));
  CHECK(out_valid[1] && !out_valid[2] && out[2].p == nullptr && out[2].n == 0 && out_valid[3]);
  kernel("replace", "s")(run, with(Exact("P"), y), &in, &to);
  CHECK(out[0].p == low.s.p && text_of(out[1]) == "UyyyyER" && !out_valid[2] && out[3].n == 0);
  // Rows on both sides of the change from comparison to table give the same answer.
  std::vector<uint64_t> values(300);
  for (size_t k = 0; k < values.size(); ++k) values[k] = hash_int(static_cast<int64_t>(k % 150));
  List<uint64_t> a[] = {{values.data(), 63}, {values.data(), 300}, {nullptr, 0}, {values.data(), 200}};
  List<uint64_t> b[] = {{values.data() + 60, 63}, {values.data() + 100, 40}, {nullptr, 0}, {values.data(), 1}};
  Column lists_in[] = {{a, valid}, {b, nullptr}};
  int64_t counts[4];
  int64_t sizes[4];
  Column counts_to{counts, out_valid}, sizes_to{sizes, out_valid};
  kernel("overlap_count", "*k,*k")(run, Params{}, lists_in, &counts_to);
  kernel("distinct_count", "*k")(run, Params{}, lists_in, &sizes_to);
  for (int r = 0; r < 4; ++r) {
    CHECK(counts[r] == OverlapCount::apply(Params{}, a[r], b[r]));
    CHECK(sizes[r] == DistinctCount::apply(Params{}, a[r]));
  }
  CHECK(counts[0] == 3 && counts[1] == 40 && counts[2] == 0 && !out_valid[2] && warnings == 0);
}

}  // namespace

int main() {
  units_are_cut_alike_from_both_ends();
  lower_is_right_at_every_length();
  find_is_right_at_every_place();
  split_and_words();
  parts();
  new_strings();
  edit_distance_equals_the_whole_matrix();
  lists();
  kernels();
  std::puts("strings and lists: ok");
}
