// Deep FFM: dffm = ffnn(MergeNorm(lr, DiagMask(ffm))) + lr + ffm, learned one example at a time.
//
// One call at a time learns: one example after the other on one thread, or blocks of examples on any number of threads
// (block_learner.h). Both depend on nothing but settings and examples, blocks also on where a call ends. predict,
// context and score only read: any number of threads may call them at once, but not while another call learns.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/ffm/block_learner.h"
#include "core/ffm/examples.h"
#include "core/ffm/forward_backward.h"
#include "core/ffm/weight_layout.h"
#include "core/system/huge_pages.h"

namespace cb {

class DeepFfm {
 public:
  // Not fresh: every weight 0, to be loaded. One that does not learn keeps no accumulators.
  explicit DeepFfm(const FfmSettings& settings, bool fresh = true, bool learns = true);
  // A model that only predicts and reads lr and ffm where they lie, such as in a mapped file that processes share: as
  // the layout has them without accumulators, and 64-byte aligned. kBehind latent vectors behind the last row can be
  // read too. The caller keeps that memory as long as the model; dense is to be given (model_file.h).
  DeepFfm(const FfmSettings& settings, const float* lr, const float* ffm);

  const FfmSettings& settings() const { return settings_; }
  const FfmLayout& layout() const { return layout_; }
  const FfmKernels& kernels() const { return *kernels_; }
  void use(const FfmKernels& kernels);

  // Predictions are made before an example is learned from. Gives the first example whose logit was not finite:
  // nothing is learned from it and none behind it.
  std::optional<size_t> learn(const Examples& examples, float* predictions, bool sparse);
  // The same in blocks of up to `block` examples, at least two, on so many threads; the model has learned from
  // `learned` examples before. Of the block with such an example some were learned, and none behind it.
  std::optional<size_t> learn_blocks(const Examples& examples, float* predictions, size_t threads, bool sparse,
                                     size_t block, uint64_t learned);
  // Throws std::invalid_argument where an example has a field that the model does not have; `learn` and `score` take
  // checked examples only.
  std::optional<size_t> predict(const Examples& examples, float* predictions, size_t threads) const;
  // Throws so for the examples from `begin` to `end`.
  void check_fields(const Examples& examples, size_t begin, size_t end) const;
  // Throws so where an example of one part of a request, the context or the candidates, has a field of the other part
  // or one that the model does not have.
  void check_part(const Examples& examples, bool of_context) const;

  // The context of a request (shared_context.h), in the one example given, and its candidates: as predict of whole
  // examples.
  FfmContext context(const Examples& example) const;
  std::optional<size_t> score(const FfmContext& context, const Examples& candidates, float* predictions) const;
  uint64_t state() const { return state_; }  // another number after each change of weights, in all models
  void changed();

  // For files and tests.
  float* lr() const { return weights_.lr; }
  float* ffm() const { return weights_.ffm; }
  float* dense() const { return weights_.dense; }
  uint64_t bytes() const { return lr_.size() + ffm_.size() + dense_.size(); }  // that are its own
  bool owns() const { return owns_; }  // false: lr and ffm belong to somebody else and must not be written

 private:
  void initialize();
  std::optional<size_t> learned(const Examples& examples, uint64_t broken);
  // Weights to predict with; `held` keeps alive what they point at.
  FfmWeights turned(std::shared_ptr<const FfmTurned>& held) const;
  std::unique_ptr<FfmPass> borrow() const;
  void give_back(std::unique_ptr<FfmPass> pass) const;

  std::mutex learning_;                   // a second call of learn waits
  std::unique_ptr<BlockLearner> blocks_;  // made by the first call that needs it
  mutable std::mutex lending_;
  mutable std::vector<std::unique_ptr<FfmPass>> idle_;  // their scratch memory costs more than some candidates
  mutable std::shared_ptr<const FfmTurned> turned_;     // of the weights as they were at
  mutable uint64_t turned_at_ = 0;
  std::atomic<uint64_t> state_;

  FfmSettings settings_;
  FfmLayout layout_;
  const FfmKernels* kernels_;
  bool owns_ = true;
  HugeBlock lr_, ffm_, dense_;
  FfmWeights weights_;
};

}  // namespace cb
