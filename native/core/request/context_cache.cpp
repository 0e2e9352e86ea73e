#include "core/request/context_cache.h"

#include <algorithm>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace cb {

namespace {

// Returns free pages of the allocator to the operating system, if the allocator can do that.
void give_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

ContextCache::Value ContextCache::get(std::string_view key) {
  Value found = met(key);
  if (!found) missed();
  return found;
}

ContextCache::Value ContextCache::met(std::string_view key) {
  const std::lock_guard<std::mutex> hold(lock_);
  const auto at = places_.find(key);
  if (at == places_.end()) return {};
  entries_.splice(entries_.begin(), entries_, at->second);
  ++counts_.hits;
  return at->second->value;
}

void ContextCache::missed() {
  const std::lock_guard<std::mutex> hold(lock_);
  ++counts_.misses;
}

void ContextCache::put(std::string_view key, Value value, uint64_t bytes) {
  bytes += kEntry;
  Entries made, gone;  // both are destroyed after the lock is released
  made.push_back({std::string(key), std::move(value), bytes});
  bool trims = false;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (const auto old = places_.find(key); old != places_.end()) {
      bytes_ -= old->second->bytes;
      gone.splice(gone.end(), entries_, old->second);
      places_.erase(old);
    }
    if (bytes > budget_ / 4) return;
    places_.emplace(made.front().key, made.begin());
    entries_.splice(entries_.begin(), made);
    bytes_ += bytes;
    while (bytes_ > budget_) {
      const auto last = std::prev(entries_.end());
      places_.erase(last->key);
      bytes_ -= last->bytes;
      evicted_ += last->bytes;
      ++counts_.evictions;
      gone.splice(gone.end(), entries_, last);
    }
    trims = evicted_ > std::max(given_back_, budget_ / 8);
    if (trims) {
      evicted_ = 0;
      ++counts_.given_back;
    }
  }
  if (!trims) return;
  gone.clear();
  give_back();
}

void ContextCache::clear() {
  Entries gone;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    places_.clear();
    gone.swap(entries_);
    bytes_ = evicted_ = 0;
    ++counts_.given_back;
  }
  gone.clear();
  give_back();
}

uint64_t ContextCache::budget() const {
  const std::lock_guard<std::mutex> hold(lock_);
  return budget_;
}

void ContextCache::budget(uint64_t bytes) {
  const std::lock_guard<std::mutex> hold(lock_);
  budget_ = bytes;
}

uint64_t ContextCache::bytes() const {
  const std::lock_guard<std::mutex> hold(lock_);
  return bytes_;
}

uint64_t ContextCache::size() const {
  const std::lock_guard<std::mutex> hold(lock_);
  return entries_.size();
}

ContextCache::Counts ContextCache::counts() const {
  const std::lock_guard<std::mutex> hold(lock_);
  return counts_;
}

}  // namespace cb
