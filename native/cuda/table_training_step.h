// Runs a training step over the rows of embedding_table.h: pools vectors, sums gradients per key, applies the
// optimizer.
//
// A batch refers to keys: all references of its first field, then of its second, row after row. Reference i means row
// rows[i] of the table. Reading pools the references of a row and field, a pair, into one vector: pair = row · fields +
// field. Writing goes the other way: references are sorted by row of the table (stable, by torch), the gradients of a
// table row's references are added up, and its optimizer makes one step.
//
// The order of that sum depends on the references alone: kChunk of them at a time from the first, kChunk of such chunks
// at a time, then the whole groups of chunks, the whole chunks left, the references left, each in order. A key of
// 60,000 references is 937 independent sums of 64, then 14 of those, then 14 + 41 + 32 terms; no float is added by an
// atomic.
//
// kLanes threads share a pair (reading) or a table row (writing): lane k takes the parts k, k + kLanes, …
#pragma once
#include "cuda/bfloat16.h"
#include "cuda/embedding_table.h"

namespace cb::table {

constexpr uint64_t kChunk = 64, kGroup = kChunk * kChunk;
constexpr uint32_t kSums = 4 * kParts;  // floats of a partial sum
constexpr uint32_t kTile = 8;           // rows whose references to one field are read together

struct PoolField {
  int64_t start;    // its first reference
  int64_t count;    // its references
  int64_t offsets;  // where its offsets begin, or -1: one reference a row
  int64_t how;      // 0 sum, 1 mean, 2 maximum
  int64_t maximum;  // its number among the maxima
};

// Where the gradient of a reference is, written while reading ragged fields. pair -1: nowhere, it counts as 0.
struct alignas(8) Link {
  int32_t pair;
  float share;  // 1 / references of the pair for a mean, else 1
};

struct Spread {
  uint64_t begin, end;  // references of a pair
};

__device__ inline Spread references_of(const PoolField& field, const int64_t* offsets, uint64_t row) {
  if (field.offsets < 0) return Spread{(uint64_t)field.start + row, (uint64_t)field.start + row + 1};
  // Offsets on a GPU were never looked at: whatever they say, nothing outside the field is read.
  int64_t from = offsets[field.offsets + row], to = offsets[field.offsets + row + 1];
  from = from < 0 ? 0 : from > field.count ? field.count : from;
  to = to < from ? from : to > field.count ? field.count : to;
  return Spread{(uint64_t)(field.start + from), (uint64_t)(field.start + to)};
}

// Four columns of a row, or its weight; of a key without a row what seed and key decide.
__device__ inline Four value_of(const Head* head, const int64_t* keys, const int32_t* rows, uint64_t i, uint32_t part) {
  const int32_t row = rows[i];
  if (row < 0) return part < kVectorParts ? initial_four(head, keys[i], part) : Four{{0.0f, 0.0f, 0.0f, 0.0f}};
  const float* at = row_at(head, (uint64_t)row);
  if (part < kVectorParts) return load_four(at + 4 * part);
  return Four{{at[kWeightAt], 0.0f, 0.0f, 0.0f}};
}

__device__ inline void add(Four& sum, const Four& x) { CB_FOUR(c) sum.v[c] += x.v[c]; }

// Columns of a part: 4, fewer in the last part of a vector, 1 of a weight.
__device__ inline uint32_t columns_of(uint32_t part) {
  if (part >= kVectorParts) return 1;
  return kDim - 4 * part < 4 ? kDim - 4 * part : 4;
}

// Vectors stand `pitch` floats apart; 16 bytes at once where they begin there.
__device__ inline void put_part(float* out, const Four& x, uint32_t part) {
  const uint32_t n = columns_of(part);
  if (n == 4 && ((uint64_t)out & 15) == 0) {
    store_four(out, x);
    return;
  }
  CB_FOUR(c) {
    if (c < n) out[c] = x.v[c];
  }
}

__device__ inline Four get_part(const float* in, uint32_t part) {
  const uint32_t n = columns_of(part);
  if (n == 4 && ((uint64_t)in & 15) == 0) return load_four(in);
  Four x = {{0.0f, 0.0f, 0.0f, 0.0f}};
  CB_FOUR(c) {
    if (c < n) x.v[c] = in[c];
  }
  return x;
}

struct alignas(8) FourHalves {
  uint16_t v[4];
};

// As put_part and get_part, 8 bytes at once.
__device__ inline void put_halves(uint16_t* out, const Four& x, uint32_t part) {
  const uint32_t n = columns_of(part);
  FourHalves halves;
  CB_FOUR(c) halves.v[c] = half_of_float(x.v[c]);
  if (n == 4 && ((uint64_t)out & 7) == 0) {
    *(FourHalves*)out = halves;
    return;
  }
  CB_FOUR(c) {
    if (c < n) out[c] = halves.v[c];
  }
}

__device__ inline Four get_halves(const uint16_t* in, uint32_t part) {
  const uint32_t n = columns_of(part);
  FourHalves halves = {{0, 0, 0, 0}};
  if (n == 4 && ((uint64_t)in & 7) == 0) {
    halves = *(const FourHalves*)in;
  } else {
    CB_FOUR(c) {
      if (c < n) halves.v[c] = in[c];
    }
  }
  Four x;
  CB_FOUR(c) x.v[c] = float_of_half(halves.v[c]);
  return x;
}

// NaN counts as greater than any number; among equals the first wins.
__device__ inline bool beats(float x, float best) { return x > best || (x != x && best == best); }

struct GroupOfLanes {
  uint64_t number, all;
  uint32_t lane;
};

__device__ inline GroupOfLanes my_group() {
  return {thread_number() / kLanes, all_threads() / kLanes, (uint32_t)(thread_number() % kLanes)};
}

#if defined(CB_HOST_BLOCKS)
inline void meet() {}
inline bool any_lane(bool x) { return x; }
inline float of_lane(float x, uint32_t) { return x; }
#else
// Lanes of one row meet; those of other rows in the warp are elsewhere.
__device__ inline uint32_t first_lane() { return threadIdx.x % 32 / kLanes * kLanes; }
__device__ inline uint32_t my_lanes() {
  return (kLanes == 32 ? 0xffffffffu : ((1u << (kLanes & 31)) - 1)) << first_lane();
}
__device__ inline void meet() { __syncwarp(my_lanes()); }
__device__ inline bool any_lane(bool x) { return (__ballot_sync(my_lanes(), x) & my_lanes()) != 0; }
__device__ inline float of_lane(float x, uint32_t lane) { return __shfl_sync(my_lanes(), x, first_lane() + lane); }
#endif

}  // namespace cb::table

// ---- reading

// Rows as they are: vectors[i · pitch …], weights[i · weight_pitch] where asked for.
extern "C" __global__ void table_gather(const cb::table::Head* head, const int64_t* keys, const int32_t* rows,
                                        uint64_t n, float* vectors, uint64_t pitch, float* weights,
                                        uint64_t weight_pitch) {
  using namespace cb::table;
  const GroupOfLanes mine = my_group();
  for (uint64_t i = mine.number; i < n; i += mine.all)
    for (uint32_t part = mine.lane; part < kParts; part += kLanes) {
      if (part < kVectorParts)
        put_part(vectors + i * pitch + 4 * part, value_of(head, keys, rows, i, part), part);
      else if (weights)
        weights[i * weight_pitch] = value_of(head, keys, rows, i, part).v[0];
    }
}

// vectors (rows, fields, dim), weights (rows, fields), winners (rows, maxima, kSums): the reference that gave a number.
// `half`: vectors are bfloat16, rounded once pooled, else float.
// `single`: every field has one reference a row; then `fields` and `offsets` are not read.
extern "C" __global__ void table_pool(const cb::table::Head* head, const int64_t* keys, const int32_t* rows,
                                      const cb::table::PoolField* fields, uint64_t field_count, uint64_t row_count,
                                      const int64_t* offsets, uint64_t single, void* vectors, float* weights,
                                      int32_t* winners, uint64_t maxima, cb::table::Link* links, uint64_t half) {
  using namespace cb::table;
  // Pairs are fewer than 2^31, with those of an unfinished tile fewer than 2^32: short division is five times faster.
  const uint32_t tile = kTile * (uint32_t)field_count, all = (uint32_t)((row_count + kTile - 1) / kTile) * tile;
  const GroupOfLanes mine = my_group();
  for (uint64_t q = mine.number; q < all; q += mine.all) {
    const uint32_t in_tile = (uint32_t)q % tile, f = in_tile / kTile, r = (uint32_t)q / tile * kTile + in_tile % kTile;
    if (r >= row_count) continue;
    const uint64_t pair = (uint64_t)r * field_count + f;
    const PoolField field = single ? PoolField{(int64_t)((uint64_t)f * row_count), 0, -1, 0, 0} : fields[f];
    const Spread refs = references_of(field, offsets, r);
    const float count = (float)(refs.end - refs.begin);
    if (links && mine.lane == 0)
      for (uint64_t i = refs.begin; i < refs.end; ++i)
        links[i] = Link{(int32_t)pair, field.how == 1 ? 1.0f / count : 1.0f};
    for (uint32_t part = mine.lane; part < kParts; part += kLanes) {
      Four sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
      if (refs.begin < refs.end) sum = value_of(head, keys, rows, refs.begin, part);
      if (field.how == 2) {
        int32_t won[4];
        CB_FOUR(c) won[c] = refs.begin < refs.end ? (int32_t)refs.begin : -1;
        for (uint64_t i = refs.begin + 1; i < refs.end; ++i) {
          const Four x = value_of(head, keys, rows, i, part);
          CB_FOUR(c)
          if (beats(x.v[c], sum.v[c])) {
            sum.v[c] = x.v[c];
            won[c] = (int32_t)i;
          }
        }
        if (winners) CB_FOUR(c) winners[(r * maxima + field.maximum) * kSums + 4 * part + c] = won[c];
      } else {
        for (uint64_t i = refs.begin + 1; i < refs.end; ++i) add(sum, value_of(head, keys, rows, i, part));
        if (field.how == 1 && refs.begin < refs.end) CB_FOUR(c) sum.v[c] /= count;
      }
      if (part >= kVectorParts)
        weights[pair] = sum.v[0];
      else if (half)
        put_halves((uint16_t*)vectors + pair * kDim + 4 * part, sum, part);
      else
        put_part((float*)vectors + pair * kDim + 4 * part, sum, part);
    }
  }
}

// ---- gradients

namespace cb::table {

// What pairs got back. Those behind the row_count · field_count pairs of pooled fields are of sequences: no weights.
struct Gradients {
  const void* vectors;   // pitch numbers apart; nullptr: all 0
  const float* weights;  // weight_pitch floats apart; nullptr: all 0
  uint64_t pitch, weight_pitch;
  const Link* links;  // nullptr: one reference a pair
  const int32_t* winners;
  const PoolField* fields;
  uint64_t field_count, row_count, maxima;
  uint64_t half;  // vectors are bfloat16, else float

  // Where the gradient of reference i is.
  __device__ Link link_of(uint64_t i) const {
    if (links) return links[i];
    const uint32_t f = (uint32_t)i / (uint32_t)row_count;
    return Link{(int32_t)(((uint32_t)i - f * (uint32_t)row_count) * field_count + f), 1.0f};
  }

  __device__ Four of(uint64_t i, uint32_t part) const { return at(i, link_of(i), part); }

  // A part of the gradient of reference i, whose link is known.
  __device__ Four at(uint64_t i, const Link& link, uint32_t part) const {
    Four x = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (link.pair < 0) return x;
    const uint64_t pair = (uint64_t)link.pair;
    const float share = link.share;
    const bool is_vector = part < kVectorParts, pooled = pair < row_count * field_count;
    if (is_vector && vectors)
      x = half ? get_halves((const uint16_t*)vectors + pair * pitch + 4 * part, part)
               : get_part((const float*)vectors + pair * pitch + 4 * part, part);
    if (!is_vector && weights && pooled) x.v[0] = weights[pair * weight_pitch];
    if (winners && pooled) {
      const PoolField& field = fields[pair % field_count];
      if (field.how == 2) {
        const int32_t* won = winners + (pair / field_count * maxima + field.maximum) * kSums + 4 * part;
        CB_FOUR(c)
        if (won[c] != (int32_t)i) x.v[c] = 0.0f;
      }
    }
    if (links) CB_FOUR(c) x.v[c] *= share;
    return x;
  }
};

// Whether references of the row at `last` may fill a run that begins at a place from `first` to `last`.
__device__ inline bool may_be_full(const int32_t* rows, uint64_t n, uint64_t first, uint64_t last) {
  return last < n && (rows[first] == rows[last] || (last + 1 < n && rows[last + 1] == rows[last]));
}

// The place of the bucket from `first` on where `size` references begin that are counted from `low`, the first place of
// their row; n where there is none.
__device__ inline uint64_t full_from(const int32_t* rows, uint64_t n, uint64_t low, uint64_t first, uint64_t size) {
  const uint64_t at = low >= first ? low : low + (first - low + size - 1) / size * size;
  return at < first + size && at + size <= n && rows[at + size - 1] == rows[first + size - 1] ? at : n;
}

// The only place in bucket b of `size` places where `size` references of one row begin that are counted from the row's
// first one; n where there is none. Such runs do not overlap, so a bucket has at most one, and it covers the last
// place.
__device__ inline uint64_t full_run(const int32_t* rows, uint64_t n, uint64_t b, uint64_t size) {
  const uint64_t first = b * size, last = first + size - 1;
  if (!may_be_full(rows, n, first, last)) return n;
  const int32_t row = rows[last];
  uint64_t low = 0, high = last;  // the row's first place
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (rows[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  return full_from(rows, n, low, first, size);
}

struct Sorted {
  const int32_t* rows;   // ascending
  const int64_t* order;  // the reference at a place
  uint64_t n;
  const float* chunks;  // partial sums, by place / kChunk and by place / kGroup
  const float* groups;

  // Of the row whose references begin at a place.
  __device__ Four sum(uint64_t at, uint32_t part, const Gradients& g) const {
    const int32_t row = rows[at];
    Four total = {{0.0f, 0.0f, 0.0f, 0.0f}};
    bool begun = false;
    auto take = [&](const Four& x) {
      if (begun)
        add(total, x);
      else
        total = x;
      begun = true;
    };
    if (at + kChunk <= n && rows[at + kChunk - 1] == row) {
      for (; at + kGroup <= n && rows[at + kGroup - 1] == row; at += kGroup)
        take(load_four(groups + at / kGroup * kSums + 4 * part));
      for (; at + kChunk <= n && rows[at + kChunk - 1] == row; at += kChunk)
        take(load_four(chunks + at / kChunk * kSums + 4 * part));
    }
    for (; at < n && rows[at] == row; ++at) take(g.of((uint64_t)order[at], part));
    return total;
  }
};

__device__ inline float float_of(uint64_t bits) {
  const uint32_t low = (uint32_t)bits;
  float x;
  memcpy(&x, &low, 4);
  return x;
}

// What a step multiplies with. Floats travel as bits, two in a launch's argument.
struct Constants {
  float weight[kParameters], vector[kParameters], scale;
};

__device__ inline Constants constants_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
  return {{float_of(a), float_of(a >> 32), float_of(b), float_of(b >> 32), float_of(c)},
          {float_of(c >> 32), float_of(d), float_of(d >> 32), float_of(e), float_of(e >> 32)},
          float_of(f)};
}

__device__ inline bool finite(const Four& x) {
  bool all = true;
  CB_FOUR(c) all &= size_of(x.v[c]) <= 3.4028234663852886e38f;
  return all;
}

// One step on the columns of a part. w: its weights; s: its states, the second array `next` floats behind the first.
template <OptimizerKind kKind, uint32_t kColumns>
__device__ inline void step_part(float* w, float* s, uint32_t next, const Four& g, const float* p, AdamRates rates) {
  CB_FOUR(c) {
    if (c >= kColumns) break;
    if (kKind == OptimizerKind::SGD) sgd_step(w[c], g.v[c], p[0], p[1]);
    if (kKind == OptimizerKind::Adagrad) adagrad_step(w[c], s[c], g.v[c], p[0], p[1], p[3]);
    if (kKind == OptimizerKind::Adam) adam_step(w[c], s[c], s[next + c], g.v[c], rates, p[1], p[2], p[3], p[4]);
    if (kKind == OptimizerKind::FTRL) ftrl_step(w[c], s[c], s[next + c], g.v[c], p[0], p[1], p[2], p[3]);
  }
}

// The same through registers, 16 bytes at a time.
template <OptimizerKind kKind>
__device__ inline void step_four(float* w, float* s, const Four& g, const float* p, AdamRates rates) {
  constexpr bool one = kKind == OptimizerKind::Adagrad,
                 two = kKind == OptimizerKind::Adam || kKind == OptimizerKind::FTRL;
  Four weights = load_four(w);
  Four states[2] = {};
  if (one || two) states[0] = load_four(s);
  if (two) states[1] = load_four(s + kPadded);
  step_part<kKind, 4>(weights.v, states[0].v, 4, g, p, rates);
  store_four(w, weights);
  if (one || two) store_four(s, states[0]);
  if (two) store_four(s + kPadded, states[1]);
}

__device__ inline void scale_by(Four& x, float scale) { CB_FOUR(c) x.v[c] *= scale; }

// The weight of a row: one float, by one lane.
__device__ inline void step_weight(float* row, const Four& g, const float* p) {
  float *w = row + kWeightAt, *s = w + 1;
  if (kWeightKind == OptimizerKind::RowwiseAdagrad) {
    s[0] += rowwise_mean(0.0f + rowwise_square(*w, g.v[0], p[3]), 0.0f, 0.0f, 0.0f, 1.0f);
    rowwise_step(*w, g.v[0], root_of(s[0]) + p[1], p[0], p[3]);
    return;
  }
  AdamRates rates = {0.0f, 0.0f};
  if (kWeightKind == OptimizerKind::Adam) {
    s[2] *= p[1];
    s[3] *= p[2];
    rates = adam_rates(s[2], s[3], p[0]);
  }
  step_part<kWeightKind, 1>(w, s, 1, g, p, rates);
}

// The vector of a row, by all its lanes; false where a gradient is not finite: those four columns stay as they were.
__device__ inline bool step_vector(float* row, const Sorted& sorted, uint64_t at, const Gradients& gradients,
                                   const Constants& c, uint32_t lane) {
  bool fine = true;
  AdamRates rates = {0.0f, 0.0f};
  float products[2] = {0.0f, 0.0f};
  if (kVectorKind == OptimizerKind::Adam) {
    products[0] = row[kProductsAt] * c.vector[1];
    products[1] = row[kProductsAt + 1] * c.vector[2];
    rates = adam_rates(products[0], products[1], c.vector[0]);
  }
  for (uint32_t part = lane; part < kVectorParts; part += kLanes) {
    Four g = sorted.sum(at, part, gradients);
    scale_by(g, c.scale);
    if (finite(g))
      step_four<kVectorKind>(row + 4 * part, row + kStatesAt + 4 * part, g, c.vector, rates);
    else
      fine = false;
  }
  if (kVectorKind == OptimizerKind::Adam) {
    meet();  // every lane has read the products
    if (lane == kLanes - 1) {
      row[kProductsAt] = products[0];
      row[kProductsAt + 1] = products[1];
    }
  }
  return fine;
}

// One rate for the whole row: lanes hand their squares round in the order of the columns. False: the row stays as it
// was.
__device__ inline bool step_vector_rowwise(float* row, const Sorted& sorted, uint64_t at, const Gradients& gradients,
                                           const Constants& c, uint32_t lane) {
  const float lr = c.vector[0], eps = c.vector[1], l2 = c.vector[3];
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  bool fine = true;
  Four g = {{0.0f, 0.0f, 0.0f, 0.0f}};
  for (uint32_t first = 0; first < kVectorParts; first += kLanes) {
    const uint32_t part = first + lane;
    Four squares = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (part < kVectorParts) {
      g = sorted.sum(at, part, gradients);
      scale_by(g, c.scale);
      fine &= finite(g);
      const Four w = load_four(row + 4 * part);
      CB_FOUR(k) squares.v[k] = rowwise_square(w.v[k], g.v[k], l2);
    }
    for (uint32_t from = 0; from < kLanes; ++from) CB_FOUR(k) sums[k] += of_lane(squares.v[k], from);
  }
  if (any_lane(!fine)) return fine;
  const float state = row[kStatesAt] + rowwise_mean(sums[0], sums[1], sums[2], sums[3], (float)kDim);
  const float root = root_of(state) + eps;
  for (uint32_t part = lane; part < kVectorParts; part += kLanes) {
    if (kVectorParts > kLanes) {  // what the first pass added up is gone
      g = sorted.sum(at, part, gradients);
      scale_by(g, c.scale);
    }
    Four w = load_four(row + 4 * part);
    CB_FOUR(k) rowwise_step(w.v[k], g.v[k], root, lr, l2);
    store_four(row + 4 * part, w);
  }
  meet();
  if (lane == kLanes - 1) row[kStatesAt] = state;
  return fine;
}

// False where a gradient is not finite.
__device__ inline bool step_row(float* row, const Sorted& sorted, uint64_t at, const Gradients& gradients,
                                const Constants& c, uint32_t lane) {
  bool fine = true;
  if (kDim > 0)
    fine = kVectorKind == OptimizerKind::RowwiseAdagrad ? step_vector_rowwise(row, sorted, at, gradients, c, lane)
                                                        : step_vector(row, sorted, at, gradients, c, lane);
  if (kLinear && lane == 0) {
    Four g = sorted.sum(at, kVectorParts, gradients);
    scale_by(g, c.scale);
    if (finite(g))
      step_weight(row, g, c.weight);
    else
      fine = false;
  }
  return fine;
}

}  // namespace cb::table

// Sums of kChunk references, wherever that many in a row mean one table row.
extern "C" __global__ void table_chunks(const int32_t* rows, const int64_t* order, uint64_t n, const void* vectors,
                                        uint64_t pitch, const float* weights, uint64_t weight_pitch,
                                        const cb::table::Link* links, const int32_t* winners,
                                        const cb::table::PoolField* fields, uint64_t field_count, uint64_t row_count,
                                        uint64_t maxima, uint64_t half, float* chunks) {
  using namespace cb::table;
  const Gradients g = {vectors, weights,     pitch,     weight_pitch, links, winners,
                       fields,  field_count, row_count, maxima,       half};
  const GroupOfLanes mine = my_group();
  for (uint64_t b = mine.number; b < n / kChunk; b += mine.all) {
    const uint64_t at = full_run(rows, n, b, kChunk);
    if (at == n || rows[at] == 0) continue;
    for (uint32_t part = mine.lane; part < kParts; part += kLanes) {
      Four sum = g.of((uint64_t)order[at], part);
      for (uint64_t k = 1; k < kChunk; ++k) add(sum, g.of((uint64_t)order[at + k], part));
      store_four(chunks + b * kSums + 4 * part, sum);
    }
  }
}

// Sums of kChunk chunks.
extern "C" __global__ void table_groups(const int32_t* rows, uint64_t n, const float* chunks, float* groups) {
  using namespace cb::table;
  const GroupOfLanes mine = my_group();
  for (uint64_t b = mine.number; b < n / kGroup; b += mine.all) {
    const uint64_t at = full_run(rows, n, b, kGroup);
    if (at == n || rows[at] == 0) continue;
    for (uint32_t part = mine.lane; part < kParts; part += kLanes) {
      const float* from = chunks + at / kChunk * kSums + 4 * part;
      Four sum = load_four(from);
      for (uint64_t k = 1; k < kChunk; ++k) add(sum, load_four(from + k * kSums));
      store_four(groups + b * kSums + 4 * part, sum);
    }
  }
}

// One step of the optimizers on every row that is referred to, except row 0.
extern "C" __global__ void table_step(const cb::table::Head* head, cb::table::Number* status, const int32_t* rows,
                                      const int64_t* order, uint64_t n, const void* vectors, uint64_t pitch,
                                      const float* weights, uint64_t weight_pitch, const cb::table::Link* links,
                                      const int32_t* winners, const cb::table::PoolField* fields, uint64_t field_count,
                                      uint64_t row_count, uint64_t maxima, uint64_t half, const float* chunks,
                                      const float* groups, uint64_t c0, uint64_t c1, uint64_t c2, uint64_t c3,
                                      uint64_t c4, uint64_t c5) {
  using namespace cb::table;
  const Gradients g = {vectors, weights,     pitch,     weight_pitch, links, winners,
                       fields,  field_count, row_count, maxima,       half};
  const Sorted sorted = {rows, order, n, chunks, groups};
  const Constants c = constants_of(c0, c1, c2, c3, c4, c5);
  const GroupOfLanes mine = my_group();
  for (uint64_t at = mine.number; at < n; at += mine.all) {
    if (rows[at] <= 0 || (at > 0 && rows[at - 1] == rows[at])) continue;
    float* row = row_at(head, (uint64_t)rows[at]);
    if (!step_row(row, sorted, at, g, c, mine.lane)) atomicMin(status + 1, (Number)order[at]);
  }
}
