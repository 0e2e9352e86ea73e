// Prefetches memory that will be needed soon.
#pragma once
#include <cstddef>

#include "core/ffm/kernels.h"

namespace cb {

// To be written: where another core has read the line, its copy is given up now and not when the write waits for it.
// GCC makes a plain prefetch of a hint to write unless the whole build is for processors with PREFETCHW; those without
// it take the instruction for nothing.
inline void prefetch_to_write(const void* p) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(p)));
#else
  __builtin_prefetch(p, 1);
#endif
}

inline void prefetch_floats(const float* p, size_t floats) {
  for (size_t k = 0; k < floats; k += kLanes) __builtin_prefetch(p + k);
}

inline void prefetch_floats_to_write(const float* p, size_t floats) {
  for (size_t k = 0; k < floats; k += kLanes) prefetch_to_write(p + k);
}

}  // namespace cb
