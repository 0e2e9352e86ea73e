// Past events of some of the keys: feed() adds an event, read() finds the events that a row may see.
//
// Promises:
//   - read(key, t) sees the events of the key that were fed before it and have time < t - gap, and changes nothing.
//   - Dropping old events never changes what a later read gives: an event is dropped only when no read at
//     newest - lateness - back or later can need it. A read before that time is refused by the caller.
//   - What is stored depends only on the sequence of calls of feed(), not on time, threads or addresses.
//
// Layout: a table of slots (open addressing, one 32-bit number each) leads from a key to its place in `keys_`, which
// holds keys and rings densely in the order of their first event. Memory is counted as it grows. Slots and keys are
// always in memory; rings may lie on a disk (spill_to), which changes no result and no file that is saved.
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

#include "core/past/ring.h"
#include "core/past/shape.h"
#include "core/past/spill.h"
#include "operators/hash.h"

namespace cb {

// The events that one read may see: 0 to `end` of a ring, oldest first. Without a ring the key has no events.
struct PastSeen {
  const EventRing* ring = nullptr;
  uint32_t end = 0;
};

class PastShard {
 public:
  explicit PastShard(const PastShape& shape);
  PastShard(PastShard&&) = default;
  PastShard& operator=(PastShard&&) = default;

  void feed(uint64_t key, int64_t time, const uint64_t* values);

  // Returns the earlier events of a key; the views of them that it returns are valid until the next call.
  PastSeen read(uint64_t key, int64_t time) {
    keep_room();
    EventRing* ring = find(key);
    if (!ring) return {};
    if (spill_) bring(*ring);
    return {ring, ring->before(time_before(time, shape_.gap), stride_)};
  }

  // From now on, events of keys that were not met lately are moved to a file in a folder where the shard would take
  // more than `room` bytes. A disk that is full or fails when it is written to does not lose events: they stay in
  // memory, and spill_error() has the error number, else 0.
  void spill_to(const std::string& folder, size_t room) {
    spill_ = std::make_unique<PastSpill>(folder);
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
  // These are hints: they change nothing.
  void fetch_slot(uint64_t key) const { __builtin_prefetch(&slots_[finish(key) & (slots_.size() - 1)]); }
  void fetch_key(uint64_t key) const {
    if (const uint32_t place = slots_[finish(key) & (slots_.size() - 1)]) __builtin_prefetch(&keys_[place - 1]);
  }
  void fetch_events(uint64_t key) const {
    const EventRing* ring = find(key);
    if (ring && ring->on_disk()) return spill_->will_need(ring->place(), ring->size() * stride_);
    if (ring) ring->fetch(stride_);
  }

  // Declares that no later event has a time before time - lateness, and no later read one before time - lateness -
  // back.
  void reach(int64_t time) { newest_ = std::max(newest_, time); }

  size_t stride() const { return stride_; }
  size_t keys() const { return keys_.size(); }
  uint64_t events() const { return events_; }
  size_t bytes() const { return slots_.capacity() * sizeof(uint32_t) + keys_.capacity() * sizeof(Held) + ring_bytes_; }

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
      if (write) spill_->write(held.ring.place(), words.data(), words.size());
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
  const EventRing* find(uint64_t key) const;
  EventRing* find(uint64_t key) { return const_cast<EventRing*>(std::as_const(*this).find(key)); }
  void bring(EventRing& ring);
  void make_room();
  EventRing& made(uint64_t key);
  void trim(EventRing& ring);
  void sweep();
  void rebuild(size_t slots);

  PastShape shape_;
  size_t stride_;                // 64-bit words of an event, its time included
  std::vector<uint32_t> slots_;  // place in keys_ + 1; 0: free
  std::vector<Held> keys_;
  size_t ring_bytes_ = 0, swept_keys_ = 0;
  uint64_t events_ = 0;
  int64_t newest_ = std::numeric_limits<int64_t>::min();

  std::unique_ptr<PastSpill> spill_;  // null: all events stay in memory
  size_t room_ = 0, hand_ = 0;        // hand_: the place in keys_ at which the search for rings to spill goes on
  int spill_error_ = 0;
};

}  // namespace cb
