// Loads rows of a raw column into a register: numbers are widened, strings and lists are views where possible.
//
// The slow twin is native/core/program/frame.cpp, which gives the same entries on the CPU.
#pragma once
#include "cuda/chunk_memory.h"

namespace cb {

__device__ inline bool bit_at(const void* bits, uint64_t k) { return ((const uint8_t*)bits)[k >> 3] >> (k & 7) & 1; }

// A number of a column or of list elements, by its storage. The switch is the same for all threads of a grid.
template <class T>
__device__ inline T number_at(uint8_t storage, const void* values, int64_t k, uint32_t value_bit) {
  switch (storage) {
    case kBool:
      return (T)bit_at(values, (uint64_t)k + value_bit);
    case kI8:
      return (T)((const int8_t*)values)[k];
    case kI16:
      return (T)((const int16_t*)values)[k];
    case kI32:
      return (T)((const int32_t*)values)[k];
    case kI64:
      return (T)((const int64_t*)values)[k];
    case kU8:
      return (T)((const uint8_t*)values)[k];
    case kU16:
      return (T)((const uint16_t*)values)[k];
    case kU32:
      return (T)((const uint32_t*)values)[k];
    case kF32:
      return (T)((const float*)values)[k];
    default:
      return (T)((const double*)values)[k];
  }
}

// From and length of string or list k.
__device__ inline int64_t span_at(bool wide, const void* offsets, int64_t k, int64_t* from) {
  if (wide) {
    const int64_t* o = (const int64_t*)offsets;
    *from = o[k];
    return o[k + 1] - o[k];
  }
  const int32_t* o = (const int32_t*)offsets;
  *from = o[k];
  return (int64_t)o[k + 1] - o[k];
}

__device__ inline int64_t dictionary_index(const Raw& c, int64_t row) {
  switch (c.index_width) {
    case 1:
      return ((const int8_t*)c.values)[row];
    case 2:
      return ((const int16_t*)c.values)[row];
    case 4:
      return ((const int32_t*)c.values)[row];
    default:
      return ((const int64_t*)c.values)[row];
  }
}

// What stands at a row: whether there is a value, and what is wrong with it (a code of bad_row), if anything.
struct Found {
  bool there;
  uint32_t wrong;
};

__device__ inline bool present(const Raw& c, int64_t row) {
  return row >= 0 && c.storage != kAbsent && (!c.bitmap || bit_at(c.bitmap, (uint64_t)row + c.bit));
}

template <class T>
__device__ inline Found load_number(const Raw& c, int64_t row, T* out) {
  bool there = present(c, row);
  *out = there ? number_at<T>(c.storage, c.values, row, c.value_bit) : T{};
  return {there, 0};
}

__device__ inline Found load_text(const Raw& c, int64_t row, Str* out) {
  *out = Str{nullptr, 0};
  if (!present(c, row)) return {false, 0};
  if (c.storage == kViews) {
    const TextView view = ((const TextView*)c.values)[row];
    *out = Str{c.text + view.at, view.n};
    return {true, 0};
  }
  const void* offsets = c.values;
  bool wide = c.storage == kLargeUtf8;
  if (c.storage == kDictionary) {
    row = dictionary_index(c, row);
    if (row < 0 || row >= c.inner_rows) return {true, 2};
    if (c.inner_bitmap && !bit_at(c.inner_bitmap, (uint64_t)row + c.inner_bit)) return {false, 0};
    offsets = c.inner;
    wide = c.inner_storage == kLargeUtf8;
  }
  int64_t from, n = span_at(wide, offsets, row, &from);
  if (n > 0x7fffffffll) return {true, 3};
  *out = Str{c.text + from, (uint32_t)n};
  return {true, 0};
}

__device__ inline void element_at(const Raw& c, int64_t k, Str* out) {
  int64_t from, n = span_at(c.inner_storage == kLargeUtf8, c.inner, k, &from);
  *out = Str{c.inner_text + from, (uint32_t)n};
}
template <class T>
__device__ inline void element_at(const Raw& c, int64_t k, T* out) {
  *out = number_at<T>(c.inner_storage, c.inner, k, c.inner_value_bit);
}

template <class T>
__device__ inline bool same_bits(uint8_t) {
  return false;
}
template <>
__device__ inline bool same_bits<int64_t>(uint8_t storage) {
  return storage == kI64;
}
template <>
__device__ inline bool same_bits<uint64_t>(uint8_t storage) {
  return storage == kI64;
}
template <>
__device__ inline bool same_bits<double>(uint8_t storage) {
  return storage == kF64;
}

// Called by every thread of the block, `live` where it has a row.
template <class T>
__device__ inline Found load_list(const Raw& c, bool live, int64_t row, const Pool& pool, List<T>* out) {
  *out = List<T>{nullptr, 0};
  Found found = {live && present(c, row), 0};
  int64_t from = 0, n = 0;
  if (found.there) {
    if (c.storage == kFixedList) {
      from = row * c.inner_rows;
      n = c.inner_rows;
    } else {
      n = span_at(c.storage == kLargeList, c.values, row, &from);
    }
    if (n > 0x7fffffffll) {
      found.wrong = 3;
      n = 0;
    }
  }
  const bool direct = !c.inner_bitmap && same_bits<T>(c.inner_storage);
  T* at = (T*)reserve(pool, direct ? 0 : (uint64_t)n * sizeof(T));
  if (direct) {
    *out = List<T>{(const T*)c.inner + from, (uint32_t)n};
  } else if (at) {
    uint32_t used = 0;
    for (int64_t k = from; k < from + n; ++k)
      if (!c.inner_bitmap || bit_at(c.inner_bitmap, (uint64_t)k + c.inner_bit)) element_at(c, k, at + used++);
    if (used < n && c.storage == kFixedList) found.wrong = 4;
    *out = List<T>{at, used};
  }
  return found;
}

}  // namespace cb
