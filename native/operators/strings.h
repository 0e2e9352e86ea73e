// Operators that read or make strings. Positions and lengths count code points (units of operators/unicode.h),
// comparison is by bytes.
//
// Whatever is a part of its input is a view of it: no bytes move. Searching compares bytes, which for UTF-8
// is the same as comparing code points. A search costs the string's length, times the needle's in the worst
// case ("aab" in "aaaa…").
#pragma once
#include "operators/unicode.h"

namespace cb {

CB_BODY Str between(const char* from, const char* to) { return Str{from, (uint32_t)(to - from)}; }

// Strings are at most 4 GiB; a result that would be longer is cut there and counted.
constexpr uint64_t kMostBytes = 0xffffffffull;
CB_BODY uint32_t fits(uint64_t n) { return (uint32_t)(n < kMostBytes ? n : kMostBytes); }

// First place of `needle` (not empty) at or after `from`; s.n where there is none. The first and the last
// byte are matched eight places at a time; on text that leaves few places to compare.
CB_BODY uint32_t find_bytes(Str s, Str needle, uint32_t from) {
  if (needle.n > s.n || from > s.n - needle.n) return s.n;
  const uint32_t last = s.n - needle.n;  // last place it can begin
  const char* tail = s.p + needle.n - 1;
  const uint64_t head_pattern = kOnes * (uint8_t)needle.p[0];
  const uint64_t tail_pattern = kOnes * (uint8_t)needle.p[needle.n - 1];
  for (uint32_t k = from;;) {
    uint32_t places = last - k + 1;
    uint64_t mask;
    if (places >= 8) {
      mask = match_byte(load64(s.p + k), head_pattern) & match_byte(load64(tail + k), tail_pattern);
      places = 8;
    } else {
      mask = match_byte(load_short(s.p + k, places), head_pattern) &
             match_byte(load_short(tail + k, places), tail_pattern) & ((1ull << (8 * places)) - 1);
    }
    for (; mask; mask &= mask - 1) {
      uint32_t at = k + (lowest_bit(mask) >> 3);
      if (needle.n <= 2 || same(Str{s.p + at, needle.n}, needle)) return at;
    }
    if (last - k < places) return s.n;
    k += places;
  }
}

// Negative, zero, positive: byte order, a prefix before what it begins.
CB_BODY int compare_bytes(Str a, Str b) {
  uint32_t n = a.n < b.n ? a.n : b.n, k = 0;
  for (; n - k >= 8; k += 8) {
    uint64_t x = load64(a.p + k), y = load64(b.p + k);
    if (x != y) {
      uint32_t shift = lowest_bit(x ^ y) & ~7u;
      return (int)(uint8_t)(x >> shift) - (int)(uint8_t)(y >> shift);
    }
  }
  for (; k < n; ++k)
    if (a.p[k] != b.p[k]) return (int)(uint8_t)a.p[k] - (int)(uint8_t)b.p[k];
  return a.n < b.n ? -1 : a.n > b.n;
}

// ---- measures and comparisons ---------------------------------------------------------------------------

struct Length {
  CB_BODY static int64_t apply(const Params&, Str s) { return count_units(s); }
};
struct ByteLength {
  CB_BODY static int64_t apply(const Params&, Str s) { return s.n; }
};

struct StrEq {
  CB_BODY static uint8_t apply(const Params&, Str a, Str b) { return same(a, b); }
};
struct StrNe {
  CB_BODY static uint8_t apply(const Params&, Str a, Str b) { return !same(a, b); }
};
struct StrLt {
  CB_BODY static uint8_t apply(const Params&, Str a, Str b) { return compare_bytes(a, b) < 0; }
};
struct StrLe {
  CB_BODY static uint8_t apply(const Params&, Str a, Str b) { return compare_bytes(a, b) <= 0; }
};
struct StrGt {
  CB_BODY static uint8_t apply(const Params&, Str a, Str b) { return compare_bytes(a, b) > 0; }
};
struct StrGe {
  CB_BODY static uint8_t apply(const Params&, Str a, Str b) { return compare_bytes(a, b) >= 0; }
};

// s[0]: what is looked for; every string contains the empty one.
struct StrContains {
  CB_BODY static uint8_t apply(const Params& q, Str s) {
    return q.s[0].n == 0 || (s.n >= q.s[0].n && find_bytes(s, q.s[0], 0) < s.n);
  }
};
struct StartsWith {
  CB_BODY static uint8_t apply(const Params& q, Str s) { return s.n >= q.s[0].n && same(Str{s.p, q.s[0].n}, q.s[0]); }
};
struct EndsWith {
  CB_BODY static uint8_t apply(const Params& q, Str s) {
    return s.n >= q.s[0].n && same(Str{s.p + (s.n - q.s[0].n), q.s[0].n}, q.s[0]);
  }
};

// ---- parts: views ---------------------------------------------------------------------------------------

// i[0]: how many code points; below zero as zero.
struct Prefix {
  CB_BODY static Str apply(const Params& q, Str s) {
    if (q.i[0] <= 0) return Str{s.p, 0};
    return between(s.p, skip_units(s.p, s.p + s.n, (uint64_t)q.i[0]));
  }
};
struct Suffix {
  CB_BODY static Str apply(const Params& q, Str s) {
    const char* end = s.p + s.n;
    if (q.i[0] <= 0) return Str{end, 0};
    return between(skip_units_back(s.p, end, (uint64_t)q.i[0]), end);
  }
};

// Python's s[start:][:length]. i[0]: start, below zero from the end; i[1]: length, below zero to the end.
struct Substring {
  CB_BODY static Str apply(const Params& q, Str s) {
    const char* end = s.p + s.n;
    const char* from =
        q.i[0] >= 0 ? skip_units(s.p, end, (uint64_t)q.i[0]) : skip_units_back(s.p, end, 0 - (uint64_t)q.i[0]);
    return between(from, q.i[1] < 0 ? end : skip_units(from, end, (uint64_t)q.i[1]));
  }
};

// s[0]: the code points to take off both ends; empty: white space, as Python's str.strip().
struct Strip {
  CB_BODY static bool taken(Str set, uint32_t code) {
    if (set.n == 0) return is_space(code);
    for (const char *p = set.p, *end = set.p + set.n; p < end;) {
      Unit u = decode_unit(p, end);
      if (u.code == code) return true;
      p += u.n;
    }
    return false;
  }
  CB_BODY static Str apply(const Params& q, Str s) {
    const char *p = s.p, *end = s.p + s.n;
    while (p < end) {
      Unit u = decode_unit(p, end);
      if (!taken(q.s[0], u.code)) break;
      p += u.n;
    }
    while (p < end) {
      uint32_t n = unit_length_before(p, end);
      if (!taken(q.s[0], decode_unit(end - n, end).code)) break;
      end -= n;
    }
    return between(p, end);
  }
};

// ---- new strings ----------------------------------------------------------------------------------------

// The simple mapping, one code point to one: no final sigma, İ (U+0130) stays.
struct Lower {
  // Two bytes become three at worst (U+023A); eight more so that whole words can be stored. What lies behind
  // the first kMost bytes of a string could pass 4 GiB: it is cut off and counted.
  static constexpr uint32_t kMost = 0xa0000000u;
  CB_BODY static Str head(Str s) { return Str{s.p, s.n < kMost ? s.n : kMost}; }
  CB_BODY static uint32_t bound(const Params&, Str s) { return head(s).n + head(s).n / 2 + 8; }
  CB_BODY static bool cut(const Params&, Str s) { return s.n > kMost; }

  // Bytes before the first code point that changes; s.n where none does.
  CB_BODY static uint32_t unchanged(Str s) {
    uint32_t k = 0;
    while (k < s.n) {
      uint32_t left = s.n - k;
      uint64_t w = load_at(s, k), high = w & kHighs, upper = match_upper(w & kLows) & ~high;
      if (!(high | upper)) {
        k += left < 8 ? left : 8;
        continue;
      }
      k += lowest_bit(high | upper) >> 3;
      if ((uint8_t)s.p[k] < 0x80) return k;
      while (k < s.n && (uint8_t)s.p[k] >= 0x80) {
        Unit u = decode_unit(s.p + k, s.p + s.n);
        if (lower_of(u.code) != u.code) return k;
        k += u.n;
      }
    }
    return s.n;
  }

  // The rest of a string whose first `k` bytes are already in `out`.
  CB_BODY static uint32_t write_from(uint32_t k, char* out, Str s) {
    uint32_t o = k;
    while (k < s.n) {
      uint32_t left = s.n - k;
      uint64_t w = load_at(s, k), high = w & kHighs;
      uint32_t ascii = high ? lowest_bit(high) >> 3 : left < 8 ? left : 8;
      // Bytes above the ASCII ones are stored too and written over by what follows; the bound has room for
      // them.
      store64(out + o, w | ((match_upper(w & kLows) & ~high) >> 2));
      o += ascii;
      k += ascii;
      while (k < s.n && (uint8_t)s.p[k] >= 0x80) {
        Unit u = decode_unit(s.p + k, s.p + s.n);
        o += encode_unit(lower_of(u.code), out + o);
        k += u.n;
      }
    }
    return o;
  }
  CB_BODY static uint32_t write(const Params&, char* out, Str s) { return write_from(0, out, head(s)); }
};

// s[0] → s[1], all places from the left that do not overlap; an empty s[0] changes nothing.
struct Replace {
  CB_BODY static uint64_t length(const Params& q, Str s) {
    Str old = q.s[0], fresh = q.s[1];
    if (old.n == 0 || fresh.n <= old.n) return s.n;
    uint64_t places = 0;
    for (uint32_t k = find_bytes(s, old, 0); k < s.n; k = find_bytes(s, old, k + old.n)) ++places;
    return s.n + places * (fresh.n - old.n);
  }
  CB_BODY static uint32_t bound(const Params& q, Str s) { return fits(length(q, s)); }
  CB_BODY static bool cut(const Params& q, Str s) {
    return q.s[1].n > q.s[0].n && (uint64_t)s.n * q.s[1].n > kMostBytes && length(q, s) > kMostBytes;
  }
  CB_BODY static uint32_t write(const Params& q, char* out, Str s) {
    Str old = q.s[0], fresh = q.s[1];
    uint32_t k = 0;
    uint64_t o = 0;
    while (old.n && s.n) {
      uint32_t at = find_bytes(s, old, k);
      if (at == s.n || o + (at - k) + fresh.n > kMostBytes) break;
      copy_bytes(out + o, s.p + k, at - k);
      o += at - k;
      copy_bytes(out + o, fresh.p, fresh.n);
      o += fresh.n;
      k = at + old.n;
    }
    uint32_t rest = s.n - k < kMostBytes - o ? s.n - k : (uint32_t)(kMostBytes - o);
    copy_bytes(out + o, s.p + k, rest);
    return (uint32_t)(o + rest);
  }
};

// s[0]: put between the two.
struct Concat {
  CB_BODY static uint64_t length(const Params& q, Str a, Str b) { return (uint64_t)a.n + q.s[0].n + b.n; }
  CB_BODY static uint32_t bound(const Params& q, Str a, Str b) { return fits(length(q, a, b)); }
  CB_BODY static bool cut(const Params& q, Str a, Str b) { return length(q, a, b) > kMostBytes; }
  CB_BODY static uint32_t write(const Params& q, char* out, Str a, Str b) {
    const Str parts[3] = {a, q.s[0], b};
    uint32_t room = bound(q, a, b), o = 0;
    for (int k = 0; k < 3; ++k) {
      uint32_t n = parts[k].n < room - o ? parts[k].n : room - o;
      copy_bytes(out + o, parts[k].p, n);
      o += n;
    }
    return o;
  }
};

// ---- lists of parts -------------------------------------------------------------------------------------

// s[0]: the separator. Python's str.split(separator), except that the empty string gives the empty list.
struct Split {
  CB_BODY static uint32_t bound(const Params& q, Str s) {
    Str sep = q.s[0];
    if (s.n == 0) return 0;
    uint32_t parts = 1;
    if (sep.n == 1) {
      const uint64_t pattern = kOnes * (uint8_t)sep.p[0];
      uint32_t k = 0;
      for (; s.n - k >= 8; k += 8) parts += count_matches(match_byte(load64(s.p + k), pattern));
#if defined(__CUDA_ARCH__)
      const uint32_t left = 8 * (s.n - k);  // bits
      if (left) parts += count_matches(match_byte(load_words(s.p + k, left / 8), pattern) & ((1ull << left) - 1));
#else
      for (; k < s.n; ++k) parts += s.p[k] == sep.p[0];
#endif
    } else if (sep.n) {
      for (uint32_t k = find_bytes(s, sep, 0); k < s.n; k = find_bytes(s, sep, k + sep.n)) ++parts;
    }
    return parts;
  }
  CB_BODY static uint32_t write(const Params& q, Str* out, Str s) {
    if (s.n == 0) return 0;
    return q.s[0].n == 1 ? write_by_byte(q.s[0].p[0], out, s) : write_by_string(q.s[0], out, s);
  }

  CB_BODY static uint32_t write_by_byte(char sep, Str* out, Str s) {
    return each_by_byte(sep, s, [&](uint32_t number, Str part) { out[number] = part; });
  }
  // Calls part(number, bytes) for each part of a string that is not empty, and returns how many there are.
  // Separators of 64 bytes become one word of bits: a branch is mispredicted once a block, not once a token.
  template <class Part>
  CB_BODY static uint32_t each_by_byte(char sep, Str s, Part part) {
    const uint64_t pattern = kOnes * (uint8_t)sep;
    uint32_t parts = 0, start = 0;
    for (uint32_t k = 0; k < s.n; k += 64) {
      uint32_t n = s.n - k < 64 ? s.n - k : 64, j = 0;
      uint64_t bits = 0;
      for (; j < n; j += 8) bits |= gather_bits(match_byte(load_at(s, k + j), pattern)) << j;
      if (n < 64) bits &= (1ull << n) - 1;  // the zeros behind the end match a separator of zero
      for (; bits; bits &= bits - 1) {
        uint32_t at = k + lowest_bit(bits);
        part(parts++, Str{s.p + start, at - start});
        start = at + 1;
      }
      if (n < 64) break;
    }
    part(parts++, Str{s.p + start, s.n - start});
    return parts;
  }
  CB_BODY static uint32_t write_by_string(Str sep, Str* out, Str s) {
    uint32_t parts = 0, start = 0;
    while (sep.n) {
      uint32_t at = find_bytes(s, sep, start);
      if (at == s.n) break;
      out[parts++] = Str{s.p + start, at - start};
      start = at + sep.n;
    }
    out[parts++] = Str{s.p + start, s.n - start};
    return parts;
  }
};

// Maximal runs of letters, numbers, marks and '_'. A character of Han, Hiragana or Katakana is a word of its
// own, with the marks on it. A mark begins no word: the variation selector of an emoji is not text.
struct Words {
  // A word of one byte needs another character before the next word; characters that are words alone take
  // three bytes.
  CB_BODY static uint32_t bound(const Params&, Str s) { return s.n / 2 + (s.n & 1); }

  CB_BODY static uint32_t write(const Params&, Str* out, Str s) {
    const char* end = s.p + s.n;
    uint32_t words = 0, start = 0, k = 0;
    uint32_t alone_end = 0;  // where the last word ended, if it was a character alone: marks may follow
    uint64_t inside = 0;     // 1: a word began at `start`
    while (k < s.n) {
      // Up to 64 ASCII bytes as bits; a change of bit begins or ends a word.
      uint64_t bits = 0;
      uint32_t n = s.n - k < 64 ? s.n - k : 64, j = 0;
      while (j < n) {
        uint64_t w = load_at(s, k + j);
        bits |= gather_bits(match_word(w & kLows)) << j;
        if (uint64_t high = w & kHighs) {
          n = j + (lowest_bit(high) >> 3);
          break;
        }
        j += 8;
      }
      uint64_t changes = bits ^ (bits << 1 | inside);
      if (n < 64) changes &= (1ull << n) - 1;
      for (; changes; changes &= changes - 1) {
        uint32_t at = k + lowest_bit(changes);
        if (inside)
          out[words++] = Str{s.p + start, at - start};
        else
          start = at;
        inside ^= 1;
      }
      k += n;
      while (k < s.n && (uint8_t)s.p[k] >= 0x80) {
        Unit u = decode_unit(s.p + k, end);
        uint32_t kind = word_kind(u.code);
        if (kind == unicode::kWord || (kind == unicode::kMark && inside)) {
          if (!inside) start = k;
          inside = 1;
        } else if (inside) {
          out[words++] = Str{s.p + start, k - start};
          inside = 0;
        }
        k += u.n;
        if (kind == unicode::kAlone) {
          out[words++] = Str{s.p + k - u.n, u.n};
          alone_end = k;
        } else if (kind == unicode::kMark && alone_end == k - u.n && alone_end) {
          out[words - 1].n += u.n;
          alone_end = k;
        }
      }
    }
    if (inside) out[words++] = Str{s.p + start, s.n - start};
    return words;
  }
};

// i[0] = n: all runs of n code points; none where the string is shorter.
struct StrNgrams {
  CB_BODY static uint32_t bound(const Params& q, Str s) {
    return q.i[0] < 1 || (uint64_t)q.i[0] > s.n ? 0 : s.n - (uint32_t)q.i[0] + 1;
  }
  CB_BODY static uint32_t write(const Params& q, Str* out, Str s) {
    uint32_t most = bound(q, s);
    if (most == 0) return 0;
    if (is_ascii(s)) {
      for (uint32_t k = 0; k < most; ++k) out[k] = Str{s.p + k, (uint32_t)q.i[0]};
      return most;
    }
    const char *from = s.p, *end = s.p + s.n;
    const char* to = skip_units(from, end, (uint64_t)q.i[0] - 1);
    uint32_t n = 0;
    while (to < end) {
      to += unit_length(to, end);
      out[n++] = between(from, to);
      from += unit_length(from, end);
    }
    return n;
  }
};

}  // namespace cb
