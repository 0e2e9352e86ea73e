// Runs what lies between the matrix products of a backward pass in bfloat16, and adds up columns on the way.
//
// A gradient is (rows, width), row after row. torch reads it once for the derivative of an activation and once more for
// the gradient of the bias, the sum of each column; here a thread adds up what it has just computed:
//
//   slab      `slab` neighboring rows; the grid is (tiles of columns) x (slabs)
//   block     kAcross threads side by side, each with kStep columns, and kDown such rows of threads
//   partial   (slabs, width) floats: the sum of each column over a slab, its rows of threads added in order
//   sums      dense_sums adds up the slabs: every kDown-th one by one thread, then these in order
//
// The order of a sum depends on the number of rows alone, and no float is added by an atomic: two runs give the same
// bits. Bytes of a cross layer of (rows, width) numbers: 2 each for gradient, x0, crossed and the gradient of x0 so
// far, and 2 each for the gradient of crossed and the new gradient of x0. Two kernels of each kind: kStep is 8 where
// width is a multiple of 8 and all memory begins at multiples of 16 bytes, else 1.
#pragma once
#include "cuda/bfloat16.h"

#if !defined(CB_THREADS)
#define CB_THREADS 256
#endif

namespace cb::dense {

constexpr uint32_t kThreads = CB_THREADS;  // of a block, exactly
constexpr uint32_t kAcross = kThreads < 32 ? kThreads : 32, kDown = kThreads / kAcross;
static_assert(kAcross * kDown == kThreads);

template <uint32_t kStep>
struct alignas(2 * kStep) Halves {
  uint16_t v[kStep];
};

template <uint32_t kStep>
struct Floats {
  float v[kStep];
};

template <uint32_t kStep>
__device__ inline Floats<kStep> loaded(const uint16_t* at) {
  const Halves<kStep> halves = *(const Halves<kStep>*)at;
  Floats<kStep> found;
  for (uint32_t c = 0; c < kStep; ++c) found.v[c] = float_of_half(halves.v[c]);
  return found;
}

template <uint32_t kStep>
__device__ inline Halves<kStep> rounded(const Floats<kStep>& x) {
  Halves<kStep> halves;
  for (uint32_t c = 0; c < kStep; ++c) halves.v[c] = half_of_float(x.v[c]);
  return halves;
}

template <uint32_t kStep>
__device__ inline void store(uint16_t* at, const Halves<kStep>& x) {
  *(Halves<kStep>*)at = x;
}

// Where the columns of a tile are added up. CUDA asks that shared memory of this name has one type.
__device__ inline float* shared_floats() {
  alignas(16) __shared__ float held[kThreads * 8];
  return held;
}

// Calls `visit(at, sums)` for the numbers of a slab from `at` on, and stores the sums of its columns.
template <uint32_t kStep, class Visit>
__device__ inline void sweep(uint64_t rows, uint64_t width, uint64_t slab, float* partial, Visit visit) {
  const uint32_t across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const uint64_t begin = (uint64_t)blockIdx.x * kAcross * kStep, column = begin + across * kStep;
  const uint64_t first = (uint64_t)blockIdx.y * slab, last = first + slab < rows ? first + slab : rows;
  Floats<kStep> sums;
  for (uint32_t c = 0; c < kStep; ++c) sums.v[c] = 0.0f;
  if (column < width)
    for (uint64_t row = first + down; row < last; row += kDown) visit(row * width + column, sums);
  float* held = shared_floats();
  for (uint32_t c = 0; c < kStep; ++c) held[(down * kAcross + across) * kStep + c] = sums.v[c];
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < kAcross * kStep; c += kThreads) {
    if (begin + c >= width) continue;
    float total = 0.0f;
    for (uint32_t d = 0; d < kDown; ++d) total += held[d * kAcross * kStep + c];
    partial[blockIdx.y * width + begin + c] = total;
  }
}

// The gradient of what ReLU was given, from the gradient of what it gave and that itself. They may be the same memory.
template <uint32_t kStep>
__device__ inline void relu_back(const uint16_t* gradient, const uint16_t* given, uint16_t* result, uint64_t rows,
                                 uint64_t width, uint64_t slab, float* partial) {
  sweep<kStep>(rows, width, slab, partial, [&](uint64_t at, Floats<kStep>& sums) {
    Halves<kStep> g = *(const Halves<kStep>*)(gradient + at);
    const Floats<kStep> y = loaded<kStep>(given + at);
    for (uint32_t c = 0; c < kStep; ++c) {
      if (y.v[c] <= 0.0f) g.v[c] = 0;
      sums.v[c] += float_of_half(g.v[c]);
    }
    store<kStep>(result + at, g);
  });
}

// One layer x1 = x + x0 * crossed, from the gradient of x1:
//   of_crossed = gradient * x0                                     its columns are added up as they are stored
//   of_x0      = before + gradient * crossed (+ gradient)          `before` may be nullptr; with `whole` the last term,
//   too copy       = gradient, where asked for
template <uint32_t kStep>
__device__ inline void cross_back(const uint16_t* gradient, const uint16_t* x0, const uint16_t* crossed,
                                  const uint16_t* before, uint16_t* of_crossed, uint16_t* of_x0, uint16_t* copy,
                                  bool whole, uint64_t rows, uint64_t width, uint64_t slab, float* partial) {
  sweep<kStep>(rows, width, slab, partial, [&](uint64_t at, Floats<kStep>& sums) {
    const Halves<kStep> raw = *(const Halves<kStep>*)(gradient + at);
    const Floats<kStep> x = loaded<kStep>(x0 + at), cross = loaded<kStep>(crossed + at);
    Floats<kStep> sum, g, product;
    if (before) {
      sum = loaded<kStep>(before + at);
    } else {
      for (uint32_t c = 0; c < kStep; ++c) sum.v[c] = 0.0f;
    }
    for (uint32_t c = 0; c < kStep; ++c) {
      g.v[c] = float_of_half(raw.v[c]);
      product.v[c] = g.v[c] * x.v[c];
      sum.v[c] += g.v[c] * cross.v[c];
      if (whole) sum.v[c] += g.v[c];
    }
    const Halves<kStep> stored = rounded<kStep>(product);
    for (uint32_t c = 0; c < kStep; ++c) sums.v[c] += float_of_half(stored.v[c]);
    store<kStep>(of_crossed + at, stored);
    store<kStep>(of_x0 + at, rounded<kStep>(sum));
    if (copy) store<kStep>(copy + at, raw);
  });
}

}  // namespace cb::dense

extern "C" __global__ void relu_back_8(const uint16_t* gradient, const uint16_t* given, uint16_t* result, uint64_t rows,
                                       uint64_t width, uint64_t slab, float* partial) {
  cb::dense::relu_back<8>(gradient, given, result, rows, width, slab, partial);
}

extern "C" __global__ void relu_back_1(const uint16_t* gradient, const uint16_t* given, uint16_t* result, uint64_t rows,
                                       uint64_t width, uint64_t slab, float* partial) {
  cb::dense::relu_back<1>(gradient, given, result, rows, width, slab, partial);
}

extern "C" __global__ void cross_back_8(const uint16_t* gradient, const uint16_t* x0, const uint16_t* crossed,
                                        const uint16_t* before, uint16_t* of_crossed, uint16_t* of_x0, uint16_t* copy,
                                        uint64_t whole, uint64_t rows, uint64_t width, uint64_t slab, float* partial) {
  cb::dense::cross_back<8>(gradient, x0, crossed, before, of_crossed, of_x0, copy, whole != 0, rows, width, slab,
                           partial);
}

extern "C" __global__ void cross_back_1(const uint16_t* gradient, const uint16_t* x0, const uint16_t* crossed,
                                        const uint16_t* before, uint16_t* of_crossed, uint16_t* of_x0, uint16_t* copy,
                                        uint64_t whole, uint64_t rows, uint64_t width, uint64_t slab, float* partial) {
  cb::dense::cross_back<1>(gradient, x0, crossed, before, of_crossed, of_x0, copy, whole != 0, rows, width, slab,
                           partial);
}

// The sum of each column over all slabs.
extern "C" __global__ void dense_sums(const float* partial, uint64_t slabs, uint64_t width, float* sums) {
  using namespace cb::dense;
  const uint32_t across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const uint64_t column = (uint64_t)blockIdx.x * kAcross + across;
  float total = 0.0f;
  if (column < width)
    for (uint64_t s = down; s < slabs; s += kDown) total += partial[s * width + column];
  float* held = shared_floats();
  held[down * kAcross + across] = total;
  __syncthreads();
  if (down != 0 || column >= width) return;
  total = 0.0f;
  for (uint32_t d = 0; d < kDown; ++d) total += held[d * kAcross + across];
  sums[column] = total;
}
