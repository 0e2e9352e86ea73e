// Where a chunk's memory lies, as kernels see it. src/ctrbox/engines/cuda/device_memory.py writes these bytes.
#pragma once
#include "cuda/block_sums.h"
#include "cuda/raw_column.h"

namespace cb {

struct Slot {
  char* slab;
  uint64_t capacity;  // rows a register has room for
  const Header* header;
  const void* const* tables;  // images of tables and records, by number
  Count* counters;
  void* const* outputs;    // where each output goes, by number
  const uint64_t* limits;  // values an output of lists has room for, by number of the list
  uint64_t* tiles;         // by list and by tile: values before the tile
  int32_t* picked;         // rows that passed the filter
  char* pool;
  uint64_t pool_bytes;
  char* scratch;
  uint64_t scratch_bytes;
};
static_assert(sizeof(Slot) == 104, "memory.py writes these bytes");

// counters: [0] head of the pool, [1] rows that passed the filter, then by number: values of each list, heads of the
// layers' working memory, warnings of each operator, and the first bad row of each, kept as its complement so that 0
// means none.
enum : uint32_t { kPoolHead = 0, kPickedRows = 1, kFirstCounter = 2 };

// ---- registers: entry r of a register at `at` bytes per row

template <class T>
__device__ inline T& entry(const Slot& s, uint64_t at, uint64_t row) {
  return ((T*)(s.slab + at * s.capacity))[row];
}

__device__ inline const SourceRows& source_rows(const Slot& s, uint32_t source) {
  return ((const SourceRows*)(s.header + 1))[source];
}
__device__ inline const Raw& raw_column(const Slot& s, uint32_t sources, uint32_t column) {
  return ((const Raw*)((const SourceRows*)(s.header + 1) + sources))[column];
}

// The row of a source at a position, -1 where it has none.
__device__ inline int64_t row_of(const Slot& s, uint32_t source, int64_t position) {
  const SourceRows& rows = source_rows(s, source);
  return rows.index ? (int64_t)rows.index[position] : position;
}

__device__ inline void warn(const Slot& s, uint32_t counter, bool warned) {
  if (warned) atomicAdd(s.counters + counter, (Count)1);
}

// code: 1 null, 2 dictionary index, 3 too long, 4 a null inside a vector, 5 malformed.
__device__ inline void bad_row(const Slot& s, uint32_t counter, uint64_t row, uint32_t code) {
  atomicMax(s.counters + counter, ~(Count)(row << 8 | code));
}

}  // namespace cb
