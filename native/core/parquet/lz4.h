// Decompresses an LZ4 block (Parquet's LZ4_RAW).
//
// A block is sequences: a token (high half: literals, low half: match length less 4; 15 in either goes on in bytes
// until one is not 255), literals, an offset of two bytes back into the output. The last sequence ends behind its
// literals. Copies are of 16 or 32 bytes and go over their end, so `out` needs kSlack bytes behind it; nothing is read
// outside `in`, and nothing before `out` or further than kSlack behind it is touched, whatever the bytes are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cb::parquet {

constexpr size_t kSlack = 64;

namespace detail {

// A length that does not fit into its half of the token. False: the input ends first, or nobody's output is that long.
inline bool lz4_length(const uint8_t*& in, const uint8_t* end, size_t most, size_t& length) {
  for (;;) {
    if (in == end) return false;
    uint8_t byte = *in++;
    length += byte;
    if (length > most) return false;
    if (byte != 255) return true;
  }
}

// `length` bytes from `back` bytes before `out`, which may overlap; up to 31 bytes too many are written.
inline void copy_match(uint8_t* out, size_t back, size_t length) {
  uint8_t* const end = out + length;
  if (back >= 32) {
    do {
      std::memcpy(out, out - back, 32);
      out += 32;
    } while (out < end);
  } else if (back >= 8) {
    do {
      std::memcpy(out, out - back, 8);
      out += 8;
    } while (out < end);
  } else {
    // A pattern shorter than a copy: eight bytes of it one by one, then copies from a whole number of patterns back.
    for (size_t k = 0; k < 8; ++k) out[k] = *(out + k - back);
    size_t far = back;
    while (far < 8) far += back;
    for (out += 8; out < end; out += 8) std::memcpy(out, out - far, 8);
  }
}

}  // namespace detail

// Whether `in` is one whole block of exactly `out_size` bytes.
inline bool lz4_decompress(const uint8_t* in, size_t in_size, uint8_t* out, size_t out_size) {
  const uint8_t* const in_end = in + in_size;
  uint8_t* const begin = out;
  uint8_t* const end = out + out_size;
  while (in < in_end) {
    // Most sequences are short: while 32 bytes are left to read and kSlack to write, they need no loop and few tests. A
    // quarter of the matches in JSON texts has 19 bytes or more; up to 40 bytes they need no loop either. Copies of
    // eight bytes read what the copies before have just stored without waiting for it; wider ones often do wait.
    while (in_end - in >= 32 && end - out >= static_cast<ptrdiff_t>(kSlack)) {
      const uint8_t token = *in;
      const size_t literals = token >> 4, half = token & 15;
      if (literals == 15) break;
      std::memcpy(out, in + 1, 8);
      std::memcpy(out + 8, in + 9, 8);
      const uint8_t* behind = in + 1 + literals;
      const size_t back = static_cast<size_t>(behind[0]) | static_cast<size_t>(behind[1]) << 8;
      uint8_t* to = out + literals;
      if ((back < 8) | (back > static_cast<size_t>(to - begin))) break;
      std::memcpy(to, to - back, 8);
      std::memcpy(to + 8, to + 8 - back, 8);
      std::memcpy(to + 16, to + 16 - back, 2);
      if (half < 15) {
        in = behind + 2;
        out = to + half + 4;
        continue;
      }
      const size_t extra = behind[2], length = 19 + extra;
      if (extra == 255 || length > static_cast<size_t>(end - to)) break;
      for (size_t k = 16; k < 40; k += 8) std::memcpy(to + k, to + k - back, 8);
      for (size_t k = 40; k < length; k += 8) std::memcpy(to + k, to + k - back, 8);
      in = behind + 3;
      out = to + length;
    }
    const uint8_t token = *in++;
    size_t literals = token >> 4;
    const size_t room = static_cast<size_t>(end - out);
    if (literals == 15 && !detail::lz4_length(in, in_end, room, literals)) return false;
    const size_t left = static_cast<size_t>(in_end - in);
    if (literals > room || literals > left) return false;
    if (literals <= 16 && left >= 16)
      std::memcpy(out, in, 16);
    else
      std::memcpy(out, in, literals);
    out += literals;
    in += literals;
    if (in == in_end) return out == end;
    if (in_end - in < 2) return false;
    const size_t back = static_cast<size_t>(in[0]) | static_cast<size_t>(in[1]) << 8;
    in += 2;
    size_t length = token & 15;
    const size_t still = static_cast<size_t>(end - out);
    if (length == 15 && !detail::lz4_length(in, in_end, still, length)) return false;
    length += 4;
    if (length > still || back == 0 || back > static_cast<size_t>(out - begin)) return false;
    detail::copy_match(out, back, length);
    out += length;
  }
  return false;  // a block ends with literals
}

}  // namespace cb::parquet
