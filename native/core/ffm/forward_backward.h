// Runs one example forward and backward through the network, on one thread.
//
//   forward   rows of one field are added up (weighted) to S[f]; pair (f, g) = S[f][g] · S[g][f]
//   backward  T[f][g] = S[g][f], so the gradient of a feature's row is x · D[f][g] · T[f][g], contiguous in all three;
//   T holds the values
//             before any update of this example
//
// A field with one feature of value 1 has no S of its own: the row in the weight array is used in place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "core/ffm/block_plan.h"
#include "core/ffm/examples.h"
#include "core/ffm/shared_context.h"
#include "core/ffm/weight_layout.h"

namespace cb {

// Zeroed floats, the first of them in a cache line.
struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};
using FfmFloats = std::unique_ptr<float, FreeFloats>;
FfmFloats zeroed_floats(size_t count);

// The hidden layers turned round, for predictions: neurons side by side (kernels.h, across).
class FfmTurned {
 public:
  FfmTurned(const FfmLayout& layout, const float* dense);
  // Copies the weights of neurons j to j_end for inputs i to i_end of hidden layer n.
  void copy(const FfmLayout& layout, const float* dense, size_t n, size_t j, size_t j_end, size_t i, size_t i_end);
  const float* layer(size_t n) const { return memory_.get() + at_[n]; }
  static size_t width(const FfmLayout::Layer& layer) { return padded(layer.neurons, kBeside); }

 private:
  std::vector<size_t> at_;  // the first weight of each layer, the first in a cache line
  FfmFloats memory_;
};

// Where the weights are.
struct FfmWeights {
  float* lr = nullptr;
  float* ffm = nullptr;
  float* dense = nullptr;
  const FfmTurned* turned = nullptr;  // of `dense`, where somebody made it
};

// Where the gradients of one slice of a block go (block_plan.h).
struct SliceGradients {
  const BlockPlan* plan;
  float* dense;        // sums, each in the place of its weight
  float* rows;         // the slice's sums of shared rows, `stride` floats each
  float* first_order;  // one for each feature of the block, in the order that the plan has
  bool go_on = false;  // `dense` holds sums already
};

class FfmPass {
 public:
  // One for blocks has room for kBlockBatch examples at once and the gradients of all of them.
  FfmPass(const FfmSettings& settings, const FfmLayout& layout, const FfmKernels& kernels, bool for_blocks = false);

  // Start to load what example e of `examples` needs; up to ahead() examples may be on their way. Rows of two examples
  // fit into the first cache beside the network; first-order weights alone are small, and want more of them.
  size_t ahead() const { return s_.ffm ? 2 : 8; }
  void fetch(const Examples& examples, size_t e, const FfmWeights& weights, bool to_write);

  // The logit of an example that was fetched, and all that backward needs. Without `sparse`, here and there, neurons
  // that say nothing and pass no gradient are read and stepped like all others: the same bits, slower.
  float forward(const Examples& examples, size_t e, const FfmWeights& weights, bool sparse);

  // The same for a batch, whose weights of the network are read once: merge(0), merge(1), … in the order they were
  // fetched, then logits of the first `count`.
  static constexpr size_t kBatch = 8, kBlockBatch = 16;
  void merge(const Examples& examples, size_t e, size_t slot);
  void logits(const FfmWeights& weights, size_t count, float* out, bool sparse = true);

  // The context in the first of `examples`, which has its fields only.
  FfmContext context_of(const Examples& examples, const FfmWeights& weights);
  // From here on merge takes candidates, which have the other fields; the context must stay. leave() ends it.
  void share(const FfmContext& context);
  void leave() { context_ = nullptr; }

  // One step with the loss' gradient g by the logit; after forward of the same example.
  void backward(const Examples& examples, size_t e, const FfmWeights& weights, float g, bool sparse);

  // The gradients of `count` examples from `first` on, after their logits, with the loss' gradients by these; the rows
  // that one feature of the block has alone are stepped (block_forward_backward.cpp).
  void add_gradients(const Examples& examples, size_t first, size_t count, const FfmWeights& weights,
                     const float* slopes, SliceGradients& to, bool sparse);
  // Start to load what that will write for example e, which was fetched: the accumulators of such rows, and the sums
  // that begin with it.
  void fetch_to_write(const Examples& examples, size_t e, const SliceGradients& to) const;

 private:
  struct Place {
    float* row;
    float* lr;
  };
  struct Group {  // the features of one field
    uint32_t field, begin, end;
  };

  float* aligned(size_t floats);
  void gather(const Examples& examples, size_t e);
  void add_up(const Examples& examples, const Group& group, const Place* places);
  template <size_t kLatent>
  void transpose();
  void multiply_pairs(float* inputs);
  float* input(size_t slot) { return inputs_ + slot * input_step_; }
  void run_layers(const FfmWeights& weights, size_t count, float* out, bool sparse);
  void list_inputs(size_t n, bool sparse);
  void back_by_neuron(const FfmWeights& weights, size_t n, const float* upper, bool sparse);
  void back_by_input(const FfmWeights& weights, size_t n);
  const float* back_through_layers(const FfmWeights& weights, float g, bool sparse);
  void spread_gradients(const float* dx, float g);
  void step_rows(const Examples& examples, size_t e, const float* dx, float g, const SliceGradients* to = nullptr);
  void transpose_rows();
  void back_by_neuron(const FfmWeights& weights, size_t n, size_t count, const float* upper, size_t upper_step,
                      const SliceGradients& to, bool sparse);
  void back_by_input(const FfmWeights& weights, size_t n, size_t count, const SliceGradients& to, bool sparse);
  void back_through_layers(const FfmWeights& weights, size_t count, const float* slopes, const SliceGradients& to,
                           bool sparse);
  void leave_out(const Examples& examples, size_t e, const SliceGradients& to) const;

  const FfmSettings& s_;
  const FfmLayout& l_;
  const FfmKernels& k_;
  const size_t slots_;  // examples at once
  FfmFloats memory_;
  size_t used_ = 0;
  std::vector<std::vector<Place>> places_;  // a ring of examples: those ahead, and the one or those in work
  std::vector<Group> groups_;
  std::vector<const float*> source_;          // S[f]: a row in place, one of sums_, or zeros_
  std::vector<float*> activations_, deltas_;  // of layer l: its input, and the gradient by it
  std::vector<size_t> steps_;                 // from one input of a batch to the next
  struct Inputs {
    std::vector<uint32_t> list, ends;  // lane after lane; where each ends
  };
  std::vector<Inputs> listed_;  // of the layers with a row per input
  size_t input_step_;
  const FfmContext* context_ = nullptr;
  float *zeros_, *sums_, *turned_, *inputs_, *first_order_, *within_, *spread_, *normed_, *room_;
  std::vector<float> inverse_;    // of the norm of each example
  std::vector<uint32_t> active_;  // what is not 0 in a list of factors, and these factors
  std::vector<float> factors_;
};

}  // namespace cb
