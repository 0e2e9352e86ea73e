// The stored events of one key, oldest first, in a ring of a power of two of entries: [time, word, word, …].
//
// Events of equal time stand in the order in which they came. An event that comes late is put in its place, and the
// running totals of the events behind it are corrected.
//
// The events may lie on a disk instead (core/history/spilled_events.h). The ring then knows their place, their number
// and the newest time, and only these may be asked for until take() brings the events back.
//
// The memory comes from the pool of the shard, which every call that may need or free some is given. A ring that is
// destroyed without release() frees memory of malloc alone: what lies in the pool ends with the pool.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "core/history/event_ring_memory.h"
#include "core/history/exact_sums.h"
#include "core/history/spilled_events.h"
#include "core/history/state_shape.h"

namespace cb {

class EventRing {
 public:
  EventRing() = default;
  EventRing(EventRing&& other) noexcept { swap(other); }
  EventRing& operator=(EventRing&& other) noexcept {
    swap(other);
    return *this;
  }
  ~EventRing() {
    if (!on_disk_ && !pooled_) delete[] events_;
  }
  void release(RingPool& pool) {
    if (!on_disk_ && capacity_) pool.give({events_, pooled_}, capacity_);
    events_ = nullptr;
    head_ = count_ = capacity_ = 0;
    on_disk_ = pooled_ = false;
  }

  uint32_t size() const { return count_; }
  bool on_disk() const { return on_disk_; }
  SpillPlace place() const { return {head_, write_}; }  // on the disk
  void written_again(SpillPlace place) { write_ = place.write; }
  int64_t newest(size_t stride) const { return on_disk_ ? newest_ : time(count_ - 1, stride); }

  // Whether the ring was used since it was last asked.
  bool used_lately() { return std::exchange(used_, false); }
  void use() { used_ = true; }

  void copy_to(uint64_t* words, size_t stride) const {
    for (uint32_t k = 0; k < count_; ++k) std::memcpy(words + k * stride, at(k, stride), stride * sizeof(uint64_t));
  }
  void leave_to_disk(SpillPlace place, size_t stride, RingPool& pool) {
    const int64_t last = time(count_ - 1, stride);
    pool.give({events_, pooled_}, capacity_);
    newest_ = last;
    head_ = place.cell;
    write_ = place.write;
    on_disk_ = true;
  }
  // Makes room in memory for the events of a ring on the disk and lets read(words) fill it, oldest event first.
  template <class F>
  void take(RingPool& pool, F&& read) {
    const uint32_t wanted = std::bit_ceil(std::max(count_, 2u));
    const RingPool::Piece piece = pool.take(wanted);
    try {
      read(piece.words);
    } catch (...) {
      pool.give(piece, wanted);
      throw;
    }
    events_ = piece.words;
    pooled_ = piece.pooled;
    head_ = 0;
    capacity_ = wanted;
    on_disk_ = false;
  }
  size_t bytes(size_t stride) const { return on_disk_ ? 0 : size_t{capacity_} * stride * sizeof(uint64_t); }

  const uint64_t* at(uint32_t k, size_t stride) const {
    return events_ + size_t{(head_ + k) & (capacity_ - 1)} * stride;
  }
  int64_t time(uint32_t k, size_t stride) const { return static_cast<int64_t>(*at(k, stride)); }

  // The number of events with an earlier time.
  uint32_t before(int64_t time_limit, size_t stride) const {
    if (!count_ || time(count_ - 1, stride) < time_limit) return count_;  // most reads come after all events
    return before(time_limit, stride, 0, count_ - 1);
  }

  // The same where it is known to be from `low` to `high` and is probably close to `near`.
  uint32_t before(int64_t time_limit, size_t stride, uint32_t low, uint32_t high, uint32_t near) const {
    near = std::clamp(near, low, high);
    if (near < high && time(near, stride) < time_limit) {
      low = near + 1;
      for (uint32_t step = 0; step < high - low; step = step ? 2 * step : 1) {
        if (time(low + step, stride) >= time_limit) {
          high = low + step;
          break;
        }
        low += step + 1;
      }
    } else {
      high = near;
      for (uint32_t step = 1; step <= high - low; step *= 2) {
        if (time(high - step, stride) < time_limit) {
          low = high - step + 1;
          break;
        }
        high -= step;
      }
    }
    return before(time_limit, stride, low, high);
  }

  // The same where it is known to be from `low` to `high`.
  uint32_t before(int64_t time_limit, size_t stride, uint32_t low, uint32_t high) const {
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (time(middle, stride) < time_limit)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  // Brings the newest events and the room behind them into the cache.
  void fetch(size_t stride) const {
    if (!count_) return;
    __builtin_prefetch(at(count_ - 1, stride));
    __builtin_prefetch(at(count_, stride));
    __builtin_prefetch(at(0, stride));
  }
  void fetch(size_t stride, uint32_t k) const { __builtin_prefetch(at(k, stride)); }

  void drop_oldest() {
    head_ = (head_ + 1) & (capacity_ - 1);
    --count_;
  }

  // Adds an event behind all events of the same or an earlier time. `values`: one for each word of the shape.
  void insert(const PastShape& shape, size_t stride, int64_t event_time, const uint64_t* values, RingPool& pool) {
    if (count_ == capacity_) grow(stride, pool);
    uint32_t place = count_++;
    while (place > 0 && time(place - 1, stride) > event_time) {
      std::memcpy(entry(place, stride), at(place - 1, stride), stride * sizeof(uint64_t));
      --place;
    }
    uint64_t* mine = entry(place, stride);
    *mine++ = static_cast<uint64_t>(event_time);
    const uint64_t* previous = place > 0 ? at(place - 1, stride) + 1 : nullptr;
    const double passed = place > 0 ? elapsed(time(place - 1, stride), event_time) : 0;
    size_t word = 0;
    for (size_t w = 0; w < shape.words.size(); ++w) {
      const PastWord& spec = shape.words[w];
      const uint64_t value = values[w];
      switch (spec.kind) {
        case PastWordKind::kValue:
        case PastWordKind::kText:
          mine[word] = value;
          break;
        case PastWordKind::kTotal:
          mine[word] = (previous ? previous[word] : 0) + value;
          break;
        case PastWordKind::kFloatTotal:
          put(mine + word, (previous ? two_floats(previous + word) : TwoFloats{}).plus(std::bit_cast<double>(value)));
          break;
        case PastWordKind::kWideTotal: {
          double lost = previous ? std::bit_cast<double>(previous[word + 2]) : 0;
          put(mine + word,
              (previous ? two_floats(previous + word) : TwoFloats{}).plus(std::bit_cast<double>(value), &lost));
          mine[word + 2] = std::bit_cast<uint64_t>(lost);
          mine[word + 3] = value;
          break;
        }
        case PastWordKind::kDecayed: {
          const double held = previous ? std::bit_cast<double>(previous[word]) * decay(passed, spec) : 0;
          mine[word] = std::bit_cast<uint64_t>(held + std::bit_cast<double>(value));
          break;
        }
      }
      word += spec.stored();
    }
    for (uint32_t k = place + 1; k < count_; ++k) correct(shape, stride, k, event_time, values);
  }

  // Adds an entry as it was stored, behind all others; for files.
  void append_stored(size_t stride, const uint64_t* stored, RingPool& pool) {
    if (count_ == capacity_) grow(stride, pool);
    std::memcpy(entry(count_++, stride), stored, stride * sizeof(uint64_t));
  }

  // Changes word `word` of every event by `change`; for ids of texts.
  template <class F>
  void each_word(size_t stride, size_t word, F&& change) {
    for (uint32_t k = 0; k < count_; ++k) change(entry(k, stride)[1 + word]);
  }

  static TwoFloats two_floats(const uint64_t* words) {
    return {std::bit_cast<double>(words[0]), std::bit_cast<double>(words[1])};
  }
  static double elapsed(int64_t from, int64_t to) {
    return static_cast<double>(static_cast<uint64_t>(to) - static_cast<uint64_t>(from));  // to >= from
  }
  static double decay(double passed, const PastWord& spec) { return std::exp2(-passed / spec.half_life); }

 private:
  uint64_t* entry(uint32_t k, size_t stride) { return events_ + size_t{(head_ + k) & (capacity_ - 1)} * stride; }
  static void put(uint64_t* words, const TwoFloats& value) {
    words[0] = std::bit_cast<uint64_t>(value.high);
    words[1] = std::bit_cast<uint64_t>(value.low);
  }

  // Adds a late event's values to the running words of event k, which is later.
  void correct(const PastShape& shape, size_t stride, uint32_t k, int64_t event_time, const uint64_t* values) {
    uint64_t* later = entry(k, stride) + 1;
    const double passed = elapsed(event_time, time(k, stride));
    for (size_t w = 0; w < shape.words.size(); ++w) {
      const PastWord& spec = shape.words[w];
      if (spec.kind == PastWordKind::kTotal) *later += values[w];
      if (spec.kind == PastWordKind::kFloatTotal) put(later, two_floats(later).plus(std::bit_cast<double>(values[w])));
      if (spec.kind == PastWordKind::kWideTotal) {
        double lost = std::bit_cast<double>(later[2]);
        put(later, two_floats(later).plus(std::bit_cast<double>(values[w]), &lost));
        later[2] = std::bit_cast<uint64_t>(lost);
      }
      if (spec.kind == PastWordKind::kDecayed)
        *later = std::bit_cast<uint64_t>(std::bit_cast<double>(*later) +
                                         std::bit_cast<double>(values[w]) * decay(passed, spec));
      later += spec.stored();
    }
  }

  void grow(size_t stride, RingPool& pool) {
    const uint32_t wanted = capacity_ ? capacity_ * 2 : 2;
    const RingPool::Piece larger = pool.take(wanted);
    copy_to(larger.words, stride);
    if (capacity_) pool.give({events_, pooled_}, capacity_);
    events_ = larger.words;
    pooled_ = larger.pooled;
    capacity_ = wanted;
    head_ = 0;
  }

  void swap(EventRing& other) {
    char mine[sizeof events_];  // the pointer or the time
    std::memcpy(mine, &events_, sizeof mine);
    std::memcpy(&events_, &other.events_, sizeof mine);
    std::memcpy(&other.events_, mine, sizeof mine);
    std::swap(head_, other.head_);
    std::swap(count_, other.count_);
    std::swap(capacity_, other.capacity_);
    std::swap(on_disk_, other.on_disk_);
    std::swap(used_, other.used_);
    std::swap(pooled_, other.pooled_);
  }

  // 24 bytes, so that a key and its ring lie in half a cache line.
  union {
    uint64_t* events_ = nullptr;
    int64_t newest_;  // on the disk
  };
  uint32_t head_ = 0;  // the place of the oldest event; on the disk, that of the block
  uint32_t count_ = 0;
  union {
    uint32_t capacity_ = 0;
    uint32_t write_;  // on the disk
  };
  bool on_disk_ = false, used_ = false, pooled_ = false;
};

}  // namespace cb
