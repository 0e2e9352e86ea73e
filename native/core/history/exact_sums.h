// Sums float64 values without losing digits: running totals as two float64, and an exact sum of a few values.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>

namespace cb {

// The sum of two float64 as their rounded sum and what the rounding lost.
struct TwoFloats {
  double high = 0, low = 0;

  static TwoFloats of(double a, double b) {
    const double sum = a + b, part = sum - a;
    return {sum, (a - (sum - part)) + (b - part)};
  }

  // Adds a value. `lost`, if given, grows by at least the part of the new sum that two float64 cannot hold; it is NaN
  // after an overflow.
  TwoFloats plus(double value, double* lost = nullptr) const {
    const TwoFloats sum = of(high, value), rest = of(sum.low, low), total = of(sum.high, rest.high);
    if (lost && rest.low != 0) *lost = (*lost + std::abs(rest.low)) * (1 + 0x1p-50);
    if (lost && !std::isfinite(total.low)) *lost = total.low - total.low;
    return total;
  }
};

// The sum of float64 values, rounded once: the order of the values does not matter. It is not finite if a partial sum
// exceeds the largest float64. Kept as parts of which no two overlap, smallest first (Shewchuk 1997); the range of
// float64 has room for 40 of them.
class ExactSum {
 public:
  void add(double value) {
    if (!std::isfinite(value)) beyond_ += value;
    size_t kept = 0;
    for (size_t k = 0; k < count_; ++k) {
      const TwoFloats sum = TwoFloats::of(value, parts_[k]);
      if (!std::isfinite(sum.high)) beyond_ += sum.high;
      if (sum.low != 0) parts_[kept++] = sum.low;
      value = sum.high;
    }
    parts_[kept] = value;
    count_ = kept + 1;
    if (beyond_ != 0) count_ = 0;
  }

  double rounded() const {
    if (beyond_ != 0) return beyond_;
    if (!count_) return 0;
    size_t k = count_ - 1;
    double high = parts_[k], low = 0;
    while (k > 0 && low == 0) {
      const TwoFloats sum = TwoFloats::of(high, parts_[--k]);
      high = sum.high;
      low = sum.low;
    }
    // Exactly half of the last digit was lost, and the parts below decide in which direction to round.
    if (k > 0 && ((low < 0 && parts_[k - 1] < 0) || (low > 0 && parts_[k - 1] > 0))) {
      const double twice = low * 2, other = high + twice;
      if (twice == other - high) return other;
    }
    return high;
  }

 private:
  std::array<double, 48> parts_;
  size_t count_ = 0;
  double beyond_ = 0;  // 0, or infinite or no number
};

}  // namespace cb
