// The kernels over lanes.h; included by kernels_neon.cpp, kernels_avx2.cpp and kernels_avx512.cpp.
#pragma once
#include "core/ffm/kernels.h"
#include "core/ffm/lanes.h"

namespace CB_LANES {

using cb::AdagradRates;

CB_INLINE F16 running_sum(const float* a, size_t n) {
  F16 s = load(a);
  for (size_t k = 16; k < n; k += 16) s = s + load(a + k);
  return s;
}

static float sum(const float* a, size_t n) { return sum_of(running_sum(a, n)); }

CB_INLINE F16 running_dot(const float* a, const float* b, size_t n) {
  F16 s = load(a) * load(b);
  for (size_t k = 16; k < n; k += 16) s = fused(load(a + k), load(b + k), s);
  return s;
}

static float dot(const float* a, const float* b, size_t n) { return sum_of(running_dot(a, b, n)); }

static void times_one(const float* rows, size_t count, size_t n, const float* x, float* y) {
  size_t j = 0;
  for (; j + 4 <= count; j += 4) {  // four rows read x once
    const float *r0 = rows + j * n, *r1 = r0 + n, *r2 = r1 + n, *r3 = r2 + n;
    F16 v = load(x);
    F16 s0 = load(r0) * v, s1 = load(r1) * v, s2 = load(r2) * v, s3 = load(r3) * v;
    for (size_t k = 16; k < n; k += 16) {
      v = load(x + k);
      s0 = fused(load(r0 + k), v, s0);
      s1 = fused(load(r1 + k), v, s1);
      s2 = fused(load(r2 + k), v, s2);
      s3 = fused(load(r3 + k), v, s3);
    }
    y[j] = sum_of(s0);
    y[j + 1] = sum_of(s1);
    y[j + 2] = sum_of(s2);
    y[j + 3] = sum_of(s3);
  }
  for (; j < count; ++j) y[j] = dot(rows + j * n, x, n);
}

// Two rows and two x: half the loads of each.
CB_INLINE void two_by_two(const float* r0, const float* r1, const float* x0, const float* x1, size_t n, float* y0,
                          float* y1) {
  F16 v = load(x0), u = load(x1), r = load(r0), q = load(r1);
  F16 a = r * v, b = r * u, c = q * v, d = q * u;
  for (size_t k = 16; k < n; k += 16) {
    v = load(x0 + k);
    u = load(x1 + k);
    r = load(r0 + k);
    a = fused(r, v, a);
    b = fused(r, u, b);
    q = load(r1 + k);
    c = fused(q, v, c);
    d = fused(q, u, d);
  }
  y0[0] = sum_of(a);
  y0[1] = sum_of(c);
  y1[0] = sum_of(b);
  y1[1] = sum_of(d);
}

static void matmul(const float* rows, size_t count, size_t n, const float* x, size_t step, size_t batch, float* y,
                   size_t y_step) {
  const size_t twos = batch / 2 * 2;
  if (twos > 0) {
    size_t j = 0;
    for (; j + 2 <= count; j += 2)
      for (size_t b = 0; b < twos; b += 2) {
        const float* at = x + b * step;
        float* to = y + b * y_step + j;
        two_by_two(rows + j * n, rows + (j + 1) * n, at, at + step, n, to, to + y_step);
      }
    for (; j < count; ++j)
      for (size_t b = 0; b < twos; ++b) y[b * y_step + j] = dot(rows + j * n, x + b * step, n);
  }
  if (twos < batch) times_one(rows, count, n, x + twos * step, y + twos * y_step);
}

static void pair_dots(const float* a, const float* const* rows, size_t at, size_t chunks, size_t count, float* out) {
  for (size_t p = 0; p < count; p += 4) {
    V4 s;
    if (chunks == 1) {
      s = chunk_sums(load(a + 4 * p) * load_chunks(rows[p] + at, rows[p + 1] + at, rows[p + 2] + at, rows[p + 3] + at));
    } else {
      const float *a0 = a + 4 * chunks * p, *a1 = a0 + 4 * chunks, *a2 = a1 + 4 * chunks, *a3 = a2 + 4 * chunks;
      const float *b0 = rows[p] + at, *b1 = rows[p + 1] + at, *b2 = rows[p + 2] + at, *b3 = rows[p + 3] + at;
      s = chunk_sums(load_chunks(a0, a1, a2, a3) * load_chunks(b0, b1, b2, b3));
      for (size_t c = 4; c < 4 * chunks; c += 4)
        s = s + chunk_sums(load_chunks(a0 + c, a1 + c, a2 + c, a3 + c) * load_chunks(b0 + c, b1 + c, b2 + c, b3 + c));
    }
    __builtin_memcpy(out + p, &s, sizeof s);
  }
}

static void add_scaled(float* s, const float* w, float x, size_t n) {
  for (size_t k = 0; k < n; k += 16) store(s + k, load(s + k) + load(w + k) * x);
}

// The step of sixteen weights, which the caller has loaded.
template <class Inverse>
CB_INLINE void adagrad(float* w, float* a, F16 weights, F16 g, float rate, Inverse inverse) {
  const F16 squares = fused(g, g, load(a));
  store(a, squares);
  store(w, fused_minus(g * inverse(squares), splat(rate), weights));
}

template <class Inverse>
CB_INLINE void ffm_row(float* w, float* a, const float* t, const float* d, float x, size_t n, float rate, Inverse f) {
  for (size_t k = 0; k < n; k += 16)
    adagrad(w + k, a + k, load(w + k), times_chunks(load(t + k), d + k / 4, x), rate, f);
}

static void ffm_step(float* w, float* a, const float* t, const float* d, float x, size_t n, AdagradRates rates) {
  if (rates.power_t == 0.5f)
    ffm_row(w, a, t, d, x, n, rates.rate, Root{});
  else
    ffm_row(w, a, t, d, x, n, rates.rate, Power{-rates.power_t});
}

template <class Inverse>
CB_INLINE void neuron(float* w, float* a, const float* x, float* dx, float delta, size_t n, float rate, Inverse f) {
  for (size_t k = 0; k < n; k += 16) {
    const F16 weights = load(w + k);
    store(dx + k, fused(weights, splat(delta), load(dx + k)));
    adagrad(w + k, a + k, weights, load(x + k) * delta, rate, f);
  }
}

static void neuron_step(float* w, float* a, const float* x, float* dx, float delta, size_t n, AdagradRates rates) {
  if (rates.power_t == 0.5f)
    neuron(w, a, x, dx, delta, n, rates.rate, Root{});
  else
    neuron(w, a, x, dx, delta, n, rates.rate, Power{-rates.power_t});
}

static float norm(const float* x, float* y, size_t used, size_t n) {
  const float mean = sum(x, n) / static_cast<float>(used);
  for (size_t k = 0; k < n; k += 16) store(y + k, load(x + k) - mean);
  for (size_t k = used; k < n; ++k) y[k] = 0.0f;
  const float variance = dot(y, y, n) / static_cast<float>(used);
  const float inverse = 1.0f / __builtin_sqrtf(variance + 1e-5f);
  for (size_t k = 0; k < n; k += 16) store(y + k, load(y + k) * inverse);
  return inverse;
}

static void norm_back(const float* y, float* dy, float inverse, size_t used, size_t n) {
  const float mean = sum(dy, n) / static_cast<float>(used);
  const float along = dot(dy, y, n) / static_cast<float>(used);
  for (size_t k = 0; k < n; k += 16) store(dy + k, ((load(dy + k) - mean) - load(y + k) * along) * inverse);
  for (size_t k = used; k < n; ++k) dy[k] = 0.0f;
}

}  // namespace CB_LANES

#define CB_KERNEL_TABLE(isa) \
  {isa,                      \
   CB_LANES::sum,            \
   CB_LANES::dot,            \
   CB_LANES::matmul,         \
   CB_LANES::pair_dots,      \
   CB_LANES::add_scaled,     \
   CB_LANES::ffm_step,       \
   CB_LANES::neuron_step,    \
   CB_LANES::norm,           \
   CB_LANES::norm_back}
