// Describes what a state of past events keeps of each event, and for how long.
//
// An event has a key, a time (microseconds since 1970 UTC) and one 64-bit value for each word of the shape. A word says
// what the state stores of its value:
//
//   kValue        the value as it came, for histories: a number, or the id of a text in the state's TextPool
//   kTotal        the sum of the values (int64, modulo 2^64) of this event and of all events of the key before it
//   kFloatTotal   the same for whole numbers up to 2^53 as float64, as the unevaluated sum of two float64. That is
//   exact:
//                 totals of 2^31 events have at most 84 bits, and two float64 have 106
//   kWideTotal    the same for any float64; with each total a bound of what the two float64 could not hold of it, and
//   the
//                 value itself. The sum over a window is the difference of two totals, or, where the bound is not
//                 negligible, the exact sum of the values in it
//   kDecayed      the sum of the values of the same events, each multiplied by 2^(-age / half_life) as of this event
//
// So the sum over a window, the count in it and a decayed sum are read from one or two stored events, found by binary
// search: a read costs O(log n) for any length of the window, and it changes nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cb {

enum class PastWordKind : uint32_t { kValue = 1, kText = 2, kTotal = 3, kFloatTotal = 4, kDecayed = 5, kWideTotal = 6 };
inline constexpr uint32_t kMostPastWordKind = 6;
inline constexpr size_t kMostPastWords = 256;
inline constexpr int64_t kMostSpan = int64_t{1} << 60;  // microseconds, 36,000 years: sums of two spans fit 64 bits

struct PastWord {
  PastWordKind kind = PastWordKind::kValue;
  double half_life = 0;  // microseconds; of kDecayed

  size_t stored() const { return kind == PastWordKind::kWideTotal ? 4 : kind == PastWordKind::kFloatTotal ? 2 : 1; }
  bool operator==(const PastWord&) const = default;
};

struct PastShape {
  std::vector<PastWord> words;
  int64_t gap = 0;          // a read at time t sees events with time < t - gap
  int64_t lateness = 0;     // events and reads may come this much after the newest time
  int64_t within = 0;       // longest age that is read; 0: any
  uint64_t last = 0;        // most events of a key that a read looks at; 0: all
  bool keeps_last = false;  // whether the newest visible event of a key is read whatever its age
  int64_t back = 0;         // reads alone may come this much later still, such as the requests to a server

  size_t stored() const {
    size_t n = 0;
    for (const PastWord& word : words) n += word.stored();
    return n;
  }
  bool operator==(const PastShape&) const = default;
};

// a - b for a span b >= 0, not below the smallest time.
inline int64_t time_before(int64_t a, int64_t b) {
  return a < std::numeric_limits<int64_t>::min() + b ? std::numeric_limits<int64_t>::min() : a - b;
}

}  // namespace cb
