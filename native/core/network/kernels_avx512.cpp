// Registers of sixteen floats. Headers with inline functions must come before the pragma: behind it their functions
// would be AVX-512 for all who include them.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/network/dropout.h"
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#define CB_LANES network_avx512
#define CB_REGISTER 64
#define CB_TALL 12
#include "core/network/kernels_body.h"

namespace cb {
extern const NetworkKernels kAvx512Network;
const NetworkKernels kAvx512Network = CB_TOWER_TABLE("avx512");
}  // namespace cb
#endif
