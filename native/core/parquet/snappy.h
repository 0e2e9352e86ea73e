// Decompresses a raw Snappy stream.
//
// A varint says how long the output is; then come elements whose first byte has their kind in its low bits: literals
// (length less 1 in six bits, from 60 on in 1 to 4 bytes behind), or copies from 1, 2 or 4 bytes of offset back. As
// with LZ4, `out` needs kSlack bytes behind it and nothing else is touched, whatever the bytes are.
#pragma once
#include "core/parquet/lz4.h"
#include "core/parquet/varint.h"

namespace cb::parquet {

namespace detail {

inline size_t little(const uint8_t* p, size_t bytes) {
  size_t value = 0;
  for (size_t k = 0; k < bytes; ++k) value |= static_cast<size_t>(p[k]) << (8 * k);
  return value;
}

}  // namespace detail

// Whether `in` is one whole stream of exactly `out_size` bytes.
inline bool snappy_decompress(const uint8_t* in, size_t in_size, uint8_t* out, size_t out_size) {
  const uint8_t* const in_end = in + in_size;
  uint64_t said = 0;
  if (!read_varint(in, in_end, 32, said) || said != out_size) return false;
  uint8_t* const begin = out;
  uint8_t* const end = out + out_size;
  while (in < in_end) {
    const uint8_t tag = *in++;
    const size_t left = static_cast<size_t>(in_end - in), room = static_cast<size_t>(end - out);
    if ((tag & 3) == 0) {
      size_t length = (tag >> 2) + size_t{1}, extra = 0;
      if (length > 60) {
        extra = length - 60;
        if (left < extra) return false;
        length = detail::little(in, extra) + 1;
      }
      if (length > room || length > left - extra) return false;
      in += extra;
      if (length <= 16 && left - extra >= 16)
        std::memcpy(out, in, 16);
      else
        std::memcpy(out, in, length);
      in += length;
      out += length;
      continue;
    }
    const size_t bytes = (tag & 3) == 3 ? 4 : tag & 3;
    if (left < bytes) return false;
    size_t back = detail::little(in, bytes), length = (tag >> 2) + size_t{1};
    if (bytes == 1) {
      back |= static_cast<size_t>(tag >> 5) << 8;
      length = ((tag >> 2) & 7) + size_t{4};
    }
    in += bytes;
    if (length > room || back == 0 || back > static_cast<size_t>(out - begin)) return false;
    detail::copy_match(out, back, length);
    out += length;
  }
  return out == end;
}

}  // namespace cb::parquet
