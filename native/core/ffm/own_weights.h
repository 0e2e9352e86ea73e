// What a thread of several keeps for itself for some examples: the dense block, and the weights of hot keys.
//
// Every example moves the dense block, and a frequent key comes every few microseconds in each thread. Threads that
// write such lines in turns spend their time passing them to each other: with Zipf's keys two threads lost a seventh.
// So a thread learns on copies; exchange() adds what it learned to the shared weights and takes what the others did.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ffm/examples.h"
#include "core/ffm/layout.h"

namespace cb {

// The keys of at least one example in kOneIn that nearly have their row for themselves, as the first kSample examples
// have them.
class HotKeys {
 public:
  static constexpr size_t kSample = 2048, kOneIn = 32, kMostFloats = 1 << 16;
  static constexpr uint16_t kNone = 0xffff;

  HotKeys(const Examples& examples, const FfmLayout& layout);

  const std::vector<uint64_t>& keys() const { return keys_; }
  uint16_t find(uint64_t key) const {
    const uint16_t n = slots_[slot_of(key)];
    return n != kNone && keys_[n] == key ? n : kNone;
  }

 private:
  static size_t slot_of(uint64_t key) { return (key * 0x9e3779b97f4a7c15ull) >> 53; }

  std::vector<uint64_t> keys_;  // the most frequent first; of two with one slot the first only
  std::array<uint16_t, 2048> slots_;
};

// Where the weights of hot keys are for one thread.
struct HotWeights {
  const HotKeys* keys;
  float *rows, *lr;
};

class OwnWeights {
 public:
  // Copies of the shared weights; nobody may exchange meanwhile.
  OwnWeights(const HotKeys& hot, const FfmSettings& settings, const FfmLayout& layout, float* lr, float* ffm,
             float* dense);

  float* dense() { return mine_.data() + dense_; }
  const HotWeights& hot() const { return hot_; }
  void exchange(bool hot);  // the dense block, and with `hot` the rest; one thread at a time

 private:
  struct Part {
    float* shared;
    size_t at, floats;
  };
  std::vector<Part> parts_;  // the dense block first
  std::vector<float> memory_, base_;
  std::span<float> mine_;  // of memory_, on a cache line
  size_t dense_ = 0;
  HotWeights hot_{};
};

}  // namespace cb
