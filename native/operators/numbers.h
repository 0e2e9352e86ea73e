// Arithmetic, comparison, boolean logic, rounding, casts between numbers.
//
// Promises: integers wrap around (two's complement) and never trap; floats follow IEEE 754 with only + − × ÷
// sqrt and bit operations, so x86, ARM and GPU agree to the bit (a NaN is a NaN; its sign and payload are not
// promised). Comparison with NaN is false, except ne.
#pragma once
#include "operators/types.h"

namespace cb {

CB_BODY uint64_t bits_of(double x) {
#if defined(__CUDA_ARCH__)
  return (uint64_t)__double_as_longlong(x);
#else
  uint64_t u;
  __builtin_memcpy(&u, &x, 8);
  return u;
#endif
}

CB_BODY double from_bits(uint64_t u) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double((long long)u);
#else
  double x;
  __builtin_memcpy(&x, &u, 8);
  return x;
#endif
}

CB_BODY double not_a_number() { return from_bits(0x7ff8000000000000ull); }
CB_BODY double infinity() { return from_bits(0x7ff0000000000000ull); }

CB_BODY double with_sign_of(double magnitude, double sign) {
  const uint64_t top = 1ull << 63;
  return from_bits((bits_of(magnitude) & ~top) | (bits_of(sign) & top));
}

CB_BODY double magnitude(double x) { return from_bits(bits_of(x) & ~(1ull << 63)); }

// Adding and taking away 2^52 leaves no room for a fraction: the hardware rounds half to even. Larger numbers
// are whole.
CB_BODY double nearest(double x) {
  const double room = 4503599627370496.0;
  double m = magnitude(x);
  double r = m < room ? (m + room) - room : m;
  return m == m ? with_sign_of(r, x) : x;
}

CB_BODY double floor_of(double x) {
  double r = nearest(x);
  return with_sign_of(r - (double)(r > x), x);
}

CB_BODY double ceil_of(double x) {
  double r = nearest(x);
  return with_sign_of(r + (double)(r < x), x);
}

CB_BODY double ten_to(int64_t digits) {
  double p = 1.0;
  for (int64_t k = 0; k < digits; ++k) p *= 10.0;  // exact up to 10^22
  return p;
}

// log(1 + x), error below 1 ulp. 1 + x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); then
//   log(1 + f) = f − f²/2 + s (f²/2 + R(s²)),  s = f / (2 + f),  R(z) = (log((1+s)/(1−s)) − 2s) / s,
// k·ln2 is added in two parts, and c restores what 1 + x lost to rounding. R is a degree-7 fit on [0,
// 0.0295].
CB_BODY double log_of_one_plus(double x) {
  const double ln2_high = 6.93147180369123816490e-01;  // its low 32 bits are zero: k·ln2_high is exact
  const double ln2_low = 1.90821492927058770002e-10;
  double u = 1.0 + x;
  const uint64_t one = 0x3ff0000000000000ull, root_half = 0x3fe6a09e00000000ull;
  uint64_t shifted = bits_of(u) + (one - root_half);
  int64_t k = (int64_t)(shifted >> 52) - 0x3ff;
  double scaled = from_bits((shifted & 0x000fffffffffffffull) + root_half);
  double f = k == 0 ? x : scaled - 1.0;
  double lost = k >= 2 ? 1.0 - (u - x) : x - (u - 1.0);
  double c = k == 0 ? 0.0 : lost / u;
  double half = 0.5 * f * f;
  double s = f / (2.0 + f);
  double z = s * s;
  double w = z * z;
  double even = w * (0.3999999999989950449 + w * (0.22222211134795079855 + w * 0.15331721600556041269));
  double odd = z * (0.66666666666666696862 +
                    w * (0.28571428625975484921 + w * (0.1818288912526172208 + w * 0.1461644968504340586)));
  double r = odd + even;
  double kd = (double)k;
  double y = kd * ln2_high - ((half - (s * (half + r) + (kd * ln2_low + c))) - f);
  if (x > -1.0 && x < infinity()) return with_sign_of(y, x);  // −0.0 stays −0.0
  return x == -1.0 ? -infinity() : x > 0.0 ? x : not_a_number();
}

// ---- arithmetic
// -----------------------------------------------------------------------------------------------

struct AddInt {
  CB_BODY static int64_t apply(const Params&, int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
};
struct SubInt {
  CB_BODY static int64_t apply(const Params&, int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
};
struct MulInt {
  CB_BODY static int64_t apply(const Params&, int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
};
struct NegInt {
  CB_BODY static int64_t apply(const Params&, int64_t a) { return (int64_t)(0 - (uint64_t)a); }
};
struct AbsInt {
  CB_BODY static int64_t apply(const Params&, int64_t a) { return a < 0 ? (int64_t)(0 - (uint64_t)a) : a; }
};
// Rounds down as Python does; x // 0 is null, and the one overflow, INT64_MIN // −1, wraps to INT64_MIN.
struct FloorDivInt {
  CB_BODY static bool apply(const Params&, int64_t* out, int64_t a, int64_t b) {
    if (b == 0) return false;
    if (b == -1) {
      *out = (int64_t)(0 - (uint64_t)a);
      return true;
    }
    int64_t q = a / b;
    *out = q - (a % b != 0 && (a < 0) != (b < 0));
    return true;
  }
};
// The result has the sign of b, as in Python; x % 0 is null.
struct ModInt {
  CB_BODY static bool apply(const Params&, int64_t* out, int64_t a, int64_t b) {
    if (b == 0) return false;
    if (b == -1) {
      *out = 0;
      return true;
    }
    int64_t r = a % b;
    *out = r != 0 && (r < 0) != (b < 0) ? r + b : r;
    return true;
  }
};

struct AddFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return a + b; }
};
struct SubFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return a - b; }
};
struct MulFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return a * b; }
};
struct DivFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return a / b; }
};
// floor(a / b) of the rounded quotient; b = 0 gives ±inf or NaN.
struct FloorDivFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return floor_of(a / b); }
};
struct NegFloat {
  CB_BODY static double apply(const Params&, double a) { return -a; }
};
struct AbsFloat {
  CB_BODY static double apply(const Params&, double a) { return magnitude(a); }
};
struct Sqrt {
  CB_BODY static double apply(const Params&, double a) {
#if defined(__CUDA_ARCH__)
    return __dsqrt_rn(a);
#else
    return __builtin_sqrt(a);
#endif
  }
};
struct Log1p {
  CB_BODY static double apply(const Params&, double a) { return log_of_one_plus(a); }
};
struct Floor {
  CB_BODY static double apply(const Params&, double a) { return floor_of(a); }
};
struct Ceil {
  CB_BODY static double apply(const Params&, double a) { return ceil_of(a); }
};
// i[0]: digits after the point, 0…15. Half to even of x·10^d, then divided by 10^d; a number too large to
// scale stays.
struct Round {
  CB_BODY static double apply(const Params& q, double a) {
    double scale = ten_to(q.i[0]);
    double wide = a * scale;
    return magnitude(wide) < infinity() ? nearest(wide) / scale : a;
  }
};
// f[0]: mean, f[1]: one over the standard deviation.
struct Standardize {
  CB_BODY static double apply(const Params& q, double a) { return (a - q.f[0]) * q.f[1]; }
};

// On a tie (also −0.0 and 0.0) the first argument is taken.
struct MinInt {
  CB_BODY static int64_t apply(const Params&, int64_t a, int64_t b) { return b < a ? b : a; }
};
struct MaxInt {
  CB_BODY static int64_t apply(const Params&, int64_t a, int64_t b) { return b > a ? b : a; }
};
struct MinFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return b < a || b != b ? b : a; }
};
struct MaxFloat {
  CB_BODY static double apply(const Params&, double a, double b) { return b > a || b != b ? b : a; }
};
// i[0], i[1]: lowest, highest.
struct ClipInt {
  CB_BODY static int64_t apply(const Params& q, int64_t a) { return a < q.i[0] ? q.i[0] : a > q.i[1] ? q.i[1] : a; }
};
struct ClipFloat {
  CB_BODY static double apply(const Params& q, double a) { return a < q.f[0] ? q.f[0] : a > q.f[1] ? q.f[1] : a; }
};

// ---- comparison and logic
// ------------------------------------------------------------------------------------

template <class T>
struct Eq {
  CB_BODY static uint8_t apply(const Params&, T a, T b) { return a == b; }
};
template <class T>
struct Ne {
  CB_BODY static uint8_t apply(const Params&, T a, T b) { return a != b; }
};
template <class T>
struct Lt {
  CB_BODY static uint8_t apply(const Params&, T a, T b) { return a < b; }
};
template <class T>
struct Le {
  CB_BODY static uint8_t apply(const Params&, T a, T b) { return a <= b; }
};
template <class T>
struct Gt {
  CB_BODY static uint8_t apply(const Params&, T a, T b) { return a > b; }
};
template <class T>
struct Ge {
  CB_BODY static uint8_t apply(const Params&, T a, T b) { return a >= b; }
};
struct And {
  CB_BODY static uint8_t apply(const Params&, uint8_t a, uint8_t b) { return a & b; }
};
struct Or {
  CB_BODY static uint8_t apply(const Params&, uint8_t a, uint8_t b) { return a | b; }
};
struct Not {
  CB_BODY static uint8_t apply(const Params&, uint8_t a) { return a ^ 1; }
};
struct IsNan {
  CB_BODY static uint8_t apply(const Params&, double a) { return a != a; }
};

// ---- casts
// ------------------------------------------------------------------------------------------------------

struct IntToFloat {
  CB_BODY static double apply(const Params&, int64_t a) { return (double)a; }
};
struct BoolToFloat {
  CB_BODY static double apply(const Params&, uint8_t a) { return (double)a; }
};
struct BoolToInt {
  CB_BODY static int64_t apply(const Params&, uint8_t a) { return a; }
};
// Towards zero; NaN and what no int64 can hold are null.
struct FloatToInt {
  CB_BODY static bool apply(const Params&, int64_t* out, double a) {
    if (!(a >= -9223372036854775808.0 && a < 9223372036854775808.0)) return false;
    *out = (int64_t)a;
    return true;
  }
};
// Between int and time: the number of microseconds is kept.
struct SameInt {
  CB_BODY static int64_t apply(const Params&, int64_t a) { return a; }
};
struct IntToBool {
  CB_BODY static uint8_t apply(const Params&, int64_t a) { return a != 0; }
};
struct FloatToBool {
  CB_BODY static uint8_t apply(const Params&, double a) { return a != 0.0; }  // NaN is true, as in Python
};

}  // namespace cb
