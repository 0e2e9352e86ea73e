// The words of JSON: where strings, numbers and blanks end, and what an escape means. The scanner is in json.h.
#pragma once
#include "operators/decimal.h"

#if !defined(__CUDACC__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define CB_JSON_NEON 1
#elif !defined(__CUDACC__) && defined(__SSE2__)
#include <emmintrin.h>
#define CB_JSON_SSE2 1
#endif
#if defined(__CUDACC__)
#define CB_COLD __host__ __device__ __noinline__ inline
#else
#define CB_COLD __attribute__((noinline, cold)) inline
#endif

namespace cb {

CB_BODY int trailing_zero_bytes(uint64_t x) {  // x is not 0
#if defined(__CUDA_ARCH__)
  return (__ffsll((long long)x) - 1) >> 3;
#else
  return __builtin_ctzll(x) >> 3;
#endif
}

// Eight bytes at p, zeros past the end. Never reads outside [begin, end), on a GPU outside the words that hold it.
CB_BODY uint64_t word_before(const char* p, const char* begin, const char* end) {
#if defined(__CUDA_ARCH__)
  (void)begin;
  return p == end ? 0 : load_words(p, end - p < 8 ? (uint32_t)(end - p) : 8);
#else
  if (end - p >= 8) return load64(p);
  if (p == end) return 0;
  if (end - begin >= 8) return load64(end - 8) >> (8 * (8 - (int)(end - p)));
  uint64_t v = 0;
  for (int k = 0; p + k < end; ++k) v |= (uint64_t)(uint8_t)p[k] << (8 * k);
  return v;
#endif
}

// The high bit of each byte that is a quote, a backslash or below 0x20. Bytes above the lowest hit may be
// wrong.
CB_BODY uint64_t string_stops(uint64_t x) {
  const uint64_t ones = 0x0101010101010101ull;
  uint64_t quote = x ^ (ones * '"'), slash = x ^ (ones * '\\');
  uint64_t hits = ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((x - ones * 0x20) & ~x);
  return hits & (ones << 7);
}

CB_BODY bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Most documents are compact: one comparison tells that there is nothing to skip. Something else must follow.
CB_BODY const char* skip_blank(const char* p) {
  while ((uint8_t)*p <= ' ' && is_blank(*p)) ++p;
  return p;
}

// The first quote, backslash or control byte at or behind p; `end` where there is none.
CB_BODY const char* string_stop(const char* p, const char* begin, const char* end) {
#if defined(__CUDA_ARCH__)
  // Aligned words, one load each. Bytes before p are made ones, which stop nothing; a stop past the end is the end.
  (void)begin;
  if (p == end) return end;
  const uint32_t skip = (uint32_t)(uint64_t)p & 7;
  uint64_t before = (1ull << (8 * skip)) - 1;
  for (p -= skip; p < end; p += 8, before = 0) {
    uint64_t stops = string_stops(*(const uint64_t*)p | before);
    if (!stops) continue;
    p += trailing_zero_bytes(stops);
    return p < end ? p : end;
  }
  return end;
#else
  for (; p < end; p += 8) {
    uint64_t stops = string_stops(word_before(p, begin, end));
    if (stops) return p + trailing_zero_bytes(stops);  // zeros past the end read as control bytes: at most `end`
  }
  return end;
#endif
}

#if CB_JSON_NEON
// Bit k: byte k of 64 is a quote, a backslash or below 0x20.
inline uint64_t stops_of_64(const char* p) {
  const uint8x16_t place = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  uint8x16_t hit[4];
  for (int k = 0; k < 4; ++k) {
    uint8x16_t x = vld1q_u8((const uint8_t*)p + 16 * k);
    uint8x16_t special = vorrq_u8(vceqq_u8(x, vdupq_n_u8('"')), vceqq_u8(x, vdupq_n_u8('\\')));
    hit[k] = vandq_u8(vorrq_u8(special, vcltq_u8(x, vdupq_n_u8(0x20))), place);
  }
  uint8x16_t sums = vpaddq_u8(vpaddq_u8(hit[0], hit[1]), vpaddq_u8(hit[2], hit[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}
#elif CB_JSON_SSE2
inline uint64_t stops_of_64(const char* p) {
  uint64_t bits = 0;
  for (int k = 0; k < 4; ++k) {
    __m128i x = _mm_loadu_si128((const __m128i*)(p + 16 * k));
    __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(0x1f)), x);
    __m128i special = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')));
    bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_or_si128(special, low)) << (16 * k);
  }
  return bits;
}
#endif

// Where strings stop, for a scan from front to back. On a host with vectors the stops of 64 bytes are found
// at once: a string then ends a shift and a count behind its start, where a search of its own would wait for
// each string before the next.
struct StringEnds {
  const char* begin;
  const char* end;
#if CB_JSON_NEON || CB_JSON_SSE2
  const char* base;  // of the 64 bytes that `bits` tells of
  uint64_t bits;

  StringEnds(const char* from, const char* to) : begin(from), end(to), base(from), bits(0) {
    if (to - from >= 64) bits = stops_of_64(from);
  }
  const char* stop(const char* p) {
    uint64_t at = (uint64_t)(p - base);
    if (at < 64 && bits >> at) return p + __builtin_ctzll(bits >> at);
    return stop_further(p);
  }
  const char* stop_further(const char* p) {
    if (end - begin < 64) return string_stop(p, begin, end);
    if (p - base < 64) p = base + 64;
    for (; p < end; p = base + 64) {
      base += (p - base) & ~(ptrdiff_t)63;
      ptrdiff_t room = end - base;
      bits = room >= 64 ? stops_of_64(base) : stops_of_64(end - 64) >> (64 - room);
      uint64_t left = bits >> (p - base);
      if (left) return p + __builtin_ctzll(left);
    }
    return end;
  }
#else
  CB_BODY StringEnds(const char* from, const char* to) : begin(from), end(to) {}
  CB_BODY const char* stop(const char* p) { return string_stop(p, begin, end); }
#endif
};

CB_BODY int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  uint8_t low = (uint8_t)((c | 0x20) - 'a');
  return low < 6 ? low + 10 : -1;
}

// Four hex digits at p, checked before.
CB_BODY uint32_t hex4(const char* p) {
  return (uint32_t)(hex_digit(p[0]) << 12 | hex_digit(p[1]) << 8 | hex_digit(p[2]) << 4 | hex_digit(p[3]));
}

// The rest of a string from its first stop: escapes are rare, so this stays out of the scanner's loop.
CB_COLD const char* end_of_escaped(const char* p, const char* begin, const char* end) {
  while (p < end && *p != '"') {
    if (*p != '\\' || end - p < 2) return nullptr;
    switch (p[1]) {
      case '"':
      case '\\':
      case '/':
      case 'b':
      case 'f':
      case 'n':
      case 'r':
      case 't':
        p += 2;
        break;
      case 'u':
        if (end - p < 6) return nullptr;
        for (int k = 2; k < 6; ++k)
          if (hex_digit(p[k]) < 0) return nullptr;
        p += 6;
        break;
      default:
        return nullptr;
    }
    p = string_stop(p, begin, end);
  }
  return p < end ? p : nullptr;
}

// p: behind the opening quote. The closing quote's place, or nullptr: not a string.
CB_BODY const char* end_of_string(const char* p, const char* begin, const char* end, bool* escaped) {
  p = string_stop(p, begin, end);
  *escaped = p == end || *p != '"';
  return *escaped ? end_of_escaped(p, begin, end) : p;
}

CB_BODY const char* skip_digits(const char* p) {
  while (is_digit(*p)) ++p;
  return p;
}

// p: at the first byte. Behind the last, or nullptr. Stops by itself at the bracket that ends the document.
CB_BODY const char* end_of_number(const char* p) {
  p += *p == '-';
  if (!is_digit(*p)) return nullptr;
  p = *p == '0' ? p + 1 : skip_digits(p + 1);
  if (*p == '.') {
    if (!is_digit(*++p)) return nullptr;
    p = skip_digits(p + 1);
  }
  if ((*p | 0x20) == 'e') {
    ++p;
    p += *p == '+' || *p == '-';
    if (!is_digit(*p)) return nullptr;
    p = skip_digits(p + 1);
  }
  return p;
}

// One character of a checked string: moves *p over it, writes up to 4 bytes, says how many.
CB_BODY uint32_t unescape_one(const char** p, const char* end, char* out) {
  const char* s = *p;
  if (*s != '\\') {
    *out = *s;
    *p = s + 1;
    return 1;
  }
  *p = s + 2;
  switch (s[1]) {
    case 'b':
      *out = '\b';
      return 1;
    case 'f':
      *out = '\f';
      return 1;
    case 'n':
      *out = '\n';
      return 1;
    case 'r':
      *out = '\r';
      return 1;
    case 't':
      *out = '\t';
      return 1;
    case 'u':
      break;
    default:
      *out = s[1];
      return 1;
  }
  uint32_t c = hex4(s + 2);
  s += 6;
  if (c >= 0xd800 && c < 0xe000) {
    uint32_t low = c < 0xdc00 && end - s >= 6 && s[0] == '\\' && s[1] == 'u' ? hex4(s + 2) : 0;
    if (low >= 0xdc00 && low < 0xe000) {
      c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
      s += 6;
    } else {
      c = 0xfffd;
    }
  }
  *p = s;
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  if (c < 0x800) {
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = (char)(0xe0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 63));
    out[2] = (char)(0x80 | (c & 63));
    return 3;
  }
  out[0] = (char)(0xf0 | c >> 18);
  out[1] = (char)(0x80 | (c >> 12 & 63));
  out[2] = (char)(0x80 | (c >> 6 & 63));
  out[3] = (char)(0x80 | (c & 63));
  return 4;
}

CB_BODY bool same_unescaped(const char* p, const char* end, Str key) {
  uint32_t at = 0;
  while (p < end) {
    char bytes[4];
    uint32_t n = unescape_one(&p, end, bytes);
    if (key.n - at < n) return false;
    for (uint32_t k = 0; k < n; ++k)
      if (key.p[at + k] != bytes[k]) return false;
    at += n;
  }
  return at == key.n;
}

}  // namespace cb
