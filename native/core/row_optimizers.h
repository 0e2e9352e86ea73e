// The optimizers of a table: one step on one part of a row (its first-order weight, or its vector).
//
//   kind              parameters, in this order        states of a part of n floats
//   SGD               lr l2                            -
//   Adagrad           lr eps initial l2                n: sums of squared gradients
//   RowwiseAdagrad    lr eps initial l2                1: sum of mean squared gradients
//   Adam              lr beta1 beta2 eps l2            2n + 2: means, means of squares, beta1^t, beta2^t
//   FTRL              alpha beta l1 l2                 2n: z, sums of squared gradients
//
// Only + - * / and sqrt, in a fixed order and without contraction: every machine and the NumPy twins in
// tests/twins/optimizers.py give the same bits. The loops become vectors only under -fno-math-errno: a sqrt that may
// set errno stays scalar, at twice the time of a push. Adam counts the steps of a row, not of the table, as running
// products. FTRL (proximal, McMahan et al. 2013) starts its z where the closed form gives the initial weight, so that
// vectors do not fall to zero at their first step.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace cb {

enum class OptimizerKind : uint32_t { SGD = 1, Adagrad = 2, RowwiseAdagrad = 3, Adam = 4, FTRL = 5 };
inline constexpr uint32_t kMostOptimizerKind = 5;
inline constexpr size_t kOptimizerParameters = 5;

// What a user chose; unused parameters are 0.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::SGD;
  std::array<double, kOptimizerParameters> parameters{};
  bool operator==(const OptimizerSpec&) const = default;
};

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
    const float slope = c.p[1] / c.p[0] + c.p[3];
    for (size_t k = 0; k < n; ++k) s[k] = w[k] == 0.0f ? 0.0f : -(w[k] * slope) - (w[k] > 0.0f ? c.p[2] : -c.p[2]);
  }
}

// N: the length of the part where the compiler knows it, 0 where it is `length`.
using Step = void (*)(const StepConstants&, float* w, float* s, const float* g, size_t length);

template <size_t N>
void step_sgd(const StepConstants& c, float* __restrict w, float*, const float* __restrict g, size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], l2 = c.p[1];
  for (size_t k = 0; k < n; ++k) w[k] -= lr * (g[k] + l2 * w[k]);
}

template <size_t N>
void step_adagrad(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
                  size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], eps = c.p[1], l2 = c.p[3];
  for (size_t k = 0; k < n; ++k) {
    float d = g[k] + l2 * w[k];
    s[k] += d * d;
    w[k] -= (lr * d) / (std::sqrt(s[k]) + eps);
  }
}

// Squares are summed in four lanes, column k in lane k mod 4: an order that vectors and scalars share.
template <size_t N>
void step_rowwise_adagrad(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
                          size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], eps = c.p[1], l2 = c.p[3];
  float lane[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (size_t k = 0; k < n; ++k) {
    float d = g[k] + l2 * w[k];
    lane[k % 4] += d * d;
  }
  s[0] += ((lane[0] + lane[1]) + (lane[2] + lane[3])) / static_cast<float>(n);
  const float root = std::sqrt(s[0]) + eps;
  for (size_t k = 0; k < n; ++k) {
    float d = g[k] + l2 * w[k];
    w[k] -= (lr * d) / root;
  }
}

template <size_t N>
void step_adam(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
               size_t length) {
  const size_t n = N ? N : length;
  const float lr = c.p[0], beta1 = c.p[1], beta2 = c.p[2], eps = c.p[3], l2 = c.p[4];
  float *m = s, *v = s + n;
  const float product1 = s[2 * n] *= beta1, product2 = s[2 * n + 1] *= beta2;
  const float rate = lr / (1.0f - product1), spread = 1.0f / (1.0f - product2);
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  for (size_t k = 0; k < n; ++k) {
    float d = g[k] + l2 * w[k];
    m[k] = beta1 * m[k] + rest1 * d;
    v[k] = beta2 * v[k] + rest2 * (d * d);
    w[k] -= (rate * m[k]) / (std::sqrt(v[k] * spread) + eps);
  }
}

template <size_t N>
void step_ftrl(const StepConstants& c, float* __restrict w, float* __restrict s, const float* __restrict g,
               size_t length) {
  const size_t n = N ? N : length;
  const float alpha = c.p[0], beta = c.p[1], l1 = c.p[2], l2 = c.p[3];
  float *z = s, *squares = s + n;
  for (size_t k = 0; k < n; ++k) {
    float grown = squares[k] + g[k] * g[k];
    float root = std::sqrt(grown);
    float sigma = (root - std::sqrt(squares[k])) / alpha;
    float next = z[k] + (g[k] - sigma * w[k]);
    float beyond = next > 0.0f ? next - l1 : next + l1;
    float moved = -(beyond / ((beta + root) / alpha + l2));
    z[k] = next;
    squares[k] = grown;
    w[k] = std::fabs(next) <= l1 ? 0.0f : moved;
  }
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
