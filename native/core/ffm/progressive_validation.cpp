#include "core/ffm/progressive_validation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace cb {

namespace {

// Sorts numbers by their bytes, the last byte first.
void sort_numbers(std::vector<uint32_t>& numbers) {
  std::vector<uint32_t> other(numbers.size());
  std::array<std::array<uint32_t, 256>, 4> counts{};
  for (uint32_t n : numbers)
    for (size_t byte = 0; byte < 4; ++byte) ++counts[byte][n >> 8 * byte & 255];
  for (size_t byte = 0; byte < 4; ++byte) {
    uint32_t at = 0;
    for (uint32_t& count : counts[byte]) at += std::exchange(count, at);
    for (uint32_t n : numbers) other[counts[byte][n >> 8 * byte & 255]++] = n;
    numbers.swap(other);
  }
}

}  // namespace

ValidationSums validation_sums(const float* labels, const float* predictions, size_t count, double clip) {
  ValidationSums out;
  for (size_t e = 0; e < count; ++e) {
    const double p = std::clamp(static_cast<double>(predictions[e]), clip, 1.0 - clip);
    out.loss -= std::log(labels[e] > 0.5f ? p : 1.0 - p);
    out.predicted += p;
  }
  return out;
}

// The bits of floats from 0 to 1 are in the order of the floats and leave one bit for the label.
double auc_of(const float* labels, const float* predictions, size_t count) {
  std::vector<uint32_t> packed(count);
  for (size_t e = 0; e < count; ++e)
    packed[e] = std::bit_cast<uint32_t>(predictions[e] + 0.0f) << 1 | static_cast<uint32_t>(labels[e] > 0.5f);
  sort_numbers(packed);
  double clicks = 0.0, others = 0.0, twice = 0.0;  // twice the pairs in order
  for (size_t begin = 0, end; begin < count; begin = end) {
    size_t here = 0;
    for (end = begin; end < count && packed[end] >> 1 == packed[begin] >> 1; ++end) here += packed[end] & 1;
    const double tied = static_cast<double>(end - begin - here);
    twice += static_cast<double>(here) * (2.0 * others + tied);
    clicks += static_cast<double>(here);
    others += tied;
  }
  return clicks * others > 0.0 ? twice / 2.0 / (clicks * others) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace cb
