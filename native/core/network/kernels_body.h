// The loops of kernels.h over registers of CB_REGISTER bytes. Included once per instruction set, in a namespace of its
// own (CB_LANES), so that the linker never swaps one for another. No header of the standard library may be included
// here.
#pragma once
#include "core/network/dropout.h"
#include "core/network/kernels.h"

namespace cb {
namespace CB_LANES {
namespace {

typedef float VF __attribute__((vector_size(CB_REGISTER)));
typedef uint32_t VU __attribute__((vector_size(CB_REGISTER)));
constexpr size_t kLanes = CB_REGISTER / 4, kRegisters = 16 / kLanes;

#define CB_INLINE inline __attribute__((always_inline))

CB_INLINE VF load(const float* p) {
  VF v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
CB_INLINE void store(float* p, VF v) { __builtin_memcpy(p, &v, sizeof v); }

CB_INLINE void fill(float* p, size_t n, float x) {
  for (size_t k = 0; k < n; ++k) p[k] = x;
}
CB_INLINE void copy(float* to, const float* from, size_t n) { __builtin_memcpy(to, from, n * sizeof(float)); }

// ---- products of matrices ---------------------------------------------------------------------------------------

struct Matrix {
  const float* at;
  size_t row, column;  // distance of neighbors
};

// C[Rows][16] = (add ? C : 0) + A[Rows][depth] · B[depth][16]
template <size_t Rows>
CB_INLINE void tile(Matrix a, const float* b, size_t b_stride, float* c, size_t c_stride, size_t depth, bool add) {
  VF sum[Rows][kRegisters];
#pragma GCC unroll 16
  for (size_t i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (size_t j = 0; j < kRegisters; ++j) sum[i][j] = add ? load(c + i * c_stride + j * kLanes) : VF{};
  for (size_t k = 0; k < depth; ++k) {
    VF right[kRegisters];
#pragma GCC unroll 4
    for (size_t j = 0; j < kRegisters; ++j) right[j] = load(b + k * b_stride + j * kLanes);
    const float* left = a.at + k * a.column;
#pragma GCC unroll 16
    for (size_t i = 0; i < Rows; ++i) {
      const float x = left[i * a.row];
#pragma GCC unroll 4
      for (size_t j = 0; j < kRegisters; ++j) sum[i][j] += right[j] * x;
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (size_t j = 0; j < kRegisters; ++j) store(c + i * c_stride + j * kLanes, sum[i][j]);
}

// As many rows as keep all sums in registers.
constexpr size_t kTall = CB_REGISTER == 64 ? 12 : CB_TALL;

// C[m][n] = (add ? C : 0) + A[m][depth] · B[depth][n]; n is a multiple of 16.
void product(Matrix a, const float* b, size_t b_stride, float* c, size_t c_stride, size_t m, size_t n, size_t depth,
             bool add) {
  for (size_t j = 0; j < n; j += 16) {
    size_t i = 0;
    auto at = [&](size_t row) { return Matrix{a.at + row * a.row, a.row, a.column}; };
    for (; i + kTall <= m; i += kTall) tile<kTall>(at(i), b + j, b_stride, c + i * c_stride + j, c_stride, depth, add);
    for (; i + 4 <= m; i += 4) tile<4>(at(i), b + j, b_stride, c + i * c_stride + j, c_stride, depth, add);
    for (; i + 2 <= m; i += 2) tile<2>(at(i), b + j, b_stride, c + i * c_stride + j, c_stride, depth, add);
    for (; i < m; ++i) tile<1>(at(i), b + j, b_stride, c + i * c_stride + j, c_stride, depth, add);
  }
}

// ---- sums of vectors at places ----------------------------------------------------------------------------------

constexpr size_t kPanel = CB_REGISTER == 64 ? 8 : 5;  // sixteens of a vector that are summed in registers

template <size_t Sixteens, class At>
CB_INLINE void sum_panel(const float* start, float* out, size_t count, At at) {
  VF sum[Sixteens * kRegisters];
#pragma GCC unroll 32
  for (size_t j = 0; j < Sixteens * kRegisters; ++j) sum[j] = load(start + j * kLanes);
  for (size_t k = 0; k < count; ++k) {
    const float* p = at(k);
#pragma GCC unroll 32
    for (size_t j = 0; j < Sixteens * kRegisters; ++j) sum[j] += load(p + j * kLanes);
  }
#pragma GCC unroll 32
  for (size_t j = 0; j < Sixteens * kRegisters; ++j) store(out + j * kLanes, sum[j]);
}

// The widest panel of at most `left` sixteens; returns its width in floats.
template <size_t Most, class At>
CB_INLINE size_t sum_widest_panel(const float* start, float* out, size_t left, size_t count, At at) {
  if constexpr (Most > 1)
    if (left < Most) return sum_widest_panel<Most - 1>(start, out, left, count, at);
  sum_panel<Most>(start, out, count, at);
  return 16 * Most;
}

// out = start + the vectors at(0), at(1), … in this order; `stride` floats each. One panel takes all that fits into the
// registers, because every panel walks over all the vectors anew and its additions wait for each other.
template <class At>
CB_INLINE void sum_vectors(const float* start, float* out, size_t stride, size_t count, At at) {
  for (size_t from = 0; from < stride;)
    from += sum_widest_panel<kPanel>(start + from, out + from, (stride - from) / 16, count,
                                     [&](size_t k) { return at(k) + from; });
}

CB_INLINE void fetch(const float* p, size_t floats) {
  for (size_t k = 0; k < floats; k += 16) __builtin_prefetch(p + k);
}

// ---- activations ------------------------------------------------------------------------------------------------

// x where x > 0, else 0; a NaN stays one, so that the trainer stops at it.
CB_INLINE VF rectified(VF x) { return (VF)((VU)x & ~(VU)(x <= VF{})); }

// dropout_mix() of each lane.
CB_INLINE VU mixed(VU x) {
  CB_DROPOUT_MIX(x);
  return x;
}

// ReLU and dropout of a block; `row`: the number of its first row in the batch. dropout_keeps() in registers.
CB_INLINE void activate(const TowerActivation& how, const float* in, size_t in_stride, float* out, size_t n, size_t row,
                        bool trains) {
  const bool drops = trains && how.drops;
  VU columns;
  for (uint32_t k = 0; k < kLanes; ++k) columns[k] = k * 0x9e3779b9u;
  const VF scale = VF{} + how.scale;
  for (size_t r = 0; r < n; ++r) {
    const float* x = in + r * in_stride;
    float* y = out + r * how.stride;
    if (!drops) {
      for (size_t c = 0; c < how.stride; c += kLanes) store(y + c, rectified(load(x + c)));
      continue;
    }
    const uint32_t seed = dropout_row(how.seed, row + r);
    for (size_t c = 0; c < how.stride; c += kLanes) {
      const VU draw = mixed(columns + (seed + static_cast<uint32_t>(c) * 0x9e3779b9u));
      const VF kept = (VF)((VU)scale & (VU)(draw >= VU{} + how.threshold));
      store(y + c, rectified(load(x + c)) * kept);
    }
  }
}

// The gradient in front of an activation from the one behind it, in place: `out` is what the activation gave.
CB_INLINE void deactivate(const TowerActivation& how, const float* out, float* gradient, size_t stride, size_t n) {
  const float scale = how.drops ? how.scale : 1.0f;
  for (size_t r = 0; r < n; ++r)
    for (size_t c = 0; c < how.stride; c += kLanes) {
      const VF y = load(out + r * how.stride + c);
      float* at = gradient + r * stride + c;
      store(at, (VF)((VU)(load(at) * scale) & (VU)(y > VF{})));
    }
}

// ---- the three kernels ------------------------------------------------------------------------------------------

// Rows of keys as [n][dim_stride] vectors, padded with zeros.
CB_INLINE void gather_vectors(const NetworkPlan& p, size_t from, size_t n, float* vectors) {
  for (size_t k = 0; k < n; ++k) {
    const float* row = p.key_rows + static_cast<size_t>(p.key[from + k]) * p.width + p.linear;
    copy(vectors + k * p.dim_stride, row, p.dim);
    fill(vectors + k * p.dim_stride + p.dim, p.dim_stride - p.dim, 0.0f);
  }
}

void project(const NetworkPlan& p, size_t field, size_t from, size_t to, float* scratch) {
  float* vectors = scratch;
  for (; from < to; from += kNetworkBlock) {
    const size_t n = to - from < kNetworkBlock ? to - from : kNetworkBlock;
    gather_vectors(p, from, n, vectors);
    float* out = p.projected + from * p.stride;
    if (p.output_stride)
      product({vectors, p.dim_stride, 1}, p.weight[field], p.output_stride, out, p.stride, n, p.output_stride, p.dim,
              false);
    for (size_t k = 0; k < n; ++k, out += p.stride) {
      const float* v = vectors + k * p.dim_stride;
      fill(out + p.output_stride, p.stride - p.output_stride, 0.0f);
      if (p.pairs) {
        copy(out + p.at_total, v, p.dim);
        float square = 0.0f;
        for (size_t d = 0; d < p.dim; ++d) square += v[d] * v[d];
        out[p.at_square] = square;
      }
      if (p.linear && p.wide[field]) out[p.at_linear] = p.key_rows[static_cast<size_t>(p.key[from + k]) * p.width];
    }
  }
}

CB_INLINE float sum_of(VF v) {
  float sum = 0.0f;
  for (size_t k = 0; k < kLanes; ++k) sum += v[k];
  return sum;
}

CB_INLINE float square_of(const float* v, size_t n) {
  VF parts = {};
  size_t k = 0;
  for (; k + kLanes <= n; k += kLanes) parts += load(v + k) * load(v + k);
  float sum = sum_of(parts);
  for (; k < n; ++k) sum += v[k] * v[k];
  return sum;
}

// The sums in front of layer 1's activation, and dense columns `z` as the model sees them.
CB_INLINE void sum_fields(const NetworkPlan& p, size_t from, size_t n, float* sums, float* z) {
  for (size_t r = 0; r < n; ++r) {
    const int32_t* place = p.place + from + r;
    const size_t rows = p.rows;
    sum_vectors(p.start, sums + r * p.stride, p.stride, p.fields,
                [&](size_t f) { return p.projected + static_cast<size_t>(place[f * rows]) * p.stride; });
  }
  const size_t each = p.pooled * p.dim;
  if (p.pooled) {
    const float* vectors = p.pooled_vectors + from * each;
    if (each) product({vectors, each, 1}, p.pooled_weight, p.stride, sums, p.stride, n, p.stride, each, true);
    for (size_t r = 0; r < n; ++r) {
      float* sum = sums + r * p.stride;
      if (p.pairs) sum[p.at_square] += square_of(vectors + r * each, each);
      if (p.linear)
        for (size_t j = 0; j < p.pooled; ++j)
          if (p.pooled_wide[j]) sum[p.at_linear] += p.pooled_weights[(from + r) * p.pooled + j];
    }
  }
  if (!p.dense) return;
  const float* __restrict mean = p.mean;
  const float* __restrict scale = p.scale;
  for (size_t r = 0; r < n; ++r) {
    const float* __restrict logs = p.logs + (from + r) * p.dense;
    float* __restrict to = z + r * p.dense;
    float square = 0.0f;
    for (size_t c = 0; c < p.dense; ++c) {
      const float x = (logs[c] - mean[c]) * scale[c];
      to[c] = x < -10.0f ? -10.0f : (x > 10.0f ? 10.0f : x);
      square += to[c] * to[c] * p.pair_square[c];
    }
    if (p.pairs) sums[r * p.stride + p.at_square] += square;
  }
  product({z, p.dense, 1}, p.dense_weight, p.stride, sums, p.stride, n, p.stride, p.dense, true);
}

// What a block keeps from forward to backward.
struct Block {
  size_t from, n;
  float *sums, *z, *gradients;           // [n][stride], [n][dense], [n]
  float* out[kMostTowerLayers];          // of each activation
  float* back[kMostTowerLayers];         // and its gradient
  size_t back_stride[kMostTowerLayers];  // of the first, it is a part of the rows' vectors
  float* wide;                           // [n][pooled_stride]
};

void forward(const NetworkPlan& p, const Block& b) {
  sum_fields(p, b.from, b.n, b.sums, b.z);
  const float* in = b.sums;
  size_t in_stride = p.stride;
  for (size_t l = 0; l + 1 < p.layers; ++l) {
    activate(p.activation[l], in, in_stride, b.out[l], b.n, b.from, p.trains);
    if (l + 2 == p.layers) break;  // the last layer has one output
    const TowerInner& next = p.inner[l + 1];
    float* y = b.back[l + 1];
    for (size_t r = 0; r < b.n; ++r)
      for (size_t c = 0; c < next.stride; c += kLanes) store(y + r * next.stride + c, load(next.bias + c));
    product({b.out[l], next.input_stride, 1}, next.weight, next.stride, y, next.stride, b.n, next.stride, next.inputs,
            true);
    in = y;
    in_stride = next.stride;
  }
  for (size_t r = 0; r < b.n; ++r) {
    const float* sum = b.sums + r * p.stride;
    float logit = p.bias + sum[p.at_linear];
    if (p.pairs) logit += 0.5f * (square_of(sum + p.at_total, p.dim) - sum[p.at_square]);
    if (p.layers == 1) logit += sum[0];
    if (p.layers > 1) {
      const TowerInner& last = p.inner[p.layers - 1];
      const float* x = b.out[p.layers - 2] + r * last.input_stride;
      VF parts = {};
      for (size_t k = 0; k < last.input_stride; k += kLanes) parts += load(x + k) * load(last.weight + k);
      logit += last.bias[0] + sum_of(parts);
    }
    p.logits[b.from + r] = logit;
  }
}

// The losses of the block, added up; and the gradient of each logit.
double losses(const NetworkPlan& p, const Block& b) {
  double total = 0.0;
  for (size_t r = 0; r < b.n; ++r) {
    const float x = p.logits[b.from + r], y = p.label[b.from + r];
    const float weight = p.sample_weight ? p.sample_weight[b.from + r] : 1.0f;
    const float small = __builtin_expf(-__builtin_fabsf(x));
    const float chance = x >= 0.0f ? 1.0f / (1.0f + small) : small / (1.0f + small);
    const float loss = (1.0f - y) * x + (x < 0.0f ? -x : 0.0f) + __builtin_log1pf(small);
    total += static_cast<double>(loss * weight);
    b.gradients[r] = (chance - y) * weight * p.share;
  }
  return total;
}

// out[stride] += the sum of n rows.
void add_rows(const float* rows, size_t n, size_t stride, float* out) {
  sum_vectors(out, out, stride, n, [&](size_t r) { return rows + r * stride; });
}

// Gradients of layers behind the first and of what they read, down to that of layer 1's sums, in back[0].
void backward_tower(const NetworkPlan& p, const Block& b, float* sums) {
  if (p.layers < 2) return;
  const size_t top = p.layers - 2;
  const TowerInner& last = p.inner[p.layers - 1];
  for (size_t k = 0; k < last.input_stride; k += kLanes) {
    const VF weight = load(last.weight + k);
    VF sum = load(sums + last.weight_sums + k);
    for (size_t r = 0; r < b.n; ++r) {
      sum += load(b.out[top] + r * last.input_stride + k) * b.gradients[r];
      store(b.back[top] + r * b.back_stride[top] + k, weight * b.gradients[r]);
    }
    store(sums + last.weight_sums + k, sum);
  }
  for (size_t r = 0; r < b.n; ++r) sums[last.bias_sums] += b.gradients[r];
  for (size_t l = top;; --l) {
    deactivate(p.activation[l], b.out[l], b.back[l], b.back_stride[l], b.n);
    if (l == 0) return;
    const TowerInner& layer = p.inner[l];
    product({b.out[l - 1], 1, layer.input_stride}, b.back[l], layer.stride, sums + layer.weight_sums, layer.stride,
            layer.inputs, layer.stride, b.n, true);
    add_rows(b.back[l], b.n, layer.stride, sums + layer.bias_sums);
    product({b.back[l], layer.stride, 1}, layer.back, layer.input_stride, b.back[l - 1], b.back_stride[l - 1], b.n,
            layer.input_stride, layer.outputs, false);
  }
}

// The vectors [dL/dh | g·Σv | 0 | g] of the rows, whose first part is there, and gradients of what reads them.
void backward_inputs(const NetworkPlan& p, const Block& b, float* sums) {
  float* vectors = p.row_vectors + b.from * p.stride;
  const size_t each = p.pooled * p.dim;
  for (size_t r = 0; r < b.n; ++r) {
    const float g = b.gradients[r];
    float* out = vectors + r * p.stride;
    const float* total = b.sums + r * p.stride;
    // The sum of the vectors and g are the only values that the padded tail keeps.
    for (size_t c = p.output_stride; c < p.stride; c += kLanes) store(out + c, p.pairs ? load(total + c) * g : VF{});
    for (size_t c = p.at_square; c < p.stride; ++c) out[c] = 0.0f;
    out[p.at_linear] = g;
    const float* x = b.z + r * p.dense;
    for (size_t c = 0; p.pairs && c < p.dense; ++c) sums[p.square_sums + c] += g * x[c] * x[c];
  }
  add_rows(vectors, b.n, p.stride, sums + p.start_sums);
  if (p.dense)
    product({b.z, 1, p.dense}, vectors, p.stride, sums + p.dense_sums, p.stride, p.dense, p.stride, b.n, true);
  if (!p.pooled) return;
  if (p.output_stride && each) {
    product({p.pooled_vectors + b.from * each, 1, each}, vectors, p.stride, sums + p.pooled_sums, p.output_stride, each,
            p.output_stride, b.n, true);
    product({vectors, p.stride, 1}, p.pooled_back, p.pooled_stride, b.wide, p.pooled_stride, b.n, p.pooled_stride,
            p.outputs, false);
  } else {
    fill(b.wide, b.n * p.pooled_stride, 0.0f);
  }
  for (size_t r = 0; r < b.n; ++r) {
    const float g = b.gradients[r];
    const float* __restrict total = vectors + r * p.stride + p.at_total;  // times g
    const float* __restrict v = p.pooled_vectors + (b.from + r) * each;
    float* __restrict out = p.pooled_vector_gradient + (b.from + r) * each;
    const float* __restrict from = b.wide + r * p.pooled_stride;
    for (size_t j = 0; j < p.pooled; ++j) {
      const size_t at = j * p.dim;
      if (p.pairs)
        for (size_t k = 0; k < p.dim; ++k) out[at + k] = from[at + k] + (total[k] - g * v[at + k]);
      else
        copy(out + at, from + at, p.dim);
      if (p.linear) p.pooled_weight_gradient[(b.from + r) * p.pooled + j] = p.pooled_wide[j] ? g : 0.0f;
    }
  }
}

double rows(const NetworkPlan& p, size_t from, size_t to, float* sums, float* scratch) {
  Block b;
  auto take = [&](size_t stride) {
    float* at = scratch;
    scratch += kNetworkBlock * stride;
    return at;
  };
  b.sums = take(p.stride);
  b.z = take(padded(p.dense));
  b.gradients = take(1);
  b.wide = take(p.pooled_stride);
  b.back_stride[0] = p.stride;
  for (size_t l = 0; l + 1 < p.layers; ++l) {
    b.out[l] = take(p.activation[l].stride);
    if (l == 0) continue;
    b.back[l] = take(p.activation[l].stride);
    b.back_stride[l] = p.activation[l].stride;
  }
  double loss = 0.0;
  for (; from < to; from += kNetworkBlock) {
    b.from = from;
    b.n = to - from < kNetworkBlock ? to - from : kNetworkBlock;
    forward(p, b);
    if (!p.label) continue;
    loss += losses(p, b);
    b.back[0] = p.row_vectors + from * p.stride;
    if (p.layers == 1)  // layer 1 is the last: its gradient is that of the logit
      for (size_t r = 0; r < b.n; ++r) {
        fill(b.back[0] + r * p.stride, p.output_stride, 0.0f);
        b.back[0][r * p.stride] = b.gradients[r];
      }
    backward_tower(p, b, sums);
    backward_inputs(p, b, sums);
  }
  return loss;
}

void keys(const NetworkPlan& p, size_t field, size_t from, size_t to, float* sums, float* scratch) {
  float* gradients = scratch;  // [block][stride]
  float* vectors = gradients + kNetworkBlock * p.stride;
  float* back = vectors + kNetworkBlock * p.dim_stride;
  float* zeros = back + kNetworkBlock * p.dim_stride;
  fill(zeros, p.stride, 0.0f);
  constexpr size_t kAhead = 4;
  for (; from < to; from += kNetworkBlock) {
    const size_t n = to - from < kNetworkBlock ? to - from : kNetworkBlock;
    const int32_t* end_of_rows = p.rows_of + p.from[to];
    for (size_t k = 0; k < n; ++k) {
      const int32_t* at = p.rows_of + p.from[from + k];
      const size_t count = static_cast<size_t>(p.from[from + k + 1] - p.from[from + k]);
      sum_vectors(zeros, gradients + k * p.stride, p.stride, count, [&](size_t j) {
        if (at + j + kAhead < end_of_rows)
          fetch(p.row_vectors + static_cast<size_t>(at[j + kAhead]) * p.stride, p.stride);
        return p.row_vectors + static_cast<size_t>(at[j]) * p.stride;
      });
    }
    gather_vectors(p, from, n, vectors);
    if (p.output_stride) {
      product({gradients, p.stride, 1}, p.back[field], p.dim_stride, back, p.dim_stride, n, p.dim_stride, p.outputs,
              false);
      product({vectors, 1, p.dim_stride}, gradients, p.stride, sums, p.output_stride, p.dim, p.output_stride, n, true);
    } else {
      fill(back, n * p.dim_stride, 0.0f);
    }
    for (size_t k = 0; k < n; ++k) {
      const size_t key = static_cast<size_t>(p.key[from + k]);
      if (p.keys[key] == 0) continue;  // no row; several fields may have it
      float* out = p.row_gradient + key * p.width;
      const float* gradient = gradients + k * p.stride;
      const float* v = vectors + k * p.dim_stride;
      const float g = gradient[p.at_linear];
      if (p.linear) out[0] += p.wide[field] ? g : 0.0f;
      for (size_t d = 0; d < p.dim; ++d) {
        float x = back[k * p.dim_stride + d];
        if (p.pairs) x += gradient[p.at_total + d] - g * v[d];
        out[p.linear + d] += x;
      }
    }
  }
}

}  // namespace
}  // namespace CB_LANES
}  // namespace cb

#define CB_TOWER_TABLE(name) {name, CB_LANES::project, CB_LANES::rows, CB_LANES::keys}
