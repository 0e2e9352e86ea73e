#include "core/history/state_shard.h"

#include <algorithm>
#include <stdexcept>

namespace cb {

namespace {

constexpr size_t kFirstSlots = 16;
constexpr size_t kFewKeys = 1024;  // below this a sweep frees too little to be worth its time

}  // namespace

PastShard::PastShard(const PastShape& shape)
    : shape_(shape), stride_(1 + shape.stored()), pool_(stride_), slots_(kFirstSlots), swept_keys_(kFewKeys) {}

EventRing& PastShard::made(uint64_t key, size_t place) {
  if (EventRing* known = find(key, place)) return *known;
  if (keys_.size() >= 2 * swept_keys_) sweep();
  if ((keys_.size() + 1) * 2 > slots_.size()) rebuild(slots_.size() * 2);
  if (keys_.size() >= UINT32_MAX - 1) throw std::length_error("a shard has more than 4,294,967,294 keys");
  keys_.push_back({key, {}});
  put_into_slot(keys_.size());
  return keys_.back().ring;
}

void PastShard::put_into_slot(size_t place) {
  const uint64_t hash = finish(keys_[place - 1].key);
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot]) slot = (slot + 1) & mask;
  slots_[slot] = slot_of(hash, place);
}

bool PastShard::add(uint64_t key) {
  keep_room();
  if (place_of(key)) return false;
  made(key, 0);
  return true;
}

void PastShard::append_stored(const uint64_t* stored) {
  EventRing& ring = keys_.back().ring;
  ring_bytes_ -= ring.bytes(stride_);
  ring.append_stored(stride_, stored, pool_);
  ring_bytes_ += ring.bytes(stride_);
  ++events_;
}

void PastShard::feed(uint64_t key, int64_t time, const uint64_t* values, size_t place) {
  reach(time);
  keep_room();
  EventRing& ring = made(key, place);
  if (spill_) bring(ring);
  trim(ring);
  if (ring.size() == UINT32_MAX / 2) throw std::length_error("a key has more than 2,147,483,647 events");
  ring_bytes_ -= ring.bytes(stride_);
  ring.insert(shape_, stride_, time, values, pool_);
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

// Brings the events of a ring into memory, if they lie on the disk.
void PastShard::bring(EventRing& ring) {
  ring.use();
  if (!ring.on_disk()) return;
  const SpillPlace place = ring.place();
  const size_t words = ring.size() * stride_;
  ring.take(pool_, [&](uint64_t* events) { spill_->get(place, events, words); });
  spill_->free(place, words);
  ring_bytes_ += ring.bytes(stride_);
}

// Moves rings to the disk until the shard fits its room with a quarter to spare for rings, so that it goes through the
// keys only now and then. Rings that were used since the last time around stay (the clock algorithm). Rings get an
// eighth of the room even if keys and slots take more, so that a room that is too small is not searched at every event.
void PastShard::make_room() {
  const size_t index = bytes() - ring_bytes_, allowed = std::max(room_ > index ? room_ - index : 0, room_ / 8);
  if (ring_bytes_ <= allowed || spill_error_) return;
  std::vector<uint64_t> words;
  for (size_t steps = 2 * keys_.size(); steps > 0 && ring_bytes_ > allowed / 4 * 3; --steps) {
    hand_ = hand_ + 1 < keys_.size() ? hand_ + 1 : 0;
    EventRing& ring = keys_[hand_].ring;
    if (ring.on_disk() || !ring.size() || ring.used_lately()) continue;
    words.resize(ring.size() * stride_);
    ring.copy_to(words.data(), stride_);
    SpillPlace place;
    try {
      place = spill_->put(words.data(), words.size());
    } catch (const std::system_error& error) {
      spill_error_ = error.code().value();
      return;
    }
    ring_bytes_ -= ring.bytes(stride_);
    ring.leave_to_disk(place, stride_, pool_);
  }
}

// Forgets keys whose events are all too old for any later read. Run when the number of keys has doubled, so that it
// costs O(1) for each key.
void PastShard::sweep() {
  if (shape_.within && !shape_.keeps_last) {
    const int64_t old = time_before(time_before(newest_, shape_.lateness + shape_.back), shape_.within);
    size_t kept = 0;
    for (Held& held : keys_) {
      const uint32_t n = held.ring.size();
      if (n && held.ring.newest(stride_) >= old) {
        if (&keys_[kept] != &held) keys_[kept] = std::move(held);
        ++kept;
        continue;
      }
      if (held.ring.on_disk()) spill_->free(held.ring.place(), n * stride_);
      ring_bytes_ -= held.ring.bytes(stride_);
      held.ring.release(pool_);
      events_ -= n;
    }
    keys_.erase(keys_.begin() + static_cast<ptrdiff_t>(kept), keys_.end());
    rebuild(slots_.size());
  }
  swept_keys_ = std::max(kFewKeys, keys_.size());
}

void PastShard::rebuild(size_t slots) {
  slots_.assign(slots, 0);
  for (size_t place = 1; place <= keys_.size(); ++place) put_into_slot(place);
}

}  // namespace cb
