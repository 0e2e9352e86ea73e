// Decompression against byte-by-byte twins, checksums against tables, column chunks of any bytes in memory of just
// their size: a sanitizer sees what goes outside.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/parquet/column_chunk.h"
#include "core/parquet/crc32.h"
#include "core/parquet/lz4.h"
#include "core/parquet/page_header.h"
#include "core/parquet/run_length_bit_packing.h"
#include "core/parquet/snappy.h"
#include "tests/check.h"

using namespace cb;
using namespace cb::parquet;

namespace {

using Bytes = std::vector<uint8_t>;

std::mt19937_64 random_bits(3);
size_t below(size_t n) { return random_bits() % n; }

// Literals and matches of all lengths and offsets, and what they mean, one byte after the other.
struct Made {
  Bytes stored, raw;

  void literals(size_t n) {
    for (size_t k = 0; k < n; ++k) {
      raw.push_back(static_cast<uint8_t>(below(256)));
      stored.push_back(raw.back());
    }
  }
  void match(size_t back, size_t n) {
    for (size_t k = 0; k < n; ++k) raw.push_back(raw[raw.size() - back]);
  }
  size_t some_length() const { return below(3) ? below(20) : below(3) ? below(300) : below(1000); }
  size_t some_offset(size_t most) const {
    const size_t most_back = std::min(raw.size(), most);
    return 1 + (below(2) ? below(std::min<size_t>(most_back, 40)) : below(most_back));
  }
};

void lz4_rest(Bytes& to, size_t n) {
  for (; n >= 255; n -= 255) to.push_back(255);
  to.push_back(static_cast<uint8_t>(n));
}

Made some_lz4() {
  Made m;
  const size_t sequences = below(30);
  for (size_t k = 0; k <= sequences; ++k) {
    const size_t literals = m.raw.empty() ? 1 + m.some_length() : m.some_length(), length = 4 + m.some_length();
    const bool last = k == sequences;
    const size_t token = std::min<size_t>(literals, 15) << 4 | (last ? 0 : std::min<size_t>(length - 4, 15));
    m.stored.push_back(static_cast<uint8_t>(token));
    if (literals >= 15) lz4_rest(m.stored, literals - 15);
    m.literals(literals);
    if (last) break;
    const size_t back = m.some_offset(65535);
    m.stored.push_back(static_cast<uint8_t>(back));
    m.stored.push_back(static_cast<uint8_t>(back >> 8));
    if (length - 4 >= 15) lz4_rest(m.stored, length - 4 - 15);
    m.match(back, length);
  }
  return m;
}

void varint(Bytes& to, uint64_t value) {
  for (; value >= 128; value >>= 7) to.push_back(static_cast<uint8_t>(value | 128));
  to.push_back(static_cast<uint8_t>(value));
}

Made some_snappy() {
  Made m;
  const size_t elements = below(40);
  for (size_t k = 0; k < elements; ++k) {
    if (m.raw.empty() || below(2)) {
      const size_t n = 1 + m.some_length();
      if (n <= 60) {
        m.stored.push_back(static_cast<uint8_t>((n - 1) << 2));
      } else {
        const size_t bytes = n - 1 < 256 ? 1 : 2;
        m.stored.push_back(static_cast<uint8_t>((59 + bytes) << 2));
        for (size_t b = 0; b < bytes; ++b) m.stored.push_back(static_cast<uint8_t>((n - 1) >> (8 * b)));
      }
      m.literals(n);
      continue;
    }
    const size_t kind = 1 + below(3), bytes = kind == 3 ? 4 : kind;
    const size_t back = m.some_offset(kind == 1 ? 2047 : kind == 2 ? 65535 : 1u << 30);
    const size_t n = kind == 1 ? 4 + below(8) : 1 + below(64);
    if (kind == 1)
      m.stored.push_back(static_cast<uint8_t>(1 | (n - 4) << 2 | back >> 8 << 5));
    else
      m.stored.push_back(static_cast<uint8_t>(kind | (n - 1) << 2));
    for (size_t b = 0; b < bytes; ++b) m.stored.push_back(static_cast<uint8_t>(back >> (8 * b)));
    m.match(back, n);
  }
  Bytes whole;
  varint(whole, m.raw.size());
  whole.insert(whole.end(), m.stored.begin(), m.stored.end());
  m.stored = whole;
  return m;
}

using Decompress = bool (*)(const uint8_t*, size_t, uint8_t*, size_t);

void decompression_is_its_twin(Decompress decompress, Made (*make)()) {
  for (int round = 0; round < 3000; ++round) {
    const Made m = make();
    Bytes out(m.raw.size() + kSlack, 0x5a);
    CHECK(decompress(m.stored.data(), m.stored.size(), out.data(), m.raw.size()));
    CHECK(std::equal(m.raw.begin(), m.raw.end(), out.begin()));
    // Another size, fewer bytes, other bytes: refused or not, nothing else is touched.
    for (size_t size : {m.raw.size() / 2, m.raw.size() + 1}) {
      Bytes other(size + kSlack);
      if (size != m.raw.size()) CHECK(!decompress(m.stored.data(), m.stored.size(), other.data(), size));
    }
    Bytes bad(m.stored.begin(), m.stored.end());
    for (size_t k = 1 + below(4); k && !bad.empty(); --k) bad[below(bad.size())] = static_cast<uint8_t>(below(256));
    if (below(3) == 0) bad.resize(below(bad.size() + 1));
    const Bytes exact(bad);
    decompress(exact.data(), exact.size(), out.data(), m.raw.size());
  }
}

void checksums_are_those_of_tables() {
  CHECK(crc32(reinterpret_cast<const uint8_t*>("123456789"), 9) == 0xcbf43926u);
  for (size_t n = 0; n < 700; ++n) {
    Bytes bytes(n);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(below(256));
    CHECK(crc32(bytes.data(), n) == crc32_by_tables(bytes.data(), n));
  }
}

void hybrid_runs_are_read() {
  for (unsigned width : {1u, 2u, 3u, 7u, 8u, 13u, 24u, 31u, 32u}) {
    const uint64_t most = (uint64_t{1} << width) - 1;
    for (int round = 0; round < 100; ++round) {
      Bytes stored;
      std::vector<uint32_t> values;
      for (size_t run = below(6) + 1; run; --run) {
        if (below(2)) {
          const size_t n = 1 + below(300);
          const uint64_t value = random_bits() & most;
          varint(stored, n << 1);
          for (unsigned b = 0; b < (width + 7) / 8; ++b) stored.push_back(static_cast<uint8_t>(value >> (8 * b)));
          values.insert(values.end(), n, static_cast<uint32_t>(value));
        } else {
          const size_t groups = 1 + below(9);
          varint(stored, groups << 1 | 1);
          const size_t at = stored.size();
          stored.resize(at + groups * width);
          for (size_t k = 0; k < groups * 8; ++k) {
            const uint64_t value = random_bits() & most;
            for (unsigned b = 0; b < width; ++b)
              if (value >> b & 1) stored[at + (k * width + b) / 8] |= static_cast<uint8_t>(1 << ((k * width + b) % 8));
            values.push_back(static_cast<uint32_t>(value));
          }
        }
      }
      const size_t n = values.size() - below(std::min<size_t>(8, values.size()));
      Bytes padded(stored);
      padded.resize(stored.size() + 8);
      std::vector<uint32_t> out(n);
      CHECK(hybrid_decode(padded.data(), padded.data() + stored.size(), width, n, most + 1, out.data()));
      CHECK(std::equal(out.begin(), out.end(), values.begin()));
      out.resize(values.size() + 1000);
      CHECK(!hybrid_decode(padded.data(), padded.data() + stored.size(), width, out.size(), most + 1, out.data()));
      uint32_t largest = 0;
      for (size_t k = 0; k < n; ++k) largest = std::max(largest, values[k]);
      CHECK(!hybrid_decode(padded.data(), padded.data() + stored.size(), width, n, largest, out.data()));
    }
  }
}

// A page header as a writer makes it.
void field(Bytes& to, int& last, int number, int64_t value) {
  to.push_back(static_cast<uint8_t>((number - last) << 4 | 5));
  last = number;
  varint(to, static_cast<uint64_t>(value << 1 ^ value >> 63));
}

Bytes page(const Bytes& body, int32_t values, bool with_crc) {
  Bytes out;
  int last = 0;
  field(out, last, 1, 0);
  field(out, last, 2, static_cast<int64_t>(body.size()));
  field(out, last, 3, static_cast<int64_t>(body.size()));
  if (with_crc) field(out, last, 4, static_cast<int32_t>(crc32(body.data(), body.size())));
  out.push_back(static_cast<uint8_t>((5 - last) << 4 | 12));
  int inner = 0;
  field(out, inner, 1, values);
  field(out, inner, 2, 0);
  field(out, inner, 3, 3);
  field(out, inner, 4, 3);
  out.push_back(0);
  out.push_back(0);
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

void text(Bytes& to, const std::string& s) {
  for (unsigned b = 0; b < 4; ++b) to.push_back(static_cast<uint8_t>(s.size() >> (8 * b)));
  to.insert(to.end(), s.begin(), s.end());
}

void strings_with_nulls_are_read() {
  // Rows: "one", null, "", "three" and, in a second page, null, "six".
  Bytes first = {2, 0, 0, 0, 3, 0x0d};  // four levels in one packed group: 1 0 1 1
  text(first, "one");
  text(first, "");
  text(first, "three");
  Bytes second = {2, 0, 0, 0, 3, 0x02};
  text(second, "six");
  Bytes chunk = page(first, 4, true);
  const Bytes more = page(second, 2, false);
  chunk.insert(chunk.end(), more.begin(), more.end());
  std::optional<DecodedColumn> column = decode(chunk.data(), chunk.size(), {Codec::None, 0, true, 6});
  CHECK(column && column->nulls == 2 && column->offsets.size() == 7);
  const int32_t offsets[] = {0, 3, 3, 3, 8, 8, 11};
  CHECK(std::equal(offsets, offsets + 7, column->offsets.data()));
  CHECK(column->values.size() == 11 && std::memcmp(column->values.data(), "onethreesix", 11) == 0);
  CHECK((column->valid.data()[0] & 63) == 0b101101);
  for (int64_t rows : {0, 5, 7}) CHECK(!decode(chunk.data(), chunk.size(), {Codec::None, 0, true, rows}));
  CHECK(!decode(chunk.data(), chunk.size(), {Codec::None, 8, true, 6}));
  for (size_t cut = 0; cut < chunk.size(); ++cut) {
    const Bytes exact(chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(cut));
    CHECK(!decode(exact.data(), exact.size(), {Codec::None, 0, true, 6}));
  }
  for (int round = 0; round < 20000; ++round) {
    Bytes bad(chunk);
    for (size_t k = 1 + below(3); k; --k) bad[below(bad.size())] = static_cast<uint8_t>(below(256));
    const ColumnShape shape{static_cast<Codec>(below(3)), static_cast<uint32_t>(below(3) * 4), below(2) == 0, 6};
    const std::optional<DecodedColumn> got = decode(bad.data(), bad.size(), shape);
    if (got && !shape.width) CHECK(got->offsets.data()[6] == static_cast<int32_t>(got->values.size()));
  }
}

void headers_of_any_bytes_are_read_or_refused() {
  for (int round = 0; round < 100000; ++round) {
    Bytes bytes(below(40));
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(below(4) ? below(256) : below(2) * 0x1c);
    PageHeader header;
    Compact reader(bytes.data(), bytes.data() + bytes.size());
    if (read_page_header(reader, header)) CHECK(reader.at() <= bytes.data() + bytes.size());
  }
  const Bytes deep(100000, 0x1c);  // structs within structs
  PageHeader header;
  Compact reader(deep.data(), deep.data() + deep.size());
  CHECK(!read_page_header(reader, header));
}

}  // namespace

int main() {
  decompression_is_its_twin(lz4_decompress, some_lz4);
  decompression_is_its_twin(snappy_decompress, some_snappy);
  checksums_are_those_of_tables();
  hybrid_runs_are_read();
  strings_with_nulls_are_read();
  headers_of_any_bytes_are_read_or_refused();
  std::puts("parquet: ok");
}
