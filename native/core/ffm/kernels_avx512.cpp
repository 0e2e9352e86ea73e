// One register of sixteen floats. No std header may come after the pragma: its inline functions would be AVX-512 for
// all.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <string>
// GCC 12's own intrinsics begin with a value that nobody set, on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx512f,avx512dq,avx512vl,fma")
#define CB_LANES ffm_avx512
#define CB_REGISTER 64
#include "core/ffm/kernels_body.h"

namespace cb {
extern const FfmKernels kAvx512Kernels;
const FfmKernels kAvx512Kernels = CB_KERNEL_TABLE("avx512");
}  // namespace cb
#endif
