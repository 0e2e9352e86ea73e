// Caches what was computed from the contexts of requests within a budget of bytes, and evicts the least recently used
// context first.
//
//   key    the versions of the model and of the joined views, then the bytes of the context
//   value  anything, with the bytes that it holds; a RequestScorer keeps a RequestContext, the server also other
//          objects
//
// Evicted contexts leave free blocks of other sizes than those that new contexts need. After a number of evicted bytes
// (kGivenBack), the cache returns the free pages of the allocator to the operating system, so that the process holds
// about as many bytes as the cache counts.
//
// Threads: any number. A thread may continue to use a value that was evicted in the meantime. Values are destroyed
// without the lock, because destroying one may have to wait for another lock, such as that of Python's interpreter.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace cb {

class ContextCache {
 public:
  static constexpr uint64_t kEntry = 512;           // bytes of an entry in addition to its key and its value
  static constexpr uint64_t kGivenBack = 8u << 20;  // evicted bytes after which free pages are returned, at least

  struct Value {
    std::shared_ptr<const void> held;
    bool native = false;  // whether it is a RequestContext
    explicit operator bool() const { return held != nullptr; }
  };
  struct Counts {
    uint64_t hits = 0, misses = 0, evictions = 0;
    uint64_t given_back = 0;  // how often free pages were returned to the system
  };

  // A budget of 0 bytes keeps nothing. Free pages are returned to the system after `given_back` evicted bytes, or after
  // an eighth of the budget if that is more.
  explicit ContextCache(uint64_t budget, uint64_t given_back = kGivenBack) : given_back_(given_back), budget_(budget) {}

  // Returns the value of a key and counts a hit, or nothing and counts a miss.
  Value get(std::string_view key);
  // The same, but does not count a miss; the caller then calls `missed`.
  Value met(std::string_view key);
  void missed();
  // Keeps a value of `bytes` bytes, which include those of the key, and replaces an older value of the key. A value
  // that takes more than a quarter of the budget together with its entry is not kept.
  void put(std::string_view key, Value value, uint64_t bytes);
  void clear();

  uint64_t budget() const;
  void budget(uint64_t bytes);  // the new budget applies to the next `put`
  uint64_t bytes() const;       // of all entries
  uint64_t size() const;
  Counts counts() const;

 private:
  struct Entry {
    std::string key;
    Value value;
    uint64_t bytes;
  };
  using Entries = std::list<Entry>;

  mutable std::mutex lock_;
  Entries entries_;  // the one that was used last comes first
  std::unordered_map<std::string_view, Entries::iterator> places_;
  const uint64_t given_back_;
  uint64_t budget_, bytes_ = 0;
  uint64_t evicted_ = 0;  // bytes since free memory was last given back
  Counts counts_;
};

}  // namespace cb
