// Two registers of eight floats. No std header may come after the pragma: its inline functions would be AVX2 for all.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <string>
#pragma GCC target("avx2,fma")
#define CB_LANES ffm_avx2
#define CB_REGISTER 32
#include "core/ffm/kernels_body.h"

namespace cb {
extern const FfmKernels kAvx2Kernels;
const FfmKernels kAvx2Kernels = CB_KERNEL_TABLE("avx2");
}  // namespace cb
#endif
