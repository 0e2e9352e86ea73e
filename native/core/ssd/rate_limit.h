// A limit in bytes per second that several threads share.
//
// Every thread asks before it writes: pass(bytes) says how long to wait, and moves the time from which on the next
// bytes may pass. A tenth of a second of bytes that nobody used may be caught up at once.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace cb {

class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RateLimit(double bytes_per_second) : rate_(bytes_per_second) {}  // 0: no limit

  // The time from which on these bytes may be written.
  Clock::time_point pass(uint64_t bytes, Clock::time_point now) {
    if (rate_ <= 0) return now;
    std::lock_guard<std::mutex> hold(lock_);
    const auto burst = std::chrono::milliseconds(100);
    const auto begin = std::max(next_, now - burst);
    next_ = begin + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
    return begin;
  }

 private:
  const double rate_;
  std::mutex lock_;
  Clock::time_point next_{};
};

}  // namespace cb
