// Runs the optimizer step of table_training_step.h with less waiting: the same sums in the same order, so the same
// bits.
//
// table_step gives every reference to a group of lanes, of which two thirds find that their row begins elsewhere, and
// each of the others waits for one load after the other: reference, link, gradient, next reference, row, state. Here
// kLanes lanes share a window of kLanes neighboring places of the sorted references:
//
//   window   lane k loads row, reference and link of place first + k; lanes at which a row begins find its address
//   rows     the rows that begin in the window come one after the other. All lanes load the row before they add up its
//            gradients; links come from the lanes that hold them, and up to 32 bytes of gradients are loaded at a time
//   beyond   a row whose references leave the window loads the next windows; one of kChunk references or more begins
//            with the partial sums of table_chunks and table_groups, as in table_step
//
// Bytes that a step must move, RowwiseAdagrad of dim 128, for each row: 512 of weights and 32 with the state, read and
// written (1,088); for each reference that is in no partial sum: its place 12, link 8, gradient 256 in bfloat16. The
// gradients of a batch are 109 MB in the shape of MLPerf at 16,384 samples; they come from DRAM once, since the rows of
// a field are neighbors. 1.10 million rows are 1.19 GB, all in all 1.4 GB: 0.33 ms at 4.2 TB/s.
//
// For vectors of 5 to 128 numbers without a first-order weight under SGD, Adagrad and RowwiseAdagrad: other shapes need
// more than the 64 registers of four blocks of 256 threads on a multiprocessor, and are left to table_step.
#pragma once
#include "cuda/table_training_step.h"

#if !defined(CB_THREADS)
#define CB_THREADS 256
#endif

#if defined(CB_GPU_COMPILER)
#define CB_BOUNDS __launch_bounds__(CB_THREADS, 4)
#else
#define CB_BOUNDS
#endif

namespace cb::table {

constexpr uint32_t kThreads = CB_THREADS;          // of a block, at most
constexpr bool kOnePass = kVectorParts <= kLanes;  // every lane has one part of a vector at most
constexpr int32_t kNoRow = -0x7fffffff - 1;

#if defined(CB_HOST_BLOCKS)
inline int32_t of_lane(int32_t x, uint32_t) { return x; }
inline uint64_t of_lane(uint64_t x, uint32_t) { return x; }
inline uint32_t lanes_where(bool x) { return x; }
inline uint32_t first_of(uint32_t lanes) { return 0; }
inline uint32_t run_of(uint32_t lanes) { return lanes & 1; }
#else
__device__ inline int32_t of_lane(int32_t x, uint32_t lane) { return __shfl_sync(my_lanes(), x, first_lane() + lane); }
__device__ inline uint64_t of_lane(uint64_t x, uint32_t lane) {
  const uint32_t low = (uint32_t)of_lane((int32_t)(uint32_t)x, lane);
  const uint32_t high = (uint32_t)of_lane((int32_t)(uint32_t)(x >> 32), lane);
  return (uint64_t)high << 32 | low;
}
// Bit k: lane k of the row's lanes says so.
__device__ inline uint32_t lanes_where(bool x) { return (__ballot_sync(my_lanes(), x) & my_lanes()) >> first_lane(); }
__device__ inline uint32_t first_of(uint32_t lanes) { return (uint32_t)__ffsll((long long)lanes) - 1; }
__device__ inline uint32_t run_of(uint32_t lanes) { return (uint32_t)__ffsll((long long)~(uint64_t)lanes) - 1; }
#endif

// The place of a lane in its window.
struct Window {
  uint64_t first;  // the place of lane 0
  int32_t row;     // kNoRow behind the last place
  Link link;       // of a row greater than 0
};

__device__ inline Window window_at(const Sorted& sorted, const Gradients& g, uint64_t first, uint32_t lane) {
  Window window = {first, kNoRow, Link{-1, 1.0f}};
  const uint64_t at = first + lane;
  if (at >= sorted.n) return window;
  window.row = sorted.rows[at];
  const uint64_t reference = (uint64_t)sorted.order[at];
  if (window.row > 0) window.link = g.link_of(reference);
  return window;
}

// One part of the gradients as they lie in memory, 8 or 16 bytes.
__device__ inline Four four_of(const Four& x) { return x; }
__device__ inline Four four_of(const FourHalves& x) {
  Four found;
  CB_FOUR(c) found.v[c] = float_of_half(x.v[c]);
  return found;
}
__device__ inline Four load_raw(const Four* at) { return load_four(at->v); }
__device__ inline FourHalves load_raw(const FourHalves* at) {
#if defined(CB_GPU_COMPILER)
  const uint2 x = __ldcg((const uint2*)at);
  FourHalves found;
  memcpy(&found, &x, 8);
  return found;
#else
  return *at;
#endif
}

struct Total {
  Four sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
  bool begun = false;

  __device__ void take(const Four& x) {
    if (begun)
      add(sum, x);
    else
      sum = x;
    begun = true;
  }
};

// Gradients whose parts are whole and aligned, of lanes `from` … `end` - 1 of a window. Every lane calls it.
template <class Raw>
__device__ inline void take_raw(Total& total, const Window& window, uint32_t from, uint32_t end, const Gradients& g,
                                uint32_t part, bool active) {
  constexpr uint32_t kAtOnce = 32 / sizeof(Raw);  // that are loaded before the first of them is added
  const Raw* base = (const Raw*)g.vectors + part;
  const uint64_t pitch = g.pitch / 4;
  for (uint32_t k = from; k < end; k += kAtOnce) {
    Raw raw[4] = {};
    float share[4];
    CB_FOUR(b) {
      if (b >= kAtOnce || k + b >= end) break;
      const int32_t pair = of_lane(window.link.pair, k + b);
      share[b] = of_lane(window.link.share, k + b);
      if (pair < 0) share[b] = 1.0f;
      if (active && pair >= 0) raw[b] = load_raw(base + (uint64_t)pair * pitch);
    }
    CB_FOUR(b) {
      if (b >= kAtOnce || k + b >= end) break;
      Four x = four_of(raw[b]);
      if (g.links) CB_FOUR(c) x.v[c] *= share[b];
      total.take(x);
    }
  }
}

// The same of any gradients.
__device__ inline void take_any(Total& total, const Sorted& sorted, const Window& window, uint32_t from, uint32_t end,
                                const Gradients& g, uint32_t part, bool active) {
  for (uint32_t k = from; k < end; ++k) {
    const Link link = {of_lane(window.link.pair, k), of_lane(window.link.share, k)};
    if (active) total.take(g.at((uint64_t)sorted.order[window.first + k], link, part));
  }
}

// Whether the lanes that are active can load their parts of the gradients raw; all lanes of a row get the same answer.
__device__ inline bool loads_raw(const Gradients& g, uint32_t part, bool active) {
  const bool raw = kDim % 4 == 0 && part < kVectorParts && g.vectors && !g.winners && g.pitch % 4 == 0 &&
                   ((uint64_t)g.vectors & (g.half ? 7 : 15)) == 0;
  return lanes_where(active && !raw) == 0;
}

__device__ inline void take(Total& total, const Sorted& sorted, const Window& window, uint32_t from, uint32_t end,
                            const Gradients& g, uint32_t part, bool active, bool raw) {
  if (!raw)
    take_any(total, sorted, window, from, end, g, part, active);
  else if (g.half)
    take_raw<FourHalves>(total, window, from, end, g, part, active);
  else
    take_raw<Four>(total, window, from, end, g, part, active);
}

// The gradient of the row that begins at `at`, in `window`; every lane calls it, those that are not active for nothing.
__device__ inline Four sum_of_row(const Sorted& sorted, const Gradients& g, const Window& window, uint64_t at,
                                  int32_t row, uint32_t part, bool active, uint32_t lane) {
  const bool raw = loads_raw(g, part, active);
  Total total;
  Window now = window;
  uint32_t from = (uint32_t)(at - window.first);
  uint32_t count = run_of(lanes_where(now.row == row) >> from);
  if (from + count == kLanes && at + kChunk <= sorted.n && sorted.rows[at + kChunk - 1] == row) {
    for (; at + kGroup <= sorted.n && sorted.rows[at + kGroup - 1] == row; at += kGroup)
      if (active) total.take(load_four(sorted.groups + at / kGroup * kSums + 4 * part));
    for (; at + kChunk <= sorted.n && sorted.rows[at + kChunk - 1] == row; at += kChunk)
      if (active) total.take(load_four(sorted.chunks + at / kChunk * kSums + 4 * part));
    now = window_at(sorted, g, at, lane);
    from = 0;
    count = run_of(lanes_where(now.row == row));
  }
  for (;;) {
    take(total, sorted, now, from, from + count, g, part, active, raw);
    if (from + count < kLanes) break;
    now = window_at(sorted, g, now.first + kLanes, lane);
    from = 0;
    count = run_of(lanes_where(now.row == row));
  }
  return total.sum;
}

// As full_run, which one thread does; lanes look at kLanes places at a time for the first one of the row.
__device__ inline uint64_t full_run_by_lanes(const int32_t* rows, uint64_t n, uint64_t b, uint64_t size,
                                             uint32_t lane) {
  if (kLanes < 4) return full_run(rows, n, b, size);
  const uint64_t first = b * size, last = first + size - 1;
  if (!may_be_full(rows, n, first, last)) return n;
  const int32_t row = rows[last];
  uint64_t low = 0, high = last;  // the row's first place
  while (low < high) {
    const uint64_t step = (high - low + kLanes - 1) / kLanes, place = low + lane * step;
    const uint64_t below = run_of(lanes_where(place < high && rows[place] < row));  // of so many lanes, the first ones
    const uint64_t next = low + below * step;
    if (below) low = next - step + 1;
    if (next < high) high = next;
  }
  return full_from(rows, n, low, first, size);
}

// The sum of kChunk references from `at` on, all of one row.
__device__ inline Four sum_of_chunk(const Sorted& sorted, const Gradients& g, uint64_t at, uint32_t part, bool active,
                                    uint32_t lane) {
  const bool raw = loads_raw(g, part, active);
  Total total;
  Window now = window_at(sorted, g, at, lane);
  for (uint32_t k = 0; k < kChunk; k += kLanes) {
    Window next = now;
    if (k + kLanes < kChunk) next = window_at(sorted, g, at + k + kLanes, lane);
    take(total, sorted, now, 0, kLanes, g, part, active, raw);
    now = next;
  }
  return total.sum;
}

// Where the squares of a row go from its lanes to the four that add them up; few lanes shuffle instead.
constexpr bool kThroughShared = kLanes >= 8;
constexpr uint32_t kSquares = kLanes + 4;  // of a column: four lanes that read 16 bytes each meet no common bank

// Adds column c of the squares, in the order of the lanes, to sums[c]; through shared memory to sums[0] of lane c.
__device__ inline void add_squares(const Four& squares, float (&sums)[4], uint32_t lane) {
  if constexpr (kThroughShared) {
    alignas(16) __shared__ float held[kThroughShared ? kThreads / kLanes : 1][4][kSquares];
    float (&mine)[4][kSquares] = held[threadIdx.x / kLanes];
    CB_FOUR(c) mine[c][lane] = squares.v[c];
    meet();
    if (lane < 4) {
      for (uint32_t from = 0; from < kLanes; from += 4) {
        const Four x = *(const Four*)&mine[lane][from];
        CB_FOUR(c) sums[0] += x.v[c];
      }
    }
    meet();
  } else {
    for (uint32_t from = 0; from < kLanes; ++from) CB_FOUR(c) sums[c] += of_lane(squares.v[c], from);
  }
}

// A row that is being stepped, as its lanes see it.
struct Stepped {
  float* row;
  uint64_t at;  // its first place
  int32_t number;
};

__device__ inline bool step_rowwise(const Stepped& one, const Sorted& sorted, const Window& window, const Gradients& g,
                                    const Constants& c, uint32_t lane) {
  const float lr = c.vector[0], eps = c.vector[1], l2 = c.vector[3];
  float* row = one.row;
  const float before = row[kStatesAt];
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  bool fine = true;
  Four gradient = {{0.0f, 0.0f, 0.0f, 0.0f}}, w = gradient;
  for (uint32_t first = 0; first < kVectorParts; first += kLanes) {
    const uint32_t part = first + lane;
    const bool active = part < kVectorParts;
    if (active) w = load_four(row + 4 * part);
    gradient = sum_of_row(sorted, g, window, one.at, one.number, part, active, lane);
    scale_by(gradient, c.scale);
    Four squares = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (active) {
      fine &= finite(gradient);
      CB_FOUR(k) squares.v[k] = rowwise_square(w.v[k], gradient.v[k], l2);
    }
    add_squares(squares, sums, lane);
  }
  if (any_lane(!fine)) return fine;
  if constexpr (kThroughShared) {
    const float mine = sums[0];
    CB_FOUR(k) sums[k] = of_lane(mine, k);
  }
  const float state = before + rowwise_mean(sums[0], sums[1], sums[2], sums[3], (float)kDim);
  const float root = root_of(state) + eps;
  for (uint32_t first = 0; first < kVectorParts; first += kLanes) {
    const uint32_t part = first + lane;
    const bool active = part < kVectorParts;
    if (!kOnePass) {  // what the first pass added up is gone
      gradient = sum_of_row(sorted, g, window, one.at, one.number, part, active, lane);
      scale_by(gradient, c.scale);
      if (active) w = load_four(row + 4 * part);
    }
    if (!active) continue;
    CB_FOUR(k) rowwise_step(w.v[k], gradient.v[k], root, lr, l2);
    store_four(row + 4 * part, w);
  }
  meet();  // every lane has read the state
  if (lane == kLanes - 1) row[kStatesAt] = state;
  return fine;
}

__device__ inline bool step_columns(const Stepped& one, const Sorted& sorted, const Window& window, const Gradients& g,
                                    const Constants& c, uint32_t lane) {
  constexpr bool has_state = kVectorKind == OptimizerKind::Adagrad;
  static_assert(has_state || kVectorKind == OptimizerKind::SGD || kVectorKind == OptimizerKind::RowwiseAdagrad);
  float* row = one.row;
  bool fine = true;
  for (uint32_t first = 0; first < kVectorParts; first += kLanes) {
    const uint32_t part = first + lane;
    const bool active = part < kVectorParts;
    float *w = row + 4 * part, *s = row + kStatesAt + 4 * part;
    Four weights = {{0.0f, 0.0f, 0.0f, 0.0f}}, states = weights;
    if (active) {
      weights = load_four(w);
      if (has_state) states = load_four(s);
    }
    Four gradient = sum_of_row(sorted, g, window, one.at, one.number, part, active, lane);
    scale_by(gradient, c.scale);
    if (!active) continue;
    if (!finite(gradient)) {
      fine = false;
      continue;
    }
    step_part<kVectorKind, 4>(weights.v, states.v, 4, gradient, c.vector, AdamRates{0.0f, 0.0f});
    store_four(w, weights);
    if (has_state) store_four(s, states);
  }
  return fine;
}

// False where a gradient is not finite.
__device__ inline bool step_one(const Stepped& one, const Sorted& sorted, const Window& window, const Gradients& g,
                                const Constants& c, uint32_t lane) {
  static_assert(kDim > 0 && !kLinear);
  return kVectorKind == OptimizerKind::RowwiseAdagrad ? step_rowwise(one, sorted, window, g, c, lane)
                                                      : step_columns(one, sorted, window, g, c, lane);
}

}  // namespace cb::table

// As table_step: one step of the optimizers on every row that is referred to, except row 0.
extern "C" __global__ void CB_BOUNDS table_windows(const cb::table::Head* head, cb::table::Number* status,
                                                   const int32_t* rows, const int64_t* order, uint64_t n,
                                                   const void* vectors, uint64_t pitch, const float* weights,
                                                   uint64_t weight_pitch, const cb::table::Link* links,
                                                   const int32_t* winners, const cb::table::PoolField* fields,
                                                   uint64_t field_count, uint64_t row_count, uint64_t maxima,
                                                   uint64_t half, const float* chunks, const float* groups, uint64_t c0,
                                                   uint64_t c1, uint64_t c2, uint64_t c3, uint64_t c4, uint64_t c5) {
  using namespace cb::table;
  const Gradients g = {vectors, weights,     pitch,     weight_pitch, links, winners,
                       fields,  field_count, row_count, maxima,       half};
  const Sorted sorted = {rows, order, n, chunks, groups};
  const Constants c = constants_of(c0, c1, c2, c3, c4, c5);
  const GroupOfLanes mine = my_group();
  for (uint64_t first = mine.number * kLanes; first < n; first += mine.all * kLanes) {
    const uint64_t place = first + mine.lane;
    const Window window = window_at(sorted, g, first, mine.lane);
    const bool begins = window.row > 0 && (place == 0 || rows[place - 1] != window.row);
    float* own = begins ? row_at(head, (uint64_t)window.row) : nullptr;
    for (uint32_t left = lanes_where(begins); left; left &= left - 1) {
      const uint32_t k = first_of(left);
      const Stepped one = {(float*)of_lane((uint64_t)own, k), first + k, of_lane(window.row, k)};
      if (!step_one(one, sorted, window, g, c, mine.lane)) atomicMin(status + 1, (Number)order[one.at]);
    }
  }
}

// As table_chunks: sums of kChunk references, wherever that many in a row mean one table row.
extern "C" __global__ void CB_BOUNDS table_chunk_windows(const int32_t* rows, const int64_t* order, uint64_t n,
                                                         const void* vectors, uint64_t pitch, const float* weights,
                                                         uint64_t weight_pitch, const cb::table::Link* links,
                                                         const int32_t* winners, const cb::table::PoolField* fields,
                                                         uint64_t field_count, uint64_t row_count, uint64_t maxima,
                                                         uint64_t half, float* chunks) {
  using namespace cb::table;
  const Gradients g = {vectors, weights,     pitch,     weight_pitch, links, winners,
                       fields,  field_count, row_count, maxima,       half};
  const Sorted sorted = {rows, order, n, nullptr, nullptr};
  const GroupOfLanes mine = my_group();
  for (uint64_t b = mine.number; b < n / kChunk; b += mine.all) {
    const uint64_t at = full_run_by_lanes(rows, n, b, kChunk, mine.lane);
    if (at == n || rows[at] == 0) continue;
    for (uint32_t first = 0; first < kVectorParts; first += kLanes) {
      const uint32_t part = first + mine.lane;
      const bool active = part < kVectorParts;
      const Four sum = sum_of_chunk(sorted, g, at, part, active, mine.lane);
      if (active) store_four(chunks + b * kSums + 4 * part, sum);
    }
    if constexpr (kLinear != 0) {
      const Four sum = sum_of_chunk(sorted, g, at, kVectorParts, mine.lane == 0, mine.lane);
      if (mine.lane == 0) store_four(chunks + b * kSums + 4 * kVectorParts, sum);
    }
  }
}
