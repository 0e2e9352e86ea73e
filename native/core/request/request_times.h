// How long the parts of a request took, for traces. Nobody reads a clock for a request without them.
#pragma once
#include <chrono>
#include <cstdint>

namespace cb {

struct RequestTimes {
  using Clock = std::chrono::steady_clock;

  int64_t reading = 0, plan = 0, engine = 0;  // nanoseconds
  bool cached = false;                        // the cache had the context
  Clock::time_point mark = Clock::now();      // end of the part before

  void lap(int64_t RequestTimes::* part) {
    const Clock::time_point now = Clock::now();
    this->*part += std::chrono::duration_cast<std::chrono::nanoseconds>(now - mark).count();
    mark = now;
  }
};

inline void lap(RequestTimes* times, int64_t RequestTimes::* part) {
  if (times) times->lap(part);
}

}  // namespace cb
