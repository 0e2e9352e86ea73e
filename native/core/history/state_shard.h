// Past events of some of the keys: feed() adds an event, read() finds the events that a row may see.
//
// Promises:
//   - read(key, t) sees the events of the key that were fed before it and have time < t - gap, and changes nothing.
//   - Dropping old events never changes what a later read gives: an event is dropped only when no read at
//     newest - lateness - back or later can need it. A read before that time is refused by the caller.
//   - What is stored depends only on the sequence of calls of feed(), not on time, threads or addresses.
//
// Layout: a table of slots (open addressing, one 32-bit number each) leads from a key to its place in `keys_`, which
// holds keys and rings densely in the order of their first event. At most half of the slots are in use, so a place has
// fewer bits than a slot, and the upper bits hold bits of the key's hash: other keys are passed over without a look at
// `keys_`. Memory is counted as it grows. Slots and keys are always in memory; rings may lie on a disk (spill_to),
// which changes no result and no file that is saved.
//
// One thread may write at a time, and none may read meanwhile.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/history/event_ring.h"
#include "core/history/spilled_events.h"
#include "core/history/state_shape.h"
#include "operators/hash.h"

namespace cb {

// The events that one read may see: 0 to `end` of a ring, oldest first. Without a ring the key has no events.
struct PastSeen {
  const EventRing* ring = nullptr;
  uint32_t end = 0;
  size_t place = 0;  // of the key, see PastShard::begins()
};

class PastShard {
 public:
  explicit PastShard(const PastShape& shape);
  PastShard(PastShard&&) = default;
  PastShard& operator=(PastShard&&) = default;

  // `place`, here and in read(): what fetch_events() found for the key some calls ago, or 0.
  void feed(uint64_t key, int64_t time, const uint64_t* values, size_t place = 0);

  // Returns the earlier events of a key; the views of them that it returns are valid until the next call.
  PastSeen read(uint64_t key, int64_t time, size_t place = 0) {
    keep_room();
    EventRing* ring = find(key, place);
    if (!ring) return {};
    if (spill_) bring(*ring);
    return {ring, ring->before(time_before(time, shape_.gap), stride_), place};
  }

  // Where the windows of a key began when they were last looked for, one number for each of `windows` windows. Times
  // advance, so the next search begins there. These are hints: after keys or windows changed they are any numbers.
  uint32_t* begins(size_t place, size_t windows) {
    if (windows != windows_) begins_.clear();
    windows_ = windows;
    if (begins_.size() < place * windows) begins_.resize(keys_.capacity() * windows);
    return begins_.data() + (place - 1) * windows;
  }
  static constexpr uint32_t kFewEvents = 16;  // in fewer events, a search needs no hint

  // From now on, events of keys that were not met lately are moved to a file in a folder where the shard would take
  // more than `room` bytes. A disk that is full or fails when it is written to does not lose events: they stay in
  // memory, and spill_error() has the error number, else 0.
  void spill_to(const std::string& folder, size_t room) {
    spill_ = std::make_unique<PastSpill>(folder);
    pool_.use_heap();
    room_ = room;
  }
  void set_room(size_t room) { room_ = room; }
  void keep_room() {
    if (spill_) make_room();
  }
  int spill_error() const { return spill_error_; }
  // After a disk was full: it may have room by now.
  void try_disk_again() {
    spill_error_ = 0;
    keep_room();
  }
  uint64_t spilled_bytes() const { return spill_ ? spill_->file_bytes() : 0; }

  // Bring into the cache what a read of a key needs, one step after the other: its slot, its ring, its newest events.
  // These are hints: they change nothing. The last one returns the place of the key in `keys_` + 1, or 0.
  void fetch_slot(uint64_t key) const { __builtin_prefetch(&slots_[finish(key) & (slots_.size() - 1)]); }
  void fetch_key(uint64_t key) const {
    if (const size_t place = place_of(key, [](size_t) { return true; })) __builtin_prefetch(&keys_[place - 1]);
  }
  size_t fetch_events(uint64_t key) const {
    const size_t place = place_of(key);
    if (!place) return 0;
    const EventRing& ring = keys_[place - 1].ring;
    if (ring.on_disk())
      spill_->will_need(ring.place(), ring.size() * stride_);
    else
      ring.fetch(stride_);
    if (ring.size() > kFewEvents && place * windows_ < begins_.size())
      for (size_t w = 0; w < windows_; ++w) ring.fetch(stride_, begins_[(place - 1) * windows_ + w]);
    return place;
  }

  // Declares that no later event has a time before time - lateness, and no later read one before time - lateness -
  // back.
  void reach(int64_t time) { newest_ = std::max(newest_, time); }

  size_t stride() const { return stride_; }
  size_t keys() const { return keys_.size(); }
  uint64_t events() const { return events_; }
  size_t bytes() const {
    return (slots_.capacity() + begins_.capacity()) * sizeof(uint32_t) + keys_.capacity() * sizeof(Held) + ring_bytes_;
  }

  struct Held {
    uint64_t key;
    EventRing ring;
  };
  const std::vector<Held>& held() const { return keys_; }

  // Copies the events of a key to `words`, oldest first, wherever they lie.
  void events_of(const Held& held, std::vector<uint64_t>& words) const {
    words.resize(held.ring.size() * stride_);
    if (held.ring.on_disk())
      spill_->get(held.ring.place(), words.data(), words.size());
    else
      held.ring.copy_to(words.data(), stride_);
  }

  // Changes word `word` of every event by `change`; for ids of texts. write: whether it changes them at all.
  template <class F>
  void each_word(size_t word, bool write, F&& change) {
    std::vector<uint64_t> words;
    for (Held& held : keys_) {
      if (!held.ring.on_disk()) {
        held.ring.each_word(stride_, word, change);
        continue;
      }
      events_of(held, words);
      for (size_t at = 1 + word; at < words.size(); at += stride_) change(words[at]);
      if (write) held.ring.written_again(spill_->write(held.ring.place().cell, words.data(), words.size()));
    }
  }

  // These two decide when keys are forgotten. A file holds both, so that a restart forgets the same keys at the same
  // event.
  int64_t newest() const { return newest_; }
  size_t swept_keys() const { return swept_keys_; }
  void restore(int64_t newest, size_t swept_keys) {
    newest_ = newest;
    swept_keys_ = swept_keys;
  }

  // Adds a key with an empty ring, for files. False: it is there already.
  bool add(uint64_t key);
  void append_stored(const uint64_t* stored);  // to the key that was added last

 private:
  // The entry of a slot for the key at `place`, which is counted from 1.
  uint32_t slot_of(uint64_t hash, size_t place) const {
    return static_cast<uint32_t>(place) |
           (static_cast<uint32_t>(hash >> 28) & ~static_cast<uint32_t>(slots_.size() - 1));
  }
  // The first place whose slot fits the key and for which is_key(place) is true; 0: there is none.
  template <class F>
  size_t place_of(uint64_t key, F&& is_key) const {
    const uint64_t hash = finish(key);
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
      if (!slots_[at]) return 0;
      const size_t place = slots_[at] & mask;
      if (slots_[at] == slot_of(hash, place) && is_key(place)) return place;
    }
  }
  size_t place_of(uint64_t key) const {
    return place_of(key, [&](size_t place) { return keys_[place - 1].key == key; });
  }
  void put_into_slot(size_t place);

  // The ring of a key, or null, and its place. Keys may have been added or forgotten since `place` was found.
  EventRing* find(uint64_t key, size_t& place) {
    if (!place || place > keys_.size() || keys_[place - 1].key != key) place = place_of(key);
    return place ? &keys_[place - 1].ring : nullptr;
  }
  void bring(EventRing& ring);
  void make_room();
  EventRing& made(uint64_t key, size_t place);
  void trim(EventRing& ring);
  void sweep();
  void rebuild(size_t slots);

  PastShape shape_;
  size_t stride_;                // 64-bit words of an event, its time included
  RingPool pool_;                // of the rings in keys_
  std::vector<uint32_t> slots_;  // place in keys_ + 1, and bits of the hash above it; 0: free
  std::vector<Held> keys_;
  std::vector<uint32_t> begins_;  // by place and window, see begins()
  size_t windows_ = 0;
  size_t ring_bytes_ = 0, swept_keys_ = 0;
  uint64_t events_ = 0;
  int64_t newest_ = std::numeric_limits<int64_t>::min();

  std::unique_ptr<PastSpill> spill_;  // null: all events stay in memory
  size_t room_ = 0, hand_ = 0;        // hand_: the place in keys_ at which the search for rings to spill goes on
  int spill_error_ = 0;
};

}  // namespace cb
