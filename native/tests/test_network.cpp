// The step of the usual click models: the same bits for any number of threads, gradients that agree with differences of
// the loss, and all instruction sets that this machine has against each other.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/embed/unique_keys.h"
#include "core/network/forward_and_training_step.h"
#include "core/network/kernels.h"
#include "core/network/keys_by_field.h"
#include "tests/check.h"

using namespace cb;

namespace {

struct World {
  size_t rows, dim, dense;
  bool linear = true;
  std::vector<std::vector<int64_t>> values, offsets;
  std::shared_ptr<Lookup> lookup;
  std::vector<float> key_rows, logs, label, first, pairs, bias{0.1f};
  std::vector<std::vector<float>> weight, layer_bias;
  std::vector<size_t> widths;
  std::vector<double> seen{0.0}, mean, spread;

  // Fields: few keys, many keys, lists, and one that shares its keys with the first.
  World(size_t rows_, size_t dim_, size_t dense_, std::vector<size_t> widths_, uint32_t seed)
      : rows(rows_), dim(dim_), dense(dense_), widths(std::move(widths_)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    const int64_t most[4] = {3, 500, 40, 3};
    for (int64_t f = 0; f < 4; ++f) {
      std::vector<int64_t> keys, ends{0};
      for (size_t r = 0; r < rows; ++r) {
        const size_t n = f == 2 ? random() % 4 : 1;
        for (size_t k = 0; k < n; ++k)
          keys.push_back((f == 3 ? 0 : f) * 1000 + static_cast<int64_t>(random()) % most[f]);
        ends.push_back(static_cast<int64_t>(keys.size()));
      }
      values.push_back(keys);
      offsets.push_back(ends);
    }
    std::vector<FieldKeys> fields;
    for (size_t f = 0; f < 4; ++f)
      fields.push_back({values[f].data(), values[f].size(), f == 2 ? offsets[f].data() : nullptr});
    lookup = Lookup::of(fields, rows, 2);
    auto fill = [&](std::vector<float>& to, size_t n) {
      to.resize(n);
      for (float& x : to) x = normal(random);
    };
    fill(key_rows, lookup->keys.size() * (dim + 1));
    for (size_t k = 0; k < lookup->keys.size(); ++k)
      if (lookup->keys.data()[k] == 0) std::fill_n(key_rows.begin() + static_cast<long>(k * (dim + 1)), dim + 1, 0.0f);
    fill(logs, rows * dense);
    for (size_t r = 0; r < rows; ++r) label.push_back(random() % 4 == 0 ? 1.0f : 0.0f);
    fill(first, dense);
    fill(pairs, dense * dim);
    size_t inputs = 4 * dim + dense;
    for (size_t width : widths) {
      weight.emplace_back();
      fill(weight.back(), inputs * width);
      layer_bias.emplace_back();
      fill(layer_bias.back(), width);
      inputs = width;
    }
    mean.resize(dense);
    spread.resize(dense);
  }
};

struct Answer {
  double loss = 0.0;
  std::vector<float> logits, rows, first, pairs, bias{0.0f};
  std::vector<std::vector<float>> weight, layer_bias;
  bool operator==(const Answer&) const = default;
};

Answer learn(const World& w, size_t threads, float drop) {
  Answer a;
  std::vector<double> seen = w.seen, mean = w.mean, spread = w.spread;
  NetworkStep s;
  s.lookup = w.lookup.get();
  const Pool kinds[4] = {Pool::kMean, Pool::kSum, Pool::kMean, Pool::kMax};
  for (size_t f = 0; f < 4; ++f) {
    s.columns.push_back({f, kinds[f]});
    s.wide.push_back(f != 1);
  }
  s.dim = w.dim;
  s.linear = w.linear;
  s.rows = w.key_rows.data();
  s.dense = w.dense;
  s.logs = w.logs.data();
  s.label = w.label.data();
  s.moments = {seen.data(), mean.data(), spread.data()};
  s.first = w.first.data();
  s.pairs = w.pairs.data();
  s.has_pairs = true;
  s.bias = w.bias.data();
  a.logits.resize(w.rows);
  a.rows.resize(w.key_rows.size());
  a.first.resize(w.dense);
  a.pairs.resize(w.dense * w.dim);
  for (size_t l = 0; l < w.weight.size(); ++l) {
    a.weight.emplace_back(w.weight[l].size());
    a.layer_bias.emplace_back(w.layer_bias[l].size());
  }
  for (size_t l = 0; l < w.weight.size(); ++l)
    s.layers.push_back({w.weight[l].size() / w.widths[l], w.widths[l], w.weight[l].data(), w.layer_bias[l].data(),
                        a.weight[l].data(), a.layer_bias[l].data(), l + 1 < w.weight.size() ? drop : 0.0f, 77 + l});
  s.logits = a.logits.data();
  s.first_gradient = a.first.data();
  s.pairs_gradient = a.pairs.data();
  s.bias_gradient = a.bias.data();
  s.row_gradient = a.rows.data();
  a.loss = s.run(threads);
  return a;
}

void same_bits_for_any_number_of_threads() {
  for (size_t rows : {size_t{1}, size_t{70}, size_t{3001}}) {
    const World w(rows, 8, 3, {40, 16, 1}, static_cast<uint32_t>(rows));
    const Answer alone = learn(w, 1, 0.2f);
    for (size_t threads : {size_t{2}, size_t{5}, size_t{16}}) CHECK(learn(w, threads, 0.2f) == alone);
  }
}

// Several trainings at once, each with threads of its own.
void steps_may_run_side_by_side() {
  const World w(1500, 4, 2, {20, 1}, 9);
  const Answer alone = learn(w, 1, 0.1f);
  std::vector<std::thread> crew;
  std::vector<Answer> found(4);
  for (size_t k = 0; k < found.size(); ++k) crew.emplace_back([&, k] { found[k] = learn(w, 3, 0.1f); });
  for (std::thread& one : crew) one.join();
  for (const Answer& one : found) CHECK(one == alone);
}

void gradients_agree_with_differences_of_the_loss() {
  World w(90, 4, 2, {12, 5, 1}, 3);
  const Answer a = learn(w, 1, 0.2f);
  auto probe = [&](std::vector<float>& weights, const std::vector<float>& gradient) {
    for (size_t k = 0; k < weights.size(); k += weights.size() / 7 + 1) {
      const float kept = weights[k], step = 2e-3f;
      weights[k] = kept + step;
      const double above = learn(w, 1, 0.2f).loss;
      weights[k] = kept - step;
      const double below = learn(w, 1, 0.2f).loss;
      weights[k] = kept;
      const double slope = (above - below) / (2.0 * step);
      CHECK(std::fabs(slope - gradient[k]) < 2e-3 + 0.03 * std::fabs(slope));
    }
  };
  for (size_t l = 0; l < w.weight.size(); ++l) {
    probe(w.weight[l], a.weight[l]);
    probe(w.layer_bias[l], a.layer_bias[l]);
  }
  probe(w.first, a.first);
  probe(w.pairs, a.pairs);
  probe(w.bias, a.bias);
  // The null slot has no row and gets no gradient.
  for (size_t k = 0; k < w.lookup->keys.size(); ++k) {
    if (w.lookup->keys.data()[k] == 0) continue;
    std::vector<float> all = w.key_rows;
    const size_t at = k * (w.dim + 1) + k % (w.dim + 1);
    if (k % 17 != 0) continue;
    const float kept = w.key_rows[at];
    w.key_rows[at] = kept + 2e-3f;
    const double above = learn(w, 1, 0.2f).loss;
    w.key_rows[at] = kept - 2e-3f;
    const double below = learn(w, 1, 0.2f).loss;
    w.key_rows[at] = kept;
    const double slope = (above - below) / 4e-3;
    CHECK(std::fabs(slope - a.rows[at]) < 2e-3 + 0.03 * std::fabs(slope));
  }
}

void fields_that_share_keys_are_left_out_of_the_index() {
  const World w(200, 4, 1, {8, 1}, 4);
  FieldIndex index;
  const std::vector<size_t> fields{0, 1, 2, 3};
  index.build(*w.lookup, fields, 2);
  CHECK(index.columns == (std::vector<size_t>{0, 1}));  // 2 has lists, 3 has the keys of 0
  for (size_t f = 0; f < index.fields(); ++f)
    for (size_t r = 0; r < w.rows; ++r) {
      const size_t place = static_cast<size_t>(index.place.data()[f * w.rows + r]);
      CHECK(place >= index.begin[f] && place < index.begin[f + 1]);
      CHECK(w.lookup->keys.data()[index.key.data()[place]] == w.values[index.columns[f]][r]);
    }
  for (size_t place = 0; place < index.places(); ++place)
    for (int32_t k = index.from.data()[place]; k < index.from.data()[place + 1]; ++k) {
      const size_t f = place < index.begin[1] ? 0 : 1;
      CHECK(static_cast<size_t>(index.place.data()[f * w.rows + static_cast<size_t>(index.rows.data()[k])]) == place);
    }
}

void a_machine_has_the_instructions_it_chose() {
  CHECK(network_kernels_named(network_instructions()) != nullptr);
  CHECK(network_kernels_named("no such set") == nullptr);
}

}  // namespace

int main() {
  same_bits_for_any_number_of_threads();
  steps_may_run_side_by_side();
  gradients_agree_with_differences_of_the_loss();
  fields_that_share_keys_are_left_out_of_the_index();
  a_machine_has_the_instructions_it_chose();
  return 0;
}
