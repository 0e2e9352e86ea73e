// Which columns of a Parquet file pyarrow can be asked about without harm: its accessors of column chunks and
// statistics end the process where a footer, which has no checksum, describes a chunk in a way that cannot be. See
// views/footers.py.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/parquet/thrift.h"

namespace cb::parquet {

// A column as the schema has it.
struct StoredColumn {
  int32_t kind = 0;    // BOOLEAN 0, INT32 1, INT64 2, INT96 3, FLOAT 4, DOUBLE 5, BYTE_ARRAY 6, fixed bytes 7
  int64_t width = -1;  // bytes of a value, -1 where they differ
  int64_t repetition = 0, definition = 0;  // the highest levels
};

class FooterReader {
 public:
  FooterReader(const uint8_t* at, size_t size, const std::vector<StoredColumn>& columns)
      : from_(at, at + size), columns_(columns) {}

  // For each column whether all its chunks are sound; false: no column of this file is. `size` must be the footer's
  // length.
  bool read(std::vector<uint8_t>& sound) {
    sound.assign(columns_.size(), 1);
    bool groups = false;
    const bool whole = from_.fields(0, [&](int16_t field, uint8_t type) {
      if (field == 8) return false;  // encrypted
      if (field != 4) return from_.skip(type, 1);
      if (groups || type != Compact::kList) return false;
      groups = true;
      return each_struct([&] { return group(sound); });
    });
    return whole && groups;
  }
  const uint8_t* at() const { return from_.at(); }

 private:
  static constexpr int32_t kCodecs = 8;  // from UNCOMPRESSED to LZ4_RAW
  static constexpr int32_t kByteArray = 6;

  template <class One>
  bool each_struct(One&& one) {
    uint8_t type = 0;
    uint64_t size = 0;
    if (!from_.list(type, size) || (size && type != Compact::kStruct)) return false;
    for (uint64_t k = 0; k < size; ++k)
      if (!one()) return false;
    return true;
  }

  bool group(std::vector<uint8_t>& sound) {
    bool found = false;
    const bool whole = from_.fields(1, [&](int16_t field, uint8_t type) {
      if (field != 1) return from_.skip(type, 2);
      if (found || type != Compact::kList) return false;
      found = true;
      size_t place = 0;
      const auto next = [&] {
        const size_t at = place++;
        return at < columns_.size() && chunk(columns_[at], sound[at]);
      };
      return each_struct(next) && place == columns_.size();
    });
    return whole && found;
  }

  // Reads a chunk whole; `sound` is cleared where its description cannot be.
  bool chunk(const StoredColumn& column, uint8_t& sound) {
    bool described = false, hidden = false;
    const bool whole = from_.fields(2, [&](int16_t field, uint8_t type) {
      hidden = hidden || field == 8;  // encrypted
      if (field != 3) return from_.skip(type, 3);
      if (described || type != Compact::kStruct) return false;
      described = true;
      return description(column, sound);
    });
    if (!described || hidden) sound = 0;
    return whole;
  }

  bool description(const StoredColumn& column, uint8_t& sound) {
    int32_t kind = -1, codec = -1;
    bool statistics = false, sizes = false;
    const bool whole = from_.fields(3, [&](int16_t field, uint8_t type) {
      if (field == 1) return kind == -1 && from_.number(type, kind);
      if (field == 4) return codec == -1 && from_.number(type, codec);
      if (field == 12 || field == 16) {
        bool& seen = field == 12 ? statistics : sizes;
        if (seen || type != Compact::kStruct) return false;
        seen = true;
        return field == 12 ? values(column, sound) : counts(column, sound);
      }
      if (field == 17) sound = 0;  // of shapes on a map
      return from_.skip(type, 4);
    });
    if (kind != column.kind || codec < 0 || codec >= kCodecs) sound = 0;
    return whole;
  }

  // Statistics: the largest and the smallest value, by their old and their new fields.
  bool values(const StoredColumn& column, uint8_t& sound) {
    return from_.fields(4, [&](int16_t field, uint8_t type) {
      if (field != 1 && field != 2 && field != 5 && field != 6) return from_.skip(type, 5);
      uint64_t size = 0;
      if (!from_.binary(type, size)) return false;
      if (column.width >= 0 && size != static_cast<uint64_t>(column.width)) sound = 0;
      return true;
    });
  }

  // Bytes of strings, and how often each level occurs.
  bool counts(const StoredColumn& column, uint8_t& sound) {
    return from_.fields(4, [&](int16_t field, uint8_t type) {
      if (field == 1 && column.kind != kByteArray) sound = 0;
      if (field != 2 && field != 3) return from_.skip(type, 5);
      uint8_t element = 0;
      uint64_t size = 0;
      if (type != Compact::kList || !from_.list(element, size)) return false;
      const int64_t level = field == 2 ? column.repetition : column.definition;
      if (size != 0 && size != static_cast<uint64_t>(level) + 1) sound = 0;
      return from_.skip_elements(element, size, 6);
    });
  }

  Compact from_;
  const std::vector<StoredColumn>& columns_;
};

}  // namespace cb::parquet
