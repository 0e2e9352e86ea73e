// Which outputs of a layer dropout keeps: a pure function of the step's seed, the row's number in its batch and the
// column. No state is drawn from, so threads may ask in any order, and the torch twin asks the same function.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cb {

// The steps of a bijection of 32 bits with low bias (Wellons, "Prospecting for Hash Functions"), on a variable. A
// macro, because kernels_body.h takes the same steps in registers, which a function that is compiled for every
// processor could not return.
#define CB_DROPOUT_MIX(x) \
  x ^= x >> 16;           \
  x *= 0x7feb352du;       \
  x ^= x >> 15;           \
  x *= 0x846ca68bu;       \
  x ^= x >> 16

inline uint32_t dropout_mix(uint32_t x) {
  CB_DROPOUT_MIX(x);
  return x;
}

inline uint32_t dropout_row(uint64_t seed, size_t row) {
  const uint64_t number = row;
  const uint32_t low = dropout_mix(static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(number));
  return dropout_mix(low + static_cast<uint32_t>(seed >> 32) + static_cast<uint32_t>(number >> 32));
}

// An output is kept where its draw is at least this: drop is from 0 to less than 1.
inline uint32_t dropout_threshold(float drop) {
  return static_cast<uint32_t>(static_cast<double>(drop) * 4294967296.0);
}

inline bool dropout_keeps(uint32_t row, uint32_t column, uint32_t threshold) {
  return dropout_mix(row + column * 0x9e3779b9u) >= threshold;
}

}  // namespace cb
