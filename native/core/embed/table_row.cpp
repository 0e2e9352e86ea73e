#include "core/embed/table_row.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/system/parallel.h"

namespace cb {

bool all_finite(const float* p, size_t n) {
  uint32_t most = 0;
  for (size_t k = 0; k < n; ++k) {
    uint32_t bits;
    std::memcpy(&bits, p + k, 4);
    most = std::max(most, bits & 0x7fffffffu);
  }
  return most < 0x7f800000u;
}

int64_t first_not_finite(std::span<const int64_t> keys, const float* gradients, size_t width, size_t threads) {
  const size_t floats = keys.size() * width, tasks = std::min<size_t>(kShards, keys.size());
  std::atomic<bool> fine{true};
  parallel_for(threads, tasks, [&](size_t t) {
    size_t begin = floats * t / tasks, end = floats * (t + 1) / tasks;
    if (!all_finite(gradients + begin, end - begin)) fine.store(false, std::memory_order_relaxed);
  });
  if (fine) return -1;
  for (size_t k = 0; k < floats; ++k)
    if (!std::isfinite(gradients[k]) && keys[k / width] != 0) return static_cast<int64_t>(k);
  return -1;  // of the null slot, whose gradient nobody reads
}

}  // namespace cb
