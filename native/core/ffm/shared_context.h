// Computes once what the candidates of one request share: the fields of its context.
//
//   inputs   what these fields say among themselves: a prefix of the network's input (weight_layout.h)
//   turned   turned[g][f] = S[f][g], g a candidate's field and f the context's: their pairs are one walk over a row and
//            this
//   sums     16 partial sums of the first whole() inputs, whole lanes of 16
//   lanes    the same of each neuron's products in the first layer; none with layer norm, which needs all inputs first
//
// A candidate's scores go on from these partial sums in the order of a whole example, so they have the bits of predict.
// A context holds copies, of the weights as they were: when the model learns it is refused (`weights`).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ffm/weight_layout.h"

namespace cb {

struct FfmContext {
  uint64_t weights = 0;  // of which weights: DeepFfm::state
  size_t fields = 0;
  std::vector<float> inputs, turned, sums, lanes;

  size_t whole() const { return inputs.size() / kLanes * kLanes; }
  static size_t turned_step(const FfmLayout& l, size_t fields) { return padded(fields * l.latent, 4 * l.latent); }
  size_t bytes() const {
    return sizeof *this + (inputs.capacity() + turned.capacity() + sums.capacity() + lanes.capacity()) * sizeof(float);
  }
};

}  // namespace cb
