// Pushes of a table whose optimizer is dense: every row moves at every push, as in torch.
//
// The states of a row end with its clock: the number of steps of the table, and a flag. Rows that were only prefetched
// are asleep and do not move, because the time of a prefetch depends on how fast other threads are. The first pull or
// push of a key wakes its row.
#include <algorithm>
#include <atomic>
#include <vector>

#include "core/embed/adam_of_every_row.h"
#include "core/embed/memory_table.h"
#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

// The flag of a row. The last two are set only during a push, for the rows of its keys.
constexpr float kAsleep = 0.0f, kAwake = 1.0f, kPushed = 2.0f, kPushedAsleep = 3.0f;

// One step of both parts of a row.
class DenseRowStep {
 public:
  DenseRowStep(const TableShape& shape, double factor, uint64_t step)
      : linear_(shape.linear ? 1 : 0),
        dim_(shape.dim),
        vector_states_(shape.width() + states_of(shape.weight.kind, linear_)),
        weight_(shape.weight, factor, step),
        vector_(shape.vector, factor, step) {}

  void operator()(float* row, const float* gradient) const {
    float* states = row + linear_ + dim_;
    if (linear_) weight_(row, states, states + 1, gradient, 1);
    states = row + vector_states_;
    if (dim_) vector_(row + linear_, states, states + dim_, gradient + linear_, dim_);
  }

 private:
  const size_t linear_, dim_, vector_states_;
  const DenseAdam weight_, vector_;
};

}  // namespace

void MemoryTable::wake(float* row) const {
  float* clock = row + row_floats_ - kClockFloats;
  if (clock[1] != kAsleep) return;
  clock[0] = static_cast<float>(dense_steps_);
  clock[1] = kAwake;
}

int64_t MemoryTable::push_dense(const Known& known, const Pushed& pushed, double factor) {
  const size_t flag = row_floats_ - 1, keys = known.keys.size();
  const uint32_t* order = known.order.size() ? known.order.data() : nullptr;
  float* const* rows = known.rows.data();
  std::atomic<size_t> twice{keys};  // the first place of a key that was there before
  auto each_row_of_the_batch = [&](size_t shard, auto visit) {
    for (size_t k = known.bounds[shard]; k < known.bounds[shard + 1]; ++k) {
      const size_t place = order ? order[k] : k;
      if (rows[place]) visit(place, rows[place]);
    }
  };
  parallel_for(threads_for(keys), kShards, [&](size_t s) {
    std::lock_guard<std::mutex> hold(shards_[s].lock);
    each_row_of_the_batch(s, [&](size_t place, float* row) {
      if (row[flag] >= kPushed) {
        size_t met = twice.load();
        while (place < met && !twice.compare_exchange_weak(met, place)) {
        }
      } else {
        row[flag] = row[flag] == kAsleep ? kPushedAsleep : kPushed;
      }
    });
  });
  if (twice < keys) {
    for (size_t s = 0; s < kShards; ++s) {
      std::lock_guard<std::mutex> hold(shards_[s].lock);
      each_row_of_the_batch(s, [&](size_t, float* row) {
        if (row[flag] >= kPushed) row[flag] = row[flag] == kPushedAsleep ? kAsleep : kAwake;
      });
    }
    return kRepeatedKey - static_cast<int64_t>(twice.load());
  }

  dense_steps_ = std::min(dense_steps_ + 1, kMostDenseSteps);
  const DenseRowStep step(shape_, factor, dense_steps_);
  const std::vector<float> none(width_, 0.0f);
  const float now = static_cast<float>(dense_steps_);
  parallel_for(threads_for(size()), kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    each_row_of_the_batch(s, [&](size_t place, float* row) {
      const float* gradient = pushed.gradients + place * width_;
      if (pushed.some_bad && !all_finite(gradient, width_))
        skipped_.fetch_add(1, std::memory_order_relaxed);
      else
        step(row, gradient);
    });
    for (size_t k = 0; shard.slots && k <= shard.mask; ++k) {
      float* row = shard.slots[k].row;
      if (shard.slots[k].key == 0 || row[flag] == kAsleep) continue;
      if (row[flag] == kAwake) step(row, none.data());
      row[flag] = kAwake;
      row[flag - 1] = now;
    }
  });
  return -1;
}

void MemoryTable::take_clock(const float* row) {
  const float* clock = row + row_floats_ - kClockFloats;
  const bool sound = clock[0] >= 0.0f && clock[0] <= static_cast<float>(kMostDenseSteps) &&
                     (clock[1] == kAsleep || clock[1] == kAwake);
  if (!sound) throw DamagedFile("the steps of a row are not those of a dense optimizer");
  dense_steps_ = std::max(dense_steps_, static_cast<uint64_t>(clock[0]));
}

}  // namespace cb
