#include "core/ffm/block_learner.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/ffm/adagrad.h"
#include "core/ffm/prefetch.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kSlices = BlockPlan::kSlices, kShards = BlockPlan::kShards;
constexpr size_t kFewest = 16;                   // examples of a block, unless a call ends
constexpr size_t kMostFloats = size_t{1} << 24;  // of the gradients of a block's rows
constexpr size_t kNeurons = 16, kInputs = 48;    // of a tile of a layer with a row per neuron
constexpr size_t kRowsOfInputs = 4;              // of a tile of a layer with a row per input
constexpr size_t kSpins = 400;                   // some microseconds: as long as others usually need

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

double sigmoid(float logit) { return 1.0 / (1.0 + std::exp(-static_cast<double>(logit))); }

void note(std::atomic<uint64_t>& first, uint64_t e) {
  uint64_t met = first.load();
  while (e < met && !first.compare_exchange_weak(met, e)) {
  }
}

}  // namespace

BlockLearner::BlockLearner(const FfmSettings& settings, const FfmLayout& layout, const FfmKernels& kernels,
                           const FfmWeights& weights)
    : s_(settings),
      l_(layout),
      k_(kernels),
      weights_(weights),
      turned_(layout, weights.dense),
      dense_(l_.layers.empty() ? 1 : kSlices * l_.dense * sizeof(float)),
      plans_(kRun) {
  weights_.turned = &turned_;
  cut_tiles();
}

// A tile of a layer with a row per neuron has 16 neurons, which are one cache line of the turned weights; one of a
// layer with a row per input has whole rows, which are copied as they are. Tiles are small, so that every thread has
// some of a small network.
void BlockLearner::cut_tiles() {
  for (size_t n = 0; n < l_.layers.size(); ++n) {
    const auto& layer = l_.layers[n];
    const size_t neurons = layer.by_input ? layer.neurons : kNeurons;
    const size_t inputs = layer.by_input ? kRowsOfInputs : kInputs;
    const size_t width = layer.by_input ? layer.inputs + 1 : layer.width;
    for (size_t j = 0; j < layer.neurons; j += neurons)
      for (size_t i = 0; i < width; i += inputs)
        tiles_.push_back({n, j, std::min(neurons, layer.neurons - j), i, std::min(inputs, width - i)});
  }
}

// At most `block` examples, and so many that the gradients of their rows fit into 64 MB. The first blocks of a model
// are small, as its weights still move far: an example in 64 of those learned so far, rounded to sixteens.
size_t BlockLearner::block_end(const Examples& examples, size_t begin, size_t block, uint64_t learned) const {
  const uint64_t early = std::max<uint64_t>((learned + begin) / 64 / kFewest, 1) * kFewest;
  size_t end = std::min(examples.rows(), begin + static_cast<size_t>(std::min<uint64_t>(block, early)));
  const size_t most = l_.ffm ? std::max<size_t>(kMostFloats / l_.stride, 1) : kMostFloats;
  while (end > begin + 1 && examples.offsets[end] - examples.offsets[begin] > most) end = begin + (end - begin) / 2;
  return end;
}

void BlockLearner::make_run(const Call& call, size_t& next, size_t block, uint64_t learned) {
  blocks_.clear();
  size_t features = 0, rows = 0;
  while (blocks_.size() < kRun && next < call.examples.rows()) {
    const size_t end = block_end(call.examples, next, block, learned);
    features = std::max<size_t>(features, call.examples.offsets[end] - call.examples.offsets[next]);
    rows = std::max(rows, end - next);
    blocks_.emplace_back(next, end);
    next = end;
  }
  if (first_order_.size() < features) first_order_.resize(features);
  if (slopes_.size() < rows) slopes_.resize(rows);
  begun_ = {begun_.phase + 1 + 2 * kRun, done_};  // a run that failed may have left phases unfinished
}

uint64_t BlockLearner::learn(const Examples& examples, float* predictions, size_t threads, bool sparse, size_t block,
                             uint64_t learned) {
  threads = std::clamp<size_t>(threads, 1, kMostThreads);
  const Call call{examples, predictions, sparse, threads};
  broken_ = kNobody;
  failed_ = false;
  turned_ = FfmTurned(l_, weights_.dense);
  while (passes_.size() < threads) passes_.push_back(std::make_unique<FfmPass>(s_, l_, k_, true));
  if (scratch_.size() < threads) scratch_.resize(threads);
  for (size_t next = 0; next < examples.rows() && broken_ == kNobody;) {
    make_run(call, next, block, learned);
    // A thread that comes when all is done finds every task taken and all of them done.
    parallel_for(threads, threads, [&](size_t thread) {
      try {
        work(call, thread);
      } catch (...) {
        failed_ = true;  // the others stop waiting; the caller sees the error
        throw;
      }
    });
  }
  return broken_;
}

// Takes tasks that nobody took, its own part of them first: the same thread then has their memory in its cache in each
// block. Returns when all tasks of the phase are done; false if a thread failed. `at` is the thread's place in the run.
template <class F>
bool BlockLearner::share(Place& at, size_t tasks, const Call& call, size_t thread, F run) {
  const uint64_t phase = ++at.phase;
  const uint64_t done = at.done += tasks;
  const size_t home = thread * tasks / call.threads;
  uint64_t mine = 0;
  for (size_t k = 0; k < tasks; ++k) {
    const size_t task = (home + k) % tasks;
    auto& taken = taken_[task].phase;
    uint64_t last = taken.load(std::memory_order_relaxed);
    if (last >= phase || !taken.compare_exchange_strong(last, phase, std::memory_order_relaxed)) continue;
    run(task);
    ++mine;
  }
  if (mine) done_.fetch_add(mine, std::memory_order_acq_rel);
  for (size_t spins = 0; done_.load(std::memory_order_acquire) < done; ++spins) {
    if (failed_.load(std::memory_order_relaxed)) return false;
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
  return true;
}

void BlockLearner::work(const Call& call, size_t thread) {
  FfmPass& pass = *passes_[thread];
  Place at = begun_;
  const bool planned = share(at, blocks_.size(), call, thread, [&](size_t b) {
    plans_[b].make(call.examples, blocks_[b].first, blocks_[b].second, s_, l_, scratch_[thread]);
  });
  if (!planned) return;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const BlockPlan& plan = plans_[b];
    if (!share(at, kSlices, call, thread, [&](size_t s) { learn_slice(call, plan, s, pass); })) return;
    if (broken_.load(std::memory_order_relaxed) != kNobody) return;
    if (!share(at, kShards, call, thread, [&](size_t k) { step_shard(plan, k); })) return;
  }
}

void BlockLearner::learn_slice(const Call& call, const BlockPlan& plan, size_t s, FfmPass& pass) {
  const Examples& examples = call.examples;
  const size_t begin = plan.slice(s), end = plan.slice(s + 1);
  if (begin == end) return;
  const size_t bytes = std::max<size_t>(plan.count[s] * l_.stride * sizeof(float), 1);
  if (l_.ffm && rows_[s].size() < bytes) rows_[s] = HugeBlock(bytes);
  SliceGradients to{&plan, reinterpret_cast<float*>(dense_.data()) + s * l_.dense,
                    reinterpret_cast<float*>(rows_[s].data()), first_order_.data()};
  // Without a network nothing is gained by a batch: an example is done while its rows are in the first cache.
  const size_t batch = l_.layers.empty() ? 1 : FfmPass::kBlockBatch;
  auto fetch = [&](size_t e) {
    pass.fetch(examples, e, weights_, false);
    if (batch == 1) pass.fetch_to_write(examples, e, to);
  };
  const size_t ahead = std::min(pass.ahead(), end - begin);
  for (size_t e = begin; e < begin + ahead; ++e) fetch(e);
  float logits[FfmPass::kBlockBatch];
  for (size_t first = begin; first < end; first += batch) {
    const size_t count = std::min(batch, end - first);
    for (size_t b = 0; b < count; ++b) {
      if (first + b + ahead < end) fetch(first + b + ahead);
      pass.merge(examples, first + b, b);
    }
    pass.logits(weights_, count, logits);
    float* slopes = slopes_.data() + (first - plan.begin);
    for (size_t b = 0; b < count; ++b) {
      const size_t e = first + b;
      const double p = sigmoid(logits[b]);
      call.predictions[e] = static_cast<float>(p);
      const bool finite = std::isfinite(logits[b]);
      if (!finite) note(broken_, e);
      const double slope = (p - static_cast<double>(examples.labels[e])) * static_cast<double>(examples.weight(e));
      slopes[b] = finite ? static_cast<float>(slope) : 0.0f;
    }
    pass.add_gradients(examples, first, count, weights_, slopes, to, call.sparse);
  }
}

void BlockLearner::step_shard(const BlockPlan& plan, size_t shard) {
  if (l_.ffm) step_rows(plan, shard);
  if (l_.lr) step_first_order(plan, shard);
  const float* parts[kSlices];
  size_t count = 0;
  for (size_t s = 0; s < kSlices; ++s)
    if (plan.slice(s) < plan.slice(s + 1)) parts[count++] = reinterpret_cast<float*>(dense_.data()) + s * l_.dense;
  for (size_t t = shard; t < tiles_.size(); t += kShards) step_tile(tiles_[t], parts, count);
  if (shard + 1 < kShards) return;
  for (size_t e = plan.begin; e < plan.end; ++e)
    adagrad_step(weights_.dense[0], weights_.dense[1], slopes_[e - plan.begin],
                 {s_.lr_rates.rate, s_.lr_rates.power_t});
}

void BlockLearner::step_rows(const BlockPlan& plan, size_t shard) {
  const AdagradRates rates{s_.ffm_rates.rate, s_.ffm_rates.power_t};
  auto sum_of = [&](const BlockPlan::Part& part) {
    return reinterpret_cast<float*>(rows_[part.slice].data()) + part.sum * l_.stride;
  };
  const float* parts[kSlices];
  const size_t stop = plan.rows_of[shard + 1];
  size_t ahead = plan.rows_of[shard] < stop ? plan.rows[plan.rows_of[shard]].first_part : 0;
  for (size_t r = plan.rows_of[shard]; r < stop; ++r) {
    const auto& row = plan.rows[r];
    const size_t last = row.first_part + row.parts;
    for (const size_t end = std::min<size_t>(last + 8, plan.rows[stop - 1].first_part + plan.rows[stop - 1].parts);
         ahead < end; ++ahead)
      prefetch_floats(sum_of(plan.parts[ahead]), l_.stride);
    if (r + 2 < stop) prefetch_floats_to_write(weights_.ffm + l_.row_step * plan.rows[r + 2].row, l_.row_step);
    for (size_t p = 0; p < row.parts; ++p) parts[p] = sum_of(plan.parts[row.first_part + p]);
    float* w = weights_.ffm + l_.row_step * row.row;
    k_.sum_step(w, w + l_.stride, parts, row.parts, l_.stride, rates);
  }
}

void BlockLearner::step_first_order(const BlockPlan& plan, size_t shard) {
  const AdagradRates rates{s_.lr_rates.rate, s_.lr_rates.power_t};
  constexpr size_t kAhead = 16;
  const size_t stop = plan.records_of[shard + 1];
  for (size_t n = plan.records_of[shard]; n < stop; ++n) {
    if (n + kAhead < stop) prefetch_to_write(weights_.lr + 2 * plan.records[n + kAhead]);
    float* lr = weights_.lr + 2 * plan.records[n];
    adagrad_step(lr[0], lr[1], first_order_[n], rates);
  }
}

void BlockLearner::step_tile(const Tile& tile, const float* const* parts, size_t count) {
  const auto& layer = l_.layers[tile.layer];
  const AdagradRates rates{s_.nn_rates.rate, s_.nn_rates.power_t};
  const float* at[kSlices];
  auto step = [&](size_t place, size_t floats) {
    for (size_t p = 0; p < count; ++p) at[p] = parts[p] + place;
    k_.sum_step(weights_.dense + place, weights_.dense + place + layer.size(), at, count, floats, rates);
  };
  if (layer.by_input)
    for (size_t i = tile.input; i < tile.input + tile.inputs; ++i) step(layer.place(0, i), layer.step());
  else
    for (size_t j = tile.neuron; j < tile.neuron + tile.neurons; ++j) step(layer.place(j, tile.input), tile.inputs);
  if (tile.layer + 1 < l_.layers.size())
    turned_.copy(l_, weights_.dense, tile.layer, tile.neuron, tile.neuron + tile.neurons, tile.input,
                 std::min(tile.input + tile.inputs, layer.inputs + 1));
}

}  // namespace cb
