// Computes a^-power_t exactly, for one float or for a register of floats, without estimating instructions.
//
// power_t = 0.5: the shifted exponent as a first guess y, and one step of Newton with tuned constants (Kadlec),
// y · (kRootStart - (a · y) · y); the factor kRootScale is left to the rate, and then the relative error is below 7e-4,
// which no rate notices. The step is left to the caller: kernels fuse its last subtraction. Otherwise
// 2^(-power_t · log2 a) with polynomials; relative error below 2e-5 for a in 1e-20 … 1e20 and power_t in 0 … 1. a must
// be a positive normal float.
//
// F and I are float and int32_t, or vectors of them (GCC's vector extension: the operators are the same).
#pragma once
#include <cstdint>

namespace CB_LANES {

constexpr float kRootStart = 2.38924456f, kRootScale = 0.703952253f;

template <class F, class I>
struct InversePower {
  static inline __attribute__((always_inline)) F bits_as_float(I i) {
    F f;
    __builtin_memcpy(&f, &i, sizeof f);
    return f;
  }
  static inline __attribute__((always_inline)) I bits_as_int(F f) {
    I i;
    __builtin_memcpy(&i, &f, sizeof i);
    return i;
  }

  static inline __attribute__((always_inline)) F guess(F a) {
    return bits_as_float(0x5F1FFFF9 - (bits_as_int(a) >> 1));
  }

  template <class ToFloat, class ToInt>
  static inline __attribute__((always_inline)) F power(F a, float minus_power, ToFloat to_float, ToInt to_int) {
    // a = 2^e · m with m in [sqrt ½, sqrt 2); log2 m by its odd series in (m - 1) / (m + 1), divided exactly.
    const I bits = bits_as_int(a);
    const I e = (bits - 0x3f3504f3) >> 23;
    const F m = bits_as_float(bits - (e << 23));
    const F t = (m - 1.0f) / (m + 1.0f);
    const F u = t * t;
    const F series = 2.88539008f + u * (0.961796694f + u * (0.577078016f + u * 0.412198583f));
    const F x = (to_float(e) + t * series) * minus_power;
    // 2^x = 2^n · 2^f with f in [-½, ½]: adding 1.5 · 2^23 rounds to a whole number.
    const F n = (x + 12582912.0f) - 12582912.0f;
    const F f = x - n;
    const F p =
        1.0f + f * (0.693147181f +
                    f * (0.240226507f +
                         f * (0.0555041087f + f * (0.00961812911f + f * (0.00133335581f + f * 0.000154035304f)))));
    return bits_as_float(bits_as_int(p) + (to_int(n) << 23));
  }
};

}  // namespace CB_LANES
