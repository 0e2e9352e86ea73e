// Thrift's compact protocol, as Parquet writes footers and page headers in it: a cursor over bytes that may be
// anything.
//
// Fields that nobody asks for are skipped. Nothing is allocated and nesting is bounded. Every function returns false
// where the bytes are not what it reads; the cursor then stands anywhere.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/parquet/varint.h"

namespace cb::parquet {

class Compact {
 public:
  static constexpr uint8_t kTrue = 1, kFalse = 2, kByte = 3, kI16 = 4, kI32 = 5, kI64 = 6, kDouble = 7, kBinary = 8,
                           kList = 9, kSet = 10, kStruct = 12;
  static constexpr int kDeepest = 32;

  Compact(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  const uint8_t* at() const { return at_; }

  // A struct: take(field, type) reads each field's value, or skips it. `depth`: of the struct, 0 for the outermost.
  template <class Take>
  bool fields(int depth, Take&& take) {
    if (depth > kDeepest) return false;
    int16_t field = 0;
    for (;;) {
      if (at_ == end_) return false;
      const uint8_t byte = *at_++;
      if (byte == 0) return true;
      const uint8_t type = byte & 15;
      if (byte >> 4) {
        field = static_cast<int16_t>(field + (byte >> 4));
      } else {
        int64_t i = 0;
        if (!zigzag(i)) return false;
        field = static_cast<int16_t>(i);
      }
      if (!take(field, type)) return false;
    }
  }

  // The head of a list; its elements follow.
  bool list(uint8_t& type, uint64_t& size) {
    if (at_ == end_) return false;
    const uint8_t byte = *at_++;
    type = byte & 15;
    size = byte >> 4;
    if (size == 15 && !varint(size)) return false;
    return size <= static_cast<uint64_t>(end_ - at_);  // each element takes a byte at least
  }

  bool varint(uint64_t& value) { return read_varint(at_, end_, 64, value); }
  bool zigzag(int64_t& value) {
    uint64_t raw = 0;
    if (!varint(raw)) return false;
    value = static_cast<int64_t>(raw >> 1) ^ -static_cast<int64_t>(raw & 1);
    return true;
  }
  bool number(uint8_t type, int32_t& value) {
    int64_t i = 0;
    if (type != kI32 || !zigzag(i) || i != static_cast<int32_t>(i)) return false;
    value = static_cast<int32_t>(i);
    return true;
  }
  bool binary(uint8_t type, uint64_t& size) { return type == kBinary && varint(size) && forward(size); }
  bool forward(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) return false;
    at_ += bytes;
    return true;
  }

  // A field's value. `depth`: of a struct that the value is or holds.
  bool skip(uint8_t type, int depth) {
    if (type == kTrue || type == kFalse) return true;  // the type is the value
    return skip_value(type, depth);
  }
  // `size` elements of a list.
  bool skip_elements(uint8_t type, uint64_t size, int depth) {
    for (uint64_t k = 0; k < size; ++k)
      if (type == kTrue || type == kFalse ? !forward(1) : !skip_value(type, depth)) return false;
    return true;
  }

 private:
  bool skip_value(uint8_t type, int depth) {
    uint64_t n = 0;
    uint8_t inner = 0;
    switch (type) {
      case kByte:
        return forward(1);
      case kI16:
      case kI32:
      case kI64:
        return varint(n);
      case kDouble:
        return forward(8);
      case kBinary:
        return varint(n) && forward(n);
      case kList:
      case kSet:
        return depth <= kDeepest && list(inner, n) && skip_elements(inner, n, depth + 1);
      case kStruct:
        return fields(depth, [&](int16_t, uint8_t own) { return skip(own, depth + 1); });
      default:
        return false;  // Parquet has no maps
    }
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace cb::parquet
