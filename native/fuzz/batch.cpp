// Fuzzes batches of a plan: arrays with arbitrary offsets, labels and numbers.
#include "core/ffm/examples_from_batch.h"

#include <stdexcept>

#include "fuzz/fuzz.h"

using namespace cb;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  fuzz::Heap heap;
  BatchColumns b;
  b.rows = in.byte() % 8;
  b.width = in.byte() % 4;
  const uint8_t how = in.byte();
  const size_t sparse = in.byte() % 4;
  for (size_t f = 0; f < sparse; ++f) {
    std::vector<int64_t> values(in.byte() % 16), offsets(b.rows + (how & 1 ? 1 : in.byte() % 4));
    for (int64_t& v : values) v = in.byte();
    for (int64_t& o : offsets) o = how & 2 ? in.take<int64_t>() : in.byte() % 20;
    if (how & 4) std::sort(offsets.begin(), offsets.end());
    b.sparse.push_back({{heap.copy(values.data(), values.size()), values.size()},
                        {heap.copy(offsets.data(), offsets.size()), offsets.size()}});
  }
  auto floats = [&](size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = how & 8 ? in.take<float>() : static_cast<float>(in.byte() & 1);
    return std::span<const float>(heap.copy(out.data(), n), n);
  };
  b.dense = floats(b.rows * b.width).data();
  if (how & 16) b.label = floats(how & 64 ? in.byte() % 9 : b.rows);
  if (how & 32) b.weight = floats(how & 64 ? in.byte() % 9 : b.rows);
  try {
    const Examples found = examples_of(b, std::vector<uint64_t>(how & 128 ? in.byte() % 8 : sparse + b.width, 7));
    EXPECT(found.rows() == b.rows && found.offsets.back() == found.keys.size());
    for (float x : found.values) EXPECT(std::isfinite(x) && x != 0.0f);
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
