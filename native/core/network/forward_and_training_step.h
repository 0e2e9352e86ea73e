// Runs one training step of the usual click models on the CPU: pooling, first order, pairs and tower.
//
//   logit = bias + Σ_wide fields w + dense·first + Σ_{i<j} <v_i, v_j> + tower(v_1 … v_F, dense)
//
// Each term is optional, so LR, FM, EmbeddingMLP, WideDeep and DeepFM are all cases of it; the torch modules of the
// same names compute the same numbers up to rounding and are its slow twin.
//
// The trick. Everything in front of the tower's first activation is a sum over fields. For a field with one key per
// row, its term depends on the key alone, so it is computed once for each unique key of the field and then added up:
//
//   1 project   per (field, unique key)   p = [v·W_f | v | |v|² | w]               "W_f": the field's part of layer 1
//   2 rows      per slice of rows         Σ_f p, then activations, further layers, loss, and back down to
//                                         d = [dL/dh | g·Σv | g]                   g = dL/dlogit
//   3 keys      per (field, key)          Σ d over the rows that have the key, then gradients of the key's row and of
//   W_f
//
// A batch of 8,192 rows and 19 fields has some 7,000 unique keys and 155,000 pairs of row and field: projecting keys
// costs a twentieth of the multiplications, and one addition of H + dim + 2 floats per pair of row and field is left.
// Fields of several keys per row are pooled first (pooling.h) and multiplied row by row, since they have more keys than
// rows.
//
// The number of threads never changes a bit of the result. Work is cut by the batch alone: slices of rows, and units of
// a field's keys. Every slice and unit has its own gradient sums, which are added up in a fixed order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/embed/pooling.h"
#include "core/embed/unique_keys.h"
#include "core/network/keys_by_field.h"

namespace cb {

struct TowerLayer {
  size_t inputs = 0, outputs = 0;
  const float* weight = nullptr;  // [inputs][outputs]
  const float* bias = nullptr;    // [outputs], or null
  float* weight_gradient = nullptr;
  float* bias_gradient = nullptr;
  float drop = 0.0f;  // probability that an output, behind its ReLU, is set to 0
  uint64_t seed = 0;  // of these draws; see dropout.h
};

// Moments of the dense columns over all rows seen, as DenseInput keeps them. A step in training merges its batch first.
struct DenseMoments {
  double* seen = nullptr;    // [1]
  double* mean = nullptr;    // [columns]
  double* spread = nullptr;  // [columns]
};

// Wall-clock seconds that steps spent in each of their parts, for benchmarks.
struct NetworkSeconds {
  // Building the index of keys unless it was built ahead, allocating memory, and laying out weights for the kernels.
  double prepare = 0;
  double inputs = 0;  // pooling, projected keys, moments
  double rows = 0;    // forward, loss and backward of all slices of rows
  double keys = 0;    // gradients of keys, and of layer 1 by units of keys
  double sum = 0;     // sums of the slices and units, in their order
};

struct NetworkStep {
  // ---- the batch
  const Lookup* lookup = nullptr;
  const FieldIndex* index = nullptr;  // of `lookup` and `columns`, where it was built ahead of the step
  std::vector<PoolColumn> columns;    // the model's fields, in the order of layer 1's inputs
  std::vector<uint8_t> wide;          // of each: whether its first-order weight counts
  size_t dim = 0;
  bool linear = false;            // column 0 of `rows` is the first-order weight
  const float* rows = nullptr;    // [unique][linear + dim], as pulled
  size_t dense = 0;               // dense columns
  const float* logs = nullptr;    // [rows][dense]: sign(x)·log(1 + |x|)
  const float* label = nullptr;   // [rows]; null: score only, nothing below that says "gradient" is touched
  const float* weight = nullptr;  // [rows], or null

  // ---- the model
  DenseMoments moments;
  bool merges_moments = true;    // false: `moments` count the rows of this batch already
  const float* first = nullptr;  // [dense], or null
  const float* pairs = nullptr;  // [dense][dim], or null
  bool has_pairs = false;
  std::vector<TowerLayer> layers;  // the last one has one output and no activation; empty: no tower
  const float* bias = nullptr;     // [1]

  // ---- results
  float* logits = nullptr;  // [rows]
  float* first_gradient = nullptr;
  float* pairs_gradient = nullptr;
  float* bias_gradient = nullptr;
  float* row_gradient = nullptr;      // [unique][linear + dim]: of the mean loss
  NetworkSeconds* seconds = nullptr;  // this step adds its seconds to them; may be null

  // Returns the mean loss (0 where there is no label).
  double run(size_t threads);
};

// The name of the instruction set that was chosen at run time.
const char* network_instructions();

}  // namespace cb
