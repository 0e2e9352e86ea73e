// Tests that the holes of the heap are filled, so that blocks that are allocated later lie behind its old end.
#include "core/system/heap_before_fork.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/check.h"

int main() {
  CHECK(cb::fill_heap_holes(0) == 0);
  std::vector<void*> kept, holes;
  for (int n = 0; n < 4000; ++n) (n % 2 ? kept : holes).push_back(std::memset(std::malloc(700), n, 700));
  for (void* hole : holes) std::free(hole);
  const size_t filled = cb::fill_heap_holes();
  CHECK(filled <= cb::kMostFilled + (size_t{64} << 10));
  std::vector<void*> later;
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(filled >= 1900 * 700);
  const auto last = reinterpret_cast<uintptr_t>(kept.back());
  for (int n = 0; n < 500; ++n) {
    later.push_back(std::malloc(n % 2 ? 700 : 40));
    CHECK(reinterpret_cast<uintptr_t>(later.back()) > last);
  }
  CHECK(cb::fill_heap_holes() < filled / 4);
#endif
  for (void* block : kept) CHECK(static_cast<unsigned char*>(block)[699] == static_cast<unsigned char*>(block)[0]);
  for (const std::vector<void*>& blocks : {kept, later})
    for (void* block : blocks) std::free(block);
  return 0;
}
