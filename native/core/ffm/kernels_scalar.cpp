// The twin: plain loops in the order that kernels.h promises.
#include <cmath>

#include "core/ffm/adagrad.h"

namespace cb {

AdagradRates::AdagradRates(float given, float power)
    : rate(power == 0.5f ? given * ffm_scalar::kRootScale : given), power_t(power) {}

namespace {

float tree(const float (&lane)[kLanes]) {
  float s[kLanes];
  for (size_t l = 0; l < kLanes; ++l) s[l] = lane[l];
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t l = 0; l < half; ++l) s[l] = s[l] + s[l + half];
  return s[0];
}

float sum(const float* a, size_t n) {
  float lane[kLanes];
  for (size_t l = 0; l < kLanes; ++l) lane[l] = a[l];
  for (size_t k = kLanes; k < n; ++k) lane[k % kLanes] += a[k];
  return tree(lane);
}

float dot(const float* a, const float* b, size_t n) {
  float lane[kLanes];
  for (size_t l = 0; l < kLanes; ++l) lane[l] = a[l] * b[l];
  for (size_t k = kLanes; k < n; ++k) lane[k % kLanes] = std::fma(a[k], b[k], lane[k % kLanes]);
  return tree(lane);
}

void matmul(const float* rows, size_t count, size_t n, const float* x, size_t step, size_t batch, float* y,
            size_t y_step) {
  for (size_t b = 0; b < batch; ++b)
    for (size_t j = 0; j < count; ++j) y[b * y_step + j] = dot(rows + j * n, x + b * step, n);
}

void pair_dots(const float* a, const float* const* rows, size_t at, size_t chunks, size_t count, float* out) {
  for (size_t p = 0; p < count; ++p) {
    const float* b = rows[p] + at;
    for (size_t c = 0; c < chunks; ++c, a += kChunk, b += kChunk) {
      const float s = (a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3]);
      out[p] = c == 0 ? s : out[p] + s;
    }
  }
}

void add_scaled(float* s, const float* w, float x, size_t n) {
  for (size_t k = 0; k < n; ++k) s[k] += w[k] * x;
}

// As adagrad.h has it, but fused.
void fused_step(float& w, float& a, float g, AdagradRates rates) {
  a = std::fma(g, g, a);
  float inverse = 0.0f;
  if (rates.power_t == 0.5f) {
    const float y = ffm_scalar::InversePower<float, int32_t>::guess(a);
    inverse = y * std::fma(-(a * y), y, ffm_scalar::kRootStart);
  } else {
    inverse = inverse_power(a, rates.power_t);
  }
  w = std::fma(-(g * inverse), rates.rate, w);
}

void ffm_step(float* w, float* a, const float* t, const float* d, float x, size_t n, AdagradRates rates) {
  for (size_t k = 0; k < n; ++k) fused_step(w[k], a[k], t[k] * (d[k / kChunk] * x), rates);
}

void neuron_step(float* w, float* a, const float* x, float* dx, float delta, size_t n, AdagradRates rates) {
  for (size_t k = 0; k < n; ++k) {
    dx[k] = std::fma(w[k], delta, dx[k]);
    fused_step(w[k], a[k], x[k] * delta, rates);
  }
}

float norm(const float* x, float* y, size_t used, size_t n) {
  const float count = static_cast<float>(used);
  const float mean = sum(x, n) / count;
  for (size_t k = 0; k < n; ++k) y[k] = k < used ? x[k] - mean : 0.0f;
  const float inverse = 1.0f / std::sqrt(dot(y, y, n) / count + 1e-5f);
  for (size_t k = 0; k < n; ++k) y[k] *= inverse;
  return inverse;
}

void norm_back(const float* y, float* dy, float inverse, size_t used, size_t n) {
  const float count = static_cast<float>(used);
  const float mean = sum(dy, n) / count, along = dot(dy, y, n) / count;
  for (size_t k = 0; k < n; ++k) dy[k] = k < used ? ((dy[k] - mean) - y[k] * along) * inverse : 0.0f;
}

}  // namespace

extern const FfmKernels kScalarKernels;
const FfmKernels kScalarKernels = {"scalar",   sum,      dot,         matmul, pair_dots,
                                   add_scaled, ffm_step, neuron_step, norm,   norm_back};

}  // namespace cb
