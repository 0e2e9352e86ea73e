// The file of a Deep FFM. Little-endian, CheckedWriter; [seal] is the checksum of the block before it:
//
//   8  "CTRFFM\0\0"   4  version, 2 or 3
//   4 each  fields, fields of the context, k, bits, flags: 1 lr, 2 ffm, 4 norm, 8 residual, 16 accumulators
//   4  hidden layers, 4 each their neurons
//   12 each  rate, power_t, first accumulator of lr, ffm, nn   4  ffm_init   8  seed   8  examples learned from
//   4  bytes of names, then names: each 2 length, bytes   version 3: 1 for each field, what its keys are hashes of
//   (key_kinds.h)   [seal]
//   weights of lr, ffm, dense, then their accumulators (if any), each in blocks of 2^18 floats  [seal] each
//   8  "CTRFEND."  [seal]
//
// Weights and accumulators lie apart: a file without accumulators is a prefix of one shape with half the floats. Within
// ffm a row is `stride` floats as in memory (weight_layout.h), so a feature's weights have one place in every file of a
// shape. A model without known kinds of keys is written in version 2, which earlier releases read as well.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/ffm/engine.h"
#include "core/ffm/key_kinds.h"

namespace cb {

struct FfmHead {
  FfmSettings settings;
  std::vector<std::string> fields;
  uint64_t examples = 0;
  std::vector<KeyKind> keys = {};  // by field; empty: all are unknown

  KeyKind key_kind(size_t field) const { return keys.empty() ? KeyKind::kUnknown : keys.at(field); }
};

void save_ffm(const std::string& path, const DeepFfm& model, const FfmHead& head);
std::unique_ptr<DeepFfm> load_ffm(const std::string& path, FfmHead& head);

// Weights without accumulators, in the order of the file: 2^bits of lr, rows of ffm, dense.
uint64_t weights_of(const FfmLayout& layout);
void take_weights(const DeepFfm& model, float* out);
void give_weights(DeepFfm& model, const float* weights);
// Sets the dense weights alone, for a model that reads its lr and ffm weights in the memory of another one.
void give_dense(DeepFfm& model, const float* dense);

// "" or what is wrong with settings; sizes are bounded here before anything is allocated.
std::string wrong_with(const FfmSettings& settings);

}  // namespace cb
