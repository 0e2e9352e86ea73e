// Memory for large tables and buffers: huge pages where the system offers them.
//
// Tables of dimensions are read at random. With 4 KiB pages nearly every access of a table of tens of MB also misses
// the TLB, and inside a virtual machine a page walk costs as much as several misses to memory.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace cb {

constexpr size_t kHugePage = size_t{2} << 20;

inline void* big_alloc(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t align = huge ? kHugePage : 64;
  const size_t size = (bytes + align - 1) / align * align;
  void* p = std::aligned_alloc(align, size ? size : align);
  if (!p) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  if (huge) madvise(p, size, MADV_HUGEPAGE);  // a wish; what the system makes of it does not matter here
#endif
  return p;
}

inline void big_free(void* p) { std::free(p); }

// For std::vector.
template <class T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(big_alloc(n * sizeof(T))); }
  void deallocate(T* p, size_t) { big_free(p); }
  template <class U>
  bool operator==(const HugePages<U>&) const {
    return true;
  }
};

struct BigFree {
  void operator()(char* p) const { big_free(p); }
};

}  // namespace cb
