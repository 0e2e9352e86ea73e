// Four registers of four floats.
#if defined(__aarch64__)
#define CB_LANES ffm_neon
#define CB_REGISTER 16
#include "core/ffm/kernels_body.h"

namespace cb {
extern const FfmKernels kNeonKernels;
const FfmKernels kNeonKernels = CB_KERNEL_TABLE("neon");
}  // namespace cb
#endif
