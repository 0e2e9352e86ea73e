// Decodes Parquet's hybrid of run lengths and bit packing: definition levels and dictionary indices.
//
// A run starts with a varint: an even one, halved, says how often the value of ceil(width / 8) bytes behind it comes;
// an odd one, halved, how many groups of eight packed values follow, lowest bits first.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/parquet/varint.h"

namespace cb::parquet {

// Reads exactly `n` values of `width` bits (at most 32) into `out`; false: the bytes end first, or a value is not below
// `bound`. Eight bytes behind `end` may be read, so they must be there.
template <class T>
bool hybrid_decode(const uint8_t* at, const uint8_t* end, unsigned width, size_t n, uint64_t bound, T* out) {
  static_assert(std::endian::native == std::endian::little);
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t largest = 0;
  while (n) {
    uint64_t run = 0;
    if (!read_varint(at, end, 32, run)) return false;
    const size_t left = static_cast<size_t>(end - at);
    if (run & 1) {
      const uint64_t groups = run >> 1;  // the last one is padded to its end
      const size_t values = static_cast<size_t>(std::min<uint64_t>(groups * 8, n));
      if (groups * width > left) return false;
      for (size_t k = 0; k < values; ++k) {
        const size_t bit = k * width;
        uint64_t word;
        std::memcpy(&word, at + bit / 8, 8);
        const uint64_t value = word >> (bit % 8) & mask;
        largest = std::max(largest, value);
        out[k] = static_cast<T>(value);
      }
      at += groups * width;
      out += values;
      n -= values;
      if (!values) return false;  // a run of nothing would be read for ever
    } else {
      const size_t bytes = (width + 7) / 8, values = static_cast<size_t>(std::min<uint64_t>(run >> 1, n));
      if (bytes > left || !values) return false;
      uint64_t value = 0;
      for (size_t k = 0; k < bytes; ++k) value |= static_cast<uint64_t>(at[k]) << (8 * k);
      at += bytes;
      largest = std::max(largest, value);
      std::fill_n(out, values, static_cast<T>(value));
      out += values;
      n -= values;
    }
  }
  return largest < bound;
}

}  // namespace cb::parquet
