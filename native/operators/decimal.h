// Text to number and back, exact: a decimal string becomes the double nearest to it (half to even), for every
// input.
//
// Three steps, each taken only when the one before cannot be sure:
//   1. up to 2^53 · 10^±22: one multiplication or division of exact doubles;
//   2. a 64-bit mantissa scaled by powers of five, with a bound on what was cut off: done unless a rounding
//   boundary
//      lies within the bound (about 1 in 1000 of the numbers that get here);
//   3. the digits against that boundary as integers of up to 3072 bits, in local arrays.
// No tables: a GPU has no place for them, and a power of five costs a few multiplications.
#pragma once
#include "operators/numbers.h"

namespace cb {

CB_BODY bool is_digit(char c) { return (uint8_t)(c - '0') < 10; }

CB_BODY uint64_t high_product(uint64_t a, uint64_t b, uint64_t* low) {
  *low = a * b;
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 Wide;
  return (uint64_t)(((Wide)a * b) >> 64);
#endif
}

// (high·2^64 + low) / d for high < d and d with its top bit set; schoolbook with two 32-bit digits.
CB_BODY uint64_t wide_quotient(uint64_t high, uint64_t low, uint64_t d, uint64_t* rest) {
  const uint64_t digit = 0xffffffffull;
  uint64_t d1 = d >> 32, d0 = d & digit, answer = 0;
  for (int k = 0; k < 2; ++k) {
    uint64_t next = k ? low & digit : low >> 32;
    uint64_t q = high / d1, r = high % d1;
    while (q > digit || q * d0 > (r << 32 | next)) {
      --q;
      r += d1;
      if (r > digit) break;
    }
    high = (high << 32 | next) - q * d;  // fits: high < d before, the remainder after
    answer = answer << 32 | q;
  }
  *rest = high;
  return answer;
}

CB_BODY int leading_zeros(uint64_t x) {  // x is not 0
#if defined(__CUDA_ARCH__)
  return __clzll((long long)x);
#else
  return __builtin_clzll(x);
#endif
}

// A number as written: digits · 10^exponent. `lead` holds the first 19 significant digits; `more` tells that
// digits other than 0 follow, and then the exponent counts from the end of `lead`.
struct Decimal {
  uint64_t lead;
  int64_t exponent;
  const char* first;  // the first significant digit, for step 3; digits run on to `last`, with at most one point
  const char* last;
  bool more;
  bool negative;
};

const int64_t kExponentLimit = 1000000000000000ll;  // far past any double and any string; sums cannot overflow

// [sign] digits [. digits] [e [sign] digits]; at least one digit before the exponent. False: something else.
CB_BODY bool read_decimal(Str s, Decimal* out) {
  const char* p = s.p;
  const char* end = p + s.n;
  Decimal d = {0, 0, p, p, false, false};
  if (p < end && (*p == '-' || *p == '+')) d.negative = *p++ == '-';
  const char* start = p;
  int significant = 0;
  int64_t scale = 0;
  bool point = false, any = false;
  for (; p < end; ++p) {
    uint8_t digit = (uint8_t)(*p - '0');
    if (digit < 10) {
      any = true;
      if (significant < 19) {
        if (significant == 0 && digit != 0) start = p;
        significant += significant > 0 || digit != 0;
        d.lead = d.lead * 10 + digit;
        scale -= point;
      } else {
        d.more |= digit != 0;
        scale += !point;
      }
    } else if (*p == '.' && !point) {
      point = true;
    } else {
      break;
    }
  }
  if (!any) return false;
  d.first = start;
  d.last = p;
  int64_t power = 0;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    bool down = false;
    if (p < end && (*p == '-' || *p == '+')) down = *p++ == '-';
    if (p == end) return false;
    for (; p < end && is_digit(*p); ++p)
      if (power < kExponentLimit) power = power * 10 + (*p - '0');
    if (!is_digit(p[-1])) return false;
    if (down) power = -power;
  }
  d.exponent = scale + power;
  *out = d;
  return p == end;
}

// ---- step 3
// -------------------------------------------------------------------------------------------------------

// An integer of up to 3072 bits. The largest met is 5^1112 times 54 bits: 2636 bits.
struct Big {
  uint32_t limb[96];
  uint32_t n;
};

CB_BODY void big_set(Big* b, uint64_t v) {
  b->limb[0] = (uint32_t)v;
  b->limb[1] = (uint32_t)(v >> 32);
  b->n = b->limb[1] ? 2 : b->limb[0] ? 1 : 0;
}

CB_BODY void big_times(Big* b, uint32_t by, uint32_t plus) {
  uint64_t carry = plus;
  for (uint32_t k = 0; k < b->n; ++k) {
    carry += (uint64_t)b->limb[k] * by;
    b->limb[k] = (uint32_t)carry;
    carry >>= 32;
  }
  if (carry && b->n < 96) b->limb[b->n++] = (uint32_t)carry;
}

CB_BODY void big_times_five_to(Big* b, int64_t power) {
  for (; power >= 13; power -= 13) big_times(b, 1220703125u, 0);  // 5^13, the most that fits 32 bits
  uint32_t rest = 1;
  for (; power > 0; --power) rest *= 5;
  big_times(b, rest, 0);
}

CB_BODY void big_shift(Big* b, int64_t by) {
  uint32_t limbs = (uint32_t)(by >> 5), bits = (uint32_t)(by & 31);
  if (b->n == 0 || b->n + limbs + 1 > 96) return;  // never: see the bound above
  uint32_t top = b->n + limbs;
  b->limb[top] = 0;
  for (uint32_t k = b->n; k-- > 0;) {
    uint64_t v = (uint64_t)b->limb[k] << bits;
    b->limb[k + limbs + 1] |= (uint32_t)(v >> 32);
    b->limb[k + limbs] = (uint32_t)v;
  }
  for (uint32_t k = 0; k < limbs; ++k) b->limb[k] = 0;
  b->n = top + (b->limb[top] != 0);
}

CB_BODY int big_compare(const Big& a, const Big& b) {
  if (a.n != b.n) return a.n < b.n ? -1 : 1;
  for (uint32_t k = a.n; k-- > 0;)
    if (a.limb[k] != b.limb[k]) return a.limb[k] < b.limb[k] ? -1 : 1;
  return 0;
}

// The number against (2·below + 1) · 2^(power − 1), the boundary between below·2^power and its upper
// neighbor. A boundary has at most 767 digits: of a longer number it is enough to know that something
// follows.
CB_BODY int compare_with_boundary(const Decimal& d, uint64_t below, int64_t power) {
  const int kDigits = 768;
  Big number, boundary;
  big_set(&number, 0);
  int taken = 0;
  int64_t dropped = 0, significant = 0;
  uint32_t group = 0, group_scale = 1;
  bool tail = false;
  for (const char* p = d.first; p < d.last; ++p) {
    if (*p == '.') continue;
    ++significant;
    if (taken == kDigits) {
      ++dropped;
      tail |= *p != '0';
      continue;
    }
    ++taken;
    group = group * 10 + (uint32_t)(*p - '0');
    group_scale *= 10;
    if (group_scale == 1000000000u) {
      big_times(&number, group_scale, group);
      group = 0;
      group_scale = 1;
    }
  }
  big_times(&number, group_scale, group);
  if (tail) {
    big_times(&number, 10, 1);
    --dropped;
  }
  // d.exponent counts from the 19th significant digit, or from the last where there are fewer.
  int64_t exponent = d.exponent - (significant > 19 ? significant - 19 : 0) + dropped;
  big_set(&boundary, 2 * below + 1);
  if (exponent >= 0)
    big_times_five_to(&number, exponent);
  else
    big_times_five_to(&boundary, -exponent);
  int64_t shift = exponent - (power - 1);
  if (shift >= 0)
    big_shift(&number, shift);
  else
    big_shift(&boundary, -shift);
  return big_compare(number, boundary);
}

// ---- step 2
// -------------------------------------------------------------------------------------------------------

CB_BODY double round_scaled(const Decimal& d) {
  // m·2^e ≤ |number| ≤ (m + error)·2^e, m with its top bit set.
  int shift = leading_zeros(d.lead);
  uint64_t m = d.lead << shift;
  int64_t e = d.exponent - shift;    // 10^x = 5^x 2^x; the fives follow
  uint64_t error = d.more ? 20 : 0;  // one unit of at least 10^18, in units of a mantissa below 2^64
  int64_t left = d.exponent < 0 ? -d.exponent : d.exponent;
  while (left > 0) {
    int64_t step = left < 27 ? left : 27;  // 5^27 is the most that fits 64 bits
    left -= step;
    uint64_t five = 1;
    for (int64_t k = 0; k < step; ++k) five *= 5;
    int zeros = leading_zeros(five);
    five <<= zeros;
    uint64_t rest;
    if (d.exponent > 0) {
      uint64_t high = high_product(m, five, &rest);
      e += 64 - zeros;
      if (!(high >> 63)) {
        high = high << 1 | rest >> 63;
        rest <<= 1;
        --e;
      }
      m = high;
    } else if (m >= five) {
      m = wide_quotient(m >> 1, m << 63, five, &rest);
      e += zeros - 63;
    } else {
      m = wide_quotient(m, 0, five, &rest);
      e += zeros - 64;
    }
    if (rest || error) error += 2;  // below one unit here, below two once a later step has normalized
  }
  const int64_t top = e + 63;  // of the first bit
  if (top > 1023) return infinity();
  int64_t cut = top < -1022 ? 11 + (-1022 - top) : 11;
  if (cut > 65) return 0.0;
  uint64_t kept, rest, half;
  bool up;
  if (cut == 65) {  // between 0 and half the smallest double, or a hair above the half
    if (m + error >= m) return 0.0;
    kept = 0;
    up = compare_with_boundary(d, 0, e + cut) > 0;
  } else {
    kept = cut == 64 ? 0 : m >> cut;
    rest = cut == 64 ? m : m & ((1ull << cut) - 1);
    half = 1ull << (cut - 1);
    if (rest > half || rest + error < half) {
      up = rest > half;
    } else {
      int side = error == 0 ? 0 : compare_with_boundary(d, kept, e + cut);
      up = side > 0 || (side == 0 && (kept & 1));
    }
  }
  // The carry of a rounding moves into the exponent by itself: 1.11…1 becomes 10.0…0, the largest becomes
  // infinity.
  uint64_t biased = cut > 11 ? 0 : (uint64_t)(top + 1023) - 1;
  return from_bits((biased << 52) + kept + up);
}

CB_BODY double decimal_value(const Decimal& d) {
  double x;
  if (d.lead == 0) {
    x = 0.0;
  } else if (!d.more && d.lead <= (1ull << 53) && d.exponent >= -22 && d.exponent <= 22) {
    x = d.exponent < 0 ? (double)d.lead / ten_to(-d.exponent) : (double)d.lead * ten_to(d.exponent);
  } else if (d.exponent > 310) {
    x = infinity();
  } else if (d.exponent < -345) {
    x = 0.0;
  } else {
    x = round_scaled(d);
  }
  return d.negative ? -x : x;
}

// The double nearest to v / 10^scale, half to even, where v is a two's complement integer of 1 to 8 words, the lowest
// word first. Arrow and Parquet store decimals this way; a negative scale multiplies.
CB_BODY double scaled_integer(const uint32_t* words, int n, int64_t scale) {
  uint32_t limb[8];
  const bool negative = words[n - 1] >> 31;
  uint64_t carry = negative;
  for (int k = 0; k < n; ++k) {
    carry += negative ? ~words[k] : words[k];
    limb[k] = (uint32_t)carry;
    carry >>= 32;
  }
  while (n > 0 && limb[n - 1] == 0) --n;
  if (n == 0) return 0.0;
  if (n <= 2 && scale >= -22 && scale <= 22) {
    const uint64_t v = limb[0] | (uint64_t)(n > 1 ? limb[1] : 0) << 32;
    if (v <= (1ull << 53)) {
      const double x = scale < 0 ? (double)v * ten_to(-scale) : (double)v / ten_to(scale);
      return negative ? -x : x;
    }
  }
  char text[81];  // 2^255 has 77 digits; nine are written at a time
  char* p = text + 81;
  while (n > 0) {
    uint64_t rest = 0;
    for (int k = n; k-- > 0;) {
      rest = rest << 32 | limb[k];
      limb[k] = (uint32_t)(rest / 1000000000u);
      rest %= 1000000000u;
    }
    for (int k = 0; k < 9; ++k, rest /= 10) *--p = (char)('0' + rest % 10);
    while (n > 0 && limb[n - 1] == 0) --n;
  }
  Decimal d{};  // digits alone always parse; GCC 12 on x86_64 cannot see that and would warn about an unset value
  read_decimal(Str{p, (uint32_t)(text + 81 - p)}, &d);
  d.exponent -= scale;
  d.negative = negative;
  return decimal_value(d);
}

// The number as an int64 if it is whole and fits: 12, 1e3, 1.50e2.
CB_BODY bool decimal_whole(const Decimal& d, int64_t* out) {
  uint64_t v = d.lead;
  int64_t exponent = d.exponent;
  *out = 0;
  if (v == 0) return true;
  if (d.more) return false;  // 20 digits that count: too long, or with a fraction
  for (; exponent < 0; ++exponent) {
    if (v % 10) return false;
    v /= 10;
  }
  for (; exponent > 0; --exponent) {
    if (v > 922337203685477580ull) return false;
    v *= 10;
  }
  if (v > (uint64_t)0x7fffffffffffffffll + d.negative) return false;
  *out = (int64_t)(d.negative ? 0 - v : v);
  return true;
}

// ---- words
// --------------------------------------------------------------------------------------------------------

CB_BODY bool is_word(const char* p, uint32_t n, const char* lower, uint32_t length) {
  if (n != length) return false;
  for (uint32_t k = 0; k < n; ++k)
    if ((p[k] | 0x20) != lower[k]) return false;
  return true;
}

// White space around a number is not part of it: " 1" does not parse. `strip()` takes it off where it is expected.
CB_BODY bool parse_float(Str s, double* out) {
  Decimal d;
  if (read_decimal(s, &d)) {
    *out = decimal_value(d);
    return true;
  }
  bool negative = s.n && *s.p == '-';
  if (s.n && (*s.p == '-' || *s.p == '+')) ++s.p, --s.n;
  double x;
  if (is_word(s.p, s.n, "inf", 3) || is_word(s.p, s.n, "infinity", 8))
    x = infinity();
  else if (is_word(s.p, s.n, "nan", 3))
    x = not_a_number();
  else
    return false;
  *out = negative ? -x : x;
  return true;
}

CB_BODY bool parse_int(Str s, int64_t* out) {
  bool negative = s.n && *s.p == '-';
  if (s.n && (*s.p == '-' || *s.p == '+')) ++s.p, --s.n;
  if (s.n == 0) return false;
  const uint64_t most = (uint64_t)0x7fffffffffffffffll + negative;
  uint64_t v = 0;
  for (uint32_t k = 0; k < s.n; ++k) {
    uint8_t digit = (uint8_t)(s.p[k] - '0');
    if (digit > 9 || v > most / 10 || v * 10 > most - digit) return false;
    v = v * 10 + digit;
  }
  *out = (int64_t)(negative ? 0 - v : v);
  return true;
}

// Writes at most 20 bytes.
CB_BODY uint32_t write_int(int64_t v, char* out) {
  uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  char reversed[20];
  uint32_t digits = 0, n = 0;
  do {
    reversed[digits++] = (char)('0' + left % 10);
    left /= 10;
  } while (left);
  if (v < 0) out[n++] = '-';
  while (digits) out[n++] = reversed[--digits];
  return n;
}

// ---- bodies
// ---------------------------------------------------------------------------------------------------

struct StrToInt {
  CB_BODY static bool apply(const Params&, int64_t* out, Str s) { return parse_int(s, out); }
};
struct StrToFloat {
  CB_BODY static bool apply(const Params&, double* out, Str s) { return parse_float(s, out); }
};
struct IntToStr {
  CB_BODY static uint32_t bound(const Params&, int64_t) { return 20; }
  CB_BODY static uint32_t write(const Params&, char* out, int64_t v) { return write_int(v, out); }
};
struct BoolToStr {
  CB_BODY static uint32_t bound(const Params&, uint8_t) { return 5; }
  CB_BODY static uint32_t write(const Params&, char* out, uint8_t v) {
    copy_bytes(out, v ? "true" : "false", v ? 4 : 5);
    return v ? 4 : 5;
  }
};
// Elements that are no number are left out.
template <class One, class T>
struct StrsTo {
  CB_BODY static uint32_t bound(const Params&, List<Str> s) { return s.n; }
  CB_BODY static uint32_t write(const Params& q, T* out, List<Str> s) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < s.n; ++k) n += One::apply(q, out + n, s.p[k]);
    return n;
  }
};
using StrsToInts = StrsTo<StrToInt, int64_t>;
using StrsToFloats = StrsTo<StrToFloat, double>;

}  // namespace cb
