// Fuzzes the changes and the codes of patches. The first byte chooses: a change made from two pieces, which must come
// back; streams and regions of a forger, which are refused or stay within their memory; codes of any floats.
#include "core/publish/patch.h"

#include <cmath>

#include "core/publish/quantize.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

using Octets = std::vector<uint8_t>;

Octets octets(std::string_view text) { return {text.begin(), text.end()}; }

std::vector<Region> some_regions(fuzz::Input& in, size_t base, size_t result, unsigned word, bool honest) {
  std::vector<Region> out;
  uint64_t covered = 0;
  const size_t count = 1 + in.below(4);
  for (size_t n = 0; n < count; ++n) {
    Region r{in.below(base + 1), in.below(base + 1), in.below(result + 1)};
    if (!honest && in.byte() % 8 == 0) r = {in.take<uint64_t>(), in.take<uint64_t>(), in.take<uint64_t>()};
    if (honest) {
      r.base_size = std::min<uint64_t>(r.base_size, base - r.base_at);
      r.size = n + 1 == count ? result - covered : std::min(r.size, result - covered) / word * word;
      covered += r.size;
    }
    out.push_back(r);
  }
  return out;
}

void comes_back(fuzz::Input& in, unsigned word) {
  const Octets base = octets(in.piece(in.below(512))), result = octets(in.piece(in.below(512)));
  const std::vector<Region> regions = some_regions(in, base.size(), result.size(), word, true);
  const Change change = diff(base, result, word, regions);
  std::vector<Bytes> planes;
  for (unsigned b = 0; b < word; ++b) planes.emplace_back(change.planes[b]);
  Octets made(result.size(), 0xee);
  apply(base, word, regions, change.positions, planes, made);
  EXPECT(made == result);
}

void is_refused_or_stays_inside(fuzz::Input& in, unsigned word) {
  const Octets base = octets(in.piece(in.below(256)));
  Octets result(in.below(512));
  const bool honest = in.byte() & 1;
  const std::vector<Region> regions = some_regions(in, base.size(), result.size(), word, honest);
  std::vector<Octets> held;
  const size_t values = in.below(256);
  for (size_t b = 0; b < (honest ? word : in.below(6)); ++b) held.push_back(octets(in.piece(values)));
  const Octets positions = octets(in.rest());
  const std::vector<Bytes> planes(held.begin(), held.end());
  try {
    apply(base, word, regions, positions, planes, result);
  } catch (const BadPatch&) {
  }
}

void codes(fuzz::Input& in) {
  const float bucket = std::fabs(in.take<float>());
  const int32_t first = in.take<int32_t>() % (kMostFirst + 1);
  std::vector<float> weights(in.left() / 4), back(weights.size());
  std::vector<uint16_t> codes(weights.size()), again(weights.size());
  for (float& w : weights) w = in.take<float>();
  const Range range = range_of(weights.data(), weights.size());
  bool finite = true;
  for (float w : weights) finite = finite && std::isfinite(w);
  EXPECT(range.finite == finite);
  for (float w : weights) EXPECT(!finite || (range.low <= w && w <= range.high));
  if (!(bucket > 0)) return;
  quantize(weights.data(), weights.size(), bucket, first, codes.data());
  dequantize(codes.data(), codes.size(), bucket, first, back.data());
  // Codes of what codes say are the same codes, wherever floats can tell buckets apart.
  if (bucket < 1e-30f || bucket > 1e30f) return;
  quantize(back.data(), back.size(), bucket, first, again.data());
  EXPECT(codes == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  const uint8_t how = in.byte();
  const unsigned word = 1u << in.byte() % 3;
  if (how % 4 == 0)
    codes(in);
  else if (how % 4 == 1)
    comes_back(in, word);
  else
    is_refused_or_stays_inside(in, word);
  return 0;
}
