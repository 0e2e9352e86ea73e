// The best rows of a matrix for one vector, by inner product: exact, on all cores, with the same bits everywhere.
//
//   product(row)   sixteen sums: number j of the row goes to sum j % 16, in ascending order; then sums are added in
//                  pairs, j and j + 8, j + 4, j + 2, j + 1. No multiply-add, so every register width gives the same
//                  bits.
//   order          the larger product first; equal products (0 and -0 too) in the order of the rows. A product that is
//                  not a number comes before all others, so that the caller sees it.
//
// Rows are taken in pieces, whatever the number of threads; the order is total, so pieces never change the result.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cb {

struct BestProduct {
  float product;
  int64_t position;  // among the rows that were asked for
};

// products[n] = the product of `vector` with row rows[at(n)], where at(n) is places[n], or first + n without places.
using ProductKernel = void (*)(const float* rows, size_t width, const float* vector, const int64_t* places,
                               size_t first, size_t count, float* products);

// Returns the kernel "scalar", "wide" (registers of the baseline), "avx2" or "avx512"; nullptr if this machine has no
// such registers.
ProductKernel product_kernel_named(const std::string& name);
ProductKernel product_kernel();  // the widest; CTRBOX_SIMD=scalar asks for the plain loop

// The best `k` of `count` rows, best first. `places`: which rows, each below the rows there are; nullptr: the first
// ones.
std::vector<BestProduct> best_products(const float* rows, size_t width, const float* vector, const int64_t* places,
                                       size_t count, size_t k, size_t threads, ProductKernel kernel);

}  // namespace cb
