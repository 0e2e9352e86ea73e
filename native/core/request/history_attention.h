// An attention over one history, ready for the targets of a request: kernels.h, Attention. Weights are padded once.
#pragma once
#include <cstddef>
#include <vector>

#include "core/ffm/kernels.h"

namespace cb {

class HistoryAttention {
 public:
  static constexpr size_t kMostItems = size_t{1} << 20, kMostWide = size_t{1} << 12;  // of dim and width

  // maps [items][dim][width], fixed [items][width], above and below [width], vectors [items][dim].
  HistoryAttention(size_t items, size_t dim, size_t width, const float* maps, const float* fixed, const float* above,
                   const float* below, const float* vectors, float bias);

  HistoryAttention(const HistoryAttention&) = delete;
  HistoryAttention& operator=(const HistoryAttention&) = delete;

  size_t dim() const { return unit_.dim; }
  size_t bytes() const { return memory_.size() * sizeof(float); }

  // Targets (rows of dim floats, `target_step` apart) to rows of dim floats, `out_step` apart. Any number of threads.
  void attend(const float* targets, size_t target_step, size_t rows, float* out, size_t out_step,
              const FfmKernels& kernels) const;

 private:
  std::vector<float> memory_;
  Attention unit_{};
};

}  // namespace cb
