// Parses the header of a Parquet page from untrusted bytes.
#pragma once
#include <cstdint>

#include "core/parquet/thrift.h"

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

inline bool describes(PageHeader& h, PageKind kind) {
  h.described = h.described == -1 ? static_cast<int32_t>(kind) : -2;
  return true;
}

inline bool read_data_header(Compact& from, PageHeader& h) {
  return from.fields(1, [&](int16_t field, uint8_t type) {
    if (field == 1) return from.number(type, h.values);
    if (field == 2) return from.number(type, h.encoding);
    if (field == 3) return from.number(type, h.level_encoding);
    if (field == 4) return from.number(type, h.repetition_encoding);
    return from.skip(type, 2);
  });
}

inline bool read_dictionary_header(Compact& from, PageHeader& h) {
  return from.fields(1, [&](int16_t field, uint8_t type) {
    if (field == 1) return from.number(type, h.values);
    if (field == 2) return from.number(type, h.encoding);
    return from.skip(type, 2);
  });
}

inline bool read_data_v2_header(Compact& from, PageHeader& h) {
  return from.fields(1, [&](int16_t field, uint8_t type) {
    if (field == 1) return from.number(type, h.values);
    if (field == 2) return from.number(type, h.nulls);
    if (field == 3) return from.number(type, h.rows);
    if (field == 4) return from.number(type, h.encoding);
    if (field == 5) return from.number(type, h.definition_bytes);
    if (field == 6) return from.number(type, h.repetition_bytes);
    if (field == 7 && (type == Compact::kTrue || type == Compact::kFalse)) {
      h.compressed = type == Compact::kTrue;
      return true;
    }
    return from.skip(type, 2);
  });
}

// Reads a page's header; false: these are no header's bytes.
inline bool read_page_header(Compact& from, PageHeader& h) {
  return from.fields(0, [&](int16_t field, uint8_t type) {
    const bool nested = type == Compact::kStruct;
    int64_t i = 0;
    switch (field) {
      case 1:
        return from.number(type, h.kind);
      case 2:
        return from.number(type, h.raw_size);
      case 3:
        return from.number(type, h.stored_size);
      case 4:
        if (type != Compact::kI32 || !from.zigzag(i)) return false;
        h.has_crc = true;
        h.crc = static_cast<uint32_t>(i);
        return true;
      case 5:
        return nested && describes(h, PageKind::Data) && read_data_header(from, h);
      case 7:
        return nested && describes(h, PageKind::Dictionary) && read_dictionary_header(from, h);
      case 8:
        return nested && describes(h, PageKind::DataV2) && read_data_v2_header(from, h);
      default:
        return from.skip(type, 1);
    }
  });
}

}  // namespace cb::parquet
