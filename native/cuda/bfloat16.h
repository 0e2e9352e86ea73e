// bfloat16: the upper half of a float's bits. Numbers may be stored in this type; all sums are floats.
#pragma once
#include "operators/hash.h"

namespace cb {

__device__ inline float float_of_half(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
__device__ inline uint16_t half_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace cb
