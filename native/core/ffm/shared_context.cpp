#include "core/ffm/shared_context.h"

#include <algorithm>
#include <cstring>

#include "core/ffm/forward_backward.h"

namespace cb {

FfmContext FfmPass::context_of(const Examples& examples, const FfmWeights& weights) {
  fetch(examples, 0, weights, false);
  merge(examples, 0, 0);
  FfmContext out;
  out.fields = s_.context;
  const float* inputs = input(0);
  out.inputs.assign(inputs, inputs + l_.of_field(out.fields));
  if (s_.ffm) {
    const size_t step = FfmContext::turned_step(l_, out.fields);
    out.turned.resize((l_.fields - out.fields) * step);
    for (size_t g = out.fields; g < l_.fields; ++g)
      for (size_t f = 0; f < out.fields; ++f)
        std::memcpy(out.turned.data() + (g - out.fields) * step + f * l_.latent, source_[f] + g * l_.latent,
                    l_.latent * sizeof(float));
  }
  const size_t whole = out.whole();
  if (whole == 0) return out;
  out.sums.assign(inputs, inputs + kLanes);
  for (size_t k = kLanes; k < whole; ++k) out.sums[k % kLanes] += inputs[k];
  if (l_.layers.empty() || s_.norm) return out;
  const auto& first = l_.layers[0];
  const size_t width = FfmTurned::width(first);
  out.lanes.resize(kLanes * width);
  k_.across_lanes(weights.turned->layer(0), width, first.width, whole, inputs, out.lanes.data());
  return out;
}

void FfmPass::share(const FfmContext& context) {
  context_ = &context;
  for (size_t b = 0; b < kBatch; ++b) std::copy(context.inputs.begin(), context.inputs.end(), input(b));
}

}  // namespace cb
