// Quantizes weights to 16-bit codes: w ≈ (code + first) · bucket.
//
// Two passes: the first finds minimum and maximum, the second writes codes. `first` is a whole number, so the minimum
// is first · bucket, and 0 keeps its value: a weight nobody learned costs nothing and means nothing. Codes round to the
// nearest, ties to even. Loops are plain: integer minimum, division and one addition, which every compiler turns into
// SIMD of the machine's baseline, with the same bits everywhere. tests/twins/publish.py is the twin in NumPy.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cb {

struct Range {
  float low = 0.0f, high = 0.0f;
  bool finite = true;  // false: a weight is NaN or infinite, and low and high mean nothing
};

// Of n weights; {0, 0} of none.
Range range_of(const float* weights, size_t n);

inline constexpr int32_t kMostFirst = 1 << 21;  // |first|: codes + first stay exact in a float and in the rounding

// bucket > 0; |first| ≤ kMostFirst. Weights beyond the codes get the nearest one.
void quantize(const float* weights, size_t n, float bucket, int32_t first, uint16_t* codes);
void dequantize(const uint16_t* codes, size_t n, float bucket, int32_t first, float* weights);

}  // namespace cb
