// How a row of a table begins and how one float of it moves: what the table in memory (core/embed/row_optimizers.h) and
// the table on a GPU (cuda/embedding_table.h) share, so that both give the same bits.
//
//   kind              parameters, in this order        states of a part of n floats
//   SGD               lr l2                            -
//   Adagrad           lr eps initial l2                n: sums of squared gradients
//   RowwiseAdagrad    lr eps initial l2                1: sum of mean squared gradients
//   Adam              lr beta1 beta2 eps l2            2n + 2: means, means of squares, beta1^t, beta2^t
//   FTRL              alpha beta l1 l2                 2n: z, sums of squared gradients
//   DenseAdam         lr beta1 beta2 eps l2            2n: means, means of squares; a clock at the end of the row
//   DenseAdamW        lr beta1 beta2 eps weight_decay  2n, as DenseAdam
//
// The two dense kinds move all rows of a table in memory (core/embed/push_every_row.cpp); no other table has them.
//
// Only + - * / and sqrt, in a fixed order and without contraction: every machine, every GPU and the NumPy twins in
// tests/twins/optimizers.py give the same bits. Adam counts the steps of a row, not of the table, as running products.
// FTRL (proximal, McMahan et al. 2013) starts its z where the closed form gives the initial weight, so that vectors do
// not fall to zero at their first step.
#pragma once
#include "operators/hash.h"

namespace cb {

// The numbers are part of the file format.
enum class OptimizerKind : uint32_t {
  SGD = 1,
  Adagrad = 2,
  RowwiseAdagrad = 3,
  Adam = 4,
  FTRL = 5,
  DenseAdam = 6,
  DenseAdamW = 7
};

#if defined(__CUDACC__)
CB_BODY float root_of(float x) { return sqrtf(x); }
CB_BODY float size_of(float x) { return fabsf(x); }
#else
CB_BODY float root_of(float x) { return __builtin_sqrtf(x); }
CB_BODY float size_of(float x) { return __builtin_fabsf(x); }
#endif

// ---- new rows -------------------------------------------------------------------------------------------------------

constexpr uint64_t kRowGolden = 0x9e3779b97f4a7c15ull;

CB_BODY uint64_t seed_mix_of(uint64_t seed) { return finish(seed + kRowGolden); }
CB_BODY uint64_t row_mix_of(int64_t key, uint64_t seed_mix) { return finish((uint64_t)key ^ seed_mix); }

// Columns 2k and 2k + 1 of a new vector: 24 bits each of one mix, a float's whole mantissa, so the conversion is exact.
// `unit`: uniform in ±init·√3, in steps of this.
struct InitialPair {
  float even, odd;
};

CB_BODY InitialPair initial_pair(uint64_t row_mix, uint64_t k, float unit) {
  const uint64_t x = finish(row_mix + (k + 1) * kRowGolden);
  return {(float)((int32_t)(x >> 40) - 8388608) * unit, (float)((int32_t)((uint32_t)x >> 8) - 8388608) * unit};
}

// Where FTRL's z begins for a weight that is already there.
CB_BODY float initial_z(float w, float alpha, float beta, float l1, float l2) {
  const float slope = beta / alpha + l2;
  return w == 0.0f ? 0.0f : -(w * slope) - (w > 0.0f ? l1 : -l1);
}

// ---- one float
// --------------------------------------------------------------------------------------------------------

CB_BODY void sgd_step(float& w, float g, float lr, float l2) { w -= lr * (g + l2 * w); }

CB_BODY void adagrad_step(float& w, float& s, float g, float lr, float eps, float l2) {
  const float d = g + l2 * w;
  s += d * d;
  w -= (lr * d) / (root_of(s) + eps);
}

// Squares are summed in four lanes, column k in lane k mod 4: an order that vectors, scalars and GPU lanes share.
CB_BODY float rowwise_square(float w, float g, float l2) {
  const float d = g + l2 * w;
  return d * d;
}
CB_BODY float rowwise_mean(float lane0, float lane1, float lane2, float lane3, float n) {
  return ((lane0 + lane1) + (lane2 + lane3)) / n;
}
CB_BODY void rowwise_step(float& w, float g, float root, float lr, float l2) {
  const float d = g + l2 * w;
  w -= (lr * d) / root;
}

// What all floats of a part share in one step, from the products as they stand after it.
struct AdamRates {
  float rate, spread;
};
CB_BODY AdamRates adam_rates(float product1, float product2, float lr) {
  return {lr / (1.0f - product1), 1.0f / (1.0f - product2)};
}
CB_BODY void adam_step(float& w, float& m, float& v, float g, AdamRates r, float beta1, float beta2, float eps,
                       float l2) {
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  const float d = g + l2 * w;
  m = beta1 * m + rest1 * d;
  v = beta2 * v + rest2 * (d * d);
  w -= (r.rate * m) / (root_of(v * r.spread) + eps);
}

CB_BODY void ftrl_step(float& w, float& z, float& squares, float g, float alpha, float beta, float l1, float l2) {
  const float grown = squares + g * g;
  const float root = root_of(grown);
  const float sigma = (root - root_of(squares)) / alpha;
  const float next = z + (g - sigma * w);
  const float beyond = next > 0.0f ? next - l1 : next + l1;
  const float moved = -(beyond / ((beta + root) / alpha + l2));
  z = next;
  squares = grown;
  w = size_of(next) <= l1 ? 0.0f : moved;
}

}  // namespace cb
