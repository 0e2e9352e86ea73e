// Tests the context cache: what it keeps and counts, and that many threads may use it while values are destroyed whose
// destructors wait for another lock.
#include "core/request/context_cache.h"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/check.h"

using namespace cb;

namespace {

constexpr uint64_t kEntry = ContextCache::kEntry;

ContextCache::Value value_of(int number) { return {std::make_shared<const int>(number), true}; }

int number_of(const ContextCache::Value& value) { return value ? *static_cast<const int*>(value.held.get()) : -1; }

void keeps_what_was_used_last() {
  ContextCache cache(4 * 2048);
  for (int k = 0; k < 4; ++k) cache.put(std::to_string(k), value_of(k), 2048 - kEntry);
  CHECK(cache.bytes() == 8192 && cache.size() == 4);
  CHECK(number_of(cache.get("0")) == 0);
  cache.put("4", value_of(4), 1);
  CHECK(number_of(cache.get("1")) == -1 && cache.counts().evictions == 1);
  CHECK(number_of(cache.met("1")) == -1 && cache.counts().misses == 1);  // counted only by `missed`
  cache.put("4", value_of(5), 2049 - kEntry);                            // too large: the old value is removed, too
  CHECK(number_of(cache.get("4")) == -1 && cache.size() == 3);
  cache.put("2", value_of(7), 3);
  CHECK(number_of(cache.get("2")) == 7 && cache.bytes() == 2 * 2048 + 3 + kEntry);
  cache.clear();
  CHECK(cache.bytes() == 0 && cache.size() == 0 && cache.counts().given_back == 1);
  ContextCache none(0);
  none.put("0", value_of(0), 1);
  CHECK(none.size() == 0);
}

// Values like Python objects: destroying one needs a lock that threads hold while they call the cache.
void values_may_wait_for_a_lock_when_they_are_destroyed() {
  std::mutex outside;
  std::atomic<int> made{0}, destroyed{0};
  {
    ContextCache cache(40 * 1024, 20 * 1024);
    const auto work = [&](unsigned seed) {
      std::mt19937 draw(seed);
      for (int n = 0; n < 2000; ++n) {
        const std::string key = std::to_string(draw() % 97);
        const std::lock_guard<std::mutex> hold(outside);
        if (n % 500 == 499) cache.budget(40 * 1024 + draw() % 1024);
        cache.get(key);
      }
    };
    const auto change = [&](unsigned seed) {
      std::mt19937 draw(seed);
      for (int n = 0; n < 2000; ++n) {
        const std::string key = std::to_string(draw() % 97);
        if (const auto met = cache.met(key)) CHECK(std::to_string(number_of(met)) == key);
        ++made;
        cache.put(key,
                  {std::shared_ptr<const int>(new int(std::stoi(key)),
                                              [&](const int* held) {
                                                const std::lock_guard<std::mutex> hold(outside);
                                                ++destroyed;
                                                delete held;
                                              }),
                   true},
                  draw() % 4000);
        if (n % 1000 == 999) cache.clear();
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; ++t) {
      threads.emplace_back(work, t);
      threads.emplace_back(change, t);
    }
    for (std::thread& t : threads) t.join();
    CHECK(cache.bytes() <= cache.budget());
    CHECK(cache.counts().hits + cache.counts().misses >= 4000);
  }
  CHECK(made == destroyed);
}

}  // namespace

int main() {
  keeps_what_was_used_last();
  values_may_wait_for_a_lock_when_they_are_destroyed();
  return 0;
}
