// Trains a Deep FFM on any number of threads, with the same bits for every number.
//
// Examples are learned in blocks. For each block there are two phases, and a phase begins when the one before has
// ended. A phase has twice as many tasks as 16 threads, so that others can take work from a thread that is held up:
//
//   slices   the block's 32 slices compute predictions and gradients with the weights as the block found them. A slice
//            writes its own sums of gradients (dense, shared rows), the gradient of each first-order weight, and steps
//            the rows that one feature of the block has alone (block_plan.h).
//   steps    32 shards of rows and first-order weights and the tiles of the dense block are stepped, each by one
//            thread, with the sums of the slices added in the order of the slices.
//
// Which thread takes a slice or a shard changes nothing, so weights and predictions depend on settings, examples and
// the ends of blocks, never on the number of threads. Nobody waits for a thread, only for work that a thread has begun:
// with more threads than cores, or where the pool lends none, the caller does it all.
//
// A step on shared weights is one Adagrad step with the sum of the block's gradients. Steps with gradients of old
// weights therefore never add up beyond the rate, however many threads there are. First-order weights and the bias are
// stepped once for each example, in order, with the gradients of the block.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ffm/block_plan.h"
#include "core/ffm/examples.h"
#include "core/ffm/forward_backward.h"
#include "core/ffm/weight_layout.h"
#include "core/system/huge_pages.h"

namespace cb {

class BlockLearner {
 public:
  static constexpr size_t kMostThreads = BlockPlan::kSlices;

  BlockLearner(const FfmSettings& settings, const FfmLayout& layout, const FfmKernels& kernels,
               const FfmWeights& weights);

  // Learns in blocks of up to `block` examples; the first blocks of a model, which has `learned` examples behind it,
  // are smaller. Gives the first example whose logit was not finite; nothing behind its block was learned.
  uint64_t learn(const Examples& examples, float* predictions, size_t threads, bool sparse, size_t block,
                 uint64_t learned);

  static constexpr uint64_t kNobody = ~uint64_t{0};

 private:
  static constexpr size_t kRun = 32;  // blocks whose plans are made at once
  static constexpr size_t kTasks = 64;

  // The number of the last phase in which a task was taken. Each has a cache line: its usual thread finds it there.
  struct alignas(64) Taken {
    std::atomic<uint64_t> phase{0};
  };
  struct Place {  // phases begun and tasks asked for, over all calls
    uint64_t phase = 0, done = 0;
  };
  struct Tile {  // of the weights of a layer: those of some neurons for some inputs
    size_t layer, neuron, neurons, input, inputs;
  };
  struct Call {
    const Examples& examples;
    float* predictions;
    bool sparse;
    size_t threads;
  };

  void cut_tiles();
  size_t block_end(const Examples& examples, size_t begin, size_t block, uint64_t learned) const;
  void make_run(const Call& call, size_t& next, size_t block, uint64_t learned);
  void work(const Call& call, size_t thread);
  template <class F>
  bool share(Place& at, size_t tasks, const Call& call, size_t thread, F run);

  void learn_slice(const Call& call, const BlockPlan& plan, size_t s, FfmPass& pass);
  void step_shard(const BlockPlan& plan, size_t shard);
  void step_rows(const BlockPlan& plan, size_t shard);
  void step_first_order(const BlockPlan& plan, size_t shard);
  void step_tile(const Tile& tile, const float* const* parts, size_t count);

  const FfmSettings& s_;
  const FfmLayout& l_;
  const FfmKernels& k_;
  FfmWeights weights_;
  FfmTurned turned_;
  std::vector<Tile> tiles_;
  std::vector<std::unique_ptr<FfmPass>> passes_;  // one for each thread
  HugeBlock dense_;                               // kSlices times the dense block
  std::array<HugeBlock, BlockPlan::kSlices> rows_;
  std::vector<float> first_order_, slopes_;
  std::vector<BlockPlan> plans_;
  std::vector<std::pair<size_t, size_t>> blocks_;  // of this run
  std::vector<BlockPlan::Scratch> scratch_;        // one for each thread
  std::array<Taken, kTasks> taken_;
  alignas(64) std::atomic<uint64_t> done_{0};  // tasks
  alignas(64) Place begun_;                    // where the run under way began
  std::atomic<uint64_t> broken_{kNobody};
  std::atomic<bool> failed_{false};
};

}  // namespace cb
