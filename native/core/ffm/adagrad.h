// One step of Adagrad on one float: first-order weights and the bias. Nothing in it is fused, because x86 without AVX2
// would call a function for that.
#pragma once
#include <cstdint>

#define CB_LANES ffm_scalar
#include "core/ffm/inverse_power.h"
#include "core/ffm/kernels.h"

namespace cb {

// a^-power_t, up to the factor that AdagradRates puts into the rate.
inline float inverse_power(float a, float power_t) {
  using One = ffm_scalar::InversePower<float, int32_t>;
  if (power_t == 0.5f) {
    const float y = One::guess(a);
    return y * (ffm_scalar::kRootStart - (a * y) * y);
  }
  return One::power(
      a, -power_t, [](int32_t i) { return static_cast<float>(i); }, [](float f) { return static_cast<int32_t>(f); });
}

inline void adagrad_step(float& w, float& a, float g, AdagradRates rates) {
  a += g * g;
  w -= (g * inverse_power(a, rates.power_t)) * rates.rate;
}

}  // namespace cb
