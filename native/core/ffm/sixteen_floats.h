// Sixteen floats, in as many registers as they take. Included once per instruction set, under a namespace of its own
// (CB_LANES), so that the linker never swaps one for another. CB_REGISTER: bytes of a register.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/ffm/inverse_power.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#define CB_INLINE inline __attribute__((always_inline))

namespace CB_LANES {

typedef float VF __attribute__((vector_size(CB_REGISTER)));
typedef int32_t VI __attribute__((vector_size(CB_REGISTER)));
typedef float V4 __attribute__((vector_size(16)));
constexpr size_t kWidth = CB_REGISTER / 4, kRegisters = 16 / kWidth;

struct F16 {
  VF r[kRegisters];
};

// Register by register: a copy of all sixteen goes through the stack.
CB_INLINE F16 load(const float* p) {
  F16 v;
  for (size_t k = 0; k < kRegisters; ++k) __builtin_memcpy(&v.r[k], p + k * kWidth, sizeof(VF));
  return v;
}
CB_INLINE void store(float* p, F16 v) {
  for (size_t k = 0; k < kRegisters; ++k) __builtin_memcpy(p + k * kWidth, &v.r[k], sizeof(VF));
}

#define CB_LANEWISE(op)                                                \
  CB_INLINE F16 operator op(F16 a, F16 b) {                            \
    for (size_t k = 0; k < kRegisters; ++k) a.r[k] = a.r[k] op b.r[k]; \
    return a;                                                          \
  }                                                                    \
  CB_INLINE F16 operator op(F16 a, float b) {                          \
    for (size_t k = 0; k < kRegisters; ++k) a.r[k] = a.r[k] op b;      \
    return a;                                                          \
  }
CB_LANEWISE(+)
CB_LANEWISE(-)
CB_LANEWISE(*)
#undef CB_LANEWISE

// s + a · b, rounded once.
CB_INLINE F16 fused(F16 a, F16 b, F16 s) {
#if defined(__aarch64__)
  for (size_t k = 0; k < kRegisters; ++k)
    s.r[k] = (VF)vfmaq_f32((float32x4_t)s.r[k], (float32x4_t)a.r[k], (float32x4_t)b.r[k]);
#elif CB_REGISTER == 64
  s.r[0] = (VF)_mm512_fmadd_ps((__m512)a.r[0], (__m512)b.r[0], (__m512)s.r[0]);
#else
  for (size_t k = 0; k < kRegisters; ++k) s.r[k] = (VF)_mm256_fmadd_ps((__m256)a.r[k], (__m256)b.r[k], (__m256)s.r[k]);
#endif
  return s;
}

// Four or eight floats: neurons side by side come in eights.
#if defined(__aarch64__)
typedef float VN __attribute__((vector_size(16)));
#else
typedef float VN __attribute__((vector_size(32)));
#endif
constexpr size_t kNarrow = sizeof(VN) / 4;

template <class V>
CB_INLINE V load_some(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// s + a · x, rounded once.
CB_INLINE VN fused_with(VN a, float x, VN s) {
#if defined(__aarch64__)
  return (VN)vfmaq_n_f32((float32x4_t)s, (float32x4_t)a, x);
#else
  return (VN)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(x), (__m256)s);
#endif
}
#if CB_REGISTER == 64
CB_INLINE VF fused_with(VF a, float x, VF s) { return (VF)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(x), (__m512)s); }
CB_INLINE VF positive(VF x) {
  return (VF)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GT_OQ), (__m512)x);
}
#endif
// x > 0 ? x : 0, and 0 for NaN.
CB_INLINE VN positive(VN x) {
#if defined(__aarch64__)
  return (VN)vandq_u32((uint32x4_t)vcgtzq_f32((float32x4_t)x), (uint32x4_t)x);
#else
  return (VN)_mm256_and_ps(_mm256_cmp_ps((__m256)x, _mm256_setzero_ps(), _CMP_GT_OQ), (__m256)x);
#endif
}

CB_INLINE F16 positive(F16 x) {
  for (size_t k = 0; k < kRegisters; ++k) x.r[k] = (VF)((VI)x.r[k] & (VI)(x.r[k] > VF{}));
  return x;
}

// s - a · b, rounded once.
CB_INLINE F16 fused_minus(F16 a, F16 b, F16 s) {
#if defined(__aarch64__)
  for (size_t k = 0; k < kRegisters; ++k)
    s.r[k] = (VF)vfmsq_f32((float32x4_t)s.r[k], (float32x4_t)a.r[k], (float32x4_t)b.r[k]);
#elif CB_REGISTER == 64
  s.r[0] = (VF)_mm512_fnmadd_ps((__m512)a.r[0], (__m512)b.r[0], (__m512)s.r[0]);
#else
  for (size_t k = 0; k < kRegisters; ++k) s.r[k] = (VF)_mm256_fnmadd_ps((__m256)a.r[k], (__m256)b.r[k], (__m256)s.r[k]);
#endif
  return s;
}

CB_INLINE F16 splat(float x) {  // VF{} + x would add: 0 - 0 is not -0
  F16 v;
#if defined(__aarch64__)
  for (size_t k = 0; k < kRegisters; ++k) v.r[k] = (VF)vdupq_n_f32(x);
#elif CB_REGISTER == 64
  v.r[0] = (VF)_mm512_set1_ps(x);
#else
  for (size_t k = 0; k < kRegisters; ++k) v.r[k] = (VF)_mm256_set1_ps(x);
#endif
  return v;
}

struct Root {
  CB_INLINE F16 operator()(F16 a) const {
    F16 y;
    for (size_t k = 0; k < kRegisters; ++k) y.r[k] = InversePower<VF, VI>::guess(a.r[k]);
    return y * fused_minus(a * y, y, splat(kRootStart));
  }
};

// Not lambdas: those do not follow the pragma that says what the processor has.
struct ToFloats {
  CB_INLINE VF operator()(VI i) const { return __builtin_convertvector(i, VF); }
};
struct ToInts {
  CB_INLINE VI operator()(VF f) const { return __builtin_convertvector(f, VI); }
};

struct Power {
  float minus_power;
  CB_INLINE F16 operator()(F16 a) const {
    for (size_t k = 0; k < kRegisters; ++k)
      a.r[k] = InversePower<VF, VI>::power(a.r[k], minus_power, ToFloats{}, ToInts{});
    return a;
  }
};

// Lanes l and l + 8, then l + 4, l + 2, l + 1.
CB_INLINE float sum_of(F16 v) {
#if defined(__aarch64__)
  const float32x4_t low = vaddq_f32((float32x4_t)v.r[0], (float32x4_t)v.r[2]);
  const float32x4_t high = vaddq_f32((float32x4_t)v.r[1], (float32x4_t)v.r[3]);
  const float32x4_t four = vaddq_f32(low, high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
#elif CB_REGISTER == 64
  const __m512 all = (__m512)v.r[0];
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#elif CB_REGISTER == 32
  const __m256 eight = _mm256_add_ps((__m256)v.r[0], (__m256)v.r[1]);
#endif
#if defined(__x86_64__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

// x > 0 ? a : b, lane by lane.
CB_INLINE F16 chosen(F16 x, F16 a, F16 b) {
  for (size_t k = 0; k < kRegisters; ++k) {
    const VI mask = (VI)(x.r[k] > VF{});
    a.r[k] = (VF)(((VI)a.r[k] & mask) | ((VI)b.r[k] & ~mask));
  }
  return a;
}

// Lanes l and l + 8, then l + 4.
CB_INLINE V4 folded(F16 v) {
#if defined(__aarch64__)
  return (V4)((v.r[0] + v.r[2]) + (v.r[1] + v.r[3]));
#else
#if CB_REGISTER == 64
  const __m512 all = (__m512)v.r[0];
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#else
  const __m256 eight = (__m256)(v.r[0] + v.r[1]);
#endif
  return (V4)_mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#endif
}

// The sums of four, folded and then (0 + 1) + (2 + 3), side by side.
CB_INLINE V4 four_sums(F16 a, F16 b, F16 c, F16 d) {
#if defined(__aarch64__)
  const float32x4_t low = vpaddq_f32((float32x4_t)folded(a), (float32x4_t)folded(b));
  const float32x4_t high = vpaddq_f32((float32x4_t)folded(c), (float32x4_t)folded(d));
  return (V4)vpaddq_f32(low, high);
#else
  const __m128 low = _mm_hadd_ps((__m128)folded(a), (__m128)folded(b));
  const __m128 high = _mm_hadd_ps((__m128)folded(c), (__m128)folded(d));
  return (V4)_mm_hadd_ps(low, high);
#endif
}

// The four chunks' sums, (0 + 1) + (2 + 3) each.
CB_INLINE V4 chunk_sums(F16 v) {
#if defined(__aarch64__)
  const float32x4_t low = vpaddq_f32((float32x4_t)v.r[0], (float32x4_t)v.r[1]);
  const float32x4_t high = vpaddq_f32((float32x4_t)v.r[2], (float32x4_t)v.r[3]);
  return (V4)vpaddq_f32(low, high);
#else
#if CB_REGISTER == 64
  const __m512 all = (__m512)v.r[0];
  const __m256 first = _mm512_castps512_ps256(all), second = _mm512_extractf32x8_ps(all, 1);
#else
  const __m256 first = (__m256)v.r[0], second = (__m256)v.r[1];
#endif
  // hadd works within halves: [f0 f1 s0 s1 | f2 f3 s2 s3] twice gives [0 2 0 2 | 1 3 1 3] of the chunks.
  const __m256 pairs = _mm256_hadd_ps(first, second);
  const __m256 sums = _mm256_hadd_ps(pairs, pairs);
  return (V4)_mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
#endif
}

#if CB_REGISTER == 64
// The sums of eight chunks, those of a and those of b.
CB_INLINE VN chunk_sums(F16 a, F16 b) {
  const __m512 even = _mm512_shuffle_ps((__m512)a.r[0], (__m512)b.r[0], 0x88);  // [a0 a2 b0 b2] of each chunk
  const __m512 odd = _mm512_shuffle_ps((__m512)a.r[0], (__m512)b.r[0], 0xdd);
  const __m512 two = _mm512_add_ps(even, odd);
  const __m512 sums = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));  // [a a b b]
  const __m512i places = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 10, 6, 2, 12, 8, 4, 0);
  return (VN)_mm512_castps512_ps256(_mm512_permutexvar_ps(places, sums));
}
#endif

#if CB_REGISTER == 64
// Eight floats each from two places.
CB_INLINE F16 load_halves(const float* p0, const float* p1) {
  F16 v;
  v.r[0] = (VF)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p0)), _mm256_loadu_ps(p1), 1);
  return v;
}
#endif

// Four chunks from four places.
CB_INLINE F16 load_chunks(const float* p0, const float* p1, const float* p2, const float* p3) {
  F16 v;
#if defined(__aarch64__)
  v.r[0] = (VF)vld1q_f32(p0);
  v.r[1] = (VF)vld1q_f32(p1);
  v.r[2] = (VF)vld1q_f32(p2);
  v.r[3] = (VF)vld1q_f32(p3);
#else
  const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p0)), _mm_loadu_ps(p1), 1);
  const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p2)), _mm_loadu_ps(p3), 1);
#if CB_REGISTER == 64
  v.r[0] = (VF)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#else
  v.r[0] = (VF)low;
  v.r[1] = (VF)high;
#endif
#endif
  return v;
}

// (x · d[chunk]) · t, four numbers for sixteen lanes.
CB_INLINE F16 times_chunks(F16 t, const float* d, float x) {
#if defined(__aarch64__)
  const float32x4_t g = vmulq_n_f32(vld1q_f32(d), x);
  F16 out;
  out.r[0] = (VF)vmulq_laneq_f32((float32x4_t)t.r[0], g, 0);
  out.r[1] = (VF)vmulq_laneq_f32((float32x4_t)t.r[1], g, 1);
  out.r[2] = (VF)vmulq_laneq_f32((float32x4_t)t.r[2], g, 2);
  out.r[3] = (VF)vmulq_laneq_f32((float32x4_t)t.r[3], g, 3);
  return out;
#else
  const __m128 g = _mm_mul_ps(_mm_loadu_ps(d), _mm_set1_ps(x));
#if CB_REGISTER == 64
  const __m512i places = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  t.r[0] = t.r[0] * (VF)_mm512_permutexvar_ps(places, _mm512_castps128_ps512(g));
#else
  const __m256 wide = _mm256_castps128_ps256(g);
  t.r[0] = t.r[0] * (VF)_mm256_permutevar8x32_ps(wide, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0));
  t.r[1] = t.r[1] * (VF)_mm256_permutevar8x32_ps(wide, _mm256_set_epi32(3, 3, 3, 3, 2, 2, 2, 2));
#endif
  return t;
#endif
}

}  // namespace CB_LANES
