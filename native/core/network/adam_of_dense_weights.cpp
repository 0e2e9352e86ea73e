#include "core/network/adam_of_dense_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kPiece = 16384;  // weights of a task; fewer in all are done by the caller alone

struct Piece {
  const AdamWeights* of;
  size_t from, to;
  float rate, root;  // lr / (1 − beta1^t); √(1 − beta2^t)
};

void step(const Piece& piece, const AdamSettings& settings) {
  const float more1 = static_cast<float>(1.0 - settings.beta1), keep2 = static_cast<float>(settings.beta2);
  const float more2 = static_cast<float>(1.0 - settings.beta2), eps = static_cast<float>(settings.eps);
  const float l2 = static_cast<float>(settings.l2), rate = piece.rate, root = piece.root;
  const size_t n = piece.to - piece.from;
  float* __restrict w = piece.of->weight + piece.from;
  const float* __restrict gradient = piece.of->gradient + piece.from;
  float* __restrict m = piece.of->mean + piece.from;
  float* __restrict v = piece.of->square + piece.from;
  for (size_t k = 0; k < n; ++k) {
    const float g = l2 != 0.0f ? gradient[k] + l2 * w[k] : gradient[k];
    m[k] = more1 < 0.5f ? m[k] + (g - m[k]) * more1 : g - (g - m[k]) * (1.0f - more1);  // from the nearer end
    v[k] = v[k] * keep2 + g * g * more2;
    w[k] -= rate * (m[k] / (std::sqrt(v[k]) / root + eps));
  }
}

}  // namespace

void adam_step(std::span<const AdamWeights> all, const AdamSettings& settings, size_t threads) {
  std::vector<Piece> pieces;
  for (const AdamWeights& one : all) {
    const double t = static_cast<double>(*one.steps += 1.0f);
    const float rate = static_cast<float>(settings.lr / (1.0 - std::pow(settings.beta1, t)));
    const float root = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, t)));
    for (size_t from = 0; from < one.count; from += kPiece)
      pieces.push_back({&one, from, std::min(from + kPiece, one.count), rate, root});
  }
  size_t weights = 0;
  for (const AdamWeights& one : all) weights += one.count;
  parallel_for(weights <= 4 * kPiece ? 1 : threads, pieces.size(), [&](size_t k) { step(pieces[k], settings); });
}

}  // namespace cb
