#include "core/publish/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace cb {

namespace {

// Floats in order as integers in order: -NaN < -inf < … < -0 < 0 < … < inf < NaN. Its own inverse.
int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

}  // namespace

Range range_of(const float* weights, size_t n) {
  if (n == 0) return {};
  int32_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
  for (size_t i = 0; i < n; ++i) {
    const int32_t v = ordered(std::bit_cast<int32_t>(weights[i]));
    low = std::min(low, v);
    high = std::max(high, v);
  }
  Range out;
  out.low = std::bit_cast<float>(ordered(low));
  out.high = std::bit_cast<float>(ordered(high));
  out.finite = std::isfinite(out.low) && std::isfinite(out.high);
  return out;
}

void quantize(const float* weights, size_t n, float bucket, int32_t first, uint16_t* codes) {
  // Added to a float within 2^22 it leaves the nearest whole number in the low bits. Beyond, the bits still grow with
  // the float: clamping integers is enough, and comparing floats would keep the loop scalar.
  constexpr float kRound = 12582912.0f;
  for (size_t i = 0; i < n; ++i) {
    const int32_t bits = std::max(std::bit_cast<int32_t>(weights[i] / bucket + kRound), 0);
    const int32_t code = bits - std::bit_cast<int32_t>(kRound) - first;
    codes[i] = static_cast<uint16_t>(std::min(std::max(code, 0), 65535));
  }
}

void dequantize(const uint16_t* codes, size_t n, float bucket, int32_t first, float* weights) {
  for (size_t i = 0; i < n; ++i) weights[i] = static_cast<float>(codes[i] + first) * bucket;
}

}  // namespace cb
