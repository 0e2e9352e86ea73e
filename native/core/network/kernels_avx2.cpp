// Registers of eight floats. Headers with inline functions must come before the pragma: behind it their functions would
// be AVX2 for all who include them.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/network/dropout.h"
#pragma GCC target("avx2,fma")
#define CB_LANES network_avx2
#define CB_REGISTER 32
#define CB_TALL 6
#include "core/network/kernels_body.h"

namespace cb {
extern const NetworkKernels kAvx2Network;
const NetworkKernels kAvx2Network = CB_TOWER_TABLE("avx2");
}  // namespace cb
#endif
