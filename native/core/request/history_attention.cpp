#include "core/request/history_attention.h"

#include <algorithm>
#include <utility>

namespace cb {

HistoryAttention::HistoryAttention(size_t items, size_t dim, size_t width, const float* maps, const float* fixed,
                                   const float* above, const float* below, const float* vectors, float bias) {
  const size_t wide = padded(width, kLanes), step = padded(dim, kLanes);
  memory_.resize(items * (dim + 1) * wide + 2 * wide + items * step);  // zeros: padding adds nothing
  float* at = memory_.data();
  auto place = [&](const float* from, size_t rows, size_t n, size_t to) {
    for (size_t r = 0; r < rows; ++r) std::copy_n(from + r * n, n, at + r * to);
    return std::exchange(at, at + rows * to);
  };
  unit_.items = items;
  unit_.dim = dim;
  unit_.width = wide;
  unit_.step = step;
  unit_.maps = place(maps, items * dim, width, wide);
  unit_.fixed = place(fixed, items, width, wide);
  unit_.above = place(above, 1, width, wide);
  unit_.below = place(below, 1, width, wide);
  unit_.vectors = place(vectors, items, dim, step);
  unit_.bias = bias;
}

void HistoryAttention::attend(const float* targets, size_t target_step, size_t rows, float* out, size_t out_step,
                              const FfmKernels& kernels) const {
  std::vector<float> room(4 * unit_.items + rows * unit_.step);
  float* wide = room.data() + 4 * unit_.items;
  kernels.attend(unit_, targets, target_step, rows, room.data(), wide);
  for (size_t r = 0; r < rows; ++r) std::copy_n(wide + r * unit_.step, unit_.dim, out + r * out_step);
}

}  // namespace cb
