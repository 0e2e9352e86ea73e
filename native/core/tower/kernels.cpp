#include "core/tower/kernels.h"

#include <cstdlib>

namespace cb {

extern const TowerKernels kPlainTower;
#if defined(__x86_64__)
extern const TowerKernels kAvx2Tower, kAvx512Tower;
#endif

const TowerKernels* tower_kernels_named(const std::string& name) {
  if (name == kPlainTower.name) return &kPlainTower;
#if defined(__x86_64__)
  if (name == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kAvx2Tower;
  if (name == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return &kAvx512Tower;
#endif
  return nullptr;
}

const TowerKernels& tower_kernels() {
  static const TowerKernels* const chosen = [] {
    if (const char* asked = std::getenv("CTRBOX_SIMD"))
      if (const TowerKernels* found = tower_kernels_named(asked)) return found;
    for (const char* name : {"avx512", "avx2"})
      if (const TowerKernels* found = tower_kernels_named(name)) return found;
    return &kPlainTower;
  }();
  return *chosen;
}

size_t tower_scratch(const TowerPlan& p) {
  size_t row = p.stride + padded(p.dense) + 1 + p.pooled_stride + p.output_stride;
  for (size_t l = 0; l + 1 < p.layers; ++l) row += 2 * p.activation[l].stride;
  const size_t of_keys = p.stride + 2 * p.dim_stride;
  return kTowerBlock * (row > of_keys ? row : of_keys) + p.stride;
}

}  // namespace cb
