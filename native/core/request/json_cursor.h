// Reads JSON from the bytes of a request, token by token.
//
// It takes a part of JSON's grammar that the readers of requests need (request_rows.h, v2_request.h), and never more
// than the grammar allows: what it takes, every parser of JSON reads as the same value. The bytes are not trusted.
#pragma once
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/program/frame.h"
#include "operators/unicode.h"

namespace cb {

// Every step returns false where the bytes are not what the fast way takes.
struct JsonCursor {
  const char* p;
  const char* end;

  void blank() {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) ++p;
  }
  bool take(char c) {
    blank();
    if (p == end || *p != c) return false;
    ++p;
    return true;
  }
  bool peek(char c) {
    blank();
    return p < end && *p == c;
  }
  bool word(std::string_view w) {
    if (static_cast<size_t>(end - p) < w.size() || std::memcmp(p, w.data(), w.size()) != 0) return false;
    p += w.size();
    return true;
  }
  // Reads UTF-8 without control characters between quotes. A text with escapes is unescaped into `pool`. Without a
  // pool, such a text is left to the slow path, as is half of a surrogate pair.
  bool text(std::string_view& out, Bump* pool = nullptr) {
    if (!take('"')) return false;
    const char* begin = p;
    while (p < end && *p != '"') {
      auto byte = static_cast<unsigned char>(*p);
      if (byte == '\\') return pool && escaped(begin, out, *pool);
      uint32_t length = plain(byte);
      if (!length) return false;
      p += length;
    }
    if (p == end) return false;
    out = {begin, static_cast<size_t>(p - begin)};
    ++p;
    return true;
  }
  // Returns the bytes of the character at p, which begins with `byte` and is not an escape; 0 if a text must not
  // contain it.
  uint32_t plain(unsigned char byte) const {
    if (byte < 0x80) return byte >= 0x20 && byte != 0x7f;
    uint32_t length = unit_length(p, end);
    return length > 1 ? length : 0;
  }
  // Reads the rest of a text from its first escape on; [begin, p) was read already. Unescaping never makes a text
  // longer.
  bool escaped(const char* begin, std::string_view& out, Bump& pool) {
    const char* close = p;
    while (close < end && *close != '"') close += *close == '\\' && end - close > 1 ? 2 : 1;
    char* to = pool.reserve_bytes(static_cast<size_t>(close - begin));
    size_t n = static_cast<size_t>(p - begin);
    std::memcpy(to, begin, n);
    while (p < end && *p != '"') {
      auto byte = static_cast<unsigned char>(*p);
      if (byte != '\\') {
        uint32_t length = plain(byte);
        if (!length) return false;
        std::memcpy(to + n, p, length);
        n += length;
        p += length;
        continue;
      }
      if (++p == end) return false;
      switch (*p++) {
        case '"':
          to[n++] = '"';
          break;
        case '\\':
          to[n++] = '\\';
          break;
        case '/':
          to[n++] = '/';
          break;
        case 'b':
          to[n++] = '\b';
          break;
        case 'f':
          to[n++] = '\f';
          break;
        case 'n':
          to[n++] = '\n';
          break;
        case 'r':
          to[n++] = '\r';
          break;
        case 't':
          to[n++] = '\t';
          break;
        case 'u': {
          uint32_t code;
          if (!code_point(code)) return false;
          n += encode(code, to + n);
          break;
        }
        default:
          return false;
      }
    }
    if (p == end) return false;
    ++p;
    pool.commit(n);
    out = {to, n};
    return true;
  }
  bool four_digits(uint32_t& out) {
    if (end - p < 4) return false;
    out = 0;
    for (int k = 0; k < 4; ++k, ++p) {
      char c = *p;
      int digit = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
      if (digit < 0) return false;
      out = out * 16 + static_cast<uint32_t>(digit);
    }
    return true;
  }
  // Reads the code point after "\\u"; of a surrogate pair, it reads both halves.
  bool code_point(uint32_t& out) {
    uint32_t high, low;
    if (!four_digits(high)) return false;
    if (high < 0xd800 || high > 0xdfff) {
      out = high;
      return true;
    }
    if (high > 0xdbff || !word("\\u") || !four_digits(low) || low < 0xdc00 || low > 0xdfff) return false;
    out = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return true;
  }
  static size_t encode(uint32_t code, char* to) {
    auto more = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) {
      to[0] = static_cast<char>(code);
      return 1;
    }
    if (code < 0x800) {
      to[0] = static_cast<char>(0xc0 | code >> 6);
      to[1] = more(0);
      return 2;
    }
    if (code < 0x10000) {
      to[0] = static_cast<char>(0xe0 | code >> 12);
      to[1] = more(6);
      to[2] = more(0);
      return 3;
    }
    to[0] = static_cast<char>(0xf0 | code >> 18);
    to[1] = more(12);
    to[2] = more(6);
    to[3] = more(0);
    return 4;
  }
  // The extent of a number of JSON's grammar; whole: it has neither fraction nor exponent.
  bool number(const char*& begin, bool& whole) {
    begin = p;
    whole = true;
    if (p < end && *p == '-') ++p;
    if (p == end || *p < '0' || *p > '9') return false;
    if (*p == '0') {
      ++p;
      if (p < end && *p >= '0' && *p <= '9') return false;
    } else {
      digits();
    }
    if (p < end && *p == '.') {
      whole = false;
      ++p;
      if (!digits()) return false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
      whole = false;
      ++p;
      if (p < end && (*p == '+' || *p == '-')) ++p;
      if (!digits()) return false;
    }
    return true;
  }
  bool digits() {
    const char* from = p;
    while (p < end && *p >= '0' && *p <= '9') ++p;
    return p > from;
  }
  // Behind an object, by its brackets and quotes alone.
  bool over_object() {
    int64_t depth = 0;
    while (p < end) {
      char c = *p++;
      if (c == '"') {
        while (p < end && *p != '"') p += *p == '\\' && end - p > 1 ? 2 : 1;
        if (p == end) return false;
        ++p;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        if (--depth == 0) return true;
      }
    }
    return false;
  }
};

}  // namespace cb
