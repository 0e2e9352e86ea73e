// Decodes UTF-8 as bytes and as code points.
//
// A string is any bytes. It is cut into units: a well-formed sequence (no overlong form, no surrogate,
// nothing above U+10FFFF) is one unit, every other byte is a unit of its own, with the value 0x110000 + byte.
// A well-formed sequence begins with a byte that no other sequence can contain, so the cut is the same from
// the left, from the right and from any unit's beginning. Python's twin is bytes.decode("utf-8",
// "surrogateescape").
//
// Eight bytes at a time ("SWAR"): a mask has 0x80 in each byte that matches. Nothing is read outside [p, p +
// n), on a GPU nothing outside the words that hold it (operators/types.h).
#pragma once
#include "operators/types.h"
#include "operators/unicode_tables.h"

namespace cb {

constexpr uint64_t kOnes = 0x0101010101010101ull;
constexpr uint64_t kHighs = 0x8080808080808080ull;
constexpr uint64_t kLows = 0x7f7f7f7f7f7f7f7full;

// ---- eight bytes ----------------------------------------------------------------------------------------

CB_BODY uint32_t lowest_bit(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return (uint32_t)__ffsll((long long)x) - 1;
#else
  return (uint32_t)__builtin_ctzll(x);
#endif
}

CB_BODY void store64(char* p, uint64_t v) {
#if defined(__CUDA_ARCH__)
  if (((uint64_t)p & 7) == 0) {
    *(uint64_t*)p = v;
  } else if (((uint64_t)p & 3) == 0) {
    ((uint32_t*)p)[0] = (uint32_t)v;
    ((uint32_t*)p)[1] = (uint32_t)(v >> 32);
  } else {
    for (int k = 0; k < 8; ++k) p[k] = (char)(v >> (8 * k));
  }
#else
  __builtin_memcpy(p, &v, 8);
#endif
}

// The n < 8 bytes at p, zeros above.
CB_BODY uint64_t load_short(const char* p, uint32_t n) {
#if defined(__CUDA_ARCH__)
  return n ? load_words(p, n) : 0;
#else
  if (n >= 4) return load32(p) | (uint64_t)load32(p + n - 4) << (8 * (n - 4));
  if (n == 0) return 0;
  return (uint64_t)(uint8_t)p[0] | (uint64_t)(uint8_t)p[n >> 1] << (8 * (n >> 1)) |
         (uint64_t)(uint8_t)p[n - 1] << (8 * (n - 1));
#endif
}

// Up to eight bytes at s.p + k, zeros above. Strings of eight bytes and more need no branch on how many.
CB_BODY uint64_t load_at(Str s, uint32_t k) {
  uint32_t left = s.n - k;
#if defined(__CUDA_ARCH__)
  return left ? load_words(s.p + k, left < 8 ? left : 8) : 0;
#else
  if (left >= 8) return load64(s.p + k);
  if (s.n >= 8) return left ? load64(s.p + s.n - 8) >> (8 * (8 - left)) : 0;
  return load_short(s.p + k, left);
#endif
}

// Exact for every byte value, unlike the shorter (x - 1) & ~x, which errs above a match.
CB_BODY uint64_t match_byte(uint64_t w, uint64_t pattern) {
  uint64_t x = w ^ pattern;
  return ~(((x & kLows) + kLows) | x | kLows);
}

// Bit k of the result: byte k of the mask.
CB_BODY uint64_t gather_bits(uint64_t mask) { return ((mask >> 7) * 0x0102040810204080ull) >> 56; }

CB_BODY uint32_t count_matches(uint64_t mask) { return (uint32_t)(((mask >> 7) * kOnes) >> 56); }

// For eight ASCII bytes: A-Z.
CB_BODY uint64_t match_upper(uint64_t w) { return ((w + kOnes * (0x80 - 'A')) ^ (w + kOnes * (0x7f - 'Z'))) & kHighs; }

// For eight ASCII bytes: A-Z a-z 0-9 _.
CB_BODY uint64_t match_word(uint64_t w) {
  uint64_t folded = w | (kOnes * 0x20);
  uint64_t letter = (folded + kOnes * (0x80 - 'a')) ^ (folded + kOnes * (0x7f - 'z'));
  uint64_t digit = (w + kOnes * (0x80 - '0')) ^ (w + kOnes * (0x7f - '9'));
  uint64_t underscore = ~((w ^ (kOnes * '_')) + kLows);
  return (letter | digit | underscore) & kHighs;
}

// ---- units ----------------------------------------------------------------------------------------------

// Length in bytes of the unit at p < end.
CB_BODY uint32_t unit_length(const char* p, const char* end) {
  const uint8_t* b = (const uint8_t*)p;
  uint8_t lead = b[0];
  if (lead < 0xc2 || lead > 0xf4) return 1;  // ASCII, a stray continuation byte, overlong or too large
  size_t left = (size_t)(end - p);
  if (lead < 0xe0) return left >= 2 && (b[1] & 0xc0) == 0x80 ? 2 : 1;
  if (lead < 0xf0) {
    if (left < 3 || (b[1] & 0xc0) != 0x80 || (b[2] & 0xc0) != 0x80) return 1;
    if ((lead == 0xe0 && b[1] < 0xa0) || (lead == 0xed && b[1] > 0x9f)) return 1;
    return 3;
  }
  if (left < 4 || (b[1] & 0xc0) != 0x80 || (b[2] & 0xc0) != 0x80 || (b[3] & 0xc0) != 0x80) return 1;
  if ((lead == 0xf0 && b[1] < 0x90) || (lead == 0xf4 && b[1] > 0x8f)) return 1;
  return 4;
}

// Length in bytes of the unit that ends at `end`, in a string that begins at p < end.
CB_BODY uint32_t unit_length_before(const char* p, const char* end) {
  if ((uint8_t)end[-1] < 0x80) return 1;
  size_t most = (size_t)(end - p) < 4 ? (size_t)(end - p) : 4;
  for (size_t k = 1; k <= most; ++k) {
    if (((uint8_t)*(end - k) & 0xc0) == 0x80) continue;
    return unit_length(end - k, end) == k ? (uint32_t)k : 1;
  }
  return 1;
}

struct Unit {
  uint32_t code;  // 0x110000 + byte where the byte is not part of a well-formed sequence
  uint32_t n;
};

CB_BODY Unit decode_unit(const char* p, const char* end) {
  const uint8_t* b = (const uint8_t*)p;
  uint32_t n = unit_length(p, end);
  switch (n) {
    case 2:
      return {(uint32_t)(b[0] & 0x1f) << 6 | (b[1] & 0x3fu), 2};
    case 3:
      return {(uint32_t)(b[0] & 0x0f) << 12 | (uint32_t)(b[1] & 0x3f) << 6 | (b[2] & 0x3fu), 3};
    case 4:
      return {
          (uint32_t)(b[0] & 0x07) << 18 | (uint32_t)(b[1] & 0x3f) << 12 | (uint32_t)(b[2] & 0x3f) << 6 | (b[3] & 0x3fu),
          4};
    default:
      return {b[0] < 0x80 ? b[0] : 0x110000u + b[0], 1};
  }
}

// Bytes written for a code point (at most 4); a stray byte comes back as it was.
CB_BODY uint32_t encode_unit(uint32_t code, char* out) {
  if (code < 0x80 || code >= 0x110000) {
    out[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = (char)(0xe0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | code >> 18);
  out[1] = (char)(0x80 | (code >> 12 & 0x3f));
  out[2] = (char)(0x80 | (code >> 6 & 0x3f));
  out[3] = (char)(0x80 | (code & 0x3f));
  return 4;
}

CB_BODY bool is_ascii(Str s) {
  for (uint32_t k = 0; k < s.n; k += 8) {
    if (load_at(s, k) & kHighs) return false;
    if (s.n - k <= 8) break;
  }
  return true;
}

CB_BODY uint32_t count_units(Str s) {
  const char *p = s.p, *end = s.p + s.n;
  uint32_t units = 0;
  while (p < end) {
    uint32_t k = (uint32_t)(p - s.p);
    uint64_t high = load_at(s, k) & kHighs;
    uint32_t ascii = high ? lowest_bit(high) >> 3 : s.n - k < 8 ? s.n - k : 8;
    units += ascii;
    p += ascii;
    for (; p < end && (uint8_t)*p >= 0x80; ++units) p += unit_length(p, end);
  }
  return units;
}

// The place after `count` units, or `end`.
CB_BODY const char* skip_units(const char* p, const char* end, uint64_t count) {
  while (count && p < end) {
    if (count >= 8 && end - p >= 8 && !(load64(p) & kHighs)) {
      p += 8;
      count -= 8;
      continue;
    }
    p += unit_length(p, end);
    --count;
  }
  return p;
}

// The place before the last `count` units, or p.
CB_BODY const char* skip_units_back(const char* p, const char* end, uint64_t count) {
  while (count && p < end) {
    if (count >= 8 && end - p >= 8 && !(load64(end - 8) & kHighs)) {
      end -= 8;
      count -= 8;
      continue;
    }
    end -= unit_length_before(p, end);
    --count;
  }
  return end;
}

// ---- properties of a code point -------------------------------------------------------------------------

// One code point to one. U+0130 (İ), whose lower case is two code points, stays; so does every stray byte.
CB_BODY uint32_t lower_of(uint32_t code) {
  if (code < 0x80) return code - 'A' < 26 ? code + 32 : code;
  if (code - 0x400 < 0x60) return code + (code < 0x410 ? 80 : code < 0x430 ? 32 : 0);  // Cyrillic
  if (code < 0x100) return code - 0xc0 < 31 && code != 0xd7 ? code + 32 : code;        // Latin-1
  if (code > unicode::kLastUpper || (code >= 0x2e80 && code < 0xa640)) return code;    // CJK, emoji: no case
  uint32_t low = 0, high = unicode::kCaseRanges;
  if (code < 0x10000) {
    low = unicode::case_pages()[code >> 8];
    high = unicode::case_pages()[(code >> 8) + 1];
  }
  const unicode::CaseRange* ranges = unicode::case_ranges();
  while (low < high) {  // the first range that ends at or after code
    uint32_t middle = (low + high) / 2;
    if (ranges[middle].last < code)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == unicode::kCaseRanges) return code;
  unicode::CaseRange r = ranges[low];
  if (code < r.first || (r.step == 2 && ((code - r.first) & 1))) return code;
  return (uint32_t)((int32_t)code + r.delta);
}

CB_BODY uint32_t word_kind(uint32_t code) {
  if (code - 0x4e00 < 0x5200) return unicode::kAlone;                     // Han
  if (code - 0x400 < 0x80 || code - 0xf8 < 0x148) return unicode::kWord;  // Cyrillic, Latin
  if (code >= 0x110000) return unicode::kNone;
  uint32_t low = 0, high = unicode::kWordBoundaries;  // boundaries before `low` begin at or below code, from
                                                      // `high` on above
  if (code < 0x10000) {
    low = unicode::word_pages()[code >> 8];
    high = unicode::word_pages()[(code >> 8) + 1];
  }
  const uint32_t* bounds = unicode::word_boundaries();
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (bounds[middle] >> 2 <= code)
      low = middle + 1;
    else
      high = middle;
  }
  return bounds[low - 1] & 3;  // the first boundary is code point 0, so low >= 1
}

CB_BODY bool is_space(uint32_t code) {
  if (code <= 0x20) return 0x1f0003e00ull >> code & 1;  // 9-13, 28-32
  if (code < 0x85) return false;
  const uint32_t* ranges = unicode::space_ranges();
  for (uint32_t k = 0; k < unicode::kSpaceRanges; ++k)
    if (code >= ranges[2 * k] && code <= ranges[2 * k + 1]) return true;
  return false;
}

}  // namespace cb
