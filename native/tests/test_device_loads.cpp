// What operators/ does under __CUDA_ARCH__ in place of unaligned loads, run here: whole words give the bytes that plain
// loops give, at every alignment and length. Memory begins 16-byte aligned as a device's does and ends with the word of
// its last byte, so the address sanitizer sees a word too many.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/check.h"

// What CUDA gives.
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}
inline long long __double_as_longlong(double x) {
  long long v;
  std::memcpy(&v, &x, 8);
  return v;
}
inline double __longlong_as_double(long long v) {
  double x;
  std::memcpy(&x, &v, 8);
  return x;
}
inline double __dsqrt_rn(double x) { return std::sqrt(x); }

// Another namespace than the core's, which this program is linked with.
#define cb cb_device
#define __CUDA_ARCH__ 900
#include "operators/json.h"
#include "operators/lists.h"
#include "operators/strings.h"

using namespace cb;

namespace {

using Random = std::mt19937_64;

// n bytes of a device: what lies around them is random too.
class Memory {
 public:
  Memory(size_t bytes, Random& random) : bytes_(bytes) {
    const size_t all = (bytes + 7) / 8 * 8;
    void* p = nullptr;
    CHECK(posix_memalign(&p, 16, all) == 0);
    p_ = static_cast<char*>(p);
    for (size_t k = 0; k < all; ++k) p_[k] = static_cast<char>(random());
  }
  ~Memory() { std::free(p_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* p() { return p_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  char* p_;
};

uint64_t plain(const char* p, size_t n) {
  uint64_t v = 0;
  for (size_t k = 0; k < n; ++k) v |= uint64_t{static_cast<uint8_t>(p[k])} << (8 * k);
  return v;
}

void loads_equal_the_bytes() {
  Random random(1);
  for (size_t bytes = 8; bytes <= 40; ++bytes) {
    Memory memory(bytes, random);
    for (size_t at = 0; at <= bytes; ++at) {
      const char* p = memory.p() + at;
      const size_t left = bytes - at;
      if (left >= 8) CHECK(load64(p) == plain(p, 8));
      if (left >= 4) CHECK(load32(p) == plain(p, 4));
      for (size_t n = 0; n <= left && n < 8; ++n) CHECK(load_short(p, static_cast<uint32_t>(n)) == plain(p, n));
      for (size_t n = 1; n <= left && n <= 8; ++n) CHECK(load_words(p, static_cast<uint32_t>(n)) == plain(p, n));
      for (size_t n = 0; n <= left; ++n) {
        const Str s{p, static_cast<uint32_t>(n)};
        for (uint32_t k = 0; k <= s.n; ++k) CHECK(load_at(s, k) == plain(p + k, std::min<size_t>(n - k, 8)));
        for (size_t k = 0; k <= n; ++k) CHECK(word_before(p + k, p, p + n) == plain(p + k, std::min<size_t>(n - k, 8)));
      }
    }
  }
  // Nothing is read of an empty string, wherever it points.
  CHECK(load_short(nullptr, 0) == 0 && load_at(Str{nullptr, 0}, 0) == 0 && word_before(nullptr, nullptr, nullptr) == 0);
}

void stores_and_copies_touch_nothing_else() {
  Random random(2);
  for (size_t n = 0; n <= 40; ++n)
    for (size_t to = 0; to < 16; ++to)
      for (size_t from = 0; from < 16; from += n % 3 + 1) {
        Memory source(from + n, random), target(to + n + 3, random);
        std::string expected(target.p(), target.bytes());
        for (size_t k = 0; k < n; ++k) expected[to + k] = source.p()[from + k];
        copy_bytes(target.p() + to, source.p() + from, static_cast<uint32_t>(n));
        CHECK(std::string(target.p(), target.bytes()) == expected);
        if (n < 8) continue;
        const uint64_t v = random();
        for (size_t k = 0; k < 8; ++k) expected[to + k] = static_cast<char>(v >> (8 * k));
        store64(target.p() + to, v);
        CHECK(std::string(target.p(), target.bytes()) == expected);
      }
}

void equality_looks_at_every_byte_and_no_other() {
  Random random(3);
  for (uint32_t n = 0; n <= 34; ++n)
    for (size_t x = 0; x < 8; ++x)
      for (size_t y = 0; y < 8; ++y) {
        Memory a(x + n, random), b(y + n, random);
        if (n) std::memcpy(b.p() + y, a.p() + x, n);
        const Str s{a.p() + x, n}, t{b.p() + y, n};
        CHECK(same(s, t) && compare_bytes(s, t) == 0);
        if (n == 0) continue;
        CHECK(!same(s, Str{t.p, n - 1}));
        const size_t k = random() % n;
        b.p()[y + k] ^= static_cast<char>(1 << random() % 8);
        CHECK(!same(s, t));
        CHECK((compare_bytes(s, t) < 0) == (static_cast<uint8_t>(a.p()[x + k]) < static_cast<uint8_t>(b.p()[y + k])));
      }
}

// hash.h with loads byte by byte.
uint64_t plain_hash(const char* p, size_t n) {
  const uint64_t k0 = 0xa0761d6478bd642full, k1 = 0xe7037ed1a0b428dbull, k2 = 0x8ebc6af09c88c6e3ull;
  auto mix = [](uint64_t a, uint64_t b) { return (a * b) ^ __umul64hi(a, b); };
  uint64_t a = 0, b = 0, seed = k2;
  if (n > 16) {
    size_t at = 0;
    for (; n - at > 16; at += 16) seed = mix(plain(p + at, 8) ^ k0, plain(p + at + 8, 8) ^ seed);
    a = plain(p + n - 16, 8);
    b = plain(p + n - 8, 8);
  } else if (n >= 4) {
    const size_t width = n >= 8 ? 8 : 4;
    a = plain(p, width);
    b = plain(p + n - width, width);
  } else if (n > 0) {
    a = plain(p, 1) << 16 | plain(p + n / 2, 1) << 8 | plain(p + n - 1, 1);
  }
  return mix(k1 ^ n, mix(a ^ k0, b ^ seed) ^ k0);
}

void hashes_are_those_of_the_bytes() {
  Random random(4);
  for (size_t n = 0; n <= 70; ++n)
    for (size_t at = 0; at < 16; ++at) {
      Memory memory(at + n, random);
      CHECK(hash_bytes(memory.p() + at, static_cast<uint32_t>(n)) == plain_hash(memory.p() + at, n));
    }
  CHECK(hash_bytes(nullptr, 0) == plain_hash(nullptr, 0));
}

void strings_stop_where_a_loop_stops() {
  Random random(5);
  const char stops[] = {'"', '\\', 0, 1, 0x1f};
  for (size_t n = 0; n <= 40; ++n)
    for (size_t at = 0; at < 16; ++at)
      for (int times = 0; times < 8; ++times) {
        Memory memory(at + n, random);  // the bytes around are often stops
        char* const begin = memory.p() + at;
        for (size_t k = 0; k < n; ++k)
          begin[k] = random() % 16 ? static_cast<char>(0x80 | random()) : stops[random() % sizeof stops];
        for (const char* p = begin;; ++p) {
          const char* expected = p;
          while (expected < begin + n && *expected != '"' && *expected != '\\' && static_cast<uint8_t>(*expected) >= 32)
            ++expected;
          CHECK(string_stop(p, begin, begin + n) == expected);
          if (p == begin + n) break;
        }
      }
}

void parts_are_counted_and_cut_alike() {
  Random random(6);
  Params q{};
  for (char separator : {' ', '\0', '\xff'}) {
    q.s[0] = Str{&separator, 1};
    for (size_t n = 0; n <= 140; ++n)
      for (size_t at : {0, 1, 5, 8}) {
        Memory memory(at + n, random);
        char* p = memory.p() + at;
        for (size_t k = 0; k < n; ++k) p[k] = random() % 5 ? 'x' : separator;
        std::vector<std::string> expected(n > 0);
        for (size_t k = 0; k < n; ++k)
          if (p[k] == separator)
            expected.emplace_back();
          else
            expected.back() += p[k];
        const Str s{p, static_cast<uint32_t>(n)};
        CHECK(Split::bound(q, s) == expected.size());
        std::vector<Str> parts(n + 1);
        CHECK(Split::write(q, parts.data(), s) == expected.size());
        for (size_t k = 0; k < expected.size(); ++k) CHECK(std::string(parts[k].p, parts[k].n) == expected[k]);
      }
  }
}

// Bodies made of the above: text with every kind of unit, written to memory of the size they ask for.
void bodies_keep_to_their_memory() {
  Random random(7);
  const std::string pieces[] = {"A", "z", "É", "ß", "Я", "日", "😀", "\xff", " ", "ab CD"};
  for (int times = 0; times < 3000; ++times) {
    std::string text, lower;
    for (size_t k = random() % 12; k > 0; --k) {
      const std::string& piece = pieces[random() % std::size(pieces)];
      text += piece;
      lower += piece == "A" ? "a" : piece == "É" ? "é" : piece == "Я" ? "я" : piece == "ab CD" ? "ab cd" : piece;
    }
    const size_t at = random() % 16;
    Memory memory(at + text.size(), random);
    std::memcpy(memory.p() + at, text.data(), text.size());
    const Str s{memory.p() + at, static_cast<uint32_t>(text.size())};
    const size_t to = random() % 16;
    Memory out(to + Lower::bound(Params{}, s), random);
    const uint32_t used = Lower::write(Params{}, out.p() + to, s);
    CHECK(std::string(out.p() + to, used) == lower);
    CHECK((Lower::unchanged(s) == s.n) == (lower == text));
    size_t units = 0;
    for (const char* p = s.p; p < s.p + s.n; ++units) p += unit_length(p, s.p + s.n);
    CHECK(count_units(s) == units);
  }
}

void distinct_strings_stay_in_order() {
  Random random(8);
  for (size_t n : {0, 1, 2, 30, 64, 65, 400}) {
    Memory memory(n * 12, random);
    std::vector<Str> list;
    std::vector<std::string> expected;
    for (size_t k = 0; k < n; ++k) {
      const Str s{memory.p() + 12 * k + random() % 3, static_cast<uint32_t>(random() % 10)};
      for (uint32_t j = 0; j < s.n; ++j) const_cast<char*>(s.p)[j] = static_cast<char>('a' + random() % 2);
      list.push_back(s);
    }
    for (const Str& s : list) {
      const std::string text(s.p, s.n);
      if (std::find(expected.begin(), expected.end(), text) == expected.end()) expected.push_back(text);
    }
    const List<Str> all{list.data(), static_cast<uint32_t>(n)};
    std::vector<Str> out(Distinct<Str>::bound(Params{}, all));
    CHECK(Distinct<Str>::write(Params{}, out.data(), all) == expected.size());
    for (size_t k = 0; k < expected.size(); ++k) CHECK(std::string(out[k].p, out[k].n) == expected[k]);
  }
}

}  // namespace

int main() {
  loads_equal_the_bytes();
  stores_and_copies_touch_nothing_else();
  equality_looks_at_every_byte_and_no_other();
  hashes_are_those_of_the_bytes();
  strings_stop_where_a_loop_stops();
  parts_are_counted_and_cut_alike();
  bodies_keep_to_their_memory();
  distinct_strings_stay_in_order();
  return 0;
}
