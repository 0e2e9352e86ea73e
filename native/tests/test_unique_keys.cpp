// Lookups and pooling without Python: against plain loops, the same bits from any number of threads and callers.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/embed/pooling.h"
#include "core/embed/shard_of_key.h"
#include "core/embed/unique_keys.h"
#include "tests/check.h"

using namespace cb;

namespace {

// Fields given as lists; field k has one key per row where single[k].
struct Log {
  size_t rows;
  std::vector<std::vector<int64_t>> values, offsets;
  std::vector<FieldKeys> keys;

  Log(uint64_t seed, size_t row_count, size_t fields, uint64_t distinct, size_t longest)
      : rows(row_count), values(fields), offsets(fields) {
    std::mt19937_64 random(seed);
    for (size_t f = 0; f < fields; ++f) {
      const bool single = f % 3 == 1;
      const int64_t lead = f % 2 ? 2 : 0;  // values before the first row
      values[f].assign(single ? 0 : static_cast<size_t>(lead), -1);
      offsets[f].push_back(static_cast<int64_t>(values[f].size()));
      for (size_t r = 0; r < rows; ++r) {
        for (size_t n = single ? 1 : random() % (longest + 1); n > 0; --n) {
          values[f].push_back(static_cast<int64_t>(distinct ? random() % distinct : random()));
        }
        offsets[f].push_back(static_cast<int64_t>(values[f].size()));
      }
      keys.push_back({values[f].data(), values[f].size(), single ? nullptr : offsets[f].data()});
    }
  }
  size_t begin(size_t f, size_t r) const { return static_cast<size_t>(offsets[f][r]); }
};

void agrees(const Log& log, const Lookup& found) {
  std::vector<std::vector<int64_t>> shards(kShards);
  std::unordered_map<int64_t, size_t> seen;
  size_t references = 0;
  for (size_t f = 0; f < log.values.size(); ++f) {
    for (size_t k = log.begin(f, 0); k < log.begin(f, log.rows); ++k, ++references) {
      const int64_t key = log.values[f][k];
      if (seen.emplace(key, 0).second) shards[shard_of(key)].push_back(key);
    }
  }
  size_t at = 0;
  for (const auto& shard : shards) {
    for (int64_t key : shard) {
      CHECK(found.keys.data()[at] == key);
      seen[key] = at++;
    }
  }
  CHECK(at == found.keys.size());
  CHECK(references == found.starts.back());

  std::vector<size_t> counts(kShards);
  size_t reference = 0;
  for (size_t f = 0; f < log.values.size(); ++f) {
    for (size_t k = log.begin(f, 0); k < log.begin(f, log.rows); ++k, ++reference) {
      CHECK(found.inverse.data()[reference] == static_cast<int32_t>(seen[log.values[f][k]]));
      ++counts[shard_of(log.values[f][k])];
    }
  }
  CHECK(found.shard_keys[0] == 0 && found.shard_references[0] == 0);
  for (size_t s = 0; s < kShards; ++s) {
    CHECK(found.shard_keys[s + 1] - found.shard_keys[s] == shards[s].size());
    CHECK(found.shard_references[s + 1] - found.shard_references[s] == counts[s]);
  }
}

std::vector<float> floats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(static_cast<int64_t>(random() % 20001) - 10000) / 777.0f;
  return out;
}

struct Outcome {
  std::vector<float> weights, vectors, gradient, history, back;
  bool operator==(const Outcome&) const = default;
};

// Forward and backward of all fields (their kinds take turns) and of field 0 as a sequence.
Outcome pooled(const Lookup& lookup, size_t dim, bool linear, size_t threads) {
  std::vector<PoolColumn> columns;
  for (size_t f = lookup.fields(); f-- > 0;) columns.push_back({f, static_cast<Pool>(f % 3)});
  PoolShape shape{dim, linear, columns};
  const size_t width = shape.width(), unique = lookup.keys.size(), outputs = lookup.rows * columns.size();
  std::vector<float> rows = floats(unique * width, 3);
  Outcome out{
      std::vector<float>(outputs), std::vector<float>(outputs * dim), std::vector<float>(unique * width), {}, {}};
  std::vector<int32_t> winners(lookup.rows * shape.maxima() * width);
  pool_forward(lookup, shape, rows.data(), out.weights.data(), out.vectors.data(), winners.data(), threads);
  std::vector<float> weights = floats(outputs, 4), vectors = floats(outputs * dim, 5);
  pool_backward(lookup, shape, linear ? weights.data() : nullptr, vectors.data(), winners.data(), out.gradient.data(),
                threads);
  const size_t longest = 3;
  if (lookup.fields()) {
    out.history.resize(lookup.rows * longest * dim);
    out.back.resize(unique * width);
    sequence_forward(lookup, 0, dim, linear, longest, rows.data(), out.history.data(), threads);
    sequence_backward(lookup, 0, dim, linear, longest, out.history.data(), out.back.data(), threads);
  }
  return out;
}

void lookups_equal_the_plain_loop() {
  for (uint64_t distinct : {uint64_t{1}, uint64_t{50}, uint64_t{0}}) {
    for (size_t rows : {size_t{0}, size_t{1}, size_t{7}, size_t{9000}}) {
      Log log(rows + distinct, rows, 5, distinct, 6);
      for (size_t threads : {1, 2, 3}) agrees(log, *Lookup::of(log.keys, rows, threads));
    }
  }
  Log wide(1, 3, 2, 0, 60000);  // rows longer than a chunk
  agrees(wide, *Lookup::of(wide.keys, 3, 2));
  CHECK(Lookup::of({}, 4, 2)->keys.size() == 0);
}

void threads_have_no_say() {
  for (size_t dim : {size_t{0}, size_t{3}, size_t{4}, size_t{8}, size_t{16}, size_t{32}}) {
    Log log(dim, 3000, 7, 500, 6);
    auto lookup = Lookup::of(log.keys, log.rows, 2);
    const Outcome first = pooled(*lookup, dim, true, 1);
    for (size_t threads : {2, 3, 5}) CHECK(pooled(*lookup, dim, true, threads) == first);
  }
  Log none(1, 0, 3, 5, 2);
  auto lookup = Lookup::of(none.keys, 0, 2);
  CHECK(pooled(*lookup, 4, true, 2) == pooled(*lookup, 4, true, 1));
}

// The lookup stage makes the next batch while the learning stage pools this one.
void stages_may_run_at_once() {
  Log log(9, 6000, 6, 2000, 6);
  auto lookup = Lookup::of(log.keys, log.rows, 1);
  const Outcome expected = pooled(*lookup, 8, true, 1);
  std::vector<std::thread> callers;
  for (int k = 0; k < 2; ++k) {
    callers.emplace_back([&] {
      for (int n = 0; n < 3; ++n) {
        auto again = Lookup::of(log.keys, log.rows, 3);
        CHECK(again->keys.size() == lookup->keys.size());
        CHECK(std::equal(again->inverse.data(), again->inverse.data() + again->starts.back(), lookup->inverse.data()));
      }
    });
    callers.emplace_back([&] {
      for (int n = 0; n < 3; ++n) CHECK(pooled(*lookup, 8, true, 3) == expected);
    });
  }
  for (std::thread& t : callers) t.join();
}

void buffers_are_used_again() {
  static BufferPool& pool = *new BufferPool;  // never destroyed, as the shared one
  // Falling sizes: what is idle from the size before is too large to be taken.
  for (size_t bytes : {size_t{100} << 20, size_t{9000001}, size_t{2} << 20, (size_t{2} << 20) - 1, size_t{1} << 20,
                       size_t{5000}, size_t{1}}) {
    size_t capacity = 0, again = 0;
    void* first = pool.take(bytes, &capacity);
    CHECK(capacity >= bytes && reinterpret_cast<uintptr_t>(first) % 64 == 0);
    std::memset(first, 7, bytes);
    static_cast<char*>(first)[capacity - 1] = 7;
    pool.give(first, capacity);
    void* second = pool.take(bytes - bytes / 3, &again);  // a little less: the same buffer
    CHECK(second == first && again == capacity);
    void* other = pool.take(bytes, &again);
    CHECK(other != first);
    pool.give(other, again);
    pool.give(second, capacity);
  }
  size_t capacity = 0;
  void* beyond = pool.take(BufferPool::kMostIdle + 1, &capacity);
  pool.give(beyond, capacity);  // more than the list holds: freed
  size_t little = 0;
  void* small = pool.take(size_t{40} << 20, &little);
  CHECK(little < size_t{80} << 20);  // not the 100 MB that are idle
  pool.give(small, little);
}

void refuses(std::vector<int64_t> offsets, size_t count) {
  std::vector<int64_t> values(count);
  FieldKeys field{values.data(), values.size(), offsets.data()};
  bool refused = false;
  try {
    Lookup::of({&field, 1}, offsets.size() - 1, 1);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  lookups_equal_the_plain_loop();
  threads_have_no_say();
  stages_may_run_at_once();
  buffers_are_used_again();
  constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  refuses({0, 2, 1}, 2);
  refuses({0, 1, 3}, 2);
  refuses({-1, 1, 2}, 2);
  refuses({0, most, least}, 2);
  refuses({most, least, most}, 2);
  refuses({0, least, 2}, 2);
  refuses({0, most - 1, most}, 2);
  return 0;
}
