// Computes sign(x)·log(1 + |x|) of dense columns, as models/dense_columns.py defines it for every model.
//
// The logarithm is our own, because that of the C library handles one number at a time and differs between systems;
// this one is plain arithmetic that compilers turn into vector instructions, with the same bits everywhere. It is
// computed in double and off by less than one unit in the last place of the float.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/system/parallel.h"

namespace cb {

// log(1 + x) for x from 0 on, infinity and NaN included. Without a branch, which would keep it out of vector registers.
inline float log_of_one_more(float x) {
  const double wide = x, u = 1.0 + wide;
  // u = m · 2^e with m in [√½, √2).
  const uint64_t bits = std::bit_cast<uint64_t>(u), above = bits - 0x3FE6A09E667F3BCDull;
  const double m = std::bit_cast<double>(bits - (above & 0xFFF0000000000000ull));
  // An integer below 2^52 as a double, without a conversion that SSE2 does not have.
  const double e = std::bit_cast<double>((above >> 52) | 0x4330000000000000ull) - 4503599627370496.0;
  // log m = 2 (s + s³/3 + s⁵/5 + …)
  const double s = (m - 1.0) / (m + 1.0), q = s * s;
  const double series =
      1.0 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11 + q * (1.0 / 13))))));
  const double lost = (wide - (u - 1.0)) / u;  // of a tiny x, when 1 was added
  const double found = e * 0.69314718055994530942 + 2.0 * s * series + lost;
  const uint32_t given = std::bit_cast<uint32_t>(x), odd = 0u - static_cast<uint32_t>(given >= 0x7F800000u);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(static_cast<float>(found)) & ~odd) | (given & odd));
}

// Returns whether every x is finite.
inline bool dense_logs(std::span<const float> x, std::span<float> out, size_t threads) {
  constexpr size_t kPiece = 1u << 16;  // numbers of a task: fewer are done before another thread is awake
  std::atomic<bool> finite{true};
  parallel_for(threads, (x.size() + kPiece - 1) / kPiece, [&](size_t piece) {
    const float* __restrict from = x.data() + piece * kPiece;
    float* __restrict to = out.data() + piece * kPiece;
    const size_t n = std::min(x.size() - piece * kPiece, kPiece);
    uint32_t odd = 0;
    for (size_t k = 0; k < n; ++k) {
      const uint32_t bits = std::bit_cast<uint32_t>(from[k]), sign = bits & 0x80000000u;
      const float size = log_of_one_more(std::bit_cast<float>(bits ^ sign));
      to[k] = std::bit_cast<float>(std::bit_cast<uint32_t>(size) | sign);
      odd |= static_cast<uint32_t>((bits ^ sign) >= 0x7F800000u);
    }
    if (odd) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load(std::memory_order_relaxed);
}

}  // namespace cb
