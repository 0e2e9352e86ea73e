#include "core/past/shard.h"

#include <algorithm>
#include <stdexcept>

namespace cb {

namespace {

constexpr size_t kFirstSlots = 16;
constexpr size_t kFewKeys = 1024;  // below this a sweep frees too little to be worth its time

}  // namespace

PastShard::PastShard(const PastShape& shape)
    : shape_(shape), stride_(1 + shape.stored()), slots_(kFirstSlots), swept_keys_(kFewKeys) {}

const EventRing* PastShard::find(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = finish(key) & mask;; slot = (slot + 1) & mask) {
    if (!slots_[slot]) return nullptr;
    const Held& held = keys_[slots_[slot] - 1];
    if (held.key == key) return &held.ring;
  }
}

EventRing& PastShard::made(uint64_t key) {
  if (const EventRing* known = find(key)) return *const_cast<EventRing*>(known);
  if (keys_.size() >= 2 * swept_keys_) sweep();
  if ((keys_.size() + 1) * 2 > slots_.size()) rebuild(slots_.size() * 2);
  if (keys_.size() >= UINT32_MAX - 1) throw std::length_error("more than 4,294,967,294 keys in one shard");
  keys_.push_back({key, {}});
  const size_t mask = slots_.size() - 1;
  size_t slot = finish(key) & mask;
  while (slots_[slot]) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<uint32_t>(keys_.size());
  return keys_.back().ring;
}

bool PastShard::add(uint64_t key) {
  if (find(key)) return false;
  made(key);
  return true;
}

void PastShard::append_stored(const uint64_t* stored) {
  EventRing& ring = keys_.back().ring;
  ring_bytes_ -= ring.bytes(stride_);
  ring.append_stored(stride_, stored);
  ring_bytes_ += ring.bytes(stride_);
  ++events_;
}

void PastShard::feed(uint64_t key, int64_t time, const uint64_t* values) {
  reach(time);
  EventRing& ring = made(key);
  trim(ring);
  if (ring.size() == UINT32_MAX / 2) throw std::length_error("more than 2,147,483,647 events of one key");
  ring_bytes_ -= ring.bytes(stride_);
  ring.insert(shape_, stride_, time, values);
  ring_bytes_ += ring.bytes(stride_);
  ++events_;
}

// Drops events that no read from now on can need. The event before the first one of a window stays: the running totals
// of the window begin with its own.
void PastShard::trim(EventRing& ring) {
  const int64_t earliest = time_before(newest_, shape_.lateness + shape_.back);  // of any later read
  const int64_t visible = time_before(earliest, shape_.gap), old = time_before(earliest, shape_.within);
  while (ring.size() > 1) {
    const bool enough =
        shape_.last && ring.size() > shape_.last && ring.time(static_cast<uint32_t>(shape_.last), stride_) < visible;
    const bool aged = shape_.within && ring.time(1, stride_) < old;
    if (!enough && !aged) return;
    ring.drop_oldest();
    --events_;
  }
}

// Forgets keys whose events are all too old for any later read. Run when the number of keys has doubled, so that it
// costs O(1) for each key.
void PastShard::sweep() {
  if (shape_.within && !shape_.keeps_last) {
    const int64_t old = time_before(time_before(newest_, shape_.lateness + shape_.back), shape_.within);
    auto forgotten = [&](const Held& held) {
      const uint32_t n = held.ring.size();
      if (n && held.ring.time(n - 1, stride_) >= old) return false;
      ring_bytes_ -= held.ring.bytes(stride_);
      events_ -= n;
      return true;
    };
    std::erase_if(keys_, forgotten);
    rebuild(slots_.size());
  }
  swept_keys_ = std::max(kFewKeys, keys_.size());
}

void PastShard::rebuild(size_t slots) {
  slots_.assign(slots, 0);
  const size_t mask = slots - 1;
  for (size_t k = 0; k < keys_.size(); ++k) {
    size_t slot = finish(keys_[k].key) & mask;
    while (slots_[slot]) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<uint32_t>(k + 1);
  }
}

}  // namespace cb
