// Applies one optimizer step to one part of a row: its first-order weight, or its vector.
//
// operators/table_row_steps.h has the kinds, their parameters and states, and what a step does to one float. Here are
// the loops. They become vectors only under -fno-math-errno: a sqrt that may set errno stays scalar, at twice the time
// of a push.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "operators/table_row_steps.h"

namespace cb {

inline constexpr uint32_t kMostOptimizerKind = 7;
inline constexpr size_t kOptimizerParameters = 5;

// What a user chose; unused parameters are 0.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::SGD;
  std::array<double, kOptimizerParameters> parameters{};
  bool operator==(const OptimizerSpec&) const = default;
};

inline bool is_dense(OptimizerKind kind) {
  return kind == OptimizerKind::DenseAdam || kind == OptimizerKind::DenseAdamW;
}

// The same as floats, its rate scaled: what a step reads.
struct StepConstants {
  float p[kOptimizerParameters];
};

inline StepConstants constants_of(const OptimizerSpec& spec, double factor) {
  StepConstants out{};
  for (size_t k = 0; k < kOptimizerParameters; ++k)
    out.p[k] = static_cast<float>(k == 0 ? spec.parameters[k] * factor : spec.parameters[k]);
  return out;
}

inline size_t states_of(OptimizerKind kind, size_t n) {
  if (n == 0) return 0;
  switch (kind) {
    case OptimizerKind::SGD:
      return 0;
    case OptimizerKind::Adagrad:
      return n;
    case OptimizerKind::RowwiseAdagrad:
      return 1;
    case OptimizerKind::Adam:
      return 2 * n + 2;
    case OptimizerKind::FTRL:
    case OptimizerKind::DenseAdam:
    case OptimizerKind::DenseAdamW:
      return 2 * n;
  }
  return 0;
}

// The states of a new part whose weights are already there.
inline void begin_states(const OptimizerSpec& spec, const float* w, float* s, size_t n) {
  const StepConstants c = constants_of(spec, 1.0);
  const size_t states = states_of(spec.kind, n);
  for (size_t k = 0; k < states; ++k) s[k] = 0.0f;
  if (n == 0) return;
  if (spec.kind == OptimizerKind::Adagrad || spec.kind == OptimizerKind::RowwiseAdagrad) {
    for (size_t k = 0; k < states; ++k) s[k] = c.p[2];
  } else if (spec.kind == OptimizerKind::Adam) {
    s[2 * n] = s[2 * n + 1] = 1.0f;
  } else if (spec.kind == OptimizerKind::FTRL) {
    for (size_t k = 0; k < n; ++k) s[k] = initial_z(w[k], c.p[0], c.p[1], c.p[2], c.p[3]);
  }
}

// N: the length of the part where the compiler knows it, 0 where it is `length`.
using Step = void (*)(const StepConstants&, float* w, float* s, const float* g, size_t length);

template <size_t N>
void step_sgd(const StepConstants& c, float* __restrict w, float*, const float* __restrict g, size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], l2 = c.p[1];
  for (size_t k = 0; k < n; ++k) sgd_step(w[k], g[k], lr, l2);
}

template <size_t N>
void step_adagrad(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
                  size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], eps = c.p[1], l2 = c.p[3];
  for (size_t k = 0; k < n; ++k) adagrad_step(w[k], s[k], g[k], lr, eps, l2);
}

template <size_t N>
void step_rowwise_adagrad(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
                          size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], eps = c.p[1], l2 = c.p[3];
  float lane[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (size_t k = 0; k < n; ++k) lane[k % 4] += rowwise_square(w[k], g[k], l2);
  s[0] += rowwise_mean(lane[0], lane[1], lane[2], lane[3], static_cast<float>(n));
  const float root = root_of(s[0]) + eps;
  for (size_t k = 0; k < n; ++k) rowwise_step(w[k], g[k], root, lr, l2);
}

template <size_t N>
void step_adam(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
               size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], beta1 = c.p[1], beta2 = c.p[2], eps = c.p[3], l2 = c.p[4];
  float *m = s, *v = s + n;
  const float product1 = s[2 * n] *= beta1, product2 = s[2 * n + 1] *= beta2;
  const AdamRates rates = adam_rates(product1, product2, lr);
  for (size_t k = 0; k < n; ++k) adam_step(w[k], m[k], v[k], g[k], rates, beta1, beta2, eps, l2);
}

template <size_t N>
void step_ftrl(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
               size_t length) {
  const size_t n = N ? N : length;
  const float alpha = c.p[0], beta = c.p[1], l1 = c.p[2], l2 = c.p[3];
  float *z = s, *squares = s + n;
  for (size_t k = 0; k < n; ++k) ftrl_step(w[k], z[k], squares[k], g[k], alpha, beta, l1, l2);
}

template <size_t N>
Step step_of_length(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::SGD:
      return step_sgd<N>;
    case OptimizerKind::Adagrad:
      return step_adagrad<N>;
    case OptimizerKind::RowwiseAdagrad:
      return step_rowwise_adagrad<N>;
    case OptimizerKind::Adam:
      return step_adam<N>;
    case OptimizerKind::FTRL:
      return step_ftrl<N>;
    case OptimizerKind::DenseAdam:
    case OptimizerKind::DenseAdamW:
      break;  // these move all rows of a table, not one
  }
  return nullptr;
}

// The usual lengths are known to the compiler: no tail loops.
inline Step step_of(OptimizerKind kind, size_t n) {
  if (n == 1) return step_of_length<1>(kind);
  if (n == 8) return step_of_length<8>(kind);
  if (n == 16) return step_of_length<16>(kind);
  if (n == 32) return step_of_length<32>(kind);
  return step_of_length<0>(kind);
}

}  // namespace cb
