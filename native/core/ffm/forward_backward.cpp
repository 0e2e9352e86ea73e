#include "core/ffm/forward_backward.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/ffm/adagrad.h"

namespace cb {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kLatePairs = 3;  // that the kernel of pairs may read

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

// Floats of the longest row of an input.
size_t widest(const FfmLayout& l) {
  size_t most = 0;
  for (const auto& layer : l.layers)
    if (layer.by_input) most = std::max(most, layer.step());
  return most;
}

size_t scratch_floats(const FfmLayout& l, size_t slots) {
  size_t floats = l.stride * (1 + 2 * l.fields);  // zeros, sums, turned
  floats += 2 * slots * padded(l.inputs + 1 + kLanes, kLanes) + 2 * padded(l.fields, kLanes);
  floats += padded(l.fields * (l.stride / kChunk), kLanes);
  for (const auto& layer : l.layers) floats += 2 * slots * layer.width;
  floats += kLanes * widest(l);
  return floats + 3 * l.latent;  // that the kernel of pairs may read
}

}  // namespace

FfmFloats zeroed_floats(size_t count) {
  const size_t bytes = std::max<size_t>(padded(count, kLanes), kLanes) * sizeof(float);
  void* p = std::aligned_alloc(kLine, bytes);
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return FfmFloats(static_cast<float*>(p));
}

FfmTurned::FfmTurned(const FfmLayout& layout, const float* dense) {
  size_t floats = 0;
  for (size_t n = 0; n + 1 < layout.layers.size(); ++n) {
    at_.push_back(floats);
    floats += layout.layers[n].width * width(layout.layers[n]);
  }
  memory_ = zeroed_floats(floats);
  for (size_t n = 0; n + 1 < layout.layers.size(); ++n)
    copy(layout, dense, n, 0, layout.layers[n].neurons, 0, layout.layers[n].inputs + 1);
}

void FfmTurned::copy(const FfmLayout& layout, const float* dense, size_t n, size_t j, size_t j_end, size_t i,
                     size_t i_end) {
  const auto& layer = layout.layers[n];
  for (; i < i_end; ++i) {
    float* to = memory_.get() + at_[n] + (i % kLanes * (layer.width / kLanes) + i / kLanes) * width(layer);
    for (size_t m = j; m < j_end; ++m) to[m] = dense[layer.place(m, i)];
  }
}

FfmPass::FfmPass(const FfmSettings& settings, const FfmLayout& layout, const FfmKernels& kernels, bool for_blocks)
    : s_(settings),
      l_(layout),
      k_(kernels),
      slots_(for_blocks ? kBlockBatch : kBatch),
      memory_(zeroed_floats(scratch_floats(layout, slots_))),
      places_(ahead() + (for_blocks ? slots_ : 1)),
      source_(layout.fields + kLatePairs),
      inverse_(slots_, 1.0f) {
  zeros_ = aligned(l_.stride);
  std::fill(source_.begin(), source_.end(), zeros_);
  sums_ = aligned(l_.stride * l_.fields);
  turned_ = aligned(l_.stride * l_.fields);
  input_step_ = padded(l_.inputs + 1 + kLanes, kLanes);  // the kernel of pairs writes up to 3 floats behind
  inputs_ = aligned(slots_ * input_step_);
  normed_ = aligned(slots_ * input_step_);
  first_order_ = aligned(l_.fields);
  within_ = aligned(l_.fields);
  spread_ = aligned(l_.fields * (l_.stride / kChunk));
  for (size_t n = 0; n < l_.layers.size(); ++n) {
    const auto& layer = l_.layers[n];
    steps_.push_back(n == 0 ? input_step_ : layer.width);
    activations_.push_back(n == 0 ? (s_.norm ? normed_ : inputs_) : aligned(slots_ * layer.width));
    deltas_.push_back(aligned((for_blocks ? slots_ : 1) * layer.width));
    for (size_t b = 0; b < slots_; ++b) activations_.back()[b * steps_.back() + layer.inputs] = 1.0f;
    auto& inputs = listed_.emplace_back();
    if (layer.by_input) inputs = {std::vector<uint32_t>(layer.width), std::vector<uint32_t>(kLanes)};
  }
  room_ = aligned(kLanes * widest(l_));
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
      places[i].lr = weights.lr + l_.lr_step * l_.lr_of(keys[i], s_.bits);
      __builtin_prefetch(places[i].lr);
    }
  if (s_.ffm)
    for (size_t i = 0; i < count; ++i) {
      places[i].row = weights.ffm + l_.row_step * l_.row_of(keys[i]);
      const char* p = reinterpret_cast<const char*>(places[i].row);
      for (size_t b = 0; b < bytes; b += kLine) __builtin_prefetch(p + b);
    }
}

void FfmPass::merge(const Examples& examples, size_t e, size_t slot) {
  float* inputs = input(slot);
  gather(examples, e);
  if (s_.ffm)
    multiply_pairs(inputs);
  else if (const size_t known = context_ ? context_->fields : 0; known < l_.fields)
    std::memcpy(inputs + known, first_order_ + known, (l_.fields - known) * sizeof(float));
  std::memset(inputs + l_.inputs, 0, (padded(l_.inputs + 1, kLanes) - l_.inputs) * sizeof(float));
}

void FfmPass::logits(const FfmWeights& weights, size_t count, float* out, bool sparse) {
  const bool deep = !l_.layers.empty();
  float direct[kBlockBatch];
  const size_t from = context_ ? context_->whole() : 0, n = padded(l_.inputs + 1, kLanes) - from;
  const float* sums = from ? context_->sums.data() : nullptr;
  for (size_t b = 0; b < count; ++b) {
    direct[b] = k_.sum(sums, input(b) + from, n);
    if (deep && !s_.residual) direct[b] *= 0.0f;  // NaN of an input must not end in a ReLU
  }
  if (deep) run_layers(weights, count, out, sparse);
  for (size_t b = 0; b < count; ++b) out[b] = (deep ? direct[b] + out[b] : direct[b]) + weights.dense[0];
}

float FfmPass::forward(const Examples& examples, size_t e, const FfmWeights& weights, bool sparse) {
  merge(examples, e, 0);
  transpose_rows();
  float logit = 0.0f;
  logits(weights, 1, &logit, sparse);
  return logit;
}

// Groups of features by field; sums of fields with several features or a value; first-order sums; pairs (f, f).
void FfmPass::gather(const Examples& examples, size_t e) {
  const Place* places = places_[e % places_.size()].data();
  const uint32_t begin = examples.offsets[e], end = examples.offsets[e + 1];
  const uint16_t* fields = examples.fields.data();
  const float* values = examples.values.empty() ? nullptr : examples.values.data();
  groups_.clear();
  const size_t known = context_ ? context_->fields : 0, unknown = l_.fields - known;
  std::fill_n(source_.data() + known, unknown, zeros_);
  std::fill_n(first_order_ + known, unknown, 0.0f);
  std::fill_n(within_ + known, unknown, 0.0f);
  for (uint32_t i = begin, stop; i < end; i = stop) {
    const uint32_t f = fields[i];
    stop = i + 1;
    while (stop < end && fields[stop] == f) ++stop;
    groups_.push_back({f, i, stop});
    if (stop == i + 1 && (!values || values[i] == 1.0f)) {
      if (s_.lr) first_order_[f] = 0.0f + places[i - begin].lr[0];
      if (s_.ffm) source_[f] = places[i - begin].row;
    } else {
      add_up(examples, groups_.back(), places + (i - begin));
    }
  }
}

// A field of several features, or with a value.
void FfmPass::add_up(const Examples& examples, const Group& group, const Place* places) {
  const size_t f = group.field;
  if (s_.lr)
    for (uint32_t i = group.begin; i < group.end; ++i)
      first_order_[f] += places[i - group.begin].lr[0] * examples.value(i);
  if (!s_.ffm) return;
  float* sum = sums_ + f * l_.stride;
  std::memset(sum, 0, l_.stride * sizeof(float));
  for (uint32_t i = group.begin; i < group.end; ++i) {
    const float* row = places[i - group.begin].row;
    const float x = examples.value(i);
    if (i > group.begin) within_[f] += latent_dot(sum + f * l_.latent, row + f * l_.latent, x, l_.latent);
    k_.add_scaled(sum, row, x, l_.stride);
  }
  source_[f] = sum;
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

void FfmPass::transpose_rows() {
  if (s_.ffm && l_.latent == 4)
    transpose<4>();
  else if (s_.ffm && l_.latent == 8)
    transpose<8>();
  else if (s_.ffm)
    transpose<0>();
}

void FfmPass::multiply_pairs(float* inputs) {
  const size_t known = context_ ? context_->fields : 0;
  k_.pairs({source_.data(), known, l_.fields, l_.chunks(), context_ ? context_->turned.data() : nullptr,
            FfmContext::turned_step(l_, known), within_, s_.lr ? first_order_ : nullptr, inputs + l_.of_field(known)});
}

// The inputs of layer n that are not 0, lane after lane; all of them without `sparse`.
void FfmPass::list_inputs(size_t n, bool sparse) {
  const float* x = activations_[n];
  uint32_t *list = listed_[n].list.data(), *ends = listed_[n].ends.data();
  const uint32_t used = static_cast<uint32_t>(l_.layers[n].inputs + 1);
  uint32_t count = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    for (uint32_t i = l; i < used; i += kLanes) {
      list[count] = i;
      count += !sparse || x[i] != 0.0f;
    }
    ends[l] = count;
  }
}

void FfmPass::run_layers(const FfmWeights& weights, size_t count, float* out, bool sparse) {
  for (size_t b = 0; b < count; ++b) {
    float* into = activations_[0] + b * steps_[0];
    if (s_.norm) inverse_[b] = k_.norm(input(b), into, l_.inputs, l_.layers[0].width);
    into[l_.inputs] = 1.0f;
  }
  for (size_t n = 0; n < l_.layers.size(); ++n) {
    const auto& layer = l_.layers[n];
    const bool last = n + 1 == l_.layers.size();
    float* to = last ? out : activations_[n + 1];
    const size_t step = last ? 1 : steps_[n + 1];
    const float* from = activations_[n];
    if (!weights.turned && layer.by_input) {  // learning: one example
      list_inputs(n, sparse);
      k_.from_inputs(weights.dense + layer.at, layer.step(), listed_[n].list.data(), listed_[n].ends.data(), from,
                     room_, to);
      std::fill(to + layer.neurons, to + layer.step(), 0.0f);
    } else if (last || !weights.turned) {
      for (size_t b = 0; b < count; ++b) {
        float* y = to + b * step;
        k_.matmul(weights.dense + layer.at, layer.neurons, layer.width, from + b * steps_[n], y);
        for (size_t j = 0; j < layer.neurons && !last; ++j) y[j] = y[j] > 0.0f ? y[j] : 0.0f;
      }
    } else {
      const bool begun = n == 0 && context_ && !context_->lanes.empty();
      const size_t width = FfmTurned::width(layer);
      for (size_t b = 0; b < count; b += kAcross)
        k_.across(weights.turned->layer(n), width, begun ? context_->lanes.data() : nullptr,
                  begun ? context_->whole() : 0, layer.width, from + b * steps_[n], steps_[n], to + b * step, step);
    }
    if (last) break;
    for (size_t b = 0; b < count; ++b) to[b * step + layer.neurons] = 1.0f;  // neurons of padding gave 0
  }
}

// Where a gradient is 0 its neuron's weights keep their bits, so they need not be touched.
void FfmPass::back_by_neuron(const FfmWeights& weights, size_t n, const float* upper, bool sparse) {
  const AdagradRates rates{s_.nn_rates.rate, s_.nn_rates.power_t};
  const auto& layer = l_.layers[n];
  std::memset(deltas_[n], 0, layer.width * sizeof(float));
  for (size_t j = 0; j < layer.neurons; ++j) {
    if (sparse && upper[j] == 0.0f) continue;
    float* w = weights.dense + layer.place(j, 0);
    k_.neuron_step(w, w + layer.size(), activations_[n], deltas_[n], upper[j], layer.width, rates);
  }
}

// The same of inputs that are 0; nobody asks for the gradient by them, since it would end at their ReLU.
void FfmPass::back_by_input(const FfmWeights& weights, size_t n) {
  const AdagradRates rates{s_.nn_rates.rate, s_.nn_rates.power_t};
  const auto& layer = l_.layers[n];
  for (size_t k = 0; k < listed_[n].ends.back(); ++k) {
    const uint32_t i = listed_[n].list[k];
    float* w = weights.dense + layer.place(0, i);
    deltas_[n][i] = k_.input_step(w, w + layer.size(), deltas_[n + 1], activations_[n][i], layer.step(), rates);
  }
}

// The gradient by the network's input, nullptr where it is 0 throughout.
const float* FfmPass::back_through_layers(const FfmWeights& weights, float g, bool sparse) {
  for (size_t n = l_.layers.size(); n-- > 0;) {
    const bool last = n + 1 == l_.layers.size();
    float* upper = last ? &g : deltas_[n + 1];
    bool any = last;
    if (!last) {  // a ReLU at 0 passes nothing
      const auto& layer = l_.layers[n];
      for (size_t j = 0; j < layer.neurons; ++j) {
        if (!(activations_[n + 1][j] > 0.0f)) upper[j] = 0.0f;
        any |= upper[j] != 0.0f;
      }
      std::fill(upper + layer.neurons, upper + l_.layers[n + 1].width, 0.0f);
    }
    if (sparse && !any) return nullptr;
    if (l_.layers[n].by_input)
      back_by_input(weights, n);
    else
      back_by_neuron(weights, n, upper, sparse);
  }
  const auto& first = l_.layers[0];
  deltas_[0][l_.inputs] = 0.0f;  // the constant input has no gradient
  if (s_.norm) k_.norm_back(normed_, deltas_[0], inverse_[0], l_.inputs, first.width);
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
    const float* from = dx + l_.of_field(f);
    float* along = spread_ + f * line;
    if (chunks == 1) {
      for (size_t h = 0; h <= f; ++h) along[h] = from[h] + g;
      for (size_t h = 0; h < f; ++h) spread_[h * line + f] = along[h];
    } else {
      for (size_t h = 0; h <= f; ++h) {
        const float d = from[h] + g;
        for (size_t c = 0; c < chunks; ++c) along[h * chunks + c] = spread_[h * line + f * chunks + c] = d;
      }
    }
  }
}

// Steps the weights of the features, or with `to` adds their gradients to its sums where a row is shared.
void FfmPass::step_rows(const Examples& examples, size_t e, const float* dx, float g, const SliceGradients* to) {
  const auto& places = places_[e % places_.size()];
  const uint32_t begin = examples.offsets[e];
  const AdagradRates ffm{s_.ffm_rates.rate, s_.ffm_rates.power_t}, lr{s_.lr_rates.rate, s_.lr_rates.power_t};
  const size_t line = l_.stride / kChunk, latent = l_.latent;
  for (const Group& group : groups_) {
    const size_t f = group.field;
    float* turned = turned_ + f * l_.stride;
    float* own = turned + f * latent;
    const float by_field = (dx ? dx[l_.first_order(f)] : 0.0f) + g;
    const bool alone = group.end == group.begin + 1;
    if (s_.ffm && alone) std::memset(own, 0, latent * sizeof(float));
    for (uint32_t i = group.begin; i < group.end; ++i) {
      const Place& place = places[i - begin];
      const float x = examples.value(i);
      if (s_.lr && to)
        to->first_order[to->plan->first_order[i - to->plan->features]] = by_field * x;
      else if (s_.lr)
        adagrad_step(place.lr[0], place.lr[1], by_field * x, lr);
      if (!s_.ffm) continue;
      if (!alone) {  // the other features of its field
        const float *sum = sums_ + f * l_.stride + f * latent, *mine = place.row + f * latent;
        for (size_t d = 0; d < latent; ++d) own[d] = sum[d] - mine[d] * x;
      }
      if (const uint32_t sum = to ? to->plan->sums[i - to->plan->features] : BlockPlan::kAlone;
          sum != BlockPlan::kAlone) {
        float* s = to->rows + (sum & ~BlockPlan::kFirst) * l_.stride;
        k_.ffm_gradient(s, !(sum & BlockPlan::kFirst), turned, spread_ + f * line, x, l_.stride);
        continue;
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
