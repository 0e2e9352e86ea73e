#include "core/ssd/keys_by_shard.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/ssd/rows_in_memory.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kPart = 8192;  // keys that are worth a task
constexpr size_t kMostParts = 256;

struct Part {
  std::array<uint32_t, kShards> count{};  // keys of each shard; then where the first of them goes
  unsigned first = 0, last = 0;           // shards of its first and last key
  bool grouped = true;
};

}  // namespace

BatchKeys::BatchKeys(std::span<const int64_t> given, size_t threads) {
  const size_t n = given.size();
  if (n >= UINT32_MAX) throw std::length_error("the call has more than 4,294,967,294 keys; split it");
  keys.resize(n);
  places.resize(n);
  if (n == 0) return;
  const size_t tasks = std::clamp<size_t>(n / kPart, 1, std::min(kMostParts, 4 * threads));
  const auto begin_of = [&](size_t t) { return n * t / tasks; };
  std::vector<Part> parts(tasks);
  parallel_for(threads, tasks, [&](size_t t) {
    const size_t begin = begin_of(t), end = begin_of(t + 1);
    Part& part = parts[t];
    std::array<uint32_t, kShards> count{};
    unsigned before = shard_of(given[begin]);
    part.first = before;
    bool grouped = true;
    for (size_t k = begin; k < end; ++k) {
      const unsigned shard = shard_of(given[k]);
      grouped = grouped && shard >= before;
      before = shard;
      ++count[shard];
    }
    part.last = before;
    part.grouped = grouped;
    part.count = count;
    std::memcpy(keys.data() + begin, given.data() + begin, (end - begin) * sizeof(int64_t));
    std::memset(places.data() + begin, 0xff, (end - begin) * sizeof(uint32_t));
  });
  bool grouped = true;
  for (size_t t = 0; t < tasks; ++t)
    grouped = grouped && parts[t].grouped && (t == 0 || parts[t - 1].last <= parts[t].first);
  size_t sum = 0;
  for (unsigned s = 0; s < kShards; ++s) {
    bounds[s] = sum;
    for (Part& part : parts) {
      const uint32_t here = part.count[s];
      part.count[s] = static_cast<uint32_t>(sum);
      sum += here;
    }
  }
  bounds[kShards] = sum;
  if (grouped) return;
  order.resize(n);
  moved.resize(n);
  parallel_for(threads, tasks, [&](size_t t) {
    std::array<uint32_t, kShards> next = parts[t].count;
    for (size_t k = begin_of(t), end = begin_of(t + 1); k < end; ++k) {
      const uint32_t to = next[shard_of(given[k])]++;
      order.data()[to] = static_cast<uint32_t>(k);
      moved.data()[to] = given[k];
    }
  });
}

bool BatchKeys::same(std::span<const int64_t> others, size_t threads) const {
  const size_t n = keys.size();
  if (others.size() != n) return false;
  if (n == 0) return true;
  // Batches that differ do so in one of the first keys, nearly always.
  const size_t few = std::min<size_t>(n, 64);
  if (std::memcmp(others.data(), keys.data(), few * sizeof(int64_t)) != 0) return false;
  const size_t tasks = std::clamp<size_t>(n / (4 * kPart), 1, 4 * threads);
  std::atomic<bool> same{true};
  parallel_for(threads, tasks, [&](size_t t) {
    const size_t begin = n * t / tasks, end = n * (t + 1) / tasks;
    if (std::memcmp(others.data() + begin, keys.data() + begin, (end - begin) * sizeof(int64_t)) != 0)
      same.store(false, std::memory_order_relaxed);
  });
  return same;
}

}  // namespace cb
