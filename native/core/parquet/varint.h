// Reads a variable-length number: groups of seven bits, lowest first; the high bit of a byte says that more follow.
#pragma once
#include <cstdint>

namespace cb::parquet {

// Moves `at` behind the number. False: the bytes end first, or it has more than `bits` bits.
inline bool read_varint(const uint8_t*& at, const uint8_t* end, unsigned bits, uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; shift < bits; shift += 7) {
    if (at == end) return false;
    const uint8_t byte = *at++;
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return bits == 64 || value >> bits == 0;
  }
  return false;
}

}  // namespace cb::parquet
