// The kernels over sixteen_floats.h; included by kernels_neon.cpp, kernels_avx2.cpp and kernels_avx512.cpp.
#pragma once
#include "core/ffm/kernels.h"
#include "core/ffm/sixteen_floats.h"

namespace CB_LANES {

using cb::AdagradRates;
using cb::Attention;
using cb::FieldPairs;

static float sum(const float* lanes, const float* a, size_t n) {
  F16 s = lanes ? load(lanes) + load(a) : load(a);
  for (size_t k = 16; k < n; k += 16) s = s + load(a + k);
  return sum_of(s);
}

CB_INLINE F16 running_dot(const float* a, const float* b, size_t n) {
  F16 s = load(a) * load(b);
  for (size_t k = 16; k < n; k += 16) s = fused(load(a + k), load(b + k), s);
  return s;
}

static float dot(const float* a, const float* b, size_t n) { return sum_of(running_dot(a, b, n)); }

static void matmul(const float* rows, size_t count, size_t n, const float* x, float* y) {
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

// Four rows, or fewer, onto a lane's sums, which begin with them or go on: the sums are stored once for four rows.
template <size_t kRows>
CB_INLINE void lane_rows(float* sums, bool go_on, const float* rows, size_t step, const uint32_t* inputs,
                         const float* x) {
  const float* row[kRows];
  float times[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    row[r] = rows + inputs[r] * step;
    times[r] = x[inputs[r]];
  }
  for (size_t k = 0; k < step; k += 16) {
    F16 s = go_on ? load(sums + k) : splat(0.0f);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) s = fused(load(row[r] + k), splat(times[r]), s);
    store(sums + k, s);
  }
}

// Sixteen neurons' sums of lanes l and l + 8.
CB_INLINE F16 two_lanes(const float* room, size_t step, size_t l) {
  return load(room + l * step) + load(room + (l + 8) * step);
}

static void from_inputs(const float* rows, size_t step, const uint32_t* inputs, const uint32_t* ends, const float* x,
                        float* room, float* y) {
  for (size_t l = 0, begin = 0; l < 16; begin = ends[l], ++l) {
    float* sums = room + l * step;
    size_t n = begin;
    for (; n + 4 <= ends[l]; n += 4) lane_rows<4>(sums, n > begin, rows, step, inputs + n, x);
    const size_t left = ends[l] - n;
    if (left == 3) lane_rows<3>(sums, n > begin, rows, step, inputs + n, x);
    if (left == 2) lane_rows<2>(sums, n > begin, rows, step, inputs + n, x);
    if (left == 1) lane_rows<1>(sums, n > begin, rows, step, inputs + n, x);
    if (ends[l] == begin) __builtin_memset(sums, 0, step * sizeof(float));
  }
  for (size_t k = 0; k < step; k += 16) {
    const float* r = room + k;
    const F16 even = (two_lanes(r, step, 0) + two_lanes(r, step, 4)) + (two_lanes(r, step, 2) + two_lanes(r, step, 6));
    const F16 odd = (two_lanes(r, step, 1) + two_lanes(r, step, 5)) + (two_lanes(r, step, 3) + two_lanes(r, step, 7));
    store(y + k, positive(even + odd));
  }
}

// kParts registers of neurons for four x. The products of lanes l and l + 8 are added up in registers, lane after lane:
// nothing is summed within a register, and a weight is loaded once for four products.
template <class V, size_t kParts>
CB_INLINE void some_across(const float* w, size_t width, const float* lanes, size_t from, size_t n, const float* x,
                           size_t step, float* y, size_t y_step) {
  constexpr size_t kPart = sizeof(V) / 4;
  V sums[8][4][kParts];
  const size_t begin = lanes ? from : 16, blocks = n / 16;
  for (size_t l = 0; l < 8; ++l) {
    V s[2][4][kParts];
    const float* at[2] = {w + l * blocks * width, w + (l + 8) * blocks * width};
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h)
#pragma GCC unroll 2
      for (size_t p = 0; p < kParts; ++p) {
        const V known = load_some<V>((lanes ? lanes + (l + 8 * h) * width : at[h]) + p * kPart);
#pragma GCC unroll 4
        for (size_t b = 0; b < 4; ++b) s[h][b][p] = lanes ? known : known * x[b * step + l + 8 * h];
      }
    at[0] += begin / 16 * width;
    at[1] += begin / 16 * width;
#pragma GCC unroll 2
    for (const float *xs = x + begin + l, *end = x + n; xs < end; xs += 16, at[0] += width, at[1] += width) {
#pragma GCC unroll 2
      for (size_t h = 0; h < 2; ++h) {
        const float x0 = xs[8 * h], x1 = xs[8 * h + step], x2 = xs[8 * h + 2 * step], x3 = xs[8 * h + 3 * step];
#pragma GCC unroll 2
        for (size_t p = 0; p < kParts; ++p) {
          const V weights = load_some<V>(at[h] + p * kPart);
          s[h][0][p] = fused_with(weights, x0, s[h][0][p]);
          s[h][1][p] = fused_with(weights, x1, s[h][1][p]);
          s[h][2][p] = fused_with(weights, x2, s[h][2][p]);
          s[h][3][p] = fused_with(weights, x3, s[h][3][p]);
        }
      }
    }
#pragma GCC unroll 4
    for (size_t b = 0; b < 4; ++b)
#pragma GCC unroll 2
      for (size_t p = 0; p < kParts; ++p) sums[l][b][p] = s[0][b][p] + s[1][b][p];
  }
  for (size_t b = 0; b < 4; ++b)
    for (size_t p = 0; p < kParts; ++p) {
      const V even = (sums[0][b][p] + sums[4][b][p]) + (sums[2][b][p] + sums[6][b][p]);
      const V odd = (sums[1][b][p] + sums[5][b][p]) + (sums[3][b][p] + sums[7][b][p]);
      const V sum = positive(even + odd);
      __builtin_memcpy(y + b * y_step + p * kPart, &sum, sizeof sum);
    }
}

static void across(const float* w, size_t width, const float* lanes, size_t from, size_t n, const float* x, size_t step,
                   float* y, size_t y_step) {
  size_t j = 0;
#if CB_REGISTER == 64
  for (; j + 32 <= width; j += 32)  // whole cache lines, and an x is loaded once for 32 products
    some_across<VF, 2>(w + j, width, lanes ? lanes + j : nullptr, from, n, x, step, y + j, y_step);
  for (; j + 16 <= width; j += 16)
    some_across<VF, 1>(w + j, width, lanes ? lanes + j : nullptr, from, n, x, step, y + j, y_step);
#endif
  for (; j < width; j += 8)
    some_across<VN, 8 / kNarrow>(w + j, width, lanes ? lanes + j : nullptr, from, n, x, step, y + j, y_step);
}

static void across_lanes(const float* w, size_t width, size_t n, size_t upto, const float* x, float* lanes) {
  for (size_t k = 0; k < upto; ++k)
    for (size_t j = 0; j < width; j += kNarrow) {
      float* lane = lanes + k % 16 * width + j;
      const VN weights = load_some<VN>(w + (k % 16 * (n / 16) + k / 16) * width + j);
      const VN sum = k < 16 ? weights * x[k] : fused_with(weights, x[k], load_some<VN>(lane));
      __builtin_memcpy(lane, &sum, sizeof sum);
    }
}

// Four products of latent vectors, chunk by chunk.
template <class A, class B>
CB_INLINE void four_pairs(size_t chunks, float* out, A a, B b) {
  V4 s = chunk_sums(a(0) * b(0));
  for (size_t c = 1; c < chunks; ++c) s = s + chunk_sums(a(4 * c) * b(4 * c));
  __builtin_memcpy(out, &s, sizeof s);
}

#if CB_REGISTER == 64
// Eight of them: their sums take four shuffles, where two times four take six.
template <class A, class B>
CB_INLINE void eight_pairs(size_t chunks, float* out, A a0, B b0, A a1, B b1) {
  VN s = chunk_sums(a0(0) * b0(0), a1(0) * b1(0));
  for (size_t c = 1; c < chunks; ++c) s = s + chunk_sums(a0(4 * c) * b0(4 * c), a1(4 * c) * b1(4 * c));
  __builtin_memcpy(out, &s, sizeof s);
}

// Four of them where a latent vector has two chunks, which are loaded together.
CB_INLINE void four_long_pairs(float* out, const float* own, const float* const* others, size_t at) {
  const VN sums = chunk_sums(load(own) * load_halves(others[0] + at, others[1] + at),
                             load(own + 16) * load_halves(others[2] + at, others[3] + at));
  const __m128 low = _mm256_castps256_ps128((__m256)sums), high = _mm256_extractf128_ps((__m256)sums, 1);
  const V4 first = (V4)_mm_shuffle_ps(low, high, 0x88), second = (V4)_mm_shuffle_ps(low, high, 0xdd);
  const V4 s = first + second;
  __builtin_memcpy(out, &s, sizeof s);
}
#endif

// Four latent vectors side by side, and four from four places.
struct Beside {
  const float* p;
  size_t latent;
  CB_INLINE F16 operator()(size_t c) const {
    return latent == 4 ? load(p) : load_chunks(p + c, p + latent + c, p + 2 * latent + c, p + 3 * latent + c);
  }
};
struct Apart {
  const float* const* p;
  size_t at;
  CB_INLINE F16 operator()(size_t c) const {
    return load_chunks(p[0] + at + c, p[1] + at + c, p[2] + at + c, p[3] + at + c);
  }
};

CB_INLINE void pairs_of(const FieldPairs& f, size_t chunks) {
  const size_t latent = 4 * chunks;
  float* out = f.out;
  const float* turned = f.turned;
  for (size_t g = f.known; g < f.fields; ++g, turned += f.step) {
    const float* own = f.source[g];
    for (size_t h = 0; h < f.known; h += 4)
      four_pairs(chunks, out + h, Beside{own + h * latent, latent}, Beside{turned + h * latent, latent});
    size_t h = f.known;
#if CB_REGISTER == 64
    for (; chunks == 2 && h < g; h += 4) four_long_pairs(out + h, own + h * latent, f.source + h, g * latent);
    for (; h + 4 < g; h += 8)
      eight_pairs(chunks, out + h, Beside{own + h * latent, latent}, Apart{f.source + h, g * latent},
                  Beside{own + (h + 4) * latent, latent}, Apart{f.source + h + 4, g * latent});
#endif
    for (; h < g; h += 4)
      four_pairs(chunks, out + h, Beside{own + h * latent, latent}, Apart{f.source + h, g * latent});
    out[g] = f.within[g];  // in the order of fields: what was written behind the pairs is written again
    if (f.first_order) out[g + 1] = f.first_order[g];
    out += g + (f.first_order ? 2 : 1);
  }
}

static void pairs(const FieldPairs& f) {
  if (f.chunks == 1)
    pairs_of(f, 1);
  else if (f.chunks == 2)
    pairs_of(f, 2);
  else
    pairs_of(f, f.chunks);
}

// Sixteen numbers of the unit of one item, for four targets: a map is loaded once for all of them.
struct FourUnits {
  F16 u[4];
  CB_INLINE FourUnits(const float* map, const float* fixed, size_t dim, size_t width, const float* const* q) {
    F16 u0 = load(fixed), u1 = u0, u2 = u0, u3 = u0;
    const float *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3], *end = q0 + dim;
    do {
      const F16 weights = load(map);
      map += width;
      u0 = fused(weights, splat(*q0++), u0);
      u1 = fused(weights, splat(*q1++), u1);
      u2 = fused(weights, splat(*q2++), u2);
      u3 = fused(weights, splat(*q3++), u3);
    } while (q0 != end);
    u[0] = u0;
    u[1] = u1;
    u[2] = u2;
    u[3] = u3;
  }
};

CB_INLINE V4 four_scores(const Attention& unit, const float* map, const float* fixed, const float* const* q) {
  F16 above = load(unit.above), below = load(unit.below);
  const FourUnits first(map, fixed, unit.dim, unit.width, q);
  F16 s0 = first.u[0] * chosen(first.u[0], above, below), s1 = first.u[1] * chosen(first.u[1], above, below);
  F16 s2 = first.u[2] * chosen(first.u[2], above, below), s3 = first.u[3] * chosen(first.u[3], above, below);
  for (size_t k = 16; k < unit.width; k += 16) {
    const FourUnits next(map + k, fixed + k, unit.dim, unit.width, q);
    above = load(unit.above + k);
    below = load(unit.below + k);
    s0 = fused(next.u[0], chosen(next.u[0], above, below), s0);
    s1 = fused(next.u[1], chosen(next.u[1], above, below), s1);
    s2 = fused(next.u[2], chosen(next.u[2], above, below), s2);
    s3 = fused(next.u[3], chosen(next.u[3], above, below), s3);
  }
  return four_sums(s0, s1, s2, s3) + unit.bias;
}

// Four targets; scores are [item][target].
CB_INLINE void attend_four(const Attention& unit, const float* const* q, float* scores, float* const* out) {
  const float *map = unit.maps, *fixed = unit.fixed;
  for (size_t i = 0; i < unit.items; ++i, map += unit.dim * unit.width, fixed += unit.width) {
    const V4 found = four_scores(unit, map, fixed, q);
    __builtin_memcpy(scores + 4 * i, &found, sizeof found);
  }
  for (size_t d = 0; d < unit.step; d += 16) {
    F16 o0 = splat(0.0f), o1 = o0, o2 = o0, o3 = o0;
    for (size_t i = 0; i < unit.items; ++i) {
      const F16 vector = load(unit.vectors + i * unit.step + d);
      o0 = fused(vector, splat(scores[4 * i]), o0);
      o1 = fused(vector, splat(scores[4 * i + 1]), o1);
      o2 = fused(vector, splat(scores[4 * i + 2]), o2);
      o3 = fused(vector, splat(scores[4 * i + 3]), o3);
    }
    store(out[0] + d, o0);
    store(out[1] + d, o1);
    store(out[2] + d, o2);
    store(out[3] + d, o3);
  }
}

static void attend(const Attention& unit, const float* q, size_t q_step, size_t rows, float* room, float* out) {
  for (size_t r = 0; r < rows; r += 4) {
    const float* targets[4];
    float* to[4];
    for (size_t k = 0; k < 4; ++k) {  // behind the last row it is the last once more
      const size_t at = r + k < rows ? r + k : rows - 1;
      targets[k] = q + at * q_step;
      to[k] = out + at * unit.step;
    }
    attend_four(unit, targets, room, to);
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

static void ffm_gradient(float* s, bool go_on, const float* t, const float* d, float x, size_t n) {
  for (size_t k = 0; k < n; k += 16) {
    const F16 g = times_chunks(load(t + k), d + k / 4, x);
    store(s + k, go_on ? load(s + k) + g : g);
  }
}

// Four registers of sums stay where they are while the rows pass by: a row is loaded once and nothing is stored.
static void add_rows(float* y, bool go_on, const float* rows, size_t step, const uint32_t* index, const float* times,
                     size_t count, size_t n) {
  size_t k = 0;
  for (; k + 64 <= n; k += 64) {
    F16 s0 = splat(0.0f), s1 = s0, s2 = s0, s3 = s0;
    if (go_on) {
      s0 = load(y + k);
      s1 = load(y + k + 16);
      s2 = load(y + k + 32);
      s3 = load(y + k + 48);
    }
    for (size_t r = 0; r < count; ++r) {
      const float* row = rows + index[r] * step + k;
      const F16 x = splat(times[r]);
      s0 = fused(load(row), x, s0);
      s1 = fused(load(row + 16), x, s1);
      s2 = fused(load(row + 32), x, s2);
      s3 = fused(load(row + 48), x, s3);
    }
    store(y + k, s0);
    store(y + k + 16, s1);
    store(y + k + 32, s2);
    store(y + k + 48, s3);
  }
  for (; k < n; k += 16) {
    F16 s = go_on ? load(y + k) : splat(0.0f);
    for (size_t r = 0; r < count; ++r) s = fused(load(rows + index[r] * step + k), splat(times[r]), s);
    store(y + k, s);
  }
}

template <class Inverse>
CB_INLINE void summed(float* w, float* a, const float* const* parts, size_t count, size_t n, float rate, Inverse f) {
  for (size_t k = 0; k < n; k += 16) {
    F16 g = load(parts[0] + k);
    for (size_t p = 1; p < count; ++p) g = g + load(parts[p] + k);
    adagrad(w + k, a + k, load(w + k), g, rate, f);
  }
}

static void sum_step(float* w, float* a, const float* const* parts, size_t count, size_t n, AdagradRates rates) {
  if (rates.power_t == 0.5f)
    summed(w, a, parts, count, n, rates.rate, Root{});
  else
    summed(w, a, parts, count, n, rates.rate, Power{-rates.power_t});
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

template <class Inverse>
CB_INLINE float input(float* w, float* a, const float* delta, float x, size_t n, float rate, Inverse f) {
  F16 s = splat(0.0f);
  for (size_t k = 0; k < n; k += 16) {
    const F16 weights = load(w + k), d = load(delta + k);
    s = k == 0 ? weights * d : fused(weights, d, s);
    adagrad(w + k, a + k, weights, d * x, rate, f);
  }
  return sum_of(s);
}

static float input_step(float* w, float* a, const float* delta, float x, size_t n, AdagradRates rates) {
  return rates.power_t == 0.5f ? input(w, a, delta, x, n, rates.rate, Root{})
                               : input(w, a, delta, x, n, rates.rate, Power{-rates.power_t});
}

static float norm(const float* x, float* y, size_t used, size_t n) {
  const float mean = sum(nullptr, x, n) / static_cast<float>(used);
  for (size_t k = 0; k < n; k += 16) store(y + k, load(x + k) - mean);
  for (size_t k = used; k < n; ++k) y[k] = 0.0f;
  const float variance = dot(y, y, n) / static_cast<float>(used);
  const float inverse = 1.0f / __builtin_sqrtf(variance + 1e-5f);
  for (size_t k = 0; k < n; k += 16) store(y + k, load(y + k) * inverse);
  return inverse;
}

static void norm_back(const float* y, float* dy, float inverse, size_t used, size_t n) {
  const float mean = sum(nullptr, dy, n) / static_cast<float>(used);
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
   CB_LANES::from_inputs,    \
   CB_LANES::across,         \
   CB_LANES::across_lanes,   \
   CB_LANES::pairs,          \
   CB_LANES::attend,         \
   CB_LANES::add_scaled,     \
   CB_LANES::add_rows,       \
   CB_LANES::ffm_gradient,   \
   CB_LANES::sum_step,       \
   CB_LANES::ffm_step,       \
   CB_LANES::neuron_step,    \
   CB_LANES::input_step,     \
   CB_LANES::norm,           \
   CB_LANES::norm_back}
