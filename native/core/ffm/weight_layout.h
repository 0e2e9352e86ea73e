// Describes the shape of a Deep FFM and the positions of its weights.
//
//   lr     2^bits records {weight, accumulator}; a feature's is chosen by the top bits of its key times an odd number
//   ffm    2^bits weights cut into rows of `stride` floats; a row is [stride weights][stride accumulators], 64-byte
//          aligned, and holds the latent vectors of one feature, one for each field it may meet, field by field. A
//          latent vector is padded to whole chunks of 4 floats, a row to whole lanes of 16; padding is 0 and stays 0.
//          Rows never overlap. A prediction reads the first half of a row only.
//   dense  {bias, accumulator} padded to 16, then layer by layer [weights][as many accumulators]. The last used input
//   of
//          a layer is the constant 1, so a neuron's bias is one of its weights. The first and the last layer have a row
//          per neuron. Layers between them have a row per input, because those are outputs of a ReLU and most of them
//          are 0: their rows are read neither forward nor backward. Files have a row per neuron throughout.
//
// The network's input, field by field: the pairs (0, g) … (g, g) of field g, then its first-order sum; then 1. A pair
// (g, g) is that of two features of one field. So what the first c fields say among themselves is a prefix of it: where
// they are the context of a request, that prefix is computed once (shared_context.h).
//
// A model that only predicts keeps no accumulators of lr and ffm (`learns` false): rows and records are half as long.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ffm/kernels.h"

namespace cb {

// Rate, power_t and the accumulators' first value of one block.
struct BlockRates {
  float rate = 0.1f;
  float power_t = 0.5f;
  float initial = 1.0f;
};

struct FfmSettings {
  uint32_t fields = 0;
  uint32_t context = 0;  // so many fields, the first ones, come once per request
  uint32_t k = 4;
  uint32_t bits = 22;
  bool lr = true, ffm = true;    // the bias is always there
  std::vector<uint32_t> hidden;  // none: no network
  bool norm = false;             // layer norm of the network's input
  bool residual = true;          // lr and ffm are added to the network's output
  BlockRates lr_rates, ffm_rates, nn_rates;
  float ffm_init = 0.1f;  // latent weights start uniform within ± ffm_init / sqrt k
  uint64_t seed = 0;
};

inline constexpr uint32_t kMostFields = 512, kMostK = 64, kMostBits = 36, kMostLayers = 8, kMostNeurons = 1024;

inline constexpr size_t kBehind = 4;  // latent vectors that the kernel of pairs may read behind the last row

struct FfmLayout {
  explicit FfmLayout(const FfmSettings& s, bool learns = true)
      : ffm(s.ffm),
        lr(s.lr),
        fields(s.fields),
        latent(padded(s.k, kChunk)),
        stride(padded(fields * latent, kLanes)),
        row_step(learns ? 2 * stride : stride),
        lr_step(learns ? 2 : 1),
        rows(s.ffm ? (uint64_t{1} << s.bits) / stride : 0),
        lr_size(s.lr ? uint64_t{1} << s.bits : 0),
        inputs(of_field(fields)) {
    size_t at = kLanes, before = inputs;
    std::vector<uint32_t> neurons = s.hidden;
    if (!neurons.empty()) neurons.push_back(1);
    for (uint32_t n : neurons) {
      layers.push_back({before, n, padded(before + 1, kLanes), at, !layers.empty() && layers.size() < s.hidden.size()});
      at += 2 * layers.back().size();
      before = n;
    }
    dense = at;
  }

  struct Layer {
    size_t inputs, neurons, width, at;  // width: inputs + 1, padded; at: its first weight within `dense`
    bool by_input;                      // a row per input, or one per neuron
    size_t step() const { return by_input ? padded(neurons, kLanes) : width; }
    size_t size() const { return (by_input ? inputs + 1 : neurons) * step(); }
    size_t place(size_t neuron, size_t input) const {
      return at + (by_input ? input * step() + neuron : neuron * step() + input);
    }
  };

  bool ffm, lr;
  size_t fields, latent, stride, row_step, lr_step;
  uint64_t rows, lr_size;
  size_t inputs;
  std::vector<Layer> layers;
  size_t dense = 0;

  size_t chunks() const { return latent / kChunk; }
  bool learns() const { return lr_step == 2; }

  // Where the inputs of field g begin, where pair (f, g) is, f ≤ g, and where its first-order sum.
  size_t of_field(size_t g) const { return (ffm ? g * (g + 1) / 2 : 0) + (lr ? g : 0); }
  size_t pair(size_t f, size_t g) const { return of_field(g) + f; }
  size_t first_order(size_t g) const { return of_field(g) + (ffm ? g + 1 : 0); }

  uint64_t row_of(uint64_t key) const {
    __extension__ typedef unsigned __int128 Wide;
    return static_cast<uint64_t>((Wide{key} * rows) >> 64);
  }
  uint64_t lr_of(uint64_t key, uint32_t bits) const { return (key * 0x9e3779b97f4a7c15ull) >> (64 - bits); }
};

}  // namespace cb
