// The header in front of every Parquet page: Thrift's compact protocol, as much of it as a header may hold.
//
// Fields that are not known are skipped. Nothing is allocated and nesting is bounded, so any bytes may be given.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/parquet/varint.h"

namespace cb::parquet {

enum class PageKind : int32_t { Data = 0, Index = 1, Dictionary = 2, DataV2 = 3 };

struct PageHeader {
  int32_t kind = -1;
  int32_t described = -1;    // the kind whose own header was read; -2: more than one
  int32_t raw_size = -1;     // decompressed
  int32_t stored_size = -1;  // in the file, behind the header
  bool has_crc = false;
  uint32_t crc = 0;  // of the stored bytes
  int32_t values = -1, encoding = -1, level_encoding = -1, repetition_encoding = -1;
  // DataV2: levels lie in front of the values and are not compressed.
  int32_t definition_bytes = -1, repetition_bytes = -1, rows = -1, nulls = -1;
  bool compressed = true;
};

class Compact {
 public:
  Compact(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  // Reads a page's header; false: these are no header's bytes.
  bool header(PageHeader& h) {
    return fields(0, [&](int16_t field, uint8_t type) {
      int64_t i = 0;
      switch (field) {
        case 1:
          return number(type, h.kind);
        case 2:
          return number(type, h.raw_size);
        case 3:
          return number(type, h.stored_size);
        case 4:
          if (type != kI32 || !zigzag(i)) return false;
          h.has_crc = true;
          h.crc = static_cast<uint32_t>(i);
          return true;
        case 5:
          return type == kStruct && describes(h, PageKind::Data) && data(h);
        case 7:
          return type == kStruct && describes(h, PageKind::Dictionary) && dictionary(h);
        case 8:
          return type == kStruct && describes(h, PageKind::DataV2) && data_v2(h);
        default:
          return skip(type, 1);
      }
    });
  }

  const uint8_t* at() const { return at_; }

 private:
  static constexpr uint8_t kTrue = 1, kFalse = 2, kByte = 3, kI16 = 4, kI32 = 5, kI64 = 6, kDouble = 7, kBinary = 8,
                           kStruct = 12;
  static constexpr int kDeepest = 8;

  static bool describes(PageHeader& h, PageKind kind) {
    h.described = h.described == -1 ? static_cast<int32_t>(kind) : -2;
    return true;
  }
  bool data(PageHeader& h) {
    return fields(1, [&](int16_t field, uint8_t type) {
      if (field == 1) return number(type, h.values);
      if (field == 2) return number(type, h.encoding);
      if (field == 3) return number(type, h.level_encoding);
      if (field == 4) return number(type, h.repetition_encoding);
      return skip(type, 2);
    });
  }
  bool dictionary(PageHeader& h) {
    return fields(1, [&](int16_t field, uint8_t type) {
      if (field == 1) return number(type, h.values);
      if (field == 2) return number(type, h.encoding);
      return skip(type, 2);
    });
  }
  bool data_v2(PageHeader& h) {
    return fields(1, [&](int16_t field, uint8_t type) {
      if (field == 1) return number(type, h.values);
      if (field == 2) return number(type, h.nulls);
      if (field == 3) return number(type, h.rows);
      if (field == 4) return number(type, h.encoding);
      if (field == 5) return number(type, h.definition_bytes);
      if (field == 6) return number(type, h.repetition_bytes);
      if (field == 7 && (type == kTrue || type == kFalse)) {
        h.compressed = type == kTrue;
        return true;
      }
      return skip(type, 2);
    });
  }

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
  bool forward(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) return false;
    at_ += bytes;
    return true;
  }
  bool skip(uint8_t type, int depth) {
    uint64_t n = 0;
    switch (type) {
      case kTrue:
      case kFalse:
        return true;
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
      case kStruct:
        return fields(depth, [&](int16_t, uint8_t inner) { return skip(inner, depth + 1); });
      default:
        return false;  // no page header holds lists, sets or maps
    }
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace cb::parquet
