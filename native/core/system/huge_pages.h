// Zeroed memory in huge pages, where the system has them: random reads of a large table then miss the caches, not the
// TLB too. Sizes are rounded up to 2 MB; pages that nobody touches cost nothing.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace cb {

class HugeBlock {
 public:
  static constexpr size_t kPage = size_t{2} << 20;

  HugeBlock() = default;
  explicit HugeBlock(size_t bytes) : size_((bytes + kPage - 1) / kPage * kPage) {
    // One page more than needed, so that an aligned part lies within; the rest is given back.
    void* p = ::mmap(nullptr, size_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    char* begin = static_cast<char*>(p);
    size_t before = (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
    if (before) ::munmap(begin, before);
    if (before < kPage) ::munmap(begin + before + size_, kPage - before);
    data_ = begin + before;
#if defined(MADV_HUGEPAGE)
    ::madvise(data_, size_, MADV_HUGEPAGE);  // a wish: without it the block works as well, slower
#endif
  }
  HugeBlock(HugeBlock&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  HugeBlock& operator=(HugeBlock&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~HugeBlock() {
    if (data_) free(data_, size_);
  }

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // Leaves the memory to the caller, who gives it back by free().
  char* release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }
  static void free(void* data, size_t size) { ::munmap(data, size); }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

// Zeroed memory that grows without being copied: the system moves its pages, and those that nobody touches cost
// nothing.
class GrowingBlock {
 public:
  GrowingBlock() = default;
  GrowingBlock(GrowingBlock&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  GrowingBlock& operator=(GrowingBlock&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~GrowingBlock() {
    if (data_) ::munmap(data_, size_);
  }

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // At least `bytes` bytes, or twice as many as there were; what is there stays, somewhere else.
  void grow(size_t bytes) {
    const size_t size = (std::max(bytes, 2 * size_) + kStep - 1) / kStep * kStep;
#if defined(__linux__)
    void* p = data_ ? ::mremap(data_, size_, size, MREMAP_MAYMOVE)
                    : ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
#else
    void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    if (data_) {
      std::memcpy(p, data_, size_);
      ::munmap(data_, size_);
    }
#endif
    data_ = static_cast<char*>(p);
    size_ = size;
  }

 private:
  static constexpr size_t kStep = size_t{1} << 16;
  char* data_ = nullptr;
  size_t size_ = 0;
};

// The system gets back the whole pages of a part of a block, which are zeros from then on.
inline void give_back_pages(void* begin, void* end) {
  static const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

// Pieces that are never given back one by one, cut from huge blocks; a multiple of 64 bytes each, from any thread.
class HugeArena {
 public:
  void* take(size_t bytes) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (bytes > left_) {
      HugeBlock block(std::max(bytes, std::clamp(total_ / 4, HugeBlock::kPage, kMostBlock)));
      blocks_.reserve(blocks_.size() + 1);
      next_ = block.data();
      left_ = block.size();
      total_ += block.size();
      blocks_.push_back(std::move(block));
    }
    char* piece = next_;
    next_ += bytes;
    left_ -= bytes;
    return piece;
  }

 private:
  static constexpr size_t kMostBlock = size_t{64} << 20;
  std::mutex mutex_;
  std::vector<HugeBlock> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0, total_ = 0;
};

}  // namespace cb
