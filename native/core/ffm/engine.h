// Deep FFM: dffm = ffnn(MergeNorm(lr, DiagMask(ffm))) + lr + ffm, learned one example at a time.
//
// One call at a time learns, with one thread or several (hogwild). Within a call of several threads lr and ffm are
// shared without locks: an update may be lost when two threads meet at one feature. The dense block, which every
// example touches, is a thread's own for kTogether examples; what it learned is then added to the others' under a lock.
// With one thread the result depends on nothing but settings and examples. predict only reads.
#pragma once
#include <memory>
#include <mutex>
#include <optional>

#include "core/ffm/examples.h"
#include "core/ffm/layout.h"
#include "core/ffm/pass.h"
#include "core/huge_pages.h"

namespace cb {

class DeepFfm {
 public:
  explicit DeepFfm(const FfmSettings& settings, bool fresh = true);  // not fresh: every weight 0, to be loaded

  const FfmSettings& settings() const { return settings_; }
  const FfmLayout& layout() const { return layout_; }
  const FfmKernels& kernels() const { return *kernels_; }
  void use(const FfmKernels& kernels) { kernels_ = &kernels; }

  // Predictions are made before an example is learned from. Gives the first example whose logit was not finite:
  // nothing is learned from it, and with one thread from none after it.
  std::optional<size_t> learn(const Examples& examples, float* predictions, size_t threads, bool sparse);
  std::optional<size_t> predict(const Examples& examples, float* predictions, size_t threads) const;

  // For files and tests.
  float* lr() const { return weights_.lr; }
  float* ffm() const { return weights_.ffm; }
  float* dense() const { return weights_.dense; }
  uint64_t bytes() const { return lr_.size() + ffm_.size() + dense_.size(); }

  static constexpr size_t kTogether = 64;

 private:
  void initialise();

  std::mutex learning_;  // a second call of learn waits

  FfmSettings settings_;
  FfmLayout layout_;
  const FfmKernels* kernels_;
  HugeBlock lr_, ffm_, dense_;
  FfmWeights weights_;
};

}  // namespace cb
