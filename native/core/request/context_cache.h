// Keeps what was worked out from the contexts of requests within a budget of bytes, and evicts the context that was
// used the longest time ago first.
//
//   key    the versions of the model and of the joined views, then the bytes of the context
//   value  anything, with the bytes that it holds; a RequestScorer keeps a RequestContext, the server also other
//          objects
//
// What contexts of other sizes leave behind when they are evicted are holes in the allocator's memory. After so many
// evicted bytes its free pages are given back to the system, so that the process holds about what is counted.
//
// Threads: any number. A thread may go on with a value that was evicted meanwhile. Values are destroyed without the
// lock, because destroying one may have to wait for another lock, such as that of Python's interpreter.
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
  static constexpr uint64_t kEntry = 512;           // bytes of an entry beside its key and its value
  static constexpr uint64_t kGivenBack = 8u << 20;  // evicted bytes, at least, after which free memory is given back

  struct Value {
    std::shared_ptr<const void> held;
    bool native = false;  // whether it is a RequestContext
    explicit operator bool() const { return held != nullptr; }
  };
  struct Counts {
    uint64_t hits = 0, misses = 0, evictions = 0;
    uint64_t given_back = 0;  // how often free memory was given back
  };

  // A budget of 0 keeps nothing. Free memory is given back after `given_back` evicted bytes, or an eighth of the budget
  // if that is more.
  explicit ContextCache(uint64_t budget, uint64_t given_back = kGivenBack) : given_back_(given_back), budget_(budget) {}

  // Returns the value of a key and counts a hit, or nothing and counts a miss.
  Value get(std::string_view key);
  // The same, but leaves a miss to be counted by `missed`.
  Value met(std::string_view key);
  void missed();
  // Keeps a value of `bytes` bytes, those of the key included; one that takes more than a quarter of the budget, with
  // its entry, is not kept. A value that the key had before is replaced.
  void put(std::string_view key, Value value, uint64_t bytes);
  void clear();

  uint64_t budget() const;
  void budget(uint64_t bytes);  // of what is put from now on
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
