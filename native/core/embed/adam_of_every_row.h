// The step of Adam and AdamW that moves every row of a table, not only those of a batch.
//
// It gives the bits of torch.optim.Adam and torch.optim.AdamW (foreach=False, fused=False) on CPUs with fused
// multiply-add: the loop has the roundings of torch's operations in their order. A fused multiply-add is one on every
// machine, so the bits of a table do not depend on the machine.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/embed/row_optimizers.h"

namespace cb {

// torch counts the steps in a float32, which does not grow beyond this number.
inline constexpr uint64_t kMostDenseSteps = uint64_t{1} << 24;

class DenseAdam {
 public:
  // The numbers that all floats of a part of a row have in common in one step.
  struct Numbers {
    float l2;            // times the weight, added to the gradient; 0: nothing
    float shrink;        // of the weight before the step, 1 − lr·weight_decay; 1: nothing
    bool from_gradient;  // torch's lerp starts from the nearer end: from the gradient where beta1 is at most 0.5
    float near;          // 1 − beta1, or −beta1 from the gradient
    float beta2, rest2;  // and 1 − beta2
    float root, eps;     // √(1 − beta2^step)
    float rate;          // −lr / (1 − beta1^step)
  };

  // `step` is the number of this step, from 1; `factor` scales the learning rate.
  DenseAdam(const OptimizerSpec& spec, double factor, uint64_t step);

  // Moves n weights with their means and means of squares by their gradients.
  void operator()(float* w, float* m, float* v, const float* g, size_t n) const;

 private:
  Numbers numbers_;
};

}  // namespace cb
