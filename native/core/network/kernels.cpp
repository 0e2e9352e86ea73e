#include "core/network/kernels.h"

#include <cstdlib>

namespace cb {

extern const NetworkKernels kPlainNetwork;
#if defined(__x86_64__)
extern const NetworkKernels kAvx2Network, kAvx512Network;
#endif

const NetworkKernels* network_kernels_named(const std::string& name) {
  if (name == kPlainNetwork.name) return &kPlainNetwork;
#if defined(__x86_64__)
  if (name == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kAvx2Network;
  if (name == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return &kAvx512Network;
#endif
  return nullptr;
}

const NetworkKernels& network_kernels() {
  static const NetworkKernels* const chosen = [] {
    if (const char* asked = std::getenv("CTRBOX_SIMD"))
      if (const NetworkKernels* found = network_kernels_named(asked)) return found;
    for (const char* name : {"avx512", "avx2"})
      if (const NetworkKernels* found = network_kernels_named(name)) return found;
    return &kPlainNetwork;
  }();
  return *chosen;
}

size_t network_scratch(const NetworkPlan& p) {
  size_t row = p.stride + padded(p.dense) + 1 + p.pooled_stride + p.output_stride;
  for (size_t l = 0; l + 1 < p.layers; ++l) row += 2 * p.activation[l].stride;
  const size_t of_keys = p.stride + 2 * p.dim_stride;
  return kNetworkBlock * (row > of_keys ? row : of_keys) + p.stride;
}

}  // namespace cb
