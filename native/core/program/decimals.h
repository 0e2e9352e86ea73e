// Converts decimal columns to doubles.
//
// Arrow stores a decimal as a little-endian two's complement integer of 4, 8, 16 or 32 bytes; the column's scale says
// how many of its digits stand behind the point. Each value becomes the double nearest to it (half to even), so that a
// price of 19.99 equals the constant 19.99. Null rows may hold any bytes: their doubles mean nothing.
#pragma once
#include <cstdint>
#include <cstring>

#include "operators/decimal.h"

namespace cb {

// width: bytes of a value; a multiple of 4, at most 32.
inline void decimals_to_doubles(const uint8_t* values, int width, int64_t rows, int64_t scale, double* out) {
  for (int64_t r = 0; r < rows; ++r) {
    uint32_t words[8];
    std::memcpy(words, values + r * width, static_cast<size_t>(width));
    out[r] = scaled_integer(words, width / 4, scale);
  }
}

}  // namespace cb
