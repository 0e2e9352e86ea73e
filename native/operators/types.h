// Values and conventions shared by every operator body.
//
// A body is a struct of static functions over ONE row. It must compile with g++, clang, nvcc and NVRTC: no
// standard library, no exceptions, no allocation, no global state. Its shape is told by its functions:
//
//   Map      static R    apply(const Params&, A...)             always has a value
//   Partial  static bool apply(const Params&, R* out, A...)     false: the row's result is null, *out is ignored
//   Bytes    static uint32_t bound(const Params&, A...)         most bytes the row can need
//            static uint32_t write(const Params&, char* out, A...)   bytes used, never more than bound
//   Items    the same with T* out: most elements, elements used. Optional: static bool cut(const Params&, A...),
//            true when `bound` was capped and results were left out (counted as a warning).
//
// Arguments are uint8_t (bool), int64_t (int, time), double, uint64_t (key), Str, List<T>. The entry of a null row is
// zero / empty, so bodies run on null rows too and need no care beyond not failing. Strings are any bytes.
#pragma once

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef short int16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

#if defined(__CUDACC__)
#define CB_BODY __host__ __device__ inline
#else
#define CB_BODY inline
#endif

namespace cb {

struct Str {
  const char* p;
  uint32_t n;
};

template <class T>
struct List {
  const T* p;
  uint32_t n;
};

// What a call was given besides columns: numbers, short strings, a table built once (a set, boundaries, an index).
struct Params {
  int64_t i[4];
  double f[2];
  Str s[2];
  const void* table;
};

// Unaligned little-endian loads. A GPU must not load across alignment, so there the bytes are put together.
CB_BODY uint64_t load64(const char* p) {
#if defined(__CUDA_ARCH__)
  uint64_t v = 0;
  for (int k = 7; k >= 0; --k) v = (v << 8) | (uint8_t)p[k];
  return v;
#else
  uint64_t v;
  __builtin_memcpy(&v, p, 8);
  return v;
#endif
}

CB_BODY uint32_t load32(const char* p) {
#if defined(__CUDA_ARCH__)
  return (uint32_t)(uint8_t)p[0] | (uint32_t)(uint8_t)p[1] << 8 | (uint32_t)(uint8_t)p[2] << 16 |
         (uint32_t)(uint8_t)p[3] << 24;
#else
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
#endif
}

CB_BODY bool same(Str a, Str b) {
  if (a.n != b.n) return false;
  uint32_t k = 0;
  for (; k + 8 <= a.n; k += 8)
    if (load64(a.p + k) != load64(b.p + k)) return false;
  for (; k < a.n; ++k)
    if (a.p[k] != b.p[k]) return false;
  return true;
}

CB_BODY void copy_bytes(char* out, const char* from, uint32_t n) {
#if defined(__CUDA_ARCH__)
  for (uint32_t k = 0; k < n; ++k) out[k] = from[k];
#else
  if (n) __builtin_memcpy(out, from, n);
#endif
}

}  // namespace cb
