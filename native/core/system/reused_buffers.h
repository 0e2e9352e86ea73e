// Reuses output memory: buffers return to a free list when a batch is dropped.
//
// A batch of 65,536 rows is some 50 MB, and 300 MB while it is looked up, pooled and pushed; fresh memory for each
// would cost 13,000 page faults and more a batch. Small sizes are rounded up to a power of two, large ones to an eighth
// of one, and a buffer serves any wish of at least half its size: batches of about equal size share buffers. The list
// holds at most kMostIdle bytes; the rest is freed. Buffers of 2 MB and more lie in huge pages,
// since lookups and pooling meet them at random.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/system/huge_pages.h"

namespace cb {

class BufferPool {
 public:
  static constexpr size_t kMostIdle = size_t{512} << 20;

  static BufferPool& shared() {
    static BufferPool* pool = new BufferPool;  // never destroyed: arrays may outlive the interpreter's teardown
    return *pool;
  }

  void* take(size_t bytes, size_t* capacity) {
    const size_t size = rounded(bytes);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      auto it = idle_.lower_bound(size);
      if (it != idle_.end() && it->first <= 2 * size) {
        *capacity = it->first;
        void* p = it->second.back();
        it->second.pop_back();
        if (it->second.empty()) idle_.erase(it);
        idle_bytes_ -= *capacity;
        return p;
      }
    }
    *capacity = size;
    if (size >= HugeBlock::kPage) return HugeBlock(size).release();
    void* p = std::aligned_alloc(64, size);
    if (!p) throw std::bad_alloc();
    return p;
  }

  void give(void* p, size_t capacity) {
    if (!p) return;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      if (idle_bytes_ + capacity <= kMostIdle) {
        idle_[capacity].push_back(p);
        idle_bytes_ += capacity;
        return;
      }
    }
    if (capacity >= HugeBlock::kPage)
      HugeBlock::free(p, capacity);
    else
      std::free(p);
  }

 private:
  static size_t rounded(size_t bytes) {
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, 4096)), step = std::max(HugeBlock::kPage, size / 16);
    return size < HugeBlock::kPage ? size : (bytes + step - 1) / step * step;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> idle_;  // by capacity; no list is empty
  size_t idle_bytes_ = 0;
};

// A growing array in pooled memory.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)),
        size_(std::exchange(o.size_, 0)),
        capacity_(std::exchange(o.capacity_, 0)) {}
  ~Buffer() { BufferPool::shared().give(data_, capacity_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_ / sizeof(T); }

  // Room for n elements in all; what is there stays.
  void reserve(size_t n) {
    if (n * sizeof(T) <= capacity_) return;
    size_t capacity = 0;
    T* fresh = static_cast<T*>(BufferPool::shared().take(n * sizeof(T), &capacity));
    for (size_t k = 0; k < size_; ++k) fresh[k] = data_[k];
    BufferPool::shared().give(data_, capacity_);
    data_ = fresh;
    capacity_ = capacity;
  }
  void resize(size_t n) {
    reserve(n);
    size_ = n;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace cb
