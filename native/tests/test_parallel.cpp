// Many callers of parallel_for at once, from within tasks too, with tasks that throw and pauses in which workers fall
// asleep.
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/system/parallel.h"
#include "tests/check.h"

using namespace cb;

namespace {

void call_often(size_t caller) {
  for (size_t round = 0; round < 200; ++round) {
    std::vector<size_t> out(40 + caller), inner(out.size() * 5);
    parallel_for(1 + (round + caller) % 6, out.size(), [&](size_t k) {
      if (k % 7 == 0) parallel_for(3, 5, [&](size_t j) { inner[k * 5 + j] = j + 1; });
      out[k] = k + 1;
    });
    for (size_t k = 0; k < out.size(); ++k) {
      CHECK(out[k] == k + 1);
      if (k % 7 == 0)
        for (size_t j = 0; j < 5; ++j) CHECK(inner[k * 5 + j] == j + 1);
    }
    std::string met;
    try {
      parallel_for(4, 10, [](size_t k) {
        if (k >= 3) throw std::runtime_error(std::to_string(k));
      });
    } catch (const std::runtime_error& error) {
      met = error.what();
    }
    CHECK(met == "3");  // of the tasks that throw, the first one decides
    if (round % 40 == 0) std::this_thread::sleep_for(4 * WorkerPool::kLookOut);
  }
}

// Threads that compute outside the pool keep their cores: where they have all of them, the caller works alone.
void leave_cores_to_others() {
  std::vector<std::unique_ptr<WorkerPool::Elsewhere>> others;
  for (size_t k = 0; k < usable_cores(); ++k) others.push_back(std::make_unique<WorkerPool::Elsewhere>());
  std::vector<std::thread::id> by(64);
  parallel_for(8, by.size(), [&](size_t k) { by[k] = std::this_thread::get_id(); });
  for (const std::thread::id& one : by) CHECK(one == std::this_thread::get_id());
  others.clear();
  // Two tasks that wait for each other end only where a helper comes, with one core too.
  std::atomic<int> there = 0;
  parallel_for(2, 2, [&](size_t) {
    ++there;
    while (there < 2) std::this_thread::yield();
  });
  CHECK(there == 2);
}

// With one thread a task that throws ends the call, and later tasks do not run.
void one_thread_stops_at_an_error() {
  size_t ran = 0;
  bool thrown = false;
  try {
    parallel_for(1, 10, [&](size_t k) {
      ++ran;
      if (k == 3) throw std::runtime_error("three");
    });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown && ran == 4);
}

}  // namespace

int main() {
  leave_cores_to_others();
  one_thread_stops_at_an_error();
  std::vector<std::thread> callers;
  for (size_t k = 0; k < 4; ++k) callers.emplace_back(call_often, k);
  for (std::thread& one : callers) one.join();
  parallel_for(8, 0, [](size_t) { CHECK(false); });
}
