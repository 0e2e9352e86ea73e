#include "core/ffm/pass.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/ffm/adagrad.h"

namespace cb {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kLatePairs = 3;  // that pair_dots may read

// The sum over a latent vector, chunk by chunk, of a · (x · w).
float latent_dot(const float* a, const float* w, float x, size_t latent) {
  float out = 0.0f;
  for (size_t c = 0; c < latent; c += kChunk) {
    const float p0 = a[c] * (w[c] * x), p1 = a[c + 1] * (w[c + 1] * x);
    const float p2 = a[c + 2] * (w[c + 2] * x), p3 = a[c + 3] * (w[c + 3] * x);
    out += (p0 + p1) + (p2 + p3);
  }
  return out;
}

size_t scratch_floats(const FfmLayout& l) {
  size_t floats = l.stride * (1 + 2 * l.fields);  // zeros, sums, turned
  floats += 2 * FfmPass::kBatch * padded(l.inputs + 1 + kLanes, kLanes) + padded(l.fields, kLanes);
  floats += padded(l.fields * (l.stride / kChunk), kLanes);
  for (const auto& layer : l.layers) floats += (FfmPass::kBatch + 1) * layer.width;
  return floats + 3 * l.latent;  // that pair_dots may read
}

float* zeroed(size_t floats) {
  const size_t bytes = padded(floats, kLanes) * sizeof(float);
  void* p = std::aligned_alloc(kLine, bytes);
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return static_cast<float*>(p);
}

}  // namespace

FfmPass::FfmPass(const FfmSettings& settings, const FfmLayout& layout, const FfmKernels& kernels)
    : s_(settings),
      l_(layout),
      k_(kernels),
      memory_(zeroed(scratch_floats(layout))),
      places_(ahead() + 1),
      source_(layout.fields + kLatePairs) {
  zeros_ = aligned(l_.stride);
  sums_ = aligned(l_.stride * l_.fields);
  turned_ = aligned(l_.stride * l_.fields);
  input_step_ = padded(l_.inputs + 1 + kLanes, kLanes);  // pair_dots writes up to 3 floats behind the pairs
  inputs_ = aligned(kBatch * input_step_);
  normed_ = aligned(kBatch * input_step_);
  first_order_ = aligned(l_.fields);
  spread_ = aligned(l_.fields * (l_.stride / kChunk));
  for (size_t n = 0; n < l_.layers.size(); ++n) {
    const auto& layer = l_.layers[n];
    steps_.push_back(n == 0 ? input_step_ : layer.width);
    activations_.push_back(n == 0 ? (s_.norm ? normed_ : inputs_) : aligned(kBatch * layer.width));
    deltas_.push_back(aligned(layer.width));
    for (size_t b = 0; b < kBatch; ++b) activations_.back()[b * steps_.back() + layer.inputs] = 1.0f;
  }
}

float* FfmPass::aligned(size_t floats) {
  float* found = memory_.get() + used_;
  used_ += padded(floats, kLanes);
  return found;
}

void FfmPass::fetch(const Examples& examples, size_t e, const FfmWeights& weights, bool to_write) {
  auto& places = places_[e % places_.size()];
  const uint32_t begin = examples.offsets[e], end = examples.offsets[e + 1];
  places.resize(end - begin);
  const size_t bytes = (to_write ? 2 : 1) * l_.stride * sizeof(float);
  const uint64_t* keys = examples.keys.data() + begin;
  const size_t count = end - begin;
  if (s_.lr)
    for (size_t i = 0; i < count; ++i) {
      places[i].lr = weights.lr + 2 * l_.lr_of(keys[i], s_.bits);
      __builtin_prefetch(places[i].lr);
    }
  if (s_.ffm)
    for (size_t i = 0; i < count; ++i) {
      places[i].row = weights.ffm + 2 * l_.stride * l_.row_of(keys[i]);
      const char* p = reinterpret_cast<const char*>(places[i].row);
      for (size_t b = 0; b < bytes; b += kLine) __builtin_prefetch(p + b);
    }
}

void FfmPass::merge(const Examples& examples, size_t e, size_t slot) {
  float* inputs = input(slot);
  gather(examples, e, inputs);
  if (s_.ffm) multiply_pairs(inputs);
  std::memcpy(inputs + l_.pairs, first_order_, (l_.inputs - l_.pairs) * sizeof(float));
  std::memset(inputs + l_.inputs, 0, (padded(l_.inputs + 1, kLanes) - l_.inputs) * sizeof(float));
}

void FfmPass::logits(const FfmWeights& weights, size_t count, float* out) {
  const bool deep = !l_.layers.empty();
  float direct[kBatch];
  for (size_t b = 0; b < count; ++b)
    direct[b] = s_.residual || !deep ? k_.sum(input(b), padded(l_.inputs + 1, kLanes)) : 0.0f;
  if (deep) run_layers(weights, count, out);
  for (size_t b = 0; b < count; ++b) out[b] = (deep ? direct[b] + out[b] : direct[b]) + weights.dense[0];
}

float FfmPass::forward(const Examples& examples, size_t e, const FfmWeights& weights) {
  merge(examples, e, 0);
  if (s_.ffm && l_.latent == 4)
    transpose<4>();
  else if (s_.ffm && l_.latent == 8)
    transpose<8>();
  else if (s_.ffm)
    transpose<0>();
  float logit = 0.0f;
  logits(weights, 1, &logit);
  return logit;
}

// Groups of features by field; sums of fields with several features or a value; first-order sums; pairs (f, f).
void FfmPass::gather(const Examples& examples, size_t e, float* inputs) {
  const auto& places = places_[e % places_.size()];
  const uint32_t begin = examples.offsets[e], end = examples.offsets[e + 1];
  groups_.clear();
  if (s_.ffm) std::fill(source_.begin(), source_.end(), zeros_);
  if (s_.lr) std::memset(first_order_, 0, l_.fields * sizeof(float));
  if (s_.ffm)
    for (size_t f = 0; f < l_.fields; ++f) inputs[l_.pair(f, f)] = 0.0f;
  for (uint32_t i = begin; i < end;) {
    const uint32_t f = examples.fields[i];
    uint32_t stop = i + 1;
    while (stop < end && examples.fields[stop] == f) ++stop;
    groups_.push_back({f, i, stop});
    if (s_.lr) {
      float sum = 0.0f;
      for (uint32_t j = i; j < stop; ++j) sum += places[j - begin].lr[0] * examples.value(j);
      first_order_[f] = sum;
    }
    if (s_.ffm) {
      if (stop == i + 1 && examples.value(i) == 1.0f) {
        source_[f] = places[i - begin].row;
      } else {
        float* sum = sums_ + f * l_.stride;
        float* own = sum + f * l_.latent;
        std::memset(sum, 0, l_.stride * sizeof(float));
        float within = 0.0f;
        for (uint32_t j = i; j < stop; ++j) {
          const float* row = places[j - begin].row;
          const float x = examples.value(j);
          if (j > i) within += latent_dot(own, row + f * l_.latent, x, l_.latent);
          k_.add_scaled(sum, row, x, l_.stride);
        }
        inputs[l_.pair(f, f)] = within;
        source_[f] = sum;
      }
    }
    i = stop;
  }
}

// turned[g][f] = source[f][g].
template <size_t kLatent>
void FfmPass::transpose() {
  const size_t latent = kLatent ? kLatent : l_.latent, fields = l_.fields, stride = l_.stride;
  for (size_t f = 0; f < fields; ++f) {
    const float* from = source_[f];
    float* to = turned_ + f * latent;
    for (size_t g = 0; g < fields; ++g, from += latent, to += stride) std::memcpy(to, from, latent * sizeof(float));
  }
}

void FfmPass::multiply_pairs(float* inputs) {
  for (size_t f = 0; f + 1 < l_.fields; ++f) {
    const size_t count = l_.fields - 1 - f;
    float* out = inputs + l_.pair(f, f + 1);
    const float next = out[count];  // pair (f + 1, f + 1), which the kernel may write over
    k_.pair_dots(source_[f] + (f + 1) * l_.latent, &source_[f + 1], f * l_.latent, l_.chunks(), count, out);
    out[count] = next;
  }
}

void FfmPass::run_layers(const FfmWeights& weights, size_t count, float* out) {
  for (size_t b = 0; b < count; ++b) {
    float* into = activations_[0] + b * steps_[0];
    if (s_.norm) inverse_ = k_.norm(input(b), into, l_.inputs, l_.layers[0].width);
    into[l_.inputs] = 1.0f;
  }
  for (size_t n = 0; n < l_.layers.size(); ++n) {
    const auto& layer = l_.layers[n];
    const bool last = n + 1 == l_.layers.size();
    float* to = last ? out : activations_[n + 1];
    const size_t step = last ? 1 : steps_[n + 1];
    k_.matmul(weights.dense + layer.at, layer.neurons, layer.width, activations_[n], steps_[n], count, to, step);
    if (last) break;
    for (size_t b = 0; b < count; ++b)
      for (size_t j = 0; j < layer.neurons; ++j) to[b * step + j] = to[b * step + j] > 0.0f ? to[b * step + j] : 0.0f;
  }
}

// The gradient by the network's input, nullptr where it is 0 throughout.
const float* FfmPass::back_through_layers(const FfmWeights& weights, float g, bool sparse) {
  const AdagradRates rates{s_.nn_rates.rate, s_.nn_rates.power_t};
  for (size_t n = l_.layers.size(); n-- > 0;) {
    const auto& layer = l_.layers[n];
    const bool last = n + 1 == l_.layers.size();
    const float* upper = last ? &g : deltas_[n + 1];
    float* dx = deltas_[n];
    bool any = false;
    std::memset(dx, 0, layer.width * sizeof(float));
    for (size_t j = 0; j < layer.neurons; ++j) {
      // A ReLU at 0 passes nothing: its neuron's weights keep their bits, so they need not be touched.
      const float delta = last || activations_[n + 1][j] > 0.0f ? upper[j] : 0.0f;
      if (sparse && delta == 0.0f) continue;
      any = any || delta != 0.0f;
      float* w = weights.dense + layer.at + j * layer.width;
      k_.neuron_step(w, w + layer.neurons * layer.width, activations_[n], dx, delta, layer.width, rates);
    }
    if (sparse && !any) return nullptr;
  }
  const auto& first = l_.layers[0];
  deltas_[0][l_.inputs] = 0.0f;  // the constant input has no gradient
  if (s_.norm) k_.norm_back(normed_, deltas_[0], inverse_, l_.inputs, first.width);
  return deltas_[0];
}

// spread[f][chunk] = the gradient by pair (f, g), on both sides of the diagonal.
void FfmPass::spread_gradients(const float* dx, float g) {
  const size_t chunks = l_.chunks(), line = l_.stride / kChunk;
  if (!dx) {
    std::fill(spread_, spread_ + l_.fields * line, g);
    return;
  }
  for (size_t f = 0; f < l_.fields; ++f) {
    const float* from = dx + l_.pair(f, f) - f;
    float* along = spread_ + f * line;
    if (chunks == 1) {
      for (size_t h = f; h < l_.fields; ++h) along[h] = from[h] + g;
      for (size_t h = f + 1; h < l_.fields; ++h) spread_[h * line + f] = along[h];
    } else {
      for (size_t h = f; h < l_.fields; ++h) {
        const float d = from[h] + g;
        for (size_t c = 0; c < chunks; ++c) along[h * chunks + c] = spread_[h * line + f * chunks + c] = d;
      }
    }
  }
}

void FfmPass::step_rows(const Examples& examples, size_t e, const float* dx, float g) {
  const auto& places = places_[e % places_.size()];
  const uint32_t begin = examples.offsets[e];
  const AdagradRates ffm{s_.ffm_rates.rate, s_.ffm_rates.power_t}, lr{s_.lr_rates.rate, s_.lr_rates.power_t};
  const size_t line = l_.stride / kChunk, latent = l_.latent;
  for (const Group& group : groups_) {
    const size_t f = group.field;
    float* turned = turned_ + f * l_.stride;
    float* own = turned + f * latent;
    const float by_field = (dx ? dx[l_.pairs + f] : 0.0f) + g;
    const bool alone = group.end == group.begin + 1;
    if (s_.ffm && alone) std::memset(own, 0, latent * sizeof(float));
    for (uint32_t i = group.begin; i < group.end; ++i) {
      const Place& place = places[i - begin];
      const float x = examples.value(i);
      if (s_.lr) {
        adagrad_step(place.lr[0], place.lr[1], by_field * x, lr);
      }
      if (!s_.ffm) continue;
      if (!alone) {  // the other features of its field
        const float *sum = sums_ + f * l_.stride + f * latent, *mine = place.row + f * latent;
        for (size_t d = 0; d < latent; ++d) own[d] = sum[d] - mine[d] * x;
      }
      k_.ffm_step(place.row, place.row + l_.stride, turned, spread_ + f * line, x, l_.stride, ffm);
    }
  }
}

void FfmPass::backward(const Examples& examples, size_t e, const FfmWeights& weights, float g, bool sparse) {
  if (sparse && g == 0.0f) return;
  adagrad_step(weights.dense[0], weights.dense[1], g, {s_.lr_rates.rate, s_.lr_rates.power_t});
  const float* dx = l_.layers.empty() ? nullptr : back_through_layers(weights, g, sparse);
  const float direct = s_.residual || l_.layers.empty() ? g : 0.0f;
  if (sparse && !dx && direct == 0.0f) return;
  if (s_.ffm) spread_gradients(dx, direct);
  step_rows(examples, e, dx, direct);
}

}  // namespace cb
