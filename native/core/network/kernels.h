// The inner loops of a step (forward_and_training_step.h), once for each instruction set, and what they read and write.
//
// Widths of layers are padded to sixteen floats with zeros ("stride"), so that no loop has a remainder. All sizes
// are in floats. A "block" is up to kBlock rows, whose activations stay in the first two levels of cache.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cb {

constexpr size_t kNetworkBlock = 64;  // rows of a block, and keys of one
constexpr size_t kMostTowerLayers = 32;

inline constexpr size_t padded(size_t n) { return (n + 15) / 16 * 16; }

struct TowerInner {
  size_t inputs, outputs, stride;  // `stride` of the outputs
  size_t input_stride;
  const float* weight;            // [inputs][stride]; of the last layer, [inputs]
  const float* back;              // [outputs][input_stride], transposed
  const float* bias;              // [stride]
  size_t weight_sums, bias_sums;  // where the gradients begin in the sums of a slice
};

struct TowerActivation {
  size_t width, stride;
  bool drops;
  uint32_t threshold;
  float scale;  // of what is kept
  uint64_t seed;
};

// Plain pointers: an inline function of the standard library that is compiled here for AVX-512 could be linked for all.
struct NetworkPlan {
  size_t rows, dim, width, linear;
  bool pairs, trains;

  // The vector of a (field, key), of a row's sum and of a row's gradient: [layer 1 | Σ v | Σ |v|² | first order].
  size_t outputs, output_stride;  // of layer 1; 0 where there is no tower
  size_t stride, at_total, at_square, at_linear;
  const float* start;  // [stride]: the bias of layer 1, else 0

  // Fields by key.
  size_t fields;
  const size_t* begin;  // [fields + 1]
  const int32_t *place, *key, *from, *rows_of;
  const uint8_t* wide;         // [fields]
  const float* const* weight;  // [fields] of [dim][output_stride]
  const float* const* back;    // [fields] of [outputs][dim_stride]
  size_t dim_stride;
  const int64_t* keys;    // of the lookup
  const float* key_rows;  // [unique][width]
  float* projected;       // [places][stride]
  float* row_gradient;    // [unique][width]

  // Fields pooled row by row.
  size_t pooled, pooled_stride;  // columns; the padded width of all their vectors
  const uint8_t* pooled_wide;
  const float *pooled_vectors, *pooled_weights;  // [rows][pooled][dim], [rows][pooled]
  float *pooled_vector_gradient, *pooled_weight_gradient;
  const float *pooled_weight, *pooled_back;  // [pooled * dim][stride], [outputs][pooled_stride]
  size_t pooled_sums;

  // Dense columns.
  size_t dense;
  const float *logs, *mean, *scale;            // [rows][dense], [dense], [dense]
  const float* dense_weight;                   // [dense][stride]
  const float* pair_square;                    // [dense]: squared lengths of pair weights
  size_t dense_sums, start_sums, square_sums;  // [dense][stride], [stride], [dense]

  // Layers behind the first, and activations in front of them.
  size_t layers;                                 // in all
  TowerInner inner[kMostTowerLayers];            // [layers]; the first is described above
  TowerActivation activation[kMostTowerLayers];  // [layers - 1]

  float bias;
  const float *label, *sample_weight;
  float share;  // of a row in the mean
  float* logits;
  float* row_vectors;    // [rows][stride]: gradients
  size_t sums, scratch;  // floats of a slice's sums; of a thread's scratch
};

struct NetworkKernels {
  const char* name;
  // Vectors of the keys at places [from, to), all of one field.
  void (*project)(const NetworkPlan&, size_t field, size_t from, size_t to, float* scratch);
  // Rows [from, to): logits and, in training, the sum of losses, row vectors and the gradients `sums`.
  double (*rows)(const NetworkPlan&, size_t from, size_t to, float* sums, float* scratch);
  // Gradients of the keys at places [from, to), and of their field's weights: `sums` is [dim][output_stride].
  void (*keys)(const NetworkPlan&, size_t field, size_t from, size_t to, float* sums, float* scratch);
};

size_t network_scratch(const NetworkPlan& plan);

const NetworkKernels& network_kernels();
const NetworkKernels* network_kernels_named(
    const std::string& name);  // null where the machine has no such instructions

}  // namespace cb
