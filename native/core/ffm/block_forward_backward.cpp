// The gradients of several examples at once, computed with the same weights: the slice of a block (block_plan.h).
#include <algorithm>
#include <cstring>

#include "core/ffm/forward_backward.h"
#include "core/ffm/prefetch.h"

namespace cb {

namespace {

constexpr size_t kHeld = 8192;  // floats that the first cache holds beside what is streamed

}  // namespace

void FfmPass::fetch_to_write(const Examples& examples, size_t e, const SliceGradients& to) const {
  if (!s_.ffm) return;
  const auto& places = places_[e % places_.size()];
  const uint32_t* sums = to.plan->sums.data() + (examples.offsets[e] - to.plan->features);
  for (size_t i = 0; i < places.size(); ++i) {
    if (sums[i] == BlockPlan::kAlone)
      prefetch_floats_to_write(places[i].row + l_.stride, l_.stride);
    else if (sums[i] & BlockPlan::kFirst)
      prefetch_floats_to_write(to.rows + (sums[i] & ~BlockPlan::kFirst) * l_.stride, l_.stride);
  }
}

// Layers with a row per neuron: dx = Σ_j upper[j] · w[j] of each example, and the gradient of row j is Σ upper[j] · x
// over the examples.
void FfmPass::back_by_neuron(const FfmWeights& weights, size_t n, size_t count, const float* upper, size_t upper_step,
                             const SliceGradients& to, bool sparse) {
  const auto& layer = l_.layers[n];
  active_.resize(count * std::max<size_t>(layer.neurons, 1) + count);
  factors_.resize(active_.size());
  auto list = [&](size_t at, size_t many, auto factor) {
    size_t found = at;
    for (size_t k = 0; k < many; ++k) {
      const float f = factor(k);
      active_[found] = static_cast<uint32_t>(k);
      factors_[found] = f;
      found += !sparse || f != 0.0f;
    }
    return found - at;
  };
  size_t found[kBlockBatch];
  for (size_t b = 0; b < count; ++b)
    found[b] = list(b * layer.neurons, layer.neurons, [&](size_t j) { return upper[b * upper_step + j]; });
  // So many columns at a time that those of all neurons stay in the first cache for all examples.
  const size_t columns = std::max<size_t>(kHeld / layer.neurons / 64 * 64, 64);
  for (size_t k = 0; k < layer.width; k += columns)
    for (size_t b = 0; b < count; ++b)
      k_.add_rows(deltas_[n] + b * layer.width + k, false, weights.dense + layer.at + k, layer.step(),
                  active_.data() + b * layer.neurons, factors_.data() + b * layer.neurons, found[b],
                  std::min(columns, layer.width - k));
  for (size_t j = 0; j < layer.neurons; ++j) {
    const size_t some = list(0, count, [&](size_t b) { return upper[b * upper_step + j]; });
    if (some == 0 && to.go_on) continue;
    k_.add_rows(to.dense + layer.place(j, 0), to.go_on, activations_[n], steps_[n], active_.data(), factors_.data(),
                some, layer.width);
  }
}

// Layers with a row per input, most of which are 0; nobody asks for the gradient by those.
void FfmPass::back_by_input(const FfmWeights& weights, size_t n, size_t count, const SliceGradients& to, bool sparse) {
  const auto& layer = l_.layers[n];
  const size_t upper_step = l_.layers[n + 1].width;
  active_.resize(count);
  factors_.resize(count);
  for (size_t i = 0; i <= layer.inputs; ++i) {
    const float* w = weights.dense + layer.place(0, i);
    size_t found = 0;
    for (size_t b = 0; b < count; ++b) {
      const float x = activations_[n][b * steps_[n] + i];
      if (sparse && x == 0.0f) continue;
      active_[found] = static_cast<uint32_t>(b);
      factors_[found++] = x;
      deltas_[n][b * layer.width + i] = k_.dot(w, deltas_[n + 1] + b * upper_step, layer.step());
    }
    if (found == 0 && to.go_on) continue;
    k_.add_rows(to.dense + layer.place(0, i), to.go_on, deltas_[n + 1], upper_step, active_.data(), factors_.data(),
                found, layer.step());
  }
}

void FfmPass::back_through_layers(const FfmWeights& weights, size_t count, const float* slopes,
                                  const SliceGradients& to, bool sparse) {
  for (size_t n = l_.layers.size(); n-- > 0;) {
    const auto& layer = l_.layers[n];
    const bool last = n + 1 == l_.layers.size();
    const size_t step = last ? 1 : l_.layers[n + 1].width;
    for (size_t b = 0; b < count && !last; ++b) {  // a ReLU at 0 passes nothing
      float* upper = deltas_[n + 1] + b * step;
      const float* y = activations_[n + 1] + b * steps_[n + 1];
      for (size_t j = 0; j < layer.neurons; ++j) upper[j] = y[j] > 0.0f ? upper[j] : 0.0f;
      std::fill(upper + layer.neurons, upper + step, 0.0f);
    }
    if (layer.by_input)
      back_by_input(weights, n, count, to, sparse);
    else
      back_by_neuron(weights, n, count, last ? slopes : deltas_[n + 1], step, to, sparse);
  }
  const size_t width = l_.layers[0].width;
  for (size_t b = 0; b < count; ++b) {
    float* dx = deltas_[0] + b * width;
    dx[l_.inputs] = 0.0f;  // the constant input has no gradient
    if (s_.norm) k_.norm_back(normed_ + b * input_step_, dx, inverse_[b], l_.inputs, width);
  }
}

// An example without a gradient: sums that would begin with it begin at 0.
void FfmPass::leave_out(const Examples& examples, size_t e, const SliceGradients& to) const {
  for (uint32_t i = examples.offsets[e]; i < examples.offsets[e + 1]; ++i) {
    const size_t at = i - to.plan->features;
    if (s_.lr) to.first_order[to.plan->first_order[at]] = 0.0f;
    if (!s_.ffm || to.plan->sums[at] == BlockPlan::kAlone || !(to.plan->sums[at] & BlockPlan::kFirst)) continue;
    std::fill_n(to.rows + (to.plan->sums[at] & ~BlockPlan::kFirst) * l_.stride, l_.stride, 0.0f);
  }
}

void FfmPass::add_gradients(const Examples& examples, size_t first, size_t count, const FfmWeights& weights,
                            const float* slopes, SliceGradients& to, bool sparse) {
  if (!l_.layers.empty()) back_through_layers(weights, count, slopes, to, sparse);
  to.go_on = true;
  const bool merged_last = count == 1;  // what `merge` found is still there
  if (!merged_last) fetch_to_write(examples, first, to);
  for (size_t b = 0; b < count; ++b) {
    if (b + 1 < count) fetch_to_write(examples, first + b + 1, to);
    const float direct = s_.residual || l_.layers.empty() ? slopes[b] : 0.0f;
    if (slopes[b] == 0.0f) {
      leave_out(examples, first + b, to);
      continue;
    }
    const float* dx = l_.layers.empty() ? nullptr : deltas_[0] + b * l_.layers[0].width;
    if (!merged_last) gather(examples, first + b);
    transpose_rows();
    if (s_.ffm) spread_gradients(dx, direct);
    step_rows(examples, first + b, dx, direct, &to);
  }
}

}  // namespace cb
