// Implements decaying counters of shows and clicks, the admission of new keys and the expiry of rows.
//
// A table that counts has three floats more at the end of every row: shows, clicks and the period of the last push. The
// table's clock is a number of periods (days, say), moved by its user alone; what is counted fades by `decay` a period,
// when a row is pushed or looked at, so no period has to visit all rows.
//
// A key is admitted by a push: by count, once a sketch has met it that often; by chance, decided by seed, key and the
// number of the push. Until then it has its initial value and its gradients are dropped. The sketch is count-min, two
// bytes a key out of `sketch_bytes`, so it may admit a key early, never late; it is cut by shard, so that shards need
// no common lock, and threads change nothing.
//
// Everything here is decided by the calls alone: the same calls give the same rows in memory and on an SSD.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/embed/shard_of_key.h"

namespace cb {

class CheckedReader;
class CheckedWriter;

struct Life {
  double decay = 0;           // of shows and clicks, a period; 0: rows have no counters
  uint32_t count = 0;         // times a key is met before it has a row
  double probability = 1;     // that a push gives a key a row
  uint64_t sketch_bytes = 0;  // where a count is asked for

  bool counts() const { return decay > 0; }
  bool by_count() const { return count > 1; }
  bool admits_all() const { return !by_count() && probability >= 1; }
  bool none() const { return !counts() && admits_all(); }
  bool operator==(const Life&) const = default;
};

inline constexpr size_t kCounterFloats = 3;         // shows, clicks, period
inline constexpr uint64_t kMostPeriods = 1u << 24;  // whole numbers that a float tells apart
inline constexpr uint32_t kMostAdmissionCount = 255;
inline constexpr uint64_t kMostSketch = uint64_t{1} << 34;

// decay to the power of n, by squaring: the same bits on every machine.
inline double faded(double decay, uint64_t n) {
  double power = 1;
  for (; n; n >>= 1, decay *= decay)
    if (n & 1) power *= decay;
  return power;
}

// The last floats of a row.
struct RowCounters {
  float shows, clicks, period;

  void fade(double decay, uint64_t now) {
    const double by = faded(decay, now - static_cast<uint64_t>(period));
    shows = static_cast<float>(shows * by);
    clicks = static_cast<float>(clicks * by);
    period = static_cast<float>(now);
  }
};

// Rows that go: not pushed for more than `unseen` periods, or of a score below `least`. A score is
// click · clicks + nonclick · (shows − clicks), faded to now.
struct Expiry {
  int64_t unseen = -1;  // -1: whenever they were pushed
  double least = 0;     // 0: whatever their score
  double click = 1, nonclick = 0.1;

  bool operator()(RowCounters c, double decay, uint64_t now) const {
    if (unseen >= 0 && now - static_cast<uint64_t>(c.period) > static_cast<uint64_t>(unseen)) return true;
    if (least <= 0) return false;
    c.fade(decay, now);
    return click * c.clicks + nonclick * (double{c.shows} - c.clicks) < least;
  }
};

// What a push brings beside gradients, by key; nullptr: one show, no click.
struct Shown {
  const float* shows = nullptr;
  const float* clicks = nullptr;
  float shows_of(size_t k) const { return shows ? shows[k] : 1.0f; }
  float clicks_of(size_t k) const { return clicks ? clicks[k] : 0.0f; }
};

// The clock, the number of pushes, and the sketch of keys without a row.
class LifeState {
 public:
  LifeState(const Life& life, uint64_t seed)
      : pushes(0),
        life_(life),
        seed_(seed),
        each_(life.by_count() ? std::max<uint64_t>(64, life.sketch_bytes / kShards) : 0) {
    sketch_.resize(each_ * kShards);
  }

  LifeState(const LifeState& other)
      : clock(other.clock.load()),
        pushes(other.pushes),
        life_(other.life_),
        seed_(other.seed_),
        each_(other.each_),
        sketch_(other.sketch_) {}
  LifeState& operator=(const LifeState&) = delete;

  std::atomic<uint64_t> clock{0};  // rows may be created while it moves
  uint64_t pushes;

  // Whether a push gives this key a row. Under its shard's lock, or where nobody else asks for the shard.
  bool admit(uint64_t mix, float times) {
    if (life_.probability < 1) {
      const uint64_t chance = finish(mix ^ finish(seed_ + pushes * 0x9E3779B97F4A7C15u));
      if (static_cast<double>(chance >> 11) * 0x1p-53 >= life_.probability) return false;
    }
    if (!life_.by_count()) return true;
    uint8_t* mine = sketch_.data() + each_ * shard_of_mix(mix);
    uint8_t& a = mine[place_of(mix)];
    uint8_t& b = mine[place_of(finish(mix + 1))];
    const float met = std::ceil(std::clamp(times, 0.0f, 255.0f));
    const uint32_t now = std::min<uint32_t>(255, std::min(a, b) + static_cast<uint32_t>(met));
    a = std::max<uint8_t>(a, static_cast<uint8_t>(now));
    b = std::max<uint8_t>(b, static_cast<uint8_t>(now));
    return now >= life_.count;
  }

  // Take the state of a table that was saved in parts, each with other keys, part by part. The clock and the number of
  // pushes must be the same in all parts (DamagedFile); each cell of the sketch becomes the largest of the parts, so
  // that a key is still admitted early, never late. `first`: forget the state from before.
  void join(const LifeState& part, bool first);

  void put(CheckedWriter& file) const;
  void get(CheckedReader& file);
  size_t bytes() const { return sketch_.size(); }

 private:
  // Of the low 58 bits: those above are the shard's.
  uint64_t place_of(uint64_t mix) const { return static_cast<uint64_t>((mix & 0xffffffffu) * each_ >> 32); }

  Life life_;
  uint64_t seed_, each_;
  std::vector<uint8_t> sketch_;
};

}  // namespace cb
