// Registers of four floats, which every x86_64 (SSE2) and every 64-bit ARM (NEON) has.
#define CB_LANES network_plain
#define CB_REGISTER 16
#if defined(__aarch64__)
#define CB_TALL 6
#else
#define CB_TALL 3
#endif
#include "core/network/kernels_body.h"

namespace cb {
extern const NetworkKernels kPlainNetwork;
#if defined(__aarch64__)
const NetworkKernels kPlainNetwork = CB_TOWER_TABLE("neon");
#else
const NetworkKernels kPlainNetwork = CB_TOWER_TABLE("sse2");
#endif
}  // namespace cb
