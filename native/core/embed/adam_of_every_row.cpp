#include "core/embed/adam_of_every_row.h"

#include <cmath>

namespace cb {

namespace {

// The loop, to be compiled once for every kind of CPU. Only std::fma fuses: the sources are built without contraction.
[[gnu::always_inline]] inline void move(const DenseAdam::Numbers& numbers, float* __restrict w, float* __restrict m,
                                        float* __restrict v, const float* __restrict g, size_t n) {
  const auto [l2, shrink, from_gradient, near, beta2, rest2, root, eps, rate] = numbers;
  for (size_t k = 0; k < n; ++k) {
    const float weight = w[k] * shrink;
    const float d = l2 != 0.0f ? __builtin_fmaf(l2, weight, g[k]) : g[k];
    const float mean = __builtin_fmaf(near, d - m[k], from_gradient ? d : m[k]);
    const float square = __builtin_fmaf(rest2 * d, d, v[k] * beta2);
    m[k] = mean;
    v[k] = square;
    w[k] = weight + (rate * mean) / (__builtin_sqrtf(square) / root + eps);
  }
}

#if defined(__x86_64__)
// Without these instructions a fused multiply-add would be a call of the C library for every float.
__attribute__((target("avx2,fma"))) void move_with_fma(const DenseAdam::Numbers& numbers, float* w, float* m, float* v,
                                                       const float* g, size_t n) {
  move(numbers, w, m, v, g, n);
}
#endif

}  // namespace

DenseAdam::DenseAdam(const OptimizerSpec& spec, double factor, uint64_t step) {
  const auto& [lr, beta1, beta2, eps, decay] = spec.parameters;
  const double rate = lr * factor, t = static_cast<double>(step);
  const bool decoupled = spec.kind == OptimizerKind::DenseAdamW;
  const float mean = static_cast<float>(1.0 - beta1);
  // torch computes these numbers as doubles, and rounds each of them once when a tensor meets it.
  numbers_.l2 = decoupled ? 0.0f : static_cast<float>(decay);
  numbers_.shrink = decoupled ? static_cast<float>(1.0 - rate * decay) : 1.0f;
  numbers_.from_gradient = !(mean < 0.5f);
  numbers_.near = numbers_.from_gradient ? mean - 1.0f : mean;
  numbers_.beta2 = static_cast<float>(beta2);
  numbers_.rest2 = static_cast<float>(1.0 - beta2);
  numbers_.root = static_cast<float>(std::pow(1.0 - std::pow(beta2, t), 0.5));
  numbers_.eps = static_cast<float>(eps);
  numbers_.rate = static_cast<float>(-(rate / (1.0 - std::pow(beta1, t))));
}

void DenseAdam::operator()(float* w, float* m, float* v, const float* g, size_t n) const {
#if defined(__x86_64__)
  static const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fused) return move_with_fma(numbers_, w, m, v, g, n);
#endif
  move(numbers_, w, m, v, g, n);
}

}  // namespace cb
