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

// ---- bytes --------------------------------------------------------------------------------------------------------
//
// Loads are unaligned and little-endian. A GPU must not load across alignment: there the one or two aligned words that
// hold the bytes are loaded and shifted together. That touches up to 7 bytes on either side, which is why buffers in
// device memory begin 16-byte aligned and have 16 readable bytes behind them (cuda/raw_column.h). A word that holds
// none of the bytes asked for is never touched.

// GPU: the n bytes at p, 1 to 8 of them, zeros above.
CB_BODY uint64_t load_words(const char* p, uint32_t n) {
  const uint32_t skip = (uint32_t)(uint64_t)p & 7;
  const uint64_t* word = (const uint64_t*)(p - skip);
  const uint64_t low = word[0], high = skip + n > 8 ? word[1] : 0;  // both on their way before either is waited for
  const uint64_t v = low >> (8 * skip) | high << ((64 - 8 * skip) & 63);
  return n < 8 ? v & ((1ull << (8 * n)) - 1) : v;
}

CB_BODY uint64_t load64(const char* p) {
#if defined(__CUDA_ARCH__)
  return load_words(p, 8);
#else
  uint64_t v;
  __builtin_memcpy(&v, p, 8);
  return v;
#endif
}

CB_BODY uint32_t load32(const char* p) {
#if defined(__CUDA_ARCH__)
  const uint32_t skip = (uint32_t)(uint64_t)p & 3;
  const uint32_t* word = (const uint32_t*)(p - skip);
  return __funnelshift_r(word[0], skip ? word[1] : 0, 8 * skip);
#else
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
#endif
}

CB_BODY bool same(Str a, Str b) {
  if (a.n != b.n) return false;
#if defined(__CUDA_ARCH__)
  for (uint32_t k = 0; k < a.n; k += 8) {
    const uint32_t left = a.n - k, n = left < 8 ? left : 8;
    if (load_words(a.p + k, n) != load_words(b.p + k, n)) return false;
    if (left <= 8) break;
  }
  return true;
#else
  uint32_t k = 0;
  for (; a.n - k >= 8; k += 8)
    if (load64(a.p + k) != load64(b.p + k)) return false;
  for (; k < a.n; ++k)
    if (a.p[k] != b.p[k]) return false;
  return true;
#endif
}

CB_BODY void copy_bytes(char* out, const char* from, uint32_t n) {
#if defined(__CUDA_ARCH__)
  // Whole words go to where they are aligned; bytes around them may be another row's.
  uint32_t k = 0;
  for (; k < n && ((uint64_t)(out + k) & 7); ++k) out[k] = from[k];
  for (; n - k >= 8; k += 8) *(uint64_t*)(out + k) = load64(from + k);
  for (; k < n; ++k) out[k] = from[k];
#else
  if (n) __builtin_memcpy(out, from, n);
#endif
}

}  // namespace cb
