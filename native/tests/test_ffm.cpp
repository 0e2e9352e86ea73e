// Deep FFM: every instruction set has the bits of the scalar twin; skipped branches change nothing; threads share.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/attention.h"
#include "core/ffm/adagrad.h"
#include "core/ffm/engine.h"
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
    CHECK(!twin.learn(examples, expected.data(), 1, false));
    for (const char* name : {"scalar", "neon", "avx2", "avx512"}) {
      const FfmKernels* kernels = ffm_kernels_named(name);
      if (!kernels) continue;
      for (bool sparse : {false, true}) {
        DeepFfm fast(s);
        fast.use(*kernels);
        CHECK(!fast.learn(examples, met.data(), 1, sparse));
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
    CHECK(!model.learn(examples, expected.data(), 1, true));
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
  model.learn(warm, p.data(), 1, true);
  moved.learn(warm, p.data(), 1, true);
  CHECK(moved.layout().dense == model.layout().dense);
  moved.learn(one, p.data(), 1, true);
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

void hot_keys_are_the_frequent_ones() {
  std::mt19937_64 random(7);
  FfmSettings s;
  s.fields = 3;
  s.bits = 14;
  const FfmLayout l(s);
  for (size_t rows : {0, 1, 5, 3000}) {
    Examples examples;
    std::map<uint64_t, size_t> count;
    for (size_t e = 0; e < rows; ++e) {
      for (uint16_t f = 0; f < 3; ++f) {
        const uint64_t key = finish(random() % (f == 0 ? 4 : f == 1 ? 64 : 5000) * 10 + f);
        examples.keys.push_back(key);
        examples.fields.push_back(f);
        if (e < HotKeys::kSample) ++count[key];
      }
      examples.offsets.push_back(static_cast<uint32_t>(examples.keys.size()));
      examples.labels.push_back(0.0f);
    }
    const HotKeys hot(examples, l);
    size_t frequent = 0;
    std::map<uint64_t, size_t> of_row;
    for (const auto& [key, n] : count) of_row[l.row_of(key)] += n;
    for (const auto& [key, n] : count) {
      const bool often = n * HotKeys::kOneIn >= std::min(rows, HotKeys::kSample) && n * 8 >= of_row[l.row_of(key)] * 7;
      frequent += often;
      const uint16_t found = hot.find(key);
      CHECK(found == HotKeys::kNone || (often && hot.keys()[found] == key));
    }
    CHECK(hot.keys().size() <= frequent);
    CHECK(hot.keys().size() + 5 >= frequent);  // a slot has one
    CHECK(hot.find(finish(99999999)) == HotKeys::kNone);
    s.bits = 4;  // one row for all keys
    CHECK(HotKeys(examples, FfmLayout(s)).keys().size() <= (rows == 0 ? 0 : 1));
    s.bits = 14;
  }
}

void what_threads_learn_on_copies_adds_up() {
  FfmSettings s;
  s.fields = 2;
  s.bits = 10;
  s.hidden = {3};
  const FfmLayout l(s);
  Examples examples;
  for (uint64_t key : {finish(1), finish(2)}) examples.keys.push_back(key);
  examples.fields = {0, 1};
  examples.offsets.push_back(2);
  examples.labels.push_back(1.0f);
  const HotKeys hot(examples, l);
  CHECK(hot.keys().size() == 2);
  std::vector<float> lr(l.lr_size * 2, 1.0f), ffm(l.rows * l.row_step, 2.0f), dense(l.dense, 3.0f);
  OwnWeights one(hot, s, l, lr.data(), ffm.data(), dense.data()), two(hot, s, l, lr.data(), ffm.data(), dense.data());
  CHECK(reinterpret_cast<uintptr_t>(one.dense()) % 64 == 0 && reinterpret_cast<uintptr_t>(one.hot().rows) % 64 == 0);
  const size_t row = hot.find(finish(2));
  one.hot().rows[row * l.row_step + 3] += 0.5f;
  two.hot().rows[row * l.row_step + 3] += 0.25f;
  two.hot().lr[row * l.lr_step] -= 1.0f;
  one.dense()[l.dense - 1] += 1.0f;
  one.exchange(false);
  CHECK(dense[l.dense - 1] == 4.0f);
  const size_t at = l.row_step * l.row_of(finish(2)) + 3;
  CHECK(ffm[at] == 2.0f);
  one.exchange(true);
  two.exchange(true);
  CHECK(ffm[at] == 2.75f && two.hot().rows[row * l.row_step + 3] == 2.75f);
  CHECK(lr[2 * l.lr_of(finish(2), s.bits)] == 0.0f && two.dense()[l.dense - 1] == 4.0f);
  one.exchange(true);
  CHECK(one.hot().rows[row * l.row_step + 3] == 2.75f);
  CHECK(std::count(ffm.begin(), ffm.end(), 2.0f) == static_cast<ptrdiff_t>(ffm.size()) - 1);
}

void threads_learn_together() {
#if !defined(__SANITIZE_THREAD__)  // hogwild is a race by design
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
  CHECK(!model.learn(examples, p.data(), 3, true));
  size_t right = 0;
  for (size_t e = 15000; e < p.size(); ++e) right += (p[e] > 0.5f) == (examples.labels[e] > 0.5f);
  CHECK(right > 4500);
#endif
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
  const auto met = model.learn(e, p, 1, true);
  CHECK(met && *met == 1);
  before.learn(e, p, 1, true);
  check_same(model, before);
}

}  // namespace

int main() {
  instruction_sets_agree();
  a_shared_context_changes_no_bit();
  attention_has_the_bits_of_its_twin();
  inverse_powers_are_near();
  a_gradient_is_the_slope_of_the_loss();
  hot_keys_are_the_frequent_ones();
  what_threads_learn_on_copies_adds_up();
  threads_learn_together();
  what_is_not_finite_is_noticed();
  return 0;
}
