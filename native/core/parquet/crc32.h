// Computes the CRC-32 of Parquet pages (zlib's polynomial, reflected).
//
// Eight bytes a step by tables; where the processor can, 64 a step by carry-less products (x86) or eight by its own
// instruction (ARM). All give the same number.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cb::parquet {

uint32_t crc32(const uint8_t* bytes, size_t n);
uint32_t crc32_by_tables(const uint8_t* bytes, size_t n);  // the slow twin, on every processor

}  // namespace cb::parquet
