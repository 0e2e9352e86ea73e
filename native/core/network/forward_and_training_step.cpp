#include "core/network/forward_and_training_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "core/network/dropout.h"
#include "core/network/kernels.h"
#include "core/network/keys_by_field.h"
#include "core/system/parallel.h"
#include "core/system/reused_buffers.h"

namespace cb {

namespace {

constexpr size_t kLeastSlice = 64;       // rows
constexpr size_t kMostSlices = 32;       // of a batch: enough for 16 threads to share evenly, few enough to add up
constexpr size_t kProjected = 256;       // keys of a task
constexpr size_t kLeastUnit = 1024;      // rows whose gradients a unit of keys adds up
constexpr size_t kMostUnits = 8;         // of a field, about
constexpr size_t kFewFloats = 1u << 18;  // to copy or add up: one thread is done before others are awake
constexpr double kConstant = 1e-6;  // below this share of the mean a deviation is rounding (models/dense_columns.py)

// Keys at places [from, to) of a field: gradients that are added up by one task.
struct Unit {
  size_t field, from, to;
};

float* scratch_of(size_t floats) {
  thread_local std::vector<float> kept;
  std::vector<float>& scratch = kept;
  if (scratch.size() < floats + 16) scratch.resize(floats + 16);
  const uintptr_t at = reinterpret_cast<uintptr_t>(scratch.data());
  return scratch.data() + (64 - at % 64) % 64 / sizeof(float);
}

// [n][columns] → [n][stride], padded with zeros.
void pack(const float* from, size_t n, size_t columns, size_t stride, float* to) {
  for (size_t r = 0; r < n; ++r) {
    std::copy_n(from + r * columns, columns, to + r * stride);
    std::fill(to + r * stride + columns, to + (r + 1) * stride, 0.0f);
  }
}

// [n][columns] → [columns][stride], padded with zeros.
void pack_transposed(const float* from, size_t n, size_t columns, size_t stride, float* to) {
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < n; ++r) to[c * stride + r] = from[r * columns + c];
    std::fill(to + c * stride + n, to + (c + 1) * stride, 0.0f);
  }
}

// Memory of one step, cut into pieces that begin at a cache line.
class Pieces {
 public:
  size_t piece(size_t floats) {
    const size_t at = size_;
    size_ += padded(floats);
    return at;
  }
  void allocate() { memory_.resize(size_ + 16); }
  float* at(size_t piece) { return memory_.data() + piece; }

 private:
  size_t size_ = 0;
  Buffer<float> memory_;
};

class Running {
 public:
  Running(NetworkStep& step, size_t threads)
      : s_(step), threads_(std::max<size_t>(threads, 1)), index_(step.index ? *step.index : own_index_) {}

  double run() {
    check();
    plan_.rows = s_.lookup->rows;
    index_fields();
    describe();
    prepare();
    count(&NetworkSeconds::prepare);
    const NetworkKernels& kernels = network_kernels();
    read_inputs(kernels);
    merge_moments();
    count(&NetworkSeconds::inputs);
    const double loss = walk_rows(kernels);
    count(&NetworkSeconds::rows);
    if (s_.label && plan_.rows) {
      walk_keys(kernels);
      count(&NetworkSeconds::keys);
      hand_over();
      count(&NetworkSeconds::sum);
    }
    return plan_.rows ? loss / static_cast<double>(plan_.rows) : 0.0;
  }

 private:
  // Adds the time since the last part ended to the seconds of this part.
  void count(double NetworkSeconds::* part) {
    if (!s_.seconds) return;
    const auto now = std::chrono::steady_clock::now();
    s_.seconds->*part += std::chrono::duration<double>(now - part_began_).count();
    part_began_ = now;
  }

  void check() const {
    if (s_.layers.size() > kMostTowerLayers) throw std::invalid_argument("a tower can have at most 32 layers");
    const size_t inputs = s_.columns.size() * s_.dim + s_.dense;
    for (size_t l = 0; l < s_.layers.size(); ++l) {
      const size_t expected = l ? s_.layers[l - 1].outputs : inputs;
      if (s_.layers[l].inputs != expected || !s_.layers[l].outputs)
        throw std::invalid_argument("the input width of a layer differs from the output width of the layer before it");
    }
    if (!s_.layers.empty() && s_.layers.back().outputs != 1)
      throw std::invalid_argument("the last layer must have one output");
    if (s_.wide.size() != s_.columns.size()) throw std::invalid_argument("wide must have one flag for each column");
  }

  void index_fields() {
    if (!s_.index) {
      std::vector<size_t> fields;
      for (const PoolColumn& c : s_.columns) fields.push_back(c.field);
      own_index_.build(*s_.lookup, fields, threads_);
    }
    std::vector<bool> by_key(s_.columns.size());
    for (size_t c : index_.columns) by_key[c] = true;
    for (size_t c = 0; c < s_.columns.size(); ++c) {
      if (by_key[c]) continue;
      pooled_at_.push_back(c);
      pooled_columns_.push_back(s_.columns[c]);
      pooled_wide_.push_back(s_.wide[c]);
    }
    for (size_t c : index_.columns) wide_.push_back(s_.wide[c]);
  }

  // Sizes, and where everything lies.
  void describe() {
    NetworkPlan& p = plan_;
    p.dim = s_.dim;
    p.linear = s_.linear;
    p.width = s_.dim + s_.linear;
    p.pairs = s_.has_pairs;
    p.trains = s_.label != nullptr;
    p.outputs = s_.layers.empty() ? 0 : s_.layers[0].outputs;
    p.output_stride = padded(p.outputs);
    p.at_total = p.output_stride;
    p.at_square = p.at_total + (p.pairs ? p.dim : 0);
    p.at_linear = p.at_square + 1;
    p.stride = padded(p.at_linear + 1);
    p.fields = index_.fields();
    p.dim_stride = padded(p.dim);
    p.pooled = pooled_columns_.size();
    p.pooled_stride = padded(p.pooled * p.dim);
    p.dense = s_.dense;
    p.layers = s_.layers.size();

    sums_ = 0;
    auto sum = [&](size_t floats) {
      const size_t at = sums_;
      sums_ += padded(floats);
      return at;
    };
    p.pooled_sums = sum(p.pooled * p.dim * p.output_stride);
    p.dense_sums = sum(p.dense * p.stride);
    p.start_sums = sum(p.stride);
    p.square_sums = sum(p.dense);
    for (size_t l = 0; l < p.layers; ++l) {
      const TowerLayer& layer = s_.layers[l];
      TowerInner& inner = p.inner[l];
      inner.inputs = layer.inputs;
      inner.outputs = layer.outputs;
      inner.stride = padded(layer.outputs);
      inner.input_stride = padded(layer.inputs);
      if (l + 1 < p.layers) {
        TowerActivation& a = p.activation[l];
        a.width = layer.outputs;
        a.stride = inner.stride;
        a.drops = layer.drop > 0.0f;
        a.threshold = dropout_threshold(layer.drop);
        a.scale = 1.0f / (1.0f - layer.drop);
        a.seed = layer.seed;
      }
      if (l == 0) continue;
      const bool last = l + 1 == p.layers;
      inner.weight_sums = sum(last ? inner.input_stride : layer.inputs * inner.stride);
      inner.bias_sums = sum(inner.stride);
    }
    p.sums = sums_;
    p.scratch = network_scratch(p);
    p.bias = *s_.bias;
    p.label = s_.label;
    p.sample_weight = s_.weight;
    p.share = p.rows ? 1.0f / static_cast<float>(p.rows) : 0.0f;
    p.logits = s_.logits;
    p.logs = s_.logs;
    p.begin = index_.begin.data();
    p.place = index_.place.data();
    p.key = index_.key.data();
    p.from = index_.from.data();
    p.rows_of = index_.rows.data();
    p.wide = wide_.data();
    p.pooled_wide = pooled_wide_.data();
    p.keys = s_.lookup->keys.data();
    p.key_rows = s_.rows;
    p.row_gradient = s_.row_gradient;
  }

  // What the rows read: pooled vectors, projected keys and the moments of dense columns. None of them needs another
  // one, so all are tasks of one call. Pooling begins first and cuts itself into tasks of its own.
  void read_inputs(const NetworkKernels& kernels) {
    std::vector<Unit> units;
    for (size_t f = 0; f < plan_.fields; ++f)
      for (size_t from = plan_.begin[f]; from < plan_.begin[f + 1]; from += kProjected)
        units.push_back({f, from, std::min(from + kProjected, plan_.begin[f + 1])});
    const size_t moments = s_.label && s_.dense && s_.merges_moments ? slice_count() : 0;
    slice_means_.resize(moments * s_.dense);
    slice_spreads_.resize(moments * s_.dense);
    parallel_for(threads_, 1 + moments + units.size(), [&](size_t task) {
      if (task == 0) {
        pool_some();
      } else if (task <= moments) {
        take_moments(task - 1);
      } else {
        const Unit& unit = units[task - 1 - moments];
        kernels.project(plan_, unit.field, unit.from, unit.to, scratch_of(plan_.scratch));
      }
    });
  }

  // Mean and sum of squared distances of each dense column, over the rows of a slice.
  void take_moments(size_t slice) {
    const size_t columns = s_.dense, from = slice_at(slice), to = slice_at(slice + 1);
    double* mean = slice_means_.data() + slice * columns;
    double* spread = slice_spreads_.data() + slice * columns;
    for (size_t r = from; r < to; ++r)
      for (size_t c = 0; c < columns; ++c) mean[c] += s_.logs[r * columns + c];
    for (size_t c = 0; c < columns; ++c) mean[c] /= static_cast<double>(std::max<size_t>(to - from, 1));
    for (size_t r = from; r < to; ++r)
      for (size_t c = 0; c < columns; ++c) {
        const double away = s_.logs[r * columns + c] - mean[c];
        spread[c] += away * away;
      }
  }

  // The moments of the slices, merged in their order into those of all rows before.
  void merge_moments() {
    const size_t n = plan_.rows, columns = s_.dense;
    mean_.resize(columns);
    scale_.resize(columns);
    if (!columns) return;
    if (s_.label && n && s_.merges_moments) {
      const size_t slices = slice_count();
      const std::vector<double>&means = slice_means_, &spreads = slice_spreads_;
      double before = *s_.moments.seen;
      for (size_t s = 0; s < slices; ++s) {
        const double more = static_cast<double>(slice_at(s + 1) - slice_at(s)), total = before + more;
        for (size_t c = 0; c < columns; ++c) {
          const double away = means[s * columns + c] - s_.moments.mean[c];
          s_.moments.spread[c] += spreads[s * columns + c] + away * away * (before * more / total);
          s_.moments.mean[c] += away * (more / total);
        }
        before = total;
      }
      *s_.moments.seen = before;
    }
    for (size_t c = 0; c < columns; ++c) {
      const double mean = s_.moments.mean[c];
      const double deviation = std::sqrt(s_.moments.spread[c] / std::max(*s_.moments.seen, 1.0));
      mean_[c] = static_cast<float>(mean);
      scale_[c] = static_cast<float>(deviation > kConstant * std::fabs(mean) ? 1.0 / deviation : 1.0);
    }
    plan_.mean = mean_.data();
    plan_.scale = scale_.data();
  }

  // Weights as the kernels want them: padded, and transposed.
  void prepare() {
    NetworkPlan& p = plan_;
    const size_t start = memory_.piece(p.stride);
    const size_t weight = memory_.piece(s_.columns.size() * p.dim * p.output_stride);
    const size_t field_back = memory_.piece(p.fields * p.outputs * p.dim_stride);
    const size_t pooled_weight = memory_.piece(p.pooled * p.dim * p.stride);
    const size_t dense_weight = memory_.piece(p.dense * p.stride);
    const size_t pooled_back = memory_.piece(p.outputs * p.pooled_stride);
    const size_t pair_square = memory_.piece(p.dense);
    std::vector<size_t> inner_weight(p.layers), inner_back(p.layers), inner_bias(p.layers);
    for (size_t l = 1; l < p.layers; ++l) {
      inner_weight[l] = memory_.piece(std::max(p.inner[l].inputs * p.inner[l].stride, p.inner[l].input_stride));
      inner_back[l] = memory_.piece(p.inner[l].outputs * p.inner[l].input_stride);
      inner_bias[l] = memory_.piece(p.inner[l].stride);
    }
    const size_t vectors = memory_.piece(p.pooled ? p.rows * p.pooled * p.dim : 0);
    const size_t weights = memory_.piece(p.pooled && p.linear ? p.rows * p.pooled : 0);
    const size_t vector_gradient = memory_.piece(p.trains && p.pooled ? p.rows * p.pooled * p.dim : 0);
    const size_t weight_gradient = memory_.piece(p.trains && p.pooled && p.linear ? p.rows * p.pooled : 0);
    const size_t projected = memory_.piece(index_.places() * p.stride);
    const size_t row_vectors = memory_.piece(p.trains ? p.rows * p.stride : 0);
    memory_.allocate();

    float* begin = memory_.at(start);
    std::fill_n(begin, p.stride, 0.0f);
    if (p.layers && s_.layers[0].bias) std::copy_n(s_.layers[0].bias, p.outputs, begin);
    p.start = begin;
    p.dense_weight = memory_.at(dense_weight);
    pack_dense(memory_.at(dense_weight));
    p.pooled_weight = memory_.at(pooled_weight);
    p.pooled_back = memory_.at(pooled_back);
    field_weight_.resize(p.fields);
    field_back_.resize(p.fields);
    for (size_t f = 0; f < p.fields; ++f) {
      field_weight_[f] = memory_.at(weight) + index_.columns[f] * p.dim * p.output_stride;
      field_back_[f] = memory_.at(field_back) + f * p.outputs * p.dim_stride;
    }
    p.weight = field_weight_.data();
    p.back = field_back_.data();
    p.pooled_vectors = memory_.at(vectors);
    p.pooled_weights = memory_.at(weights);
    p.pooled_vector_gradient = memory_.at(vector_gradient);
    p.pooled_weight_gradient = memory_.at(weight_gradient);
    p.projected = memory_.at(projected);
    p.row_vectors = memory_.at(row_vectors);
    p.pair_square = memory_.at(pair_square);
    for (size_t c = 0; c < p.dense; ++c) {
      float square = 0.0f;
      for (size_t d = 0; p.pairs && d < p.dim; ++d) square += s_.pairs[c * p.dim + d] * s_.pairs[c * p.dim + d];
      memory_.at(pair_square)[c] = square;
    }
    for (size_t l = 1; l < p.layers; ++l) {
      p.inner[l].weight = memory_.at(inner_weight[l]);
      p.inner[l].back = memory_.at(inner_back[l]);
      p.inner[l].bias = memory_.at(inner_bias[l]);
    }
    pack_pooled(memory_.at(pooled_weight), memory_.at(pooled_back));
    if (!p.layers) return;
    // Layer 1 field by field, then the other layers.
    size_t floats = 0;
    for (const TowerLayer& layer : s_.layers) floats += layer.inputs * layer.outputs;
    parallel_for(floats < kFewFloats ? 1 : threads_, s_.columns.size() + p.layers - 1, [&](size_t task) {
      if (task < s_.columns.size()) {
        const size_t at = task * p.dim;
        pack(s_.layers[0].weight + at * p.outputs, p.dim, p.outputs, p.output_stride,
             memory_.at(weight) + at * p.output_stride);
        return;
      }
      const size_t l = task - s_.columns.size() + 1;
      const TowerLayer& layer = s_.layers[l];
      const TowerInner& inner = p.inner[l];
      if (l + 1 == p.layers) {
        pack(layer.weight, 1, layer.inputs, inner.input_stride, memory_.at(inner_weight[l]));
      } else {
        pack(layer.weight, layer.inputs, layer.outputs, inner.stride, memory_.at(inner_weight[l]));
        pack_transposed(layer.weight, layer.inputs, layer.outputs, inner.input_stride, memory_.at(inner_back[l]));
      }
      std::fill_n(memory_.at(inner_bias[l]), inner.stride, 0.0f);
      if (layer.bias) std::copy_n(layer.bias, layer.outputs, memory_.at(inner_bias[l]));
    });
    for (size_t f = 0; f < p.fields; ++f)
      pack_transposed(s_.layers[0].weight + index_.columns[f] * p.dim * p.outputs, p.dim, p.outputs, p.dim_stride,
                      memory_.at(field_back) + f * p.outputs * p.dim_stride);
  }

  // Dense columns → [layer 1 | Σ v | 0 | first order], each a product with z.
  void pack_dense(float* to) const {
    const NetworkPlan& p = plan_;
    std::fill_n(to, p.dense * p.stride, 0.0f);
    for (size_t c = 0; c < p.dense; ++c, to += p.stride) {
      const size_t row = s_.columns.size() * p.dim + c;
      if (p.layers) std::copy_n(s_.layers[0].weight + row * p.outputs, p.outputs, to);
      if (p.pairs) std::copy_n(s_.pairs + c * p.dim, p.dim, to + p.at_total);
      if (s_.first) to[p.at_linear] = s_.first[c];
    }
  }

  // Vectors of pooled fields → [layer 1 | Σ v | 0]; and back, from layer 1 alone.
  void pack_pooled(float* to, float* back) const {
    const NetworkPlan& p = plan_;
    std::fill_n(to, p.pooled * p.dim * p.stride, 0.0f);
    std::fill_n(back, p.outputs * p.pooled_stride, 0.0f);
    for (size_t j = 0; j < p.pooled; ++j)
      for (size_t d = 0; d < p.dim; ++d) {
        float* row = to + (j * p.dim + d) * p.stride;
        if (p.pairs) row[p.at_total + d] = 1.0f;
        if (!p.layers) continue;
        const float* from = s_.layers[0].weight + (pooled_at_[j] * p.dim + d) * p.outputs;
        std::copy_n(from, p.outputs, row);
        for (size_t h = 0; h < p.outputs; ++h) back[h * p.pooled_stride + j * p.dim + d] = from[h];
      }
  }

  PoolShape pooled_shape() const { return {s_.dim, s_.linear, pooled_columns_}; }

  void pool_some() {
    const PoolShape shape = pooled_shape();
    winners_.resize(plan_.rows * shape.maxima() * shape.width());
    if (plan_.pooled)
      pool_forward(*s_.lookup, shape, s_.rows, const_cast<float*>(plan_.pooled_weights),
                   const_cast<float*>(plan_.pooled_vectors), winners_.data(), threads_);
  }

  size_t slice_count() const { return std::clamp<size_t>(plan_.rows / kLeastSlice, 1, kMostSlices); }
  size_t slice_at(size_t slice) const { return plan_.rows * slice / slice_count(); }

  double walk_rows(const NetworkKernels& kernels) {
    const size_t slices = slice_count();
    std::vector<double> losses(slices);
    slice_sums_.resize(plan_.trains ? slices * sums_ : 1);
    parallel_for(threads_, slices, [&](size_t k) {
      float* sums = slice_sums_.data() + (plan_.trains ? k * sums_ : 0);
      if (plan_.trains) std::fill_n(sums, sums_, 0.0f);
      losses[k] = kernels.rows(plan_, slice_at(k), slice_at(k + 1), sums, scratch_of(plan_.scratch));
    });
    double loss = 0.0;
    for (double one : losses) loss += one;
    return loss;
  }

  void walk_keys(const NetworkKernels& kernels) {
    pool_backward(*s_.lookup, pooled_shape(), plan_.pooled && s_.linear ? plan_.pooled_weight_gradient : nullptr,
                  plan_.pooled ? plan_.pooled_vector_gradient : nullptr, winners_.data(), s_.row_gradient, threads_);
    const size_t least = std::max(kLeastUnit, plan_.rows / kMostUnits);
    for (size_t f = 0; f < plan_.fields; ++f) {
      size_t from = plan_.begin[f];
      const size_t end = plan_.begin[f + 1];
      for (size_t at = from; at < end; ++at) {
        const size_t rows = static_cast<size_t>(plan_.from[at + 1] - plan_.from[from]);
        if (rows < least && at + 1 < end) continue;
        units_.push_back({f, from, at + 1});
        from = at + 1;
      }
    }
    const size_t each = plan_.dim * plan_.output_stride;
    unit_sums_.resize(units_.size() * each + 1);
    // The largest units begin first: a key that many rows have would else keep everybody waiting at the end.
    std::vector<size_t> order(units_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    auto rows_of = [&](size_t k) { return plan_.from[units_[k].to] - plan_.from[units_[k].from]; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows_of(a) > rows_of(b); });
    parallel_for(threads_, units_.size(), [&](size_t task) {
      const size_t k = order[task];
      float* sums = unit_sums_.data() + k * each;
      std::fill_n(sums, each, 0.0f);
      kernels.keys(plan_, units_[k].field, units_[k].from, units_[k].to, sums, scratch_of(plan_.scratch));
    });
  }

  // The sums of all slices and units, in their order, as the gradients of the model's weights.
  void hand_over() {
    const NetworkPlan& p = plan_;
    const size_t slices = slice_count(), piece = 4096, pieces = (sums_ + piece - 1) / piece;
    float* total = slice_sums_.data();
    parallel_for(sums_ * slices < kFewFloats ? 1 : threads_, pieces, [&](size_t k) {
      const size_t from = k * piece, to = std::min(sums_, from + piece);
      for (size_t s = 1; s < slices; ++s)
        for (size_t i = from; i < to; ++i) total[i] += slice_sums_.data()[s * sums_ + i];
    });
    const size_t each = p.dim * p.output_stride;
    if (each) {
      std::vector<size_t> first(p.fields + 1);  // unit of each field
      for (const Unit& unit : units_) ++first[unit.field + 1];
      for (size_t f = 0; f < p.fields; ++f) first[f + 1] += first[f];
      parallel_for(each * units_.size() < kFewFloats ? 1 : threads_, p.fields, [&](size_t f) {
        float* sum = unit_sums_.data() + first[f] * each;
        for (size_t k = first[f] + 1; k < first[f + 1]; ++k)
          for (size_t i = 0; i < each; ++i) sum[i] += unit_sums_.data()[k * each + i];
        unpack(sum, p.dim, s_.layers[0].weight_gradient + index_.columns[f] * p.dim * p.outputs, p.outputs,
               p.output_stride);
      });
    }
    *s_.bias_gradient = total[p.start_sums + p.at_linear];
    for (size_t c = 0; c < p.dense; ++c) {
      const float* sum = total + p.dense_sums + c * p.stride;
      if (s_.first_gradient) s_.first_gradient[c] = sum[p.at_linear];
      for (size_t d = 0; p.pairs && d < p.dim; ++d)
        s_.pairs_gradient[c * p.dim + d] = sum[p.at_total + d] - total[p.square_sums + c] * s_.pairs[c * p.dim + d];
    }
    if (!p.layers) return;
    const TowerLayer& one = s_.layers[0];
    for (size_t j = 0; j < p.pooled; ++j)
      unpack(total + p.pooled_sums + j * each, p.dim, one.weight_gradient + pooled_at_[j] * p.dim * p.outputs,
             p.outputs, p.output_stride);
    unpack(total + p.dense_sums, p.dense, one.weight_gradient + s_.columns.size() * p.dim * p.outputs, p.outputs,
           p.stride);
    if (one.bias_gradient) std::copy_n(total + p.start_sums, p.outputs, one.bias_gradient);
    for (size_t l = 1; l < p.layers; ++l) {
      const TowerLayer& layer = s_.layers[l];
      const TowerInner& inner = p.inner[l];
      if (l + 1 == p.layers)
        std::copy_n(total + inner.weight_sums, layer.inputs, layer.weight_gradient);
      else
        unpack(total + inner.weight_sums, layer.inputs, layer.weight_gradient, layer.outputs, inner.stride);
      if (layer.bias_gradient) std::copy_n(total + inner.bias_sums, layer.outputs, layer.bias_gradient);
    }
  }

  static void unpack(const float* from, size_t n, float* to, size_t columns, size_t stride) {
    for (size_t r = 0; r < n; ++r) std::copy_n(from + r * stride, columns, to + r * columns);
  }

  NetworkStep& s_;
  std::chrono::steady_clock::time_point part_began_ = std::chrono::steady_clock::now();
  const size_t threads_;
  NetworkPlan plan_{};
  FieldIndex own_index_;
  const FieldIndex& index_;
  std::vector<size_t> pooled_at_;  // columns
  std::vector<PoolColumn> pooled_columns_;
  std::vector<uint8_t> wide_, pooled_wide_;
  std::vector<const float*> field_weight_, field_back_;
  std::vector<float> mean_, scale_;
  std::vector<double> slice_means_, slice_spreads_;  // [slices][dense]
  Pieces memory_;
  Buffer<int32_t> winners_;
  size_t sums_ = 0;
  Buffer<float> slice_sums_, unit_sums_;
  std::vector<Unit> units_;
};

}  // namespace

double NetworkStep::run(size_t threads) { return Running(*this, threads).run(); }

const char* network_instructions() { return network_kernels().name; }

}  // namespace cb
