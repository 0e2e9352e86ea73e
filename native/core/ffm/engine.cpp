#include "core/ffm/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>

#include "core/system/parallel.h"
#include "operators/hash.h"

namespace cb {

namespace {

constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();
constexpr size_t kPredicted = 256;  // examples a thread takes at once

// Uniform in ± bound, decided by seed, block and place. Never -0: a step of 0 would make it 0, and a skipped one not.
float uniform(uint64_t seed, uint64_t block, uint64_t place, float bound) {
  const uint64_t h = finish(finish(seed + block) + place * 0x9e3779b97f4a7c15ull);
  return static_cast<float>(static_cast<int64_t>(h) >> 40) * 0x1p-23f * bound + 0.0f;
}

double sigmoid(float logit) { return 1.0 / (1.0 + std::exp(-static_cast<double>(logit))); }

void note(std::atomic<uint64_t>& first, uint64_t e) {
  uint64_t met = first.load();
  while (e < met && !first.compare_exchange_weak(met, e)) {
  }
}

std::optional<size_t> noted(uint64_t e) { return e == kNobody ? std::nullopt : std::optional<size_t>(e); }

// Calls each(pass, e) for the examples from begin to end, their weights on their way while others are worked on.
template <class F>
void walk(FfmPass& pass, const Examples& examples, size_t begin, size_t end, const FfmWeights& weights, bool to_write,
          F each) {
  const size_t ahead = std::min(pass.ahead(), end - begin);
  for (size_t e = begin; e < begin + ahead; ++e) pass.fetch(examples, e, weights, to_write);
  for (size_t e = begin; e < end; ++e) {
    if (e + ahead < end) pass.fetch(examples, e + ahead, weights, to_write);
    if (!each(e)) return;
  }
}

void predict_with(FfmPass& pass, const Examples& examples, size_t begin, size_t end, const FfmWeights& weights,
                  float* predictions, std::atomic<uint64_t>& broken) {
  float logits[FfmPass::kBatch];
  walk(pass, examples, begin, end, weights, false, [&](size_t e) {
    const size_t slot = (e - begin) % FfmPass::kBatch;
    pass.merge(examples, e, slot);
    if (slot + 1 < FfmPass::kBatch && e + 1 < end) return true;
    pass.logits(weights, slot + 1, logits);
    for (size_t k = 0; k <= slot; ++k) {
      predictions[e - slot + k] = static_cast<float>(sigmoid(logits[k]));
      if (!std::isfinite(logits[k])) note(broken, e - slot + k);
    }
    return true;
  });
}

}  // namespace

DeepFfm::DeepFfm(const FfmSettings& settings, bool fresh, bool learns)
    : settings_(settings),
      layout_(settings_, learns),
      kernels_(&ffm_kernels()),
      lr_(layout_.lr_size ? layout_.lr_size * layout_.lr_step * sizeof(float) : kLanes * sizeof(float)),
      ffm_((layout_.rows * layout_.row_step + kBehind * layout_.latent) * sizeof(float)),
      dense_(layout_.dense * sizeof(float)) {
  weights_ = {reinterpret_cast<float*>(lr_.data()), reinterpret_cast<float*>(ffm_.data()),
              reinterpret_cast<float*>(dense_.data())};
  changed();
  if (fresh) initialize();
}

DeepFfm::DeepFfm(const FfmSettings& settings, const float* lr, const float* ffm)
    : settings_(settings),
      layout_(settings_, false),
      kernels_(&ffm_kernels()),
      owns_(false),
      dense_(layout_.dense * sizeof(float)) {
  // Predicting never writes through these pointers, and a model without accumulators does not learn.
  weights_ = {const_cast<float*>(lr), const_cast<float*>(ffm), reinterpret_cast<float*>(dense_.data())};
  changed();
}

void DeepFfm::changed() {
  static std::atomic<uint64_t> last{0};
  state_ = ++last;
}

void DeepFfm::use(const FfmKernels& kernels) {
  std::lock_guard<std::mutex> hold(lending_);
  idle_.clear();
  blocks_.reset();
  kernels_ = &kernels;
}

FfmWeights DeepFfm::turned(std::shared_ptr<const FfmTurned>& held) const {
  std::lock_guard<std::mutex> hold(lending_);
  if (!turned_ || turned_at_ != state_) {
    turned_ = std::make_shared<const FfmTurned>(layout_, weights_.dense);
    turned_at_ = state_;
  }
  held = turned_;
  FfmWeights out = weights_;
  out.turned = held.get();
  return out;
}

std::unique_ptr<FfmPass> DeepFfm::borrow() const {
  {
    std::lock_guard<std::mutex> hold(lending_);
    if (!idle_.empty()) {
      auto found = std::move(idle_.back());
      idle_.pop_back();
      return found;
    }
  }
  return std::make_unique<FfmPass>(settings_, layout_, *kernels_);
}

void DeepFfm::give_back(std::unique_ptr<FfmPass> pass) const {
  std::lock_guard<std::mutex> hold(lending_);
  idle_.push_back(std::move(pass));
}

void DeepFfm::initialize() {
  const FfmSettings& s = settings_;
  const FfmLayout& l = layout_;
  if (l.learns())
    for (uint64_t i = 0; i < l.lr_size; ++i) weights_.lr[2 * i + 1] = s.lr_rates.initial;
  const float bound = s.ffm_init / std::sqrt(static_cast<float>(s.k));
  for (uint64_t r = 0; r < l.rows; ++r) {
    float* row = weights_.ffm + l.row_step * r;
    for (size_t f = 0; f < l.fields; ++f)
      for (size_t d = 0; d < s.k; ++d) row[f * l.latent + d] = uniform(s.seed, 1, (r * l.fields + f) * s.k + d, bound);
    if (l.learns()) std::fill_n(row + l.stride, l.stride, s.ffm_rates.initial);
  }
  weights_.dense[1] = s.lr_rates.initial;
  for (size_t n = 0; n < l.layers.size(); ++n) {
    const auto& layer = l.layers[n];
    // He et al. for ReLU. The last layer starts at 0: the network first says nothing, and lr and ffm are heard.
    const float reach =
        n + 1 == l.layers.size() && s.residual ? 0.0f : std::sqrt(6.0f / static_cast<float>(layer.inputs));
    for (size_t j = 0; j < layer.neurons; ++j)
      for (size_t i = 0; i < layer.inputs; ++i)
        weights_.dense[layer.place(j, i)] = uniform(s.seed, 2 + n, j * layer.inputs + i, reach);
    std::fill_n(weights_.dense + layer.at + layer.size(), layer.size(), s.nn_rates.initial);
  }
}

void DeepFfm::check_fields(const Examples& examples, size_t begin, size_t end) const {
  uint16_t most = 0;  // without a branch, sixteen fields or more are compared at once
  for (size_t i = examples.offsets[begin]; i < examples.offsets[end]; ++i) most = std::max(most, examples.fields[i]);
  if (examples.offsets[begin] < examples.offsets[end] && most >= settings_.fields)
    throw std::invalid_argument("an example has a field that the model does not have");
}

void DeepFfm::check_part(const Examples& examples, bool of_context) const {
  check_fields(examples, 0, examples.rows());
  for (uint16_t f : examples.fields)
    if ((f < settings_.context) != of_context)
      throw std::invalid_argument(of_context ? "a context has a field of candidates"
                                             : "a candidate has a field of the context");
}

std::optional<size_t> DeepFfm::learn(const Examples& examples, float* predictions, bool sparse) {
  std::lock_guard<std::mutex> alone(learning_);
  changed();
  std::atomic<uint64_t> broken{kNobody};
  FfmPass pass(settings_, layout_, *kernels_);
  walk(pass, examples, 0, examples.rows(), weights_, true, [&](size_t e) {
    const float logit = pass.forward(examples, e, weights_, sparse);
    const double p = sigmoid(logit);
    predictions[e] = static_cast<float>(p);
    if (!std::isfinite(logit)) {
      note(broken, e);
      return false;
    }
    const double slope = (p - static_cast<double>(examples.labels[e])) * static_cast<double>(examples.weight(e));
    pass.backward(examples, e, weights_, static_cast<float>(slope), sparse);
    return true;
  });
  return learned(examples, broken);
}

std::optional<size_t> DeepFfm::learn_blocks(const Examples& examples, float* predictions, size_t threads, bool sparse,
                                            size_t block, uint64_t before) {
  std::lock_guard<std::mutex> alone(learning_);
  changed();
  if (!blocks_) blocks_ = std::make_unique<BlockLearner>(settings_, layout_, *kernels_, weights_);
  return learned(examples, blocks_->learn(examples, predictions, threads, sparse, block, before));
}

// A ReLU makes 0 of NaN, so an output may be finite where a weight is not. Who predicted meanwhile saw half of the
// changes, so the state is a new one again.
std::optional<size_t> DeepFfm::learned(const Examples& examples, uint64_t broken) {
  const bool finite =
      std::all_of(weights_.dense, weights_.dense + layout_.dense, [](float w) { return std::isfinite(w); });
  if (!finite && examples.rows() > 0) broken = std::min<uint64_t>(broken, examples.rows() - 1);
  changed();
  return noted(broken);
}

std::optional<size_t> DeepFfm::predict(const Examples& examples, float* predictions, size_t threads) const {
  std::atomic<uint64_t> broken{kNobody};
  const size_t rows = examples.rows(), blocks = (rows + kPredicted - 1) / kPredicted;
  std::atomic<size_t> next{0};
  std::shared_ptr<const FfmTurned> held;
  const FfmWeights weights = turned(held);
  parallel_for(threads, std::min(std::max<size_t>(threads, 1), blocks), [&](size_t) {
    auto pass = borrow();
    for (size_t b; (b = next.fetch_add(1)) < blocks;) {
      const size_t begin = b * kPredicted, end = std::min(rows, begin + kPredicted);
      check_fields(examples, begin, end);
      predict_with(*pass, examples, begin, end, weights, predictions, broken);
    }
    give_back(std::move(pass));
  });
  return noted(broken);
}

FfmContext DeepFfm::context(const Examples& example) const {
  std::shared_ptr<const FfmTurned> held;
  auto pass = borrow();
  FfmContext out = pass->context_of(example, turned(held));
  out.weights = state_;
  give_back(std::move(pass));
  return out;
}

std::optional<size_t> DeepFfm::score(const FfmContext& context, const Examples& candidates, float* predictions) const {
  std::atomic<uint64_t> broken{kNobody};
  std::shared_ptr<const FfmTurned> held;
  auto pass = borrow();
  pass->share(context);
  predict_with(*pass, candidates, 0, candidates.rows(), turned(held), predictions, broken);
  pass->leave();
  give_back(std::move(pass));
  return noted(broken);
}

}  // namespace cb
