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

float sum(const float* lanes, const float* a, size_t n) {
  float lane[kLanes];
  for (size_t l = 0; l < kLanes; ++l) lane[l] = lanes ? lanes[l] + a[l] : a[l];
  for (size_t k = kLanes; k < n; ++k) lane[k % kLanes] += a[k];
  return tree(lane);
}

float dot(const float* a, const float* b, size_t n) {
  float lane[kLanes];
  for (size_t l = 0; l < kLanes; ++l) lane[l] = a[l] * b[l];
  for (size_t k = kLanes; k < n; ++k) lane[k % kLanes] = std::fma(a[k], b[k], lane[k % kLanes]);
  return tree(lane);
}

void matmul(const float* rows, size_t count, size_t n, const float* x, float* y) {
  for (size_t j = 0; j < count; ++j) y[j] = dot(rows + j * n, x, n);
}

void from_inputs(const float* rows, size_t step, const uint32_t* inputs, const uint32_t* ends, const float* x, float*,
                 float* y) {
  for (size_t j = 0; j < step; ++j) {
    float lane[kLanes] = {};
    for (size_t l = 0, n = 0; l < kLanes; ++l)
      for (; n < ends[l]; ++n) lane[l] = std::fma(rows[inputs[n] * step + j], x[inputs[n]], lane[l]);
    const float sum = tree(lane);
    y[j] = sum > 0.0f ? sum : 0.0f;
  }
}

const float* turned(const float* w, size_t width, size_t n, size_t i) {
  return w + ((i % kLanes) * (n / kLanes) + i / kLanes) * width;
}

void across(const float* w, size_t width, const float* lanes, size_t from, size_t n, const float* x, size_t step,
            float* y, size_t y_step) {
  for (size_t b = 0; b < kAcross; ++b)
    for (size_t j = 0; j < width; ++j) {
      float lane[kLanes];
      for (size_t l = 0; l < kLanes; ++l)
        lane[l] = lanes ? lanes[l * width + j] : turned(w, width, n, l)[j] * x[b * step + l];
      for (size_t k = lanes ? from : kLanes; k < n; ++k)
        lane[k % kLanes] = std::fma(turned(w, width, n, k)[j], x[b * step + k], lane[k % kLanes]);
      const float sum = tree(lane);
      y[b * y_step + j] = sum > 0.0f ? sum : 0.0f;
    }
}

void across_lanes(const float* w, size_t width, size_t n, size_t upto, const float* x, float* lanes) {
  for (size_t j = 0; j < width; ++j)
    for (size_t k = 0; k < upto; ++k) {
      float& lane = lanes[k % kLanes * width + j];
      const float weight = turned(w, width, n, k)[j];
      lane = k < kLanes ? weight * x[k] : std::fma(weight, x[k], lane);
    }
}

void pairs(const FieldPairs& f) {
  const size_t latent = f.chunks * kChunk;
  float* out = f.out;
  for (size_t g = f.known; g < f.fields; ++g) {
    for (size_t h = 0; h < g; ++h) {
      const float* a = f.source[g] + h * latent;
      const float* b = h < f.known ? f.turned + (g - f.known) * f.step + h * latent : f.source[h] + g * latent;
      float sum = 0.0f;
      for (size_t c = 0; c < latent; c += kChunk) {
        const float s = (a[c] * b[c] + a[c + 1] * b[c + 1]) + (a[c + 2] * b[c + 2] + a[c + 3] * b[c + 3]);
        sum = c == 0 ? s : sum + s;
      }
      *out++ = sum;
    }
    *out++ = f.within[g];
    if (f.first_order) *out++ = f.first_order[g];
  }
}

void attend(const Attention& unit, const float* q, size_t q_step, size_t rows, float*, float* out) {
  for (size_t r = 0; r < rows; ++r, q += q_step, out += unit.step) {
    for (size_t d = 0; d < unit.step; ++d) out[d] = 0.0f;
    for (size_t i = 0; i < unit.items; ++i) {
      float lane[kLanes];
      for (size_t k = 0; k < unit.width; ++k) {
        float u = unit.fixed[i * unit.width + k];
        for (size_t d = 0; d < unit.dim; ++d) u = std::fma(unit.maps[(i * unit.dim + d) * unit.width + k], q[d], u);
        const float v = u > 0.0f ? unit.above[k] : unit.below[k];
        lane[k % kLanes] = k < kLanes ? u * v : std::fma(u, v, lane[k % kLanes]);
      }
      for (size_t half : {8, 4})
        for (size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
      const float score = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + unit.bias;
      for (size_t d = 0; d < unit.step; ++d) out[d] = std::fma(unit.vectors[i * unit.step + d], score, out[d]);
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

void add_rows(float* y, bool go_on, const float* rows, size_t step, const uint32_t* index, const float* times,
              size_t count, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    float s = go_on ? y[k] : 0.0f;
    for (size_t r = 0; r < count; ++r) s = std::fma(rows[index[r] * step + k], times[r], s);
    y[k] = s;
  }
}

void ffm_gradient(float* s, bool go_on, const float* t, const float* d, float x, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    const float g = t[k] * (d[k / kChunk] * x);
    s[k] = go_on ? s[k] + g : g;
  }
}

void sum_step(float* w, float* a, const float* const* parts, size_t count, size_t n, AdagradRates rates) {
  for (size_t k = 0; k < n; ++k) {
    float g = parts[0][k];
    for (size_t p = 1; p < count; ++p) g += parts[p][k];
    fused_step(w[k], a[k], g, rates);
  }
}

void neuron_step(float* w, float* a, const float* x, float* dx, float delta, size_t n, AdagradRates rates) {
  for (size_t k = 0; k < n; ++k) {
    dx[k] = std::fma(w[k], delta, dx[k]);
    fused_step(w[k], a[k], x[k] * delta, rates);
  }
}

float input_step(float* w, float* a, const float* delta, float x, size_t n, AdagradRates rates) {
  const float dx = dot(w, delta, n);
  for (size_t k = 0; k < n; ++k) fused_step(w[k], a[k], delta[k] * x, rates);
  return dx;
}

float norm(const float* x, float* y, size_t used, size_t n) {
  const float count = static_cast<float>(used);
  const float mean = sum(nullptr, x, n) / count;
  for (size_t k = 0; k < n; ++k) y[k] = k < used ? x[k] - mean : 0.0f;
  const float inverse = 1.0f / std::sqrt(dot(y, y, n) / count + 1e-5f);
  for (size_t k = 0; k < n; ++k) y[k] *= inverse;
  return inverse;
}

void norm_back(const float* y, float* dy, float inverse, size_t used, size_t n) {
  const float count = static_cast<float>(used);
  const float mean = sum(nullptr, dy, n) / count, along = dot(dy, y, n) / count;
  for (size_t k = 0; k < n; ++k) dy[k] = k < used ? ((dy[k] - mean) - y[k] * along) * inverse : 0.0f;
}

}  // namespace

extern const FfmKernels kScalarKernels;
const FfmKernels kScalarKernels = {"scalar",     sum,      dot,         matmul,     from_inputs, across,
                                   across_lanes, pairs,    attend,      add_scaled, add_rows,    ffm_gradient,
                                   sum_step,     ffm_step, neuron_step, input_step, norm,        norm_back};

}  // namespace cb
