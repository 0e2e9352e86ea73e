#include "core/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/parallel.h"

namespace cb {

namespace {

constexpr size_t kBlock = 64;     // rows whose outputs stay in the second-level cache while fields take turns
constexpr size_t kTask = 8;       // blocks a task
constexpr size_t kShare = 16384;  // references a backward task
constexpr size_t kAhead = 16;     // references between a prefetch and its use

typedef float Four __attribute__((vector_size(16), aligned(4)));

// D numbers in registers; D = 0: `dim` numbers in memory.
template <size_t D>
struct Sum {
  Four part[D / 4];
  explicit Sum(size_t) {}
  void set(const float* p) { std::memcpy(part, p, sizeof part); }
  void clear() { std::memset(part, 0, sizeof part); }
  void add(const float* p) {
    Four x[D / 4];
    std::memcpy(x, p, sizeof x);
    for (size_t k = 0; k < D / 4; ++k) part[k] += x[k];
  }
  void add(const float* p, float scale) {
    Four x[D / 4];
    std::memcpy(x, p, sizeof x);
    for (size_t k = 0; k < D / 4; ++k) part[k] += x[k] * scale;
  }
  void divide(float by) {
    for (size_t k = 0; k < D / 4; ++k) part[k] /= by;
  }
  void store(float* p) const { std::memcpy(p, part, sizeof part); }
};

template <>
struct Sum<0> {
  std::vector<float> part;
  explicit Sum(size_t dim) : part(dim) {}
  void set(const float* p) { std::copy_n(p, part.size(), part.data()); }
  void clear() { std::fill(part.begin(), part.end(), 0.0f); }
  void add(const float* p) {
    for (size_t k = 0; k < part.size(); ++k) part[k] += p[k];
  }
  void add(const float* p, float scale) {
    for (size_t k = 0; k < part.size(); ++k) part[k] += p[k] * scale;
  }
  void divide(float by) {
    for (float& x : part) x /= by;
  }
  void store(float* p) const { std::copy_n(part.data(), part.size(), p); }
};

// The lines of `count` numbers, each once or, where they begin within a line, at most one twice.
inline void fetch(const float* p, size_t count) {
  __builtin_prefetch(p);
  for (size_t k = 16; k + 16 <= count; k += 16) __builtin_prefetch(p + k);
  if (count % 16 != 0 || reinterpret_cast<uintptr_t>(p) % 64 != 0) __builtin_prefetch(p + count - 1);
}

inline bool beats(float x, float best) { return x > best || (std::isnan(x) && !std::isnan(best)); }

struct Forward {
  const Lookup& lookup;
  const PoolShape& shape;
  const float* rows;
  float* weights;
  float* vectors;
  int32_t* winners;
  size_t maxima;

  // A field of one key a row.
  template <size_t D>
  void copy(size_t column, size_t from, size_t to) const {
    const size_t dim = D ? D : shape.dim, width = shape.width(), columns = shape.columns.size();
    const int32_t* inverse = lookup.inverse.data() + lookup.starts[shape.columns[column].field];
    float* out = vectors + (from * columns + column) * dim;
    float* weight = shape.linear ? weights + from * columns + column : nullptr;
    Sum<D> sum(dim);
    for (size_t r = from; r < to; ++r, out += columns * dim) {
      const float* row = rows + static_cast<size_t>(inverse[r]) * width;
      fetch(rows + static_cast<size_t>(inverse[r + kAhead]) * width, width);
      sum.set(row + shape.linear);
      sum.store(out);
      if (weight) {
        *weight = *row;
        weight += columns;
      }
    }
  }

  template <size_t D, bool Mean>
  void add(size_t column, size_t from, size_t to) const {
    const size_t dim = D ? D : shape.dim, width = shape.width(), columns = shape.columns.size();
    const size_t field = shape.columns[column].field, linear = shape.linear;
    const int32_t* inverse = lookup.inverse.data() + lookup.starts[field];
    const int32_t* offsets = lookup.offsets[field].data();
    float* out = vectors + (from * columns + column) * dim;
    float* weight = linear ? weights + from * columns + column : nullptr;
    Sum<D> sum(dim);
    for (size_t r = from; r < to; ++r, out += columns * dim) {
      const int32_t* key = inverse + offsets[r];
      const int32_t* end = inverse + offsets[r + 1];
      const float count = static_cast<float>(end - key);
      float first = 0.0f;
      if (key == end) {
        sum.clear();
      } else {
        const float* row = rows + static_cast<size_t>(*key) * width;
        fetch(rows + static_cast<size_t>(key[kAhead]) * width, width);
        sum.set(row + linear);
        if (linear) first = row[0];
        for (++key; key < end; ++key) {
          row = rows + static_cast<size_t>(*key) * width;
          fetch(rows + static_cast<size_t>(key[kAhead]) * width, width);
          sum.add(row + linear);
          if (linear) first += row[0];
        }
        if (Mean) {
          sum.divide(count);
          first /= count;
        }
      }
      sum.store(out);
      if (linear) {
        *weight = first;
        weight += columns;
      }
    }
  }

  void most(size_t column, size_t place, size_t from, size_t to) const {
    const size_t dim = shape.dim, width = shape.width(), columns = shape.columns.size();
    const size_t field = shape.columns[column].field, linear = shape.linear;
    const int32_t* inverse = lookup.inverse.data() + lookup.starts[field];
    const bool single = lookup.single(field);
    const int32_t* offsets = lookup.offsets[field].data();
    std::vector<float> best(width);
    for (size_t r = from; r < to; ++r) {
      const int32_t* key = inverse + (single ? r : static_cast<size_t>(offsets[r]));
      const int32_t* end = inverse + (single ? r + 1 : static_cast<size_t>(offsets[r + 1]));
      int32_t* winner = winners + (r * maxima + place) * width;
      std::fill_n(winner, width, key == end ? -1 : *key);
      if (key == end) {
        std::fill(best.begin(), best.end(), 0.0f);
      } else {
        std::copy_n(rows + static_cast<size_t>(*key) * width, width, best.data());
        for (++key; key < end; ++key) {
          const float* row = rows + static_cast<size_t>(*key) * width;
          for (size_t k = 0; k < width; ++k) {
            const bool wins = beats(row[k], best[k]);
            best[k] = wins ? row[k] : best[k];
            winner[k] = wins ? *key : winner[k];
          }
        }
      }
      std::copy_n(best.data() + linear, dim, vectors + (r * columns + column) * dim);
      if (linear) weights[r * columns + column] = best[0];
    }
  }

  template <size_t D>
  void block(size_t from, size_t to) const {
    size_t place = 0;
    for (size_t c = 0; c < shape.columns.size(); ++c) {
      switch (shape.columns[c].how) {
        case Pool::kMax:
          most(c, place++, from, to);
          break;
        case Pool::kMean:
        case Pool::kSum:
          if (lookup.single(shape.columns[c].field)) {
            copy<D>(c, from, to);
          } else if (shape.columns[c].how == Pool::kMean) {
            add<D, true>(c, from, to);
          } else {
            add<D, false>(c, from, to);
          }
      }
    }
  }

  template <size_t D>
  void run(size_t threads) const {
    const size_t step = kBlock * kTask;
    parallel_for(threads, (lookup.rows + step - 1) / step, [&](size_t task) {
      const size_t end = std::min(lookup.rows, (task + 1) * step);
      for (size_t r = task * step; r < end; r += kBlock) block<D>(r, std::min(end, r + kBlock));
    });
  }
};

// What a cell of a field leads to.
struct Target {
  int32_t column = -1;  // -1: not pooled
  int32_t place = 0;    // among the maxima
  Pool how = Pool::kSum;
  const int32_t* offsets = nullptr;
};

struct Backward {
  const Lookup& lookup;
  const PoolShape& shape;
  const float* weights;
  const float* vectors;
  const int32_t* winners;
  float* out;
  size_t maxima;
  std::vector<Target> targets;

  template <size_t D>
  void keys(size_t from, size_t to) const {
    const size_t dim = D ? D : shape.dim, width = shape.width(), columns = shape.columns.size();
    const size_t linear = shape.linear;
    const uint32_t bits = lookup.field_bits, mask = (1u << bits) - 1;
    const uint32_t* groups = lookup.groups.data();
    const uint32_t* cells = lookup.cells.data();
    Sum<D> sum(dim);
    std::vector<float> masked(width);
    for (size_t u = from; u < to; ++u) {
      sum.clear();
      float first = 0.0f;
      for (uint32_t g = groups[u]; g < groups[u + 1]; ++g) {
        {
          const uint32_t next = cells[g + kAhead];
          const int32_t column = targets[next & mask].column;
          const size_t index = (next >> bits) * columns + static_cast<size_t>(column < 0 ? 0 : column);
          if (vectors) fetch(vectors + index * dim, dim);
          if (weights) __builtin_prefetch(weights + index);
        }
        const uint32_t cell = cells[g];
        const Target& t = targets[cell & mask];
        if (t.column < 0) continue;
        const size_t row = cell >> bits;
        const size_t index = row * columns + static_cast<size_t>(t.column);
        if (t.how == Pool::kMax) {
          // A key that stands twice in a row wins once: its cells are neighbours.
          if (g > groups[u] && cells[g - 1] == cell) continue;
          const int32_t* winner = winners + (row * maxima + static_cast<size_t>(t.place)) * width;
          const int32_t key = static_cast<int32_t>(u);
          if (vectors) {
            for (size_t k = 0; k < dim; ++k) masked[k] = winner[linear + k] == key ? vectors[index * dim + k] : 0.0f;
            sum.add(masked.data());
          }
          if (weights) first += winner[0] == key ? weights[index] : 0.0f;
        } else if (t.how == Pool::kMean && t.offsets) {
          const float share = 1.0f / static_cast<float>(t.offsets[row + 1] - t.offsets[row]);
          if (vectors) sum.add(vectors + index * dim, share);
          if (weights) first += weights[index] * share;
        } else {
          if (vectors) sum.add(vectors + index * dim);
          if (weights) first += weights[index];
        }
      }
      if (linear) out[u * width] = first;
      sum.store(out + u * width + linear);
    }
  }

  template <size_t D>
  void run(size_t threads) const {
    const uint32_t* groups = lookup.groups.data();
    const size_t unique = lookup.keys.size();
    const size_t tasks = lookup.starts.back() / kShare + 1;
    auto bound = [&](size_t task) {
      if (task == tasks) return unique;
      return static_cast<size_t>(std::lower_bound(groups, groups + unique, static_cast<uint32_t>(task * kShare)) -
                                 groups);
    };
    parallel_for(threads, tasks, [&](size_t task) { keys<D>(bound(task), bound(task + 1)); });
  }
};

template <class F>
void for_dim(size_t dim, F&& run) {
  switch (dim) {
    case 4:
      return run.template operator()<4>();
    case 8:
      return run.template operator()<8>();
    case 16:
      return run.template operator()<16>();
    case 32:
      return run.template operator()<32>();
    default:
      return run.template operator()<0>();
  }
}

}  // namespace

void pool_forward(const Lookup& lookup, const PoolShape& shape, const float* rows, float* weights, float* vectors,
                  int32_t* winners, size_t threads) {
  Forward forward{lookup, shape, rows, weights, vectors, winners, shape.maxima()};
  for_dim(shape.dim, [&]<size_t D>() { forward.run<D>(threads); });
}

void pool_backward(const Lookup& lookup, const PoolShape& shape, const float* weights, const float* vectors,
                   const int32_t* winners, float* out, size_t threads) {
  Backward backward{lookup, shape, weights, vectors, winners, out, shape.maxima(), {}};
  backward.targets.resize(size_t{1} << lookup.field_bits);
  int32_t place = 0;
  for (size_t c = 0; c < shape.columns.size(); ++c) {
    const PoolColumn& column = shape.columns[c];
    backward.targets[column.field] = {static_cast<int32_t>(c), column.how == Pool::kMax ? place++ : 0, column.how,
                                      lookup.offsets[column.field].data()};
  }
  for_dim(shape.dim, [&]<size_t D>() { backward.run<D>(threads); });
}

namespace {

// Calls each(reference, place in vectors) for the kept references of rows [from, to).
template <class F>
void each_kept(const Lookup& lookup, size_t field, size_t longest, size_t from, size_t to, F&& each) {
  const bool single = lookup.single(field);
  const int32_t* offsets = lookup.offsets[field].data();
  for (size_t r = from; r < to; ++r) {
    const size_t end = single ? r + 1 : static_cast<size_t>(offsets[r + 1]);
    size_t begin = single ? r : static_cast<size_t>(offsets[r]);
    if (end - begin > longest) begin = end - longest;
    for (size_t k = begin; k < end; ++k) each(k, r * longest + (k - begin));
  }
}

}  // namespace

void sequence_forward(const Lookup& lookup, size_t field, size_t dim, bool linear, size_t longest, const float* rows,
                      float* vectors, size_t threads) {
  const size_t step = 512, width = dim + linear;
  const int32_t* inverse = lookup.inverse.data() + lookup.starts[field];
  parallel_for(threads, (lookup.rows + step - 1) / step, [&](size_t task) {
    const size_t from = task * step, to = std::min(lookup.rows, from + step);
    std::fill(vectors + from * longest * dim, vectors + to * longest * dim, 0.0f);
    each_kept(lookup, field, longest, from, to, [&](size_t reference, size_t place) {
      fetch(rows + static_cast<size_t>(inverse[reference + kAhead]) * width, width);
      std::copy_n(rows + static_cast<size_t>(inverse[reference]) * width + linear, dim, vectors + place * dim);
    });
  });
}

// Each task owns a range of keys and walks all references: histories are a small part of a batch.
void sequence_backward(const Lookup& lookup, size_t field, size_t dim, bool linear, size_t longest,
                       const float* vectors, float* out, size_t threads) {
  const size_t width = dim + linear, unique = lookup.keys.size();
  const int32_t* inverse = lookup.inverse.data() + lookup.starts[field];
  const size_t tasks = std::max<size_t>(threads, 1);
  parallel_for(threads, tasks, [&](size_t task) {
    const size_t from = unique * task / tasks, to = unique * (task + 1) / tasks;
    std::fill(out + from * width, out + to * width, 0.0f);
    each_kept(lookup, field, longest, 0, lookup.rows, [&](size_t reference, size_t place) {
      const size_t key = static_cast<size_t>(inverse[reference]);
      if (key < from || key >= to) return;
      float* sum = out + key * width + linear;
      const float* gradient = vectors + place * dim;
      for (size_t k = 0; k < dim; ++k) sum[k] += gradient[k];
    });
  });
}

}  // namespace cb
