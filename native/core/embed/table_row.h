// Defines the row of a table, wherever it is stored: its initial floats and one step of its optimizers.
//
// A row is [first-order weight?][vector][states of the weight][states of the vector][clock?][counters?]; only rows of a
// table with a dense optimizer have a clock (push_every_row.cpp).
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "core/embed/row_optimizers.h"
#include "core/embed/shard_of_key.h"
#include "core/embed/table_file.h"

namespace cb {

// New rows, decided by seed and key alone.
class NewRows {
 public:
  explicit NewRows(const TableShape& shape)
      : shape_(shape),
        seed_mix_(seed_mix_of(shape.seed)),
        unit_(static_cast<float>(shape.init * std::sqrt(3.0) / 8388608.0)) {}

  void values(int64_t key, float* out) const {
    if (shape_.linear) *out++ = 0.0f;
    const uint64_t mix = row_mix_of(key, seed_mix_);
    for (size_t c = 0; c < shape_.dim; c += 2) {
      const InitialPair pair = initial_pair(mix, c / 2, unit_);
      out[c] = pair.even;
      if (c + 1 < shape_.dim) out[c + 1] = pair.odd;
    }
  }

  // All floats of a row that is made in this period.
  void row(int64_t key, float* row, uint64_t period) const {
    values(key, row);
    const size_t linear = shape_.linear ? 1 : 0;
    float* states = row + shape_.width();
    begin_states(shape_.weight, row, states, linear);
    begin_states(shape_.vector, row + linear, states + states_of(shape_.weight.kind, linear), shape_.dim);
    if (shape_.dense()) std::fill_n(states + shape_.states() - kClockFloats, kClockFloats, 0.0f);
    if (!shape_.life.counts()) return;
    float* counters = states + shape_.states();
    counters[0] = counters[1] = 0.0f;
    counters[2] = static_cast<float>(period);
  }

 private:
  const TableShape shape_;
  const uint64_t seed_mix_;
  const float unit_;  // uniform in ±init·√3, in steps of this
};

// One step of a row's optimizers.
class RowStep {
 public:
  RowStep(const TableShape& shape, double factor)
      : linear_(shape.linear ? 1 : 0),
        dim_(shape.dim),
        width_(shape.width()),
        weight_states_(states_of(shape.weight.kind, linear_)),
        weight_(constants_of(shape.weight, factor)),
        vector_(constants_of(shape.vector, factor)),
        step_weight_(step_of(shape.weight.kind, 1)),
        step_vector_(step_of(shape.vector.kind, shape.dim)) {
    if (shape.dense()) throw std::invalid_argument("a dense optimizer moves all rows, not one");
  }

  void operator()(float* row, const float* gradient) const {
    if (linear_) step_weight_(weight_, row, row + width_, gradient, 1);
    if (dim_) step_vector_(vector_, row + linear_, row + width_ + weight_states_, gradient + linear_, dim_);
  }

 private:
  const size_t linear_, dim_, width_, weight_states_;
  const StepConstants weight_, vector_;
  const Step step_weight_, step_vector_;
};

// The counters of a row.
class RowCount {
 public:
  RowCount(const TableShape& shape, uint64_t now)
      : on_(shape.life.counts()), decay_(shape.life.decay), now_(now), at_(shape.width() + shape.states()) {}

  void operator()(float* row, float shows, float clicks) const {
    if (!on_) return;
    RowCounters c = of(row);
    c.fade(decay_, now_);
    row[at_] = std::min(c.shows + shows, FLT_MAX);
    row[at_ + 1] = std::min(c.clicks + clicks, FLT_MAX);
    row[at_ + 2] = c.period;
  }
  bool expired(const float* row, const Expiry& rule) const { return rule(of(row), decay_, now_); }

 private:
  RowCounters of(const float* row) const { return {row[at_], row[at_ + 1], row[at_ + 2]}; }

  const bool on_;
  const double decay_;
  const uint64_t now_;
  const size_t at_;
};

bool all_finite(const float* p, size_t n);

// -1, or the place of the first number of `gradients` (keys, width) that is not finite; what key 0 has is not looked
// at.
int64_t first_not_finite(std::span<const int64_t> keys, const float* gradients, size_t width, size_t threads);

}  // namespace cb
