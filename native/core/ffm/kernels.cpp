#include "core/ffm/kernels.h"

#include <cstdlib>

namespace cb {

extern const FfmKernels kScalarKernels;
#if defined(__aarch64__)
extern const FfmKernels kNeonKernels;
#elif defined(__x86_64__)
extern const FfmKernels kAvx2Kernels, kAvx512Kernels;
#endif

const FfmKernels* ffm_kernels_named(const std::string& name) {
  if (name == "scalar") return &kScalarKernels;
#if defined(__aarch64__)
  if (name == "neon") return &kNeonKernels;  // every ARM of 64 bits has it
#elif defined(__x86_64__)
  if (name == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kAvx2Kernels;
  if (name == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return &kAvx512Kernels;
#endif
  return nullptr;
}

const FfmKernels& ffm_kernels() {
  static const FfmKernels* const chosen = [] {
    if (const char* asked = std::getenv("CTRBOX_SIMD"))
      if (const FfmKernels* found = ffm_kernels_named(asked)) return found;
    for (const char* name : {"neon", "avx512", "avx2"})
      if (const FfmKernels* found = ffm_kernels_named(name)) return found;
    return &kScalarKernels;
  }();
  return *chosen;
}

}  // namespace cb
