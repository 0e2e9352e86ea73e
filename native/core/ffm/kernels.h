// The loops of Deep FFM, and of attention over the history of a request: one table of functions per instruction set,
// all of them with the same bits.
//
// Lengths are multiples of 16 floats (kLanes) unless said otherwise. Orders of sums are part of the contract:
//   a sum over n floats    16 partial sums, lane l takes l, l + 16, …; then lanes l and l + 8, l + 4, l + 2, l + 1
//   a sum over a chunk     4 floats: (0 + 1) + (2 + 3)
//   a dot product          such partial sums, the first a product, then by fused multiply-adds
// Also fused: dx + delta · w, and in steps a + g², the root's last subtraction, w - (g · inverse) · rate. Nothing else
// is, and inverse roots are made of multiplications, never of an instruction that estimates. So a model learned with
// one thread has the same bits on every machine. kernels_scalar.cpp is the plain twin; tests compare the others with it
// bit by bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cb {

inline constexpr size_t kLanes = 16;  // floats of an AVX-512 register; four of NEON
inline constexpr size_t kChunk = 4;   // floats of a chunk: latent vectors are padded to whole ones
inline constexpr size_t kAcross = 4;  // examples that go through a layer at once
inline constexpr size_t kBeside = 8;  // neurons side by side: a layer's are padded to whole ones where turned round

inline size_t padded(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Adagrad: a += g²; w -= rate · g · a^-power_t. `rate` holds the factor that the inverse root leaves to it.
struct AdagradRates {
  AdagradRates(float given, float power);
  float rate, power_t;
};

// Fields known … fields of an example: source[f] holds their latent vectors, one for each field, each of so many
// chunks. turned + (g - known) · step holds those of the known fields for field g, side by side. A product of two
// latent vectors is summed chunk by chunk, one after the other. Written from out[0] on, field by field: g pairs,
// within[g], and first_order[g] if there is any. Up to 3 more floats are written, and up to 3 more vectors read in each
// place, so `source` has 3 entries more.
struct FieldPairs {
  const float* const* source;
  size_t known, fields, chunks;
  const float* turned;
  size_t step;
  const float *within, *first_order;
  float* out;
};

// DIN's activation unit with PReLU over a history of `items` vectors, the same for all targets. For a target q and item
// i the unit's u = fixed[i] + Σ q[d] · maps[i][d], each `width` floats, d in order, fused; the item's score is bias +
// the sum of u · (u > 0 ? above : below), 16 partial sums of which lanes l and l + 8, l + 4 are added, then (0 + 1) +
// (2 + 3); out = Σ score · vectors[i], fused, item by item, from 0 on. `step`: from one vector, and one row of out, to
// the next; a multiple of 16, 0 behind the vector.
struct Attention {
  size_t items, dim, width, step;
  const float *maps, *fixed, *above, *below, *vectors;
  float bias;
};

struct FfmKernels {
  const char* name;

  // Onto 16 partial sums, where there are any (nullptr: none).
  float (*sum)(const float* lanes, const float* a, size_t n);
  float (*dot)(const float* a, const float* b, size_t n);

  // y[j] = dot(rows + j · n, x, n) for `count` rows.
  void (*matmul)(const float* rows, size_t count, size_t n, const float* x, float* y);

  // The same and ReLU from weights with a row per input, `step` floats each. Only the listed inputs are there, the
  // others are 0: those of lane l are the ones up to ends[l], in order. Needs room for 16 · step floats.
  void (*from_inputs)(const float* rows, size_t step, const uint32_t* inputs, const uint32_t* ends, const float* x,
                      float* room, float* y);

  // The same and ReLU for kAcross x at once (x + step, y + y_step, and so on), from weights turned round: weight i of
  // neuron j is w[((i % 16) · n / 16 + i / 16) · width + j], width a multiple of 8. With lanes, [16][width] partial
  // sums of the first `from` products, those are not computed again.
  void (*across)(const float* w, size_t width, const float* lanes, size_t from, size_t n, const float* x, size_t step,
                 float* y, size_t y_step);
  // Those partial sums of the first `upto` products of one x.
  void (*across_lanes)(const float* w, size_t width, size_t n, size_t upto, const float* x, float* lanes);

  // The inputs of fields, which they are in what order: weight_layout.h.
  void (*pairs)(const FieldPairs& fields);

  // Targets q, each `q_step` behind the other, to rows of out. Needs room for 4 · items floats.
  void (*attend)(const Attention& unit, const float* q, size_t q_step, size_t rows, float* room, float* out);

  // s += x · w
  void (*add_scaled)(float* s, const float* w, float x, size_t n);

  // y = the sum of times[r] · row r for `count` rows, the row at rows + index[r] · step; with `go_on` it is added to
  // what y holds. Each product is added by a fused multiply-add, in the order of the list.
  void (*add_rows)(float* y, bool go_on, const float* rows, size_t step, const uint32_t* index, const float* times,
                   size_t count, size_t n);

  // The gradient of a row of latent vectors, as ffm_step has it: s = t · (d[c] · x), or with `go_on` s + that.
  void (*ffm_gradient)(float* s, bool go_on, const float* t, const float* d, float x, size_t n);

  // A step with the gradient parts[0] + parts[1] + …, added in this order; there is at least one part.
  void (*sum_step)(float* w, float* a, const float* const* parts, size_t count, size_t n, AdagradRates rates);

  // One row of latent vectors: the gradient of chunk c is (x · d[c]) · t.
  void (*ffm_step)(float* w, float* a, const float* t, const float* d, float x, size_t n, AdagradRates rates);

  // One neuron: dx += delta · w with the weights before the step, then a step with the gradient delta · x.
  void (*neuron_step)(float* w, float* a, const float* x, float* dx, float delta, size_t n, AdagradRates rates);

  // One input: a step with the gradient x · delta; gives dot(w, delta) with the weights before it.
  float (*input_step)(float* w, float* a, const float* delta, float x, size_t n, AdagradRates rates);

  // y = (x - mean) / sqrt(variance + 1e-5) over the first `used` of n floats, 0 behind them; gives 1 / sqrt(…).
  float (*norm)(const float* x, float* y, size_t used, size_t n);
  // dx = inverse · (dy - mean(dy) - y · mean(dy · y)), in place.
  void (*norm_back)(const float* y, float* dy, float inverse, size_t used, size_t n);
};

// The best table of this machine; CTRBOX_SIMD=scalar|neon|avx2|avx512 in the environment asks for another one.
const FfmKernels& ffm_kernels();
// By name; nullptr where this machine or this build has none.
const FfmKernels* ffm_kernels_named(const std::string& name);

}  // namespace cb
