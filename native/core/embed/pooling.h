// Pools rows of unique keys into one vector per field and row, and computes the gradient.
//
//   rows      [unique][width]       width = linear + dim; column 0 is the first-order weight where linear
//   weights   [rows][columns]       not touched unless linear
//   vectors   [rows][columns][dim]
//   winners   [rows][maxima][width] of columns pooled by maximum: the key (position in keys) that gave each number, -1
//                                   where there is none
//
// A column is a field of the lookup and how it is pooled. Forward, sums run in the order of the references and begin
// with the first one, so that a row of one key is copied to the bit, and a mean is sum / count. Backward, sums run in
// the order of rows, then columns, then references; they begin at 0 and a mean's share is gradient * (1 / count). A
// maximum is taken number by number; NaN counts as greater than any number, and among equals the first one wins and
// gets the gradient.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/embed/unique_keys.h"

namespace cb {

enum class Pool : uint8_t { kSum, kMean, kMax };

struct PoolColumn {
  size_t field = 0;
  Pool how = Pool::kSum;
};

struct PoolShape {
  size_t dim = 0;
  bool linear = false;
  std::span<const PoolColumn> columns;

  size_t width() const { return dim + linear; }
  size_t maxima() const {
    size_t n = 0;
    for (const PoolColumn& c : columns) n += c.how == Pool::kMax;
    return n;
  }
};

void pool_forward(const Lookup& lookup, const PoolShape& shape, const float* rows, float* weights, float* vectors,
                  int32_t* winners, size_t threads);

// Gradients of an unused output are null and count as 0. Writes every number of `out` [unique][width].
void pool_backward(const Lookup& lookup, const PoolShape& shape, const float* weights, const float* vectors,
                   const int32_t* winners, float* out, size_t threads);

// The last `longest` keys of each row in their order, [rows][longest][dim]; a shorter row ends in zeros.
void sequence_forward(const Lookup& lookup, size_t field, size_t dim, bool linear, size_t longest, const float* rows,
                      float* vectors, size_t threads);
void sequence_backward(const Lookup& lookup, size_t field, size_t dim, bool linear, size_t longest,
                       const float* vectors, float* out, size_t threads);

}  // namespace cb
