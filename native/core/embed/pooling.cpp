#include "core/embed/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kTask = 512;            // rows a forward task
constexpr size_t kListed = 1024;         // references that a backward task lists before it adds them up
constexpr size_t kFew = 16384;           // references below which one thread does the backward pass
constexpr size_t kReferencesAhead = 16;  // references between a prefetch and its use

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

inline void fetch_to_write(const float* p, size_t count) {
  __builtin_prefetch(p, 1);
  for (size_t k = 16; k + 16 <= count; k += 16) __builtin_prefetch(p + k, 1);
  if (count % 16 != 0 || reinterpret_cast<uintptr_t>(p) % 64 != 0) __builtin_prefetch(p + count - 1, 1);
}

inline bool beats(float x, float best) { return x > best || (std::isnan(x) && !std::isnan(best)); }

// Neighboring columns of one kind, and where the references of each are. Outputs are walked in the order of memory:
// row by row, run by run.
struct Run {
  enum Kind { kCopy, kSum, kMean, kMax };
  Kind kind = kCopy;  // kCopy: a sum or mean of one key per row
  size_t begin = 0, end = 0;
};

struct Column {
  const int32_t* keys = nullptr;
  const int32_t* offsets = nullptr;  // null: one key per row
  size_t place = 0;                  // among the maxima

  const int32_t* begin(size_t row) const { return keys + (offsets ? static_cast<size_t>(offsets[row]) : row); }
};

struct Walk {
  std::vector<Run> runs;
  std::vector<Column> columns;

  Walk(const Lookup& lookup, const PoolShape& shape) {
    size_t place = 0;
    for (size_t c = 0; c < shape.columns.size(); ++c) {
      const auto [field, how] = shape.columns[c];
      columns.push_back({lookup.inverse.data() + lookup.starts[field], lookup.offsets[field].data(), place});
      Run::Kind kind = how == Pool::kMean ? Run::kMean : Run::kSum;
      if (how == Pool::kMax) {
        kind = Run::kMax;
        ++place;
      } else if (lookup.single(field)) {
        kind = Run::kCopy;
      }
      if (runs.empty() || runs.back().kind != kind) runs.push_back({kind, c, c});
      ++runs.back().end;
    }
  }
};

struct Forward {
  const PoolShape& shape;
  const Walk& walk;
  const float* rows;
  float* weights;
  float* vectors;
  int32_t* winners;
  size_t maxima;

  const float* row_of(int32_t key) const { return rows + static_cast<size_t>(key) * shape.width(); }

  template <size_t D>
  void copy(const Run& run, size_t r, Sum<D>& sum, size_t ahead) const {
    const size_t dim = D ? D : shape.dim, width = shape.width(), linear = shape.linear;
    const size_t cell = r * shape.columns.size();
    float* out = vectors + (cell + run.begin) * dim;
    for (size_t c = run.begin; c < run.end; ++c, out += dim) {
      const int32_t* key = walk.columns[c].keys + r;
      fetch(row_of(key[ahead]), width);
      const float* row = row_of(*key);
      sum.set(row + linear);
      sum.store(out);
      if (linear) weights[cell + c] = *row;
    }
  }

  template <size_t D>
  void add(const Run& run, size_t r, Sum<D>& sum) const {
    const size_t dim = D ? D : shape.dim, width = shape.width(), linear = shape.linear;
    for (size_t c = run.begin; c < run.end; ++c) {
      const size_t cell = r * shape.columns.size() + c;
      const int32_t* key = walk.columns[c].begin(r);
      const int32_t* end = walk.columns[c].begin(r + 1);
      const float count = static_cast<float>(end - key);
      float first = 0.0f;
      if (key == end) {
        sum.clear();
      } else {
        const float* row = row_of(*key);
        fetch(row_of(key[kReferencesAhead]), width);
        sum.set(row + linear);
        if (linear) first = row[0];
        for (++key; key < end; ++key) {
          row = row_of(*key);
          fetch(row_of(key[kReferencesAhead]), width);
          sum.add(row + linear);
          if (linear) first += row[0];
        }
        if (run.kind == Run::kMean) {
          sum.divide(count);
          first /= count;
        }
      }
      sum.store(vectors + cell * dim);
      if (linear) weights[cell] = first;
    }
  }

  void most(const Run& run, size_t r, std::vector<float>& best) const {
    const size_t dim = shape.dim, width = shape.width(), linear = shape.linear;
    for (size_t c = run.begin; c < run.end; ++c) {
      const size_t cell = r * shape.columns.size() + c;
      const int32_t* key = walk.columns[c].begin(r);
      const int32_t* end = walk.columns[c].begin(r + 1);
      int32_t* winner = winners + (r * maxima + walk.columns[c].place) * width;
      std::fill_n(winner, width, key == end ? -1 : *key);
      if (key == end) {
        std::fill(best.begin(), best.end(), 0.0f);
      } else {
        std::copy_n(row_of(*key), width, best.data());
        for (++key; key < end; ++key) {
          const float* row = row_of(*key);
          for (size_t k = 0; k < width; ++k) {
            const bool wins = beats(row[k], best[k]);
            best[k] = wins ? row[k] : best[k];
            winner[k] = wins ? *key : winner[k];
          }
        }
      }
      std::copy_n(best.data() + linear, dim, vectors + cell * dim);
      if (linear) weights[cell] = best[0];
    }
  }

  template <size_t D>
  void some(size_t from, size_t to) const {
    Sum<D> sum(shape.dim);
    std::vector<float> best(shape.width());
    for (size_t r = from; r < to; ++r) {
      for (const Run& run : walk.runs) {
        if (run.kind == Run::kCopy) {
          copy<D>(run, r, sum, (kReferencesAhead + run.end - run.begin - 1) / (run.end - run.begin));
        } else if (run.kind == Run::kMax) {
          most(run, r, best);
        } else {
          add<D>(run, r, sum);
        }
      }
    }
  }
};

// A task owns a range of keys. It walks all references in the order of rows, then columns, and adds what belongs to its
// keys: the gradient is read from begin to end, only the keys' rows are met at random, and no order depends on threads.
struct Backward {
  struct Reference {
    uint32_t key, cell;  // the cell counts from the first row of the block
  };

  const Lookup& lookup;
  const PoolShape& shape;
  const Walk& walk;
  const float* weights;
  const float* vectors;
  const int32_t* winners;
  float* out;
  size_t maxima;

  // What a task keeps: its keys, and a list of their references in the order of the walk.
  struct Task {
    uint32_t from, count;
    std::vector<Reference> list;
    std::vector<float> shares;  // beside the list
  };

  template <size_t D, bool Shares>
  void add(const Task& task, size_t listed, size_t row) const {
    const size_t dim = D ? D : shape.dim, width = shape.width(), linear = shape.linear;
    const size_t cell = row * shape.columns.size();
    const Reference* list = task.list.data();
    const float* shares = task.shares.data();
    Sum<D> sum(dim);
    for (size_t k = 0; k < listed; ++k) {
      // Both: with two tasks each needs every second gradient, which the hardware does not foresee.
      fetch_to_write(out + size_t{list[k + kReferencesAhead].key} * width, width);
      if (vectors) fetch(vectors + (cell + list[k + kReferencesAhead].cell) * dim, dim);
      float* to = out + size_t{list[k].key} * width;
      const size_t from = cell + list[k].cell;
      if (weights) *to += Shares ? weights[from] * shares[k] : weights[from];
      if (!vectors) continue;
      sum.set(to + linear);
      if constexpr (Shares) {
        sum.add(vectors + from * dim, shares[k]);
      } else {
        sum.add(vectors + from * dim);
      }
      sum.store(to + linear);
    }
  }

  void give_to_winners(const Task& task, size_t row, size_t c) const {
    const size_t dim = shape.dim, width = shape.width(), linear = shape.linear;
    const size_t cell = row * shape.columns.size() + c;
    const int32_t* winner = winners + (row * maxima + walk.columns[c].place) * width;
    for (size_t k = 0; k < width; ++k) {
      const uint32_t key = static_cast<uint32_t>(winner[k]);  // -1, nobody, is beyond every range
      if (key - task.from >= task.count) continue;
      const float* gradient = k < linear ? weights : vectors;
      if (gradient) out[size_t{key} * width + k] += k < linear ? gradient[cell] : gradient[cell * dim + k - linear];
    }
  }

  template <size_t D, bool Shares>
  void block(Task& task, size_t from, size_t to) const {
    size_t most = kReferencesAhead + 1;
    for (const Column& c : walk.columns) most += static_cast<size_t>(c.begin(to) - c.begin(from));
    if (task.list.size() < most) task.list.resize(most);
    if (Shares && task.shares.size() < most) task.shares.resize(most);
    Reference* list = task.list.data();
    float* shares = task.shares.data();
    const uint32_t first = task.from, count = task.count;
    size_t listed = 0;
    // No branch on whose key it is: nobody could guess it.
    auto note = [&](int32_t key, size_t cell, float share) {
      list[listed] = {static_cast<uint32_t>(key), static_cast<uint32_t>(cell)};
      if (Shares) shares[listed] = share;
      listed += static_cast<uint32_t>(key) - first < count;
    };
    for (size_t r = from; r < to; ++r) {
      const size_t cells = (r - from) * shape.columns.size();
      for (const Run& run : walk.runs) {
        const Column* columns = walk.columns.data();
        if (run.kind == Run::kCopy) {
          for (size_t c = run.begin; c < run.end; ++c) note(columns[c].keys[r], cells + c, 1.0f);
        } else if (run.kind == Run::kMax) {
          add<D, Shares>(task, listed, from);  // what comes before, in its order
          listed = 0;
          for (size_t c = run.begin; c < run.end; ++c) give_to_winners(task, r, c);
        } else {
          for (size_t c = run.begin; c < run.end; ++c) {
            const int32_t *key = columns[c].begin(r), *end = columns[c].begin(r + 1);
            const float share = run.kind == Run::kMean ? 1.0f / static_cast<float>(end - key) : 1.0f;
            for (; key < end; ++key) note(*key, cells + c, share);
          }
        }
      }
    }
    add<D, Shares>(task, listed, from);
  }

  template <size_t D>
  void keys(size_t from, size_t to) const {
    Task task{static_cast<uint32_t>(from), static_cast<uint32_t>(to - from), {}, {}};
    bool shares = false;
    for (const Run& run : walk.runs) shares |= run.kind == Run::kMean;
    std::fill(out + from * shape.width(), out + to * shape.width(), 0.0f);
    const size_t step = kListed / std::max<size_t>(shape.columns.size(), 1) + 1;
    for (size_t r = 0; r < lookup.rows; r += step) {
      const size_t end = std::min(lookup.rows, r + step);
      if (shares) {
        block<D, true>(task, r, end);
      } else {
        block<D, false>(task, r, end);
      }
    }
  }

  template <size_t D>
  void run(size_t threads) const {
    const size_t references = lookup.starts.back(), tasks = references < kFew ? 1 : std::min<size_t>(threads, kShards);
    auto bound = [&](size_t task) {
      const auto& before = lookup.shard_references;
      const auto at = std::lower_bound(before.begin(), before.end(), references * task / tasks);
      return task == tasks ? lookup.keys.size() : lookup.shard_keys[static_cast<size_t>(at - before.begin())];
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
  const Walk walk(lookup, shape);
  Forward forward{shape, walk, rows, weights, vectors, winners, shape.maxima()};
  for_dim(shape.dim, [&]<size_t D>() {
    parallel_for(threads, (lookup.rows + kTask - 1) / kTask,
                 [&](size_t task) { forward.some<D>(task * kTask, std::min(lookup.rows, (task + 1) * kTask)); });
  });
}

void pool_backward(const Lookup& lookup, const PoolShape& shape, const float* weights, const float* vectors,
                   const int32_t* winners, float* out, size_t threads) {
  const Walk walk(lookup, shape);
  Backward backward{lookup, shape, walk, weights, vectors, winners, out, shape.maxima()};
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
      fetch(rows + static_cast<size_t>(inverse[reference + kReferencesAhead]) * width, width);
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
