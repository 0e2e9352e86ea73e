// Zeroed memory that is reserved at once, but of which the system allocates each page only when it is first used. The
// reserved size may therefore be larger than the memory of the machine. Huge pages are used only for blocks that are
// smaller than this memory: the first keys of a larger block are spread over all of it, so that allocating a huge page
// for each of them would soon take the whole memory.
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
