#include "core/ffm/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "core/parallel.h"
#include "operators/hash.h"

namespace cb {

namespace {

constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();
constexpr size_t kBehind = 4;        // latent vectors that pair_dots may read behind the last row
constexpr size_t kPredicted = 1024;  // examples a thread takes at once

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

}  // namespace

DeepFfm::DeepFfm(const FfmSettings& settings, bool fresh)
    : settings_(settings),
      layout_(settings_),
      kernels_(&ffm_kernels()),
      lr_(layout_.lr_size ? layout_.lr_size * 2 * sizeof(float) : kLanes * sizeof(float)),
      ffm_((layout_.rows * layout_.stride * 2 + kBehind * layout_.latent) * sizeof(float)),
      dense_(layout_.dense * sizeof(float)) {
  weights_ = {reinterpret_cast<float*>(lr_.data()), reinterpret_cast<float*>(ffm_.data()),
              reinterpret_cast<float*>(dense_.data())};
  if (fresh) initialise();
}

void DeepFfm::initialise() {
  const FfmSettings& s = settings_;
  const FfmLayout& l = layout_;
  for (uint64_t i = 0; i < l.lr_size; ++i) weights_.lr[2 * i + 1] = s.lr_rates.initial;
  const float bound = s.ffm_init / std::sqrt(static_cast<float>(s.k));
  for (uint64_t r = 0; r < l.rows; ++r) {
    float* row = weights_.ffm + 2 * l.stride * r;
    for (size_t f = 0; f < l.fields; ++f)
      for (size_t d = 0; d < s.k; ++d) row[f * l.latent + d] = uniform(s.seed, 1, (r * l.fields + f) * s.k + d, bound);
    for (size_t i = 0; i < l.stride; ++i) row[l.stride + i] = s.ffm_rates.initial;
  }
  weights_.dense[1] = s.lr_rates.initial;
  for (size_t n = 0; n < l.layers.size(); ++n) {
    const auto& layer = l.layers[n];
    // He et al. for ReLU. The last layer starts at 0: the network first says nothing, and lr and ffm are heard.
    const float reach =
        n + 1 == l.layers.size() && s.residual ? 0.0f : std::sqrt(6.0f / static_cast<float>(layer.inputs));
    for (size_t j = 0; j < layer.neurons; ++j) {
      float* w = weights_.dense + layer.at + j * layer.width;
      for (size_t i = 0; i < layer.inputs; ++i) w[i] = uniform(s.seed, 2 + n, j * layer.inputs + i, reach);
    }
    std::fill_n(weights_.dense + layer.at + layer.neurons * layer.width, layer.neurons * layer.width,
                s.nn_rates.initial);
  }
}

std::optional<size_t> DeepFfm::learn(const Examples& examples, float* predictions, size_t threads, bool sparse) {
  std::lock_guard<std::mutex> alone(learning_);
  std::atomic<uint64_t> broken{kNobody};
  const size_t rows = examples.rows();
  auto learn_from = [&](FfmPass& pass, size_t begin, size_t end, const FfmWeights& weights) {
    walk(pass, examples, begin, end, weights, true, [&](size_t e) {
      const float logit = pass.forward(examples, e, weights);
      const double p = sigmoid(logit);
      predictions[e] = static_cast<float>(p);
      if (!std::isfinite(logit)) {
        note(broken, e);
        return false;
      }
      const double slope = (p - static_cast<double>(examples.labels[e])) * static_cast<double>(examples.weight(e));
      pass.backward(examples, e, weights, static_cast<float>(slope), sparse);
      return true;
    });
  };
  if (threads <= 1) {
    FfmPass pass(settings_, layout_, *kernels_);
    learn_from(pass, 0, rows, weights_);
    return noted(broken);
  }
  std::atomic<size_t> next{0};
  std::mutex lock;
  parallel_for(threads, threads, [&](size_t) {
    FfmPass pass(settings_, layout_, *kernels_);
    const size_t n = layout_.dense;
    std::vector<float> base(n);
    HugeBlock own(n * sizeof(float));
    float* mine = reinterpret_cast<float*>(own.data());
    {
      std::lock_guard<std::mutex> hold(lock);
      std::copy_n(weights_.dense, n, mine);
    }
    std::copy_n(mine, n, base.data());
    const FfmWeights weights{weights_.lr, weights_.ffm, mine};
    for (size_t begin; (begin = next.fetch_add(kTogether)) < rows && broken.load() == kNobody;) {
      learn_from(pass, begin, std::min(rows, begin + kTogether), weights);
      std::lock_guard<std::mutex> hold(lock);
      for (size_t i = 0; i < n; ++i) {
        weights_.dense[i] += mine[i] - base[i];
        base[i] = mine[i] = weights_.dense[i];
      }
    }
  });
  return noted(broken);
}

std::optional<size_t> DeepFfm::predict(const Examples& examples, float* predictions, size_t threads) const {
  std::atomic<uint64_t> broken{kNobody};
  const size_t rows = examples.rows(), blocks = (rows + kPredicted - 1) / kPredicted;
  std::atomic<size_t> next{0};
  parallel_for(threads, std::min(std::max<size_t>(threads, 1), blocks), [&](size_t) {
    FfmPass pass(settings_, layout_, *kernels_);
    float logits[FfmPass::kBatch];
    for (size_t b; (b = next.fetch_add(1)) < blocks;) {
      const size_t begin = b * kPredicted, end = std::min(rows, begin + kPredicted);
      walk(pass, examples, begin, end, weights_, false, [&](size_t e) {
        const size_t slot = (e - begin) % FfmPass::kBatch;
        pass.merge(examples, e, slot);
        if (slot + 1 < FfmPass::kBatch && e + 1 < end) return true;
        pass.logits(weights_, slot + 1, logits);
        for (size_t k = 0; k <= slot; ++k) {
          predictions[e - slot + k] = static_cast<float>(sigmoid(logits[k]));
          if (!std::isfinite(logits[k])) note(broken, e - slot + k);
        }
        return true;
      });
    }
  });
  return noted(broken);
}

}  // namespace cb
