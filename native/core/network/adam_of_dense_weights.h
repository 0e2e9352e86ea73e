// A step of Adam for the dense weights of a model, in plain float32 operations without contraction: the same bits on
// every CPU and for any number of threads. torch's own kernels use fused multiply-add where the CPU has it, so the two
// differ by rounding.
//
//   g = gradient + l2·w         m = m·beta1 + g·(1 − beta1)         v = v·beta2 + g²·(1 − beta2)
//   w −= lr / (1 − beta1^t) · m / (√v / √(1 − beta2^t) + eps)       t: the number of this step
#pragma once
#include <cstddef>
#include <span>

namespace cb {

struct AdamWeights {
  size_t count = 0;
  float* weight = nullptr;
  const float* gradient = nullptr;
  float *mean = nullptr, *square = nullptr;  // m and v
  float* steps = nullptr;                    // [1]: steps so far; counted up
};

struct AdamSettings {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, l2 = 0;
};

void adam_step(std::span<const AdamWeights> all, const AdamSettings& settings, size_t threads);

}  // namespace cb
