// Zeroed memory that is reserved now and taken page by page, as it is used: the system does not ask whether the machine
// has as much. In huge pages, unless it is more than the machine has: a huge page for each of the first keys that come
// would soon be all of its memory.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace cb {

// Memory of the machine.
inline size_t machine_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

class LazyBlock {
 public:
  static constexpr size_t kPage = size_t{2} << 20;

  LazyBlock() = default;
  LazyBlock(size_t bytes, bool huge_pages) : size_((bytes + kPage - 1) / kPage * kPage + kPage) {
    void* p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<char*>(p);
#if defined(MADV_HUGEPAGE)
    ::madvise(begin_, size_, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // a wish
#else
    (void)huge_pages;
#endif
  }
  LazyBlock(LazyBlock&& o) noexcept : begin_(std::exchange(o.begin_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  LazyBlock& operator=(LazyBlock&& o) noexcept {
    std::swap(begin_, o.begin_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~LazyBlock() {
    if (begin_) ::munmap(begin_, size_);
  }

  // Aligned to a huge page.
  char* data() const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(begin_);
    return begin_ + (kPage - at % kPage) % kPage;
  }

 private:
  char* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cb
