// Registers of sixteen floats. No header of the standard library may come after the pragma: its inline functions would
// be AVX-512 for all.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <string>
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma")
#define CB_LANES tower_avx512
#define CB_REGISTER 64
#define CB_TALL 12
#include "core/tower/kernels_body.h"

namespace cb {
extern const TowerKernels kAvx512Tower;
const TowerKernels kAvx512Tower = CB_TOWER_TABLE("avx512");
}  // namespace cb
#endif
