// Deep FFM's text, cache and model files: anything is read or refused; nothing is read beyond its end.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/ffm/example_cache.h"
#include "core/ffm/model_file.h"
#include "core/ffm/vw_libffm_lines.h"
#include "tests/check.h"

using namespace cb;

namespace {

const std::string kPath = "test_ffm_files." + std::to_string(getpid()) + ".tmp";

std::string random_text(std::mt19937_64& random, size_t n) {
  static const char alphabet[] = "01-. \t\n\n|||abc:::'e+\r\0\xff";
  std::string out;
  for (size_t i = 0; i < n; ++i) out += alphabet[random() % (sizeof alphabet - 1)];
  return out;
}

void any_text_is_read_or_counted() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 8000; ++round) {
    ExampleParser parser(round % 2 == 0, {}, {"c"});
    // A copy of just its size: a read behind it is seen.
    const std::string text = random_text(random, random() % 80);
    const std::vector<char> bytes(text.begin(), text.end());
    parser.feed({bytes.data(), bytes.size()});
    const Examples found = parser.take();
    CHECK(found.rows() + parser.bad() <= parser.lines());
    CHECK(found.keys.size() == found.fields.size() && found.offsets.back() == found.keys.size());
    CHECK(found.values.empty() || found.values.size() == found.keys.size());
  }
}

std::string contents() {
  std::ifstream file(kPath, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Read>
void damage_is_refused(const std::string& whole, int rounds, Read read) {
  std::mt19937_64 random(2);
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = whole;
    if (round % 3 == 0) {
      bytes.resize(random() % bytes.size());
    } else if (round % 3 == 1) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    } else {
      for (int k = 0; k < 8; ++k) bytes[random() % std::min<size_t>(bytes.size(), 200)] = static_cast<char>(random());
    }
    if (bytes == whole) continue;
    std::ofstream(kPath, std::ios::binary) << bytes;
    bool refused = false;
    try {
      read();
    } catch (const DamagedFile&) {
      refused = true;
    }
    CHECK(refused);
  }
}

void caches() {
  std::mt19937_64 random(3);
  ExampleParser parser(false, {}, {});
  while (parser.rows() < 200) parser.feed("1 2 |a x y:3 |b z\n-1 |b q |a x\n" + random_text(random, 60) + "\n");
  ExampleWriter writer(kPath);
  writer.put(parser.take(), parser.fields());
  parser.feed("0 |new one\n");
  writer.put(parser.take(), parser.fields());
  writer.close(parser.lines(), parser.bad());
  auto read = [] {
    ExampleReader reader(kPath);
    while (reader.next()) {
    }
    return reader.totals().rows;
  };
  CHECK(read() >= 201);
  damage_is_refused(contents(), 800, read);
}

void models() {
  FfmSettings s;
  s.fields = 3;
  s.bits = 8;
  s.hidden = {4, 3};  // GCC 13 warns, wrongly, of a copy of just one
  FfmHead head{s, {"a", "b", "c"}, 7};
  save_ffm(kPath, DeepFfm(s), head);
  auto read = [] {
    FfmHead found;
    return load_ffm(kPath, found)->settings().hidden.size();
  };
  CHECK(read() == 2);
  damage_is_refused(contents(), 500, read);
}

void weights_that_are_not_finite_are_refused() {
  FfmSettings s;
  s.fields = 3;
  s.bits = 8;
  s.hidden = {4, 3};
  const FfmHead head{s, {"a", "b", "c"}, 7};
  DeepFfm model(s), other(s);
  std::vector<float> weights(weights_of(model.layout()));
  for (const auto& layer : model.layout().layers)
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      float& weight = model.dense()[layer.place(layer.neurons - 1, layer.inputs)];
      const float before = std::exchange(weight, bad);
      save_ffm(kPath, model, head);
      take_weights(model, weights.data());
      weight = before;
      FfmHead found;
      for (int way : {0, 1}) {
        bool refused = false;
        try {
          if (way == 0)
            load_ffm(kPath, found);
          else
            give_weights(other, weights.data());
        } catch (const DamagedFile& e) {
          refused = std::string(e.what()) == "a weight is not finite";
        }
        CHECK(refused);
      }
    }
  take_weights(model, weights.data());
  for (float& w : weights)
    if (w == 0.0f) w = -0.0f;
  give_weights(other, weights.data());
  for (size_t i = 0; i < other.layout().dense; ++i)
    CHECK(!(other.dense()[i] == 0.0f && std::signbit(other.dense()[i])));
}

// Weights of just the size that is promised, so that a read behind them is seen by the address sanitizer.
void a_model_over_weights_of_another_predicts_the_same() {
  std::mt19937_64 random(6);
  for (uint32_t k : {1u, 4u, 7u, 16u}) {
    FfmSettings settings;
    settings.fields = 5;
    settings.k = k;
    settings.bits = 10;
    settings.hidden = {8, 4};
    settings.seed = k;
    DeepFfm own(settings, true, false);
    const FfmLayout& l = own.layout();
    std::vector<float> flat(weights_of(l));
    for (float& w : flat) w = static_cast<float>(random() % 1000) * 1e-3f - 0.5f;
    give_weights(own, flat.data());
    take_weights(own, flat.data());  // what pads a layer is 0 from now on
    const size_t ffm_floats = l.rows * l.stride + kBehind * l.latent;
    auto* lr = new (std::align_val_t(64)) float[l.lr_size];
    auto* ffm = new (std::align_val_t(64)) float[ffm_floats]();
    std::copy_n(flat.data(), l.lr_size, lr);
    std::copy_n(flat.data() + l.lr_size, l.rows * l.stride, ffm);
    {
      DeepFfm over(settings, lr, ffm);
      CHECK(!over.owns() && own.owns() && over.bytes() < own.bytes());
      give_dense(over, flat.data() + l.lr_size + l.rows * l.stride);
      std::vector<float> again(flat.size());
      take_weights(over, again.data());
      CHECK(again == flat);
      Examples examples;
      for (int row = 0; row < 300; ++row) {
        for (uint16_t field = 0; field < settings.fields; ++field) {
          examples.keys.push_back(row % 7 ? random() : ~uint64_t{0});  // the largest key has the last row
          examples.fields.push_back(field);
        }
        examples.offsets.push_back(static_cast<uint32_t>(examples.keys.size()));
      }
      std::vector<float> expected(300), found(300);
      own.predict(examples, expected.data(), 1);
      over.predict(examples, found.data(), 1);
      CHECK(std::memcmp(expected.data(), found.data(), 300 * sizeof(float)) == 0);
    }
    ::operator delete[](lr, std::align_val_t(64));
    ::operator delete[](ffm, std::align_val_t(64));
  }
}

}  // namespace

int main() {
  any_text_is_read_or_counted();
  caches();
  models();
  weights_that_are_not_finite_are_refused();
  a_model_over_weights_of_another_predicts_the_same();
  std::remove(kPath.c_str());
  return 0;
}
