// Patches and codes: every change comes back; hostile streams are refused without reading outside.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/publish/patch.h"
#include "core/publish/quantize.h"
#include "tests/check.h"

using namespace cb;

namespace {

using Buffer = std::vector<uint8_t>;

Buffer noise(std::mt19937_64& random, size_t n) {
  Buffer out(n);
  for (auto& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

struct Case {
  Buffer base, result;
  unsigned word;
  std::vector<Region> regions;
};

Case some_case(std::mt19937_64& random) {
  auto below = [&](uint64_t n) { return random() % n; };
  Case c;
  c.word = 1u << below(3);
  c.base = noise(random, below(400));
  const uint64_t count = below(4);
  for (uint64_t n = 0; n < count; ++n) {
    Region r;
    r.base_at = below(c.base.size() + 1);
    r.base_size = below(c.base.size() - r.base_at + 1);
    r.size = below(300);
    if (n + 1 < count) r.size -= r.size % c.word;
    c.regions.push_back(r);
    const size_t at = c.result.size(), copied = std::min(r.size, r.base_size);
    c.result.resize(at + r.size);
    if (copied) std::memcpy(c.result.data() + at, c.base.data() + r.base_at, copied);
  }
  if (!c.result.empty())
    for (uint64_t n = below(2) ? below(5) : below(200); n > 0; --n)
      c.result[below(c.result.size())] = static_cast<uint8_t>(random());
  return c;
}

std::vector<Bytes> spans(const Change& change, unsigned word) {
  std::vector<Bytes> out;
  for (unsigned b = 0; b < word; ++b) out.emplace_back(change.planes[b]);
  return out;
}

void changes_come_back() {
  std::mt19937_64 random(1);
  for (int n = 0; n < 3000; ++n) {
    const Case c = some_case(random);
    const Change change = diff(c.base, c.result, c.word, c.regions);
    Buffer made(c.result.size(), 0xee);
    apply(c.base, c.word, c.regions, change.positions, spans(change, c.word), made);
    CHECK(made == c.result);
  }
}

// What a forger may write: random numbers, damaged changes, regions from anywhere.
void hostile_streams_are_refused() {
  std::mt19937_64 random(2);
  auto below = [&](uint64_t n) { return random() % n; };
  int refused = 0, taken = 0;
  for (int n = 0; n < 20000; ++n) {
    Case c = some_case(random);
    Change change = diff(c.base, c.result, c.word, c.regions);
    size_t size = c.result.size();
    switch (below(5)) {
      case 0:
        change.positions = noise(random, below(20));
        break;
      case 1:
        if (!change.positions.empty()) change.positions[below(change.positions.size())] ^= 1u << below(8);
        break;
      case 2:
        if (!change.positions.empty()) change.positions.resize(below(change.positions.size()));
        break;
      case 3:
        if (!c.regions.empty()) {
          Region& r = c.regions[below(c.regions.size())];
          uint64_t* const of[] = {&r.base_at, &r.base_size, &r.size};
          *of[below(3)] = below(2) ? random() : below(500);
        }
        break;
      default:
        for (auto& plane : change.planes) plane.resize(below(2) ? below(50) : plane.size());
    }
    Buffer made(size);
    try {
      apply(c.base, c.word, c.regions, change.positions, spans(change, c.word), made);
      ++taken;
    } catch (const BadPatch&) {
      ++refused;
    }
  }
  CHECK(refused > 5000);
  CHECK(taken > 0);
}

void a_number_without_an_end_is_refused() {
  const Buffer base(100), positions(40, 0xff), plane(10);
  const Region whole{0, 100, 100};
  Buffer made(100);
  const Bytes planes[] = {plane};
  bool refused = false;
  try {
    apply(base, 1, {&whole, 1}, positions, planes, made);
  } catch (const BadPatch&) {
    refused = true;
  }
  CHECK(refused);
}

void codes_come_back_within_half_a_bucket() {
  std::mt19937_64 random(3);
  std::vector<float> weights(10007), back(weights.size());
  for (auto& w : weights) w = static_cast<float>(static_cast<double>(random() % 60000) - 30000) * 1e-4f;
  weights[5] = 0.0f;
  const Range r = range_of(weights.data(), weights.size());
  CHECK(r.finite && r.low >= -3.0001f && r.high <= 3.0001f);
  const float bucket = 8.0f / 65534;
  std::vector<uint16_t> codes(weights.size());
  quantize(weights.data(), weights.size(), bucket, -32767, codes.data());
  dequantize(codes.data(), codes.size(), bucket, -32767, back.data());
  for (size_t i = 0; i < weights.size(); ++i) CHECK(std::fabs(back[i] - weights[i]) <= 0.51f * bucket);
  CHECK(back[5] == 0.0f);
  weights[77] = std::nanf("");
  CHECK(!range_of(weights.data(), weights.size()).finite);
  quantize(weights.data(), weights.size(), bucket, -32767, codes.data());  // some code, no trap
}

}  // namespace

int main() {
  changes_come_back();
  hostile_streams_are_refused();
  a_number_without_an_end_is_refused();
  codes_come_back_within_half_a_bucket();
}
