// Deep FFM: every instruction set has the bits of the scalar twin; skipped branches change nothing; threads share.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/ffm/adagrad.h"
#include "core/ffm/engine.h"
#include "core/request/history_attention.h"
#include "operators/hash.h"
#include "tests/check.h"

using namespace cb;

namespace {

Examples made(std::mt19937_64& random, uint32_t fields, size_t rows, bool plain) {
  Examples out;
  auto below = [&](uint64_t n) { return random() % n; };
  for (size_t e = 0; e < rows; ++e) {
    for (uint32_t f = 0; f < fields; ++f) {
      const uint64_t count = plain ? 1 : std::min<uint64_t>(below(4), 2 + below(3));
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t word = below(1 + below(30));
        out.keys.push_back(finish(word * 1000 + f + 1));
        out.fields.push_back(static_cast<uint16_t>(f));
        if (!plain) out.values.push_back(below(3) ? 1.0f : static_cast<float>(below(2000)) / 500.0f - 2.0f);
      }
    }
    out.offsets.push_back(static_cast<uint32_t>(out.keys.size()));
    out.labels.push_back(static_cast<float>(below(4) == 0));
    if (!plain) out.weights.push_back(static_cast<float>(below(4)) / 2.0f);
  }
  return out;
}

FfmSettings some_settings(std::mt19937_64& random) {
  auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  FfmSettings s;
  s.fields = 1 + below(9);
  s.k = 1 + below(10);
  s.bits = 10 + below(4);
  s.lr = below(4) != 0;
  s.ffm = !s.lr || below(4) != 0;
  for (uint32_t n = below(4); n > 0; --n) s.hidden.push_back(1 + below(below(4) ? 20 : 150));
  s.norm = below(2) != 0;
  s.residual = below(3) != 0;
  s.lr_rates = {0.2f, 0.5f, 1.0f};
  s.ffm_rates = {0.1f, below(2) ? 0.5f : 0.4f, 0.5f};
  s.nn_rates = {0.05f, below(2) ? 0.5f : 0.0f, 1.0f};
  s.ffm_init = 1.0f;
  s.seed = random();
  return s;
}

bool same(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

void check_same(const DeepFfm& a, const DeepFfm& b) {
  CHECK(same(a.lr(), b.lr(), 2 * a.layout().lr_size));
  CHECK(same(a.ffm(), b.ffm(), 2 * a.layout().rows * a.layout().stride));
  CHECK(same(a.dense(), b.dense(), a.layout().dense));
}

void instruction_sets_agree() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const FfmSettings s = some_settings(random);
    const Examples examples = made(random, s.fields, 80, round % 4 == 0);
    DeepFfm twin(s);
    twin.use(*ffm_kernels_named("scalar"));
    std::vector<float> expected(examples.rows()), met(examples.rows());
    CHECK(!twin.learn(examples, expected.data(), false));
    for (const char* name : {"scalar", "neon", "avx2", "avx512"}) {
      const FfmKernels* kernels = ffm_kernels_named(name);
      if (!kernels) continue;
      for (bool sparse : {false, true}) {
        DeepFfm fast(s);
        fast.use(*kernels);
        CHECK(!fast.learn(examples, met.data(), sparse));
        CHECK(same(expected.data(), met.data(), met.size()));
        check_same(twin, fast);
        CHECK(!fast.predict(examples, met.data(), 1));
        std::vector<float> again(met.size());
        CHECK(!twin.predict(examples, again.data(), 2));
        CHECK(same(again.data(), met.data(), met.size()));
      }
    }
  }
}

// The features of example e whose field is in [begin, end).
void add_part(Examples& to, const Examples& from, size_t e, uint16_t begin, uint16_t end) {
  for (uint32_t i = from.offsets[e]; i < from.offsets[e + 1]; ++i)
    if (from.fields[i] >= begin && from.fields[i] < end) {
      to.keys.push_back(from.keys[i]);
      to.fields.push_back(from.fields[i]);
      to.values.push_back(from.value(i));
    }
}

void close_row(Examples& to) {
  to.offsets.push_back(static_cast<uint32_t>(to.keys.size()));
  to.labels.push_back(0.0f);
}

void a_shared_context_changes_no_bit() {
  std::mt19937_64 random(2);
  for (int round = 0; round < 60; ++round) {
    FfmSettings s = some_settings(random);
    s.context = static_cast<uint32_t>(random() % (s.fields + 1));
    const Examples examples = made(random, s.fields, 40, round % 4 == 0);
    DeepFfm model(s);
    std::vector<float> expected(40), met(40);
    CHECK(!model.learn(examples, expected.data(), true));
    const uint16_t cut = static_cast<uint16_t>(s.context), all = static_cast<uint16_t>(s.fields);
    Examples shared, candidates, whole;
    add_part(shared, examples, 0, 0, cut);
    close_row(shared);
    for (size_t e = 0; e < examples.rows(); ++e) {
      add_part(candidates, examples, e, cut, all);
      close_row(candidates);
      add_part(whole, examples, 0, 0, cut);
      add_part(whole, examples, e, cut, all);
      close_row(whole);
    }
    model.use(*ffm_kernels_named("scalar"));
    CHECK(!model.predict(whole, expected.data(), 1));
    for (const char* name : {"scalar", "neon", "avx2", "avx512"}) {
      if (!ffm_kernels_named(name)) continue;
      model.use(*ffm_kernels_named(name));
      const FfmContext context = model.context(shared);
      CHECK(context.weights == model.state() && context.bytes() > 0);
      for (int again = 0; again < 2; ++again) {
        CHECK(!model.score(context, candidates, met.data()));
        CHECK(same(expected.data(), met.data(), met.size()));
      }
    }
  }
}

void attention_has_the_bits_of_its_twin() {
  std::mt19937_64 random(8);
  auto some = [&](size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = static_cast<float>(static_cast<int64_t>(random() % 4001) - 2000) / 700.0f;
    return out;
  };
  for (size_t items : {0, 1, 7})
    for (size_t dim : {1, 12, 16, 17})
      for (size_t width : {1, 16, 36})
        for (size_t rows : {0, 1, 4, 11}) {
          const HistoryAttention unit(items, dim, width, some(items * dim * width).data(), some(items * width).data(),
                                      some(width).data(), some(width).data(), some(items * dim).data(), 0.5f);
          const size_t step = dim + random() % 3;
          const auto targets = some(rows * step + 1);
          const size_t far = dim + random() % 5;
          std::vector<float> expected(rows * far + 1, 7.0f), met(rows * far + 1, 7.0f);
          unit.attend(targets.data(), step, rows, expected.data(), far, *ffm_kernels_named("scalar"));
          CHECK(expected.back() == 7.0f);
          for (const char* name : {"neon", "avx2", "avx512"}) {
            if (!ffm_kernels_named(name)) continue;
            unit.attend(targets.data(), step, rows, met.data(), far, *ffm_kernels_named(name));
            CHECK(same(expected.data(), met.data(), met.size()));
          }
        }
}

void inverse_powers_are_near() {
  for (float a = 1e-20f; a < 1e20f; a *= 1.37f)
    for (float p : {0.0f, 0.25f, 0.4f, 0.5f, 0.9f, 1.0f}) {
      const double exact = std::pow(static_cast<double>(a), -static_cast<double>(p));
      const double met = static_cast<double>(inverse_power(a, p) * AdagradRates(1.0f, p).rate);
      CHECK(std::abs(met / exact - 1.0) < (p == 0.5f ? 7e-4 : 2e-5));
    }
  CHECK(inverse_power(7.0f, 0.0f) == 1.0f);
}

void a_gradient_is_the_slope_of_the_loss() {
  // Plain gradient descent (power_t 0) with a tiny rate moves a weight by -rate · dloss/dw.
  std::mt19937_64 random(4);  // no ReLU of this one is within 1e-2 of its corner
  FfmSettings s;
  s.fields = 4;
  s.k = 3;
  s.bits = 9;
  s.hidden = {7, 5};
  s.norm = true;
  s.lr_rates = s.ffm_rates = s.nn_rates = {1e-3f, 0.0f, 1.0f};
  s.ffm_init = 1.5f;
  const Examples warm = made(random, s.fields, 300, false);
  Examples one = made(random, s.fields, 1, false);
  one.weights[0] = 1.5f;
  DeepFfm model(s), moved(s);
  std::vector<float> p(300);
  model.learn(warm, p.data(), true);
  moved.learn(warm, p.data(), true);
  CHECK(moved.layout().dense == model.layout().dense);
  moved.learn(one, p.data(), true);
  auto loss = [&] {
    float q;
    model.changed();  // weights are moved from outside
    model.predict(one, &q, 1);
    const double at = one.labels[0] > 0.5f ? q : 1.0 - static_cast<double>(q);
    return -std::log(at) * static_cast<double>(one.weight(0));
  };
  size_t seen = 0;
  auto check_block = [&](float* w, const float* after, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const float before = w[i];
      w[i] = before + 1e-2f;
      const double up = loss();
      w[i] = before - 1e-2f;
      const double down = loss();
      w[i] = before;
      const double slope = (up - down) / 2e-2, taken = static_cast<double>(before - after[i]) / 1e-3;
      CHECK(std::abs(slope - taken) < 0.02 + 0.05 * std::abs(slope));
      seen += std::abs(slope) > 0.03;
    }
  };
  const FfmLayout& l = model.layout();
  check_block(model.dense(), moved.dense(), 1);
  CHECK(seen == 1);
  for (const auto& layer : l.layers)
    for (size_t j = 0; j < layer.neurons; ++j)
      for (size_t i = 0; i <= layer.inputs; ++i)
        check_block(model.dense() + layer.place(j, i), moved.dense() + layer.place(j, i), 1);
  CHECK(seen > 5);
  seen = 0;
  for (uint64_t r = 0; r < l.rows; ++r) {
    float* row = model.ffm() + 2 * l.stride * r;
    const float* after = moved.ffm() + 2 * l.stride * r;
    if (!same(row, after, l.stride)) check_block(row, after, l.stride);
  }
  CHECK(seen > 5);
}

// Every feature of a block is alone or in one sum of its slice, and the sums of a row are its parts, slice after slice.
void a_plan_finds_what_is_shared() {
  std::mt19937_64 random(7);
  FfmSettings s;
  s.fields = 3;
  for (uint32_t bits : {7u, 14u}) {
    s.bits = bits;
    const FfmLayout l(s);
    BlockPlan plan;
    BlockPlan::Scratch scratch;
    for (size_t rows : {1, 5, 16, 200}) {
      const Examples examples = made(random, s.fields, rows + 7, rows % 2 == 0);
      plan.make(examples, 7, 7 + rows, s, l, scratch);
      CHECK(plan.slice(0) == 7 && plan.slice(BlockPlan::kSlices) == 7 + rows);
      std::map<uint64_t, std::vector<uint32_t>> features;  // by row
      for (uint32_t i = examples.offsets[7]; i < examples.offsets[7 + rows]; ++i)
        features[l.row_of(examples.keys[i])].push_back(i - plan.features);
      std::map<uint64_t, BlockPlan::SharedRow> shared;
      for (size_t k = 0; k < BlockPlan::kShards; ++k)
        for (size_t r = plan.rows_of[k]; r < plan.rows_of[k + 1]; ++r) shared[plan.rows[r].row] = plan.rows[r];
      CHECK(shared.size() == plan.rows.size());
      for (const auto& [row, met] : features) {
        CHECK(met.size() > 1 || plan.sums[met[0]] == BlockPlan::kAlone);
        if (met.size() == 1) continue;
        std::vector<std::pair<uint32_t, uint32_t>> expected;
        for (uint32_t i : met) {
          size_t slice = 0;
          while (examples.offsets[plan.slice(slice + 1)] - plan.features <= i) ++slice;
          const bool first = expected.empty() || expected.back().first != slice;
          const uint32_t sum = plan.sums[i] & ~BlockPlan::kFirst;
          CHECK(((plan.sums[i] & BlockPlan::kFirst) != 0) == first && sum < plan.count[slice]);
          if (first) expected.emplace_back(static_cast<uint32_t>(slice), sum);
          CHECK(expected.back().second == sum);
        }
        const auto& found = shared.at(row);
        CHECK(found.parts == expected.size());
        for (size_t p = 0; p < expected.size(); ++p) {
          const auto& part = plan.parts[found.first_part + p];
          CHECK(part.slice == expected[p].first && part.sum == expected[p].second);
        }
        features[row].clear();
      }
      for (uint32_t i = 0; i < plan.first_order.size(); ++i) {
        const uint32_t at = plan.first_order[i];
        CHECK(plan.records[at] == l.lr_of(examples.keys[plan.features + i], s.bits));
        for (uint32_t j = 0; j < i; ++j)  // features of one record stay in order, in one shard
          CHECK(plan.records[plan.first_order[j]] != plan.records[at] || plan.first_order[j] < at);
        const size_t shard = plan.records[at] / kLanes % BlockPlan::kShards;
        CHECK(plan.records_of[shard] <= at && at < plan.records_of[shard + 1]);
      }
      std::vector<uint32_t> order = plan.first_order;
      std::sort(order.begin(), order.end());
      for (uint32_t i = 0; i < order.size(); ++i) CHECK(order[i] == i);
      CHECK(order.size() == examples.offsets[7 + rows] - plan.features);
    }
  }
}

void threads_and_instruction_sets_change_no_bit_of_blocks() {
  std::mt19937_64 random(5);
  for (int round = 0; round < 30; ++round) {
    const FfmSettings s = some_settings(random);
    const Examples examples = made(random, s.fields, 150 + random() % 100, round % 4 == 0);
    const size_t block = 2 + random() % 100;
    const uint64_t before = random() % 8000;
    DeepFfm twin(s);
    twin.use(*ffm_kernels_named("scalar"));
    std::vector<float> expected(examples.rows()), met(examples.rows());
    CHECK(!twin.learn_blocks(examples, expected.data(), 1, false, block, before));
    for (const char* name : {"scalar", "neon", "avx2", "avx512"}) {
      const FfmKernels* kernels = ffm_kernels_named(name);
      if (!kernels) continue;
      for (size_t threads : {1, 3, 16}) {
        DeepFfm fast(s);
        fast.use(*kernels);
        CHECK(!fast.learn_blocks(examples, met.data(), threads, threads != 3, block, before));
        CHECK(same(expected.data(), met.data(), met.size()));
        check_same(twin, fast);
      }
    }
  }
}

// A block of features that nobody shares, without a network: first-order weights and rows as one after the other.
void a_block_without_shared_rows_is_as_one_by_one() {
  FfmSettings s;
  s.fields = 3;
  s.bits = 20;
  s.ffm_init = 1.0f;
  Examples examples;
  for (uint64_t e = 0; e < 12; ++e) {
    for (uint16_t f = 0; f < 3; ++f) {
      examples.keys.push_back(finish(e * 3 + f + 1));
      examples.fields.push_back(f);
    }
    examples.offsets.push_back(static_cast<uint32_t>(examples.keys.size()));
    examples.labels.push_back(static_cast<float>(e % 2));
  }
  examples.weights.assign(12, 0.0f);
  examples.weights[0] = 1.0f;  // the bias, which all share, moves once
  DeepFfm one(s), together(s);
  std::vector<float> p(12);
  one.learn(examples, p.data(), true);
  together.learn_blocks(examples, p.data(), 2, true, 12, 0);
  check_same(one, together);
  CHECK(one.dense()[0] != 0.0f);
}

void threads_learn_together() {
  std::mt19937_64 random(5);
  FfmSettings s;
  s.fields = 6;
  s.bits = 14;
  s.hidden = {8};
  Examples examples;
  for (size_t e = 0; e < 20000; ++e) {  // a checkerboard: even users click even ads
    const uint64_t user = random() % 20, ad = random() % 20;
    for (uint16_t f = 0; f < 6; ++f) {
      examples.keys.push_back(finish((f == 0 ? user : f == 1 ? ad : random() % 5) * 100 + f));
      examples.fields.push_back(f);
    }
    examples.offsets.push_back(static_cast<uint32_t>(examples.keys.size()));
    examples.labels.push_back(static_cast<float>(user % 2 == ad % 2));
  }
  DeepFfm model(s);
  std::vector<float> p(examples.rows());
  CHECK(!model.learn_blocks(examples, p.data(), 3, true, 512, 0));
  size_t right = 0;
  for (size_t e = 15000; e < p.size(); ++e) right += (p[e] > 0.5f) == (examples.labels[e] > 0.5f);
  CHECK(right > 4500);
}

void what_is_not_finite_is_noticed() {
  FfmSettings s;
  s.fields = 2;
  s.bits = 8;
  Examples e;
  for (int i = 0; i < 3; ++i) {
    e.keys.insert(e.keys.end(), {finish(1), finish(2)});
    e.fields.insert(e.fields.end(), {0, 1});
    e.values.insert(e.values.end(), {i == 1 ? 3e38f : 1.0f, i == 1 ? 3e38f : 1.0f});
    e.offsets.push_back(static_cast<uint32_t>(e.keys.size()));
    e.labels.push_back(0.0f);
  }
  DeepFfm model(s), before(s);
  float p[3];
  const auto met = model.learn(e, p, true);
  CHECK(met && *met == 1);
  before.learn(e, p, true);
  check_same(model, before);
  for (size_t threads : {1, 3}) {
    DeepFfm blocks(s);
    const auto found = blocks.learn_blocks(e, p, threads, true, 512, 0);
    CHECK(found && *found == 1);
  }
}

}  // namespace

int main() {
  instruction_sets_agree();
  a_shared_context_changes_no_bit();
  attention_has_the_bits_of_its_twin();
  inverse_powers_are_near();
  a_gradient_is_the_slope_of_the_loss();
  a_plan_finds_what_is_shared();
  threads_and_instruction_sets_change_no_bit_of_blocks();
  a_block_without_shared_rows_is_as_one_by_one();
  threads_learn_together();
  what_is_not_finite_is_noticed();
  return 0;
}
