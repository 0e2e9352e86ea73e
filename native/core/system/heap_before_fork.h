// Prepares the heap of a process that will fork processes that run for a long time.
//
// A forked process shares the pages of its parent until one of them writes. The heap of a parent that has loaded
// libraries, a plan and a model has holes (free blocks between used ones), and the allocator uses them for the
// first small blocks of a child, so that the first write to each copies a page of 4 kB. A parent therefore fills the
// holes before it forks, and the blocks of a child come from pages behind the old end of the heap. Measured with the
// server of a Deep FFM: docs/tried.md.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#ifdef __GLIBC__
#include <unistd.h>
#endif

namespace cb {

constexpr size_t kMostFilled = size_t{64} << 20;  // bytes of holes that are filled at most

// Fills the holes of the heap with blocks that are never freed, and returns how many bytes it filled. The pages of the
// holes belong to the process already. Does nothing without glibc. Call it once, in a process with one thread: this
// process cannot use the memory of a filled hole any more.
inline size_t fill_heap_holes(size_t most = kMostFilled) {
  size_t filled = 0;
#ifdef __GLIBC__
  // Blocks below the end of the heap come from holes. The sizes descend, so that few blocks fill a hole. The first
  // size, 64 kB, is below the size from which the allocator maps a block separately. Up to 1,032 bytes the allocator
  // has a list of free blocks for each size, in steps of 16 bytes; its smallest size is 24 bytes.
  constexpr size_t kSmall = 1032;
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0));
  void* behind = nullptr;  // blocks that did not come from holes, each with the address of the one before
  for (size_t bytes = size_t{64} << 10; bytes >= 24 && filled < most;
       bytes = bytes > 2 * kSmall ? bytes / 2 : std::min(bytes, kSmall + 16) - 16) {
    while (filled < most) {
      void* block = std::malloc(bytes);
      if (!block) break;
      if (reinterpret_cast<uintptr_t>(block) >= end) {
        *static_cast<void**>(block) = behind;
        behind = block;
        break;
      }
      filled += bytes;
    }
  }
  while (behind) {
    void* block = behind;
    behind = *static_cast<void**>(block);
    std::free(block);
  }
#endif
  return filled;
}

}  // namespace cb
