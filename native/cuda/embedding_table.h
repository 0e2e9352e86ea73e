// A table of embedding rows on a GPU: the slots that find the row of a key, the rows, and their initial values.
//
// A source states the shape of a row before it includes this file (src/ctrbox/embed/gpu/kernels.py):
//
//   CB_DIM  CB_LINEAR      floats of a vector; 1 where a first-order weight comes with it
//   CB_WEIGHT  CB_VECTOR   optimizers of the two, numbers of OptimizerKind
//   CB_LANES               threads that share a row, a power of two up to 32; each takes four floats at a time
//
//   slots   a power of two of {key, row}, linear probing from the low bits of the key's mix; key 0 is free
//   rows    numbered from 1 in the order of their creation; row 0 is the null slot, zeros that nobody changes. They lie
//           in chunks that never move: row r is in the last chunk that begins at or before r.
//   a row   [vector][weight, its states][states of the vector], each part a multiple of 16 bytes, the whole one of 32
//           where it is longer than 16: the 32 bytes in which memory is read
//   status  [0] rows created, [1] the first reference whose gradient is not finite, else all ones
//
// table_training_step.h has what a training step does with them. Keys are found by any number of threads at once: a
// free slot is claimed by one compare-and-swap, and whoever meets a claimed slot whose row is not written yet leaves a
// note (kPending) that table_settle resolves behind the launch. Row numbers therefore differ from run to run; what a
// key's row holds does not, and nothing but the place of a row depends on its number.
//
// CB_HOST_BLOCKS: a block is one thread (the tests' runtime on the CPU).
#pragma once
#include "operators/table_row_steps.h"

#if !defined(CB_DIM)
#define CB_DIM 16
#define CB_LINEAR 1
#define CB_WEIGHT 5
#define CB_VECTOR 2
#define CB_LANES 4
#endif

// A compiler for GPUs, and not the tests' stand-in for one.
#if defined(__CUDACC_RTC__) || defined(__NVCC__)
#define CB_GPU_COMPILER 1
#pragma nv_diag_suppress 186  // a shape that lacks a part has loops of no turns
#endif

// Four columns live in registers as long as every index is known.
#if defined(CB_GPU_COMPILER)
#define CB_FOUR(c) _Pragma("unroll") for (uint32_t c = 0; c < 4; ++c)
#else
#define CB_FOUR(c) for (uint32_t c = 0; c < 4; ++c)
#endif

namespace cb::table {

typedef unsigned long long Number;  // what atomics work on

constexpr uint32_t kDim = CB_DIM, kLinear = CB_LINEAR, kWidth = kDim + kLinear, kLanes = CB_LANES;
constexpr OptimizerKind kWeightKind = (OptimizerKind)(CB_WEIGHT), kVectorKind = (OptimizerKind)(CB_VECTOR);

CB_BODY constexpr uint32_t rounded(uint32_t n, uint32_t step) { return (n + step - 1) / step * step; }

CB_BODY constexpr uint32_t states_in(OptimizerKind kind, uint32_t n) {
  return n == 0                                  ? 0
         : kind == OptimizerKind::Adagrad        ? n
         : kind == OptimizerKind::RowwiseAdagrad ? 1
         : kind == OptimizerKind::Adam           ? 2 * n + 2
         : kind == OptimizerKind::FTRL           ? 2 * n
                                                 : 0;
}

// Floats of a row here. Arrays of states are as long as the vector with its padding, which stays zero through every
// step.
constexpr uint32_t kPadded = rounded(kDim, 4);
constexpr uint32_t kWeightAt = kPadded;
constexpr uint32_t kWeightStates = states_in(kWeightKind, kLinear);
constexpr uint32_t kStatesAt = kWeightAt + rounded(kLinear + kWeightStates, 4);
constexpr uint32_t kProductsAt = kStatesAt + 2 * kPadded;  // of Adam
constexpr uint32_t kFloats = kStatesAt + rounded(states_in(kVectorKind, kPadded), 4);
constexpr uint32_t kStride = rounded(kFloats, kFloats > 4 ? 8 : 4);

// Floats of a row in a file (core/embed/table_file.h): [weight?][vector][states of the weight][states of the vector].
constexpr uint32_t kVectorStates = states_in(kVectorKind, kDim);
constexpr uint32_t kFileFloats = kWidth + kWeightStates + kVectorStates;

// Parts that lanes share out: four columns of the vector each, then the weight.
constexpr uint32_t kVectorParts = kPadded / 4, kParts = kVectorParts + kLinear;

struct alignas(16) Slot {
  Number key;
  Number row;
};

struct alignas(16) Four {
  float v[4];
};

// 16 bytes in one transaction, past the first cache: rows are met at random, and nobody comes back to one soon. The
// compiler would split plain copies of Four into four.
__device__ inline Four load_four(const float* at) {
#if defined(CB_GPU_COMPILER)
  const float4 x = __ldcg((const float4*)at);
  return Four{{x.x, x.y, x.z, x.w}};
#else
  return *(const Four*)at;
#endif
}

__device__ inline void store_four(float* at, const Four& x) {
#if defined(CB_GPU_COMPILER)
  __stcg((float4*)at, make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
#else
  *(Four*)at = x;
#endif
}

constexpr uint32_t kMostChunks = 32, kParameters = 5;

// Written by table_memory.py when rows are added, never by a kernel.
struct Head {
  uint64_t seed;
  float unit;  // of initial values
  uint32_t chunks;
  float weight[kParameters], vector[kParameters];  // parameters of new states
  uint64_t begin[kMostChunks];                     // first row of a chunk
  float* base[kMostChunks];
};
static_assert(sizeof(Head) == 16 + 40 + 32 * 16, "table_memory.py writes these bytes");

constexpr int32_t kMissing = -1, kPending = -2;  // kPending - k: the row of slot k, once it is written

__device__ inline uint64_t thread_number() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline uint64_t all_threads() { return (uint64_t)gridDim.x * blockDim.x; }

__device__ inline float* row_at(const Head* head, uint64_t row) {
  uint32_t c = head->chunks - 1;  // chunks grow: most rows lie in the last ones
  while (c > 0 && row < head->begin[c]) --c;
  return head->base[c] + (row - head->begin[c]) * kStride;
}

// ---- new rows

// Columns 4 part … 4 part + 3 of the vector of a key that was never pushed.
__device__ inline Four initial_four(const Head* head, int64_t key, uint32_t part) {
  const uint64_t mix = row_mix_of(key, seed_mix_of(head->seed));
  const InitialPair a = initial_pair(mix, 2 * part, head->unit), b = initial_pair(mix, 2 * part + 1, head->unit);
  const uint32_t left = kDim - 4 * part;
  return Four{{a.even, left > 1 ? a.odd : 0.0f, left > 2 ? b.even : 0.0f, left > 3 ? b.odd : 0.0f}};
}

// State k of a new part of n floats, as core/embed/row_optimizers.h counts them.
template <OptimizerKind kKind>
__device__ inline float initial_state(uint32_t k, uint32_t n, const float* w, const float* p) {
  if (kKind == OptimizerKind::Adagrad || kKind == OptimizerKind::RowwiseAdagrad) return p[2];
  if (kKind == OptimizerKind::Adam) return k < 2 * n ? 0.0f : 1.0f;
  if (kKind == OptimizerKind::FTRL) return k < n ? initial_z(w[k], p[0], p[1], p[2], p[3]) : 0.0f;
  return 0.0f;
}

// Where state k of the vector lies in a row.
__device__ inline uint32_t state_at(uint32_t k) {
  if (kVectorKind == OptimizerKind::RowwiseAdagrad || kDim == 0) return kStatesAt;
  if (k >= 2 * kDim) return kProductsAt + k - 2 * kDim;
  return kStatesAt + k / (kDim ? kDim : 1) * kPadded + k % (kDim ? kDim : 1);
}

__device__ inline void initial_row(const Head* head, int64_t key, float* row) {
  for (uint32_t k = 0; k < kStride; ++k) row[k] = 0.0f;
  for (uint32_t part = 0; part < kVectorParts; ++part) store_four(row + 4 * part, initial_four(head, key, part));
  for (uint32_t k = 0; k < kWeightStates; ++k)
    row[kWeightAt + 1 + k] = initial_state<kWeightKind>(k, 1, row + kWeightAt, head->weight);
  for (uint32_t k = 0; k < kVectorStates; ++k)
    row[state_at(k)] = initial_state<kVectorKind>(k, kDim, row, head->vector);
}

// ---- keys to rows

__device__ inline int32_t find_key(const Head* head, Slot* slots, uint64_t mask, Number* status, int64_t key,
                                   bool create) {
  uint64_t at = finish((uint64_t)key) & mask;
  for (uint64_t tries = 0; tries <= mask; ++tries, at = (at + 1) & mask) {
    Slot met = slots[at];
    if (met.key == 0) {
      if (!create) return kMissing;
      met.key = atomicCAS(&slots[at].key, (Number)0, (Number)key);
      met.row = 0;
      if (met.key == 0) {
        const Number row = atomicAdd(status, (Number)1) + 1;
        initial_row(head, key, row_at(head, row));
        slots[at].row = row;
        return (int32_t)row;
      }
    }
    if (met.key == (Number)key) return met.row ? (int32_t)met.row : kPending - (int32_t)at;
  }
  return kMissing;
}

}  // namespace cb::table

// Rows of keys. With `create` those of new keys are made: whoever launches it has seen to room for n more.
extern "C" __global__ void table_find(const cb::table::Head* head, cb::table::Slot* slots, uint64_t mask,
                                      cb::table::Number* status, const int64_t* keys, uint64_t n, int32_t* rows,
                                      uint64_t create) {
  for (uint64_t i = cb::table::thread_number(); i < n; i += cb::table::all_threads())
    rows[i] = keys[i] ? cb::table::find_key(head, slots, mask, status, keys[i], create != 0) : 0;
}

extern "C" __global__ void table_settle(const cb::table::Slot* slots, int32_t* rows, uint64_t n) {
  for (uint64_t i = cb::table::thread_number(); i < n; i += cb::table::all_threads())
    if (rows[i] <= cb::table::kPending) rows[i] = (int32_t)slots[cb::table::kPending - (int64_t)rows[i]].row;
}

// All keys into other slots.
extern "C" __global__ void table_rehash(const cb::table::Slot* from, uint64_t n, cb::table::Slot* to, uint64_t mask) {
  for (uint64_t i = cb::table::thread_number(); i < n; i += cb::table::all_threads()) {
    const cb::table::Slot slot = from[i];
    if (slot.key == 0) continue;
    uint64_t at = cb::finish(slot.key) & mask;
    while (atomicCAS(&to[at].key, (cb::table::Number)0, slot.key) != 0) at = (at + 1) & mask;
    to[at].row = slot.row;
  }
}

// ---- rows out and in, as a file has them

// Keys and rows of the numbers first … first + n - 1.
extern "C" __global__ void table_export(const cb::table::Head* head, const cb::table::Slot* slots, uint64_t slot_count,
                                        uint64_t first, uint64_t n, int64_t* keys, float* out) {
  using namespace cb::table;
  for (uint64_t i = thread_number(); i < slot_count; i += all_threads()) {
    const Slot slot = slots[i];
    if (slot.key == 0 || slot.row - first >= n) continue;
    const float* row = row_at(head, slot.row);
    float* to = out + (slot.row - first) * kFileFloats;
    keys[slot.row - first] = (int64_t)slot.key;
    if (kLinear) *to++ = row[kWeightAt];
    for (uint32_t k = 0; k < kDim; ++k) *to++ = row[k];
    for (uint32_t k = 0; k < kWeightStates; ++k) *to++ = row[kWeightAt + 1 + k];
    for (uint32_t k = 0; k < kVectorStates; ++k) *to++ = row[state_at(k)];
  }
}

// The inverse, for rows that were created before.
extern "C" __global__ void table_import(const cb::table::Head* head, const int32_t* rows, uint64_t n, const float* in) {
  using namespace cb::table;
  for (uint64_t i = thread_number(); i < n; i += all_threads()) {
    float* row = row_at(head, (uint64_t)rows[i]);
    const float* from = in + i * kFileFloats;
    if (kLinear) row[kWeightAt] = *from++;
    for (uint32_t k = 0; k < kDim; ++k) row[k] = *from++;
    for (uint32_t k = 0; k < kWeightStates; ++k) row[kWeightAt + 1 + k] = *from++;
    for (uint32_t k = 0; k < kVectorStates; ++k) row[state_at(k)] = *from++;
  }
}

// Floats of a row in memory, of a row in a file, of a partial sum: what the host allocates.
extern "C" __global__ void table_shape(uint64_t* out) {
  out[0] = cb::table::kStride;
  out[1] = cb::table::kFileFloats;
  out[2] = 4 * cb::table::kParts;
}

// The first number that is not finite, of a key that is not 0: its place goes to *bad by a minimum.
extern "C" __global__ void table_check(const int64_t* keys, const float* gradients, uint64_t n,
                                       cb::table::Number* bad) {
  using namespace cb::table;
  for (uint64_t i = thread_number(); i < n; i += all_threads())
    if (!(cb::size_of(gradients[i]) <= 3.4028234663852886e38f) && keys[i / kWidth]) atomicMin(bad, (Number)i);
}
