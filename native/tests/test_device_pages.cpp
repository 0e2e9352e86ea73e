// The GPU's page decoder (cuda/parquet_pages.h), a warp being one thread, against the CPU's: thousands of column
// chunks, whole and with bytes changed, in memory of just their size. Both readers refuse the same chunks and give the
// same rows of the others; a sanitizer sees what goes outside.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "core/parquet/column_chunk.h"
#include "core/parquet/staged_pages.h"
#include "tests/check.h"

// What CUDA gives.
#define CB_HOST_BLOCKS 1
#define __device__
#define __global__
#define __shared__ static
namespace {
struct Place {
  unsigned x, y;
};
Place threadIdx{0, 0}, blockIdx{0, 0}, blockDim{1, 1}, gridDim{1, 1};
}  // namespace
#include "cuda/parquet_pages.h"

using namespace cb;
using namespace cb::parquet;
namespace dev = cb::pages;

namespace {

using Bytes = std::vector<uint8_t>;

std::mt19937_64 random_bits(11);
size_t below(size_t n) { return random_bits() % n; }

void varint(Bytes& to, uint64_t value) {
  for (; value >= 128; value >>= 7) to.push_back(static_cast<uint8_t>(value | 128));
  to.push_back(static_cast<uint8_t>(value));
}

void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

void number(Bytes& to, uint64_t value, size_t bytes) {
  for (size_t b = 0; b < bytes; ++b) to.push_back(static_cast<uint8_t>(value >> (8 * b)));
}

// ---- what a writer makes
// ----------------------------------------------------------------------------------------------

// Where the bytes at `at` were before, at most `most` bytes back: offset and length, or length 0.
std::pair<size_t, size_t> earlier(const Bytes& raw, size_t at, size_t most) {
  for (int attempt = 0; attempt < 4 && at; ++attempt) {
    const size_t back = 1 + below(std::min(at, most));
    size_t length = 0;
    while (at + length < raw.size() && raw[at + length] == raw[at + length - back]) ++length;
    if (length >= 4) return {back, length};
  }
  return {0, 0};
}

Bytes lz4(const Bytes& raw) {
  Bytes out;
  const auto rest = [&](size_t n) {
    for (; n >= 255; n -= 255) out.push_back(255);
    out.push_back(static_cast<uint8_t>(n));
  };
  size_t begin = 0, at = 0;
  for (;;) {
    const auto [back, length] = at < raw.size() ? earlier(raw, at, below(2) ? 16 : 65535) : std::pair<size_t, size_t>{};
    if (at < raw.size() && !length) {
      ++at;
      continue;
    }
    const size_t literals = at - begin;
    out.push_back(
        static_cast<uint8_t>(std::min<size_t>(literals, 15) << 4 | (length ? std::min<size_t>(length - 4, 15) : 0)));
    if (literals >= 15) rest(literals - 15);
    out.insert(out.end(), raw.begin() + static_cast<ptrdiff_t>(begin), raw.begin() + static_cast<ptrdiff_t>(at));
    if (at == raw.size()) return out;
    number(out, back, 2);
    if (length - 4 >= 15) rest(length - 4 - 15);
    begin = at += length;
  }
}

Bytes snappy(const Bytes& raw) {
  Bytes out;
  varint(out, raw.size());
  size_t begin = 0, at = 0;
  const auto literals = [&] {
    while (begin < at) {
      const size_t n = std::min<size_t>(at - begin, 1 + below(300));
      if (n <= 60) {
        out.push_back(static_cast<uint8_t>((n - 1) << 2));
      } else {
        const size_t bytes = n - 1 < 256 ? 1 : 2;
        out.push_back(static_cast<uint8_t>((59 + bytes) << 2));
        number(out, n - 1, bytes);
      }
      out.insert(out.end(), raw.begin() + static_cast<ptrdiff_t>(begin),
                 raw.begin() + static_cast<ptrdiff_t>(begin + n));
      begin += n;
    }
  };
  while (at < raw.size()) {
    const auto [back, found] = earlier(raw, at, below(2) ? 16 : 65535);
    if (!found) {
      ++at;
      continue;
    }
    literals();
    const size_t length = std::min<size_t>(found, 64);
    const size_t kind = length < 12 && back < 2048 ? 1 : 2 + below(2), bytes = kind == 3 ? 4 : kind;
    out.push_back(static_cast<uint8_t>(kind == 1 ? 1 | (length - 4) << 2 | back >> 8 << 5 : kind | (length - 1) << 2));
    number(out, back, bytes);
    begin = at += length;
  }
  literals();
  return out;
}

Bytes hybrid(const std::vector<uint32_t>& values, unsigned width) {
  Bytes out;
  for (size_t at = 0; at < values.size();) {
    size_t same = 1;
    while (at + same < values.size() && values[at + same] == values[at]) ++same;
    if (same >= 8 || below(8) == 0) {
      varint(out, same << 1);
      number(out, values[at], (width + 7) / 8);
      at += same;
      continue;
    }
    const size_t groups = std::min<size_t>(1 + below(5), (values.size() - at + 7) / 8), begin = out.size() + 1;
    varint(out, groups << 1 | 1);
    out.resize(begin + groups * width);
    for (size_t k = 0; k < groups * 8 && at + k < values.size(); ++k)
      for (unsigned b = 0; b < width; ++b)
        if (values[at + k] >> b & 1)
          out[begin + (k * width + b) / 8] |= static_cast<uint8_t>(1 << ((k * width + b) % 8));
    at = std::min(values.size(), at + groups * 8);
  }
  return out;
}

void plain(Bytes& to, size_t values, uint32_t width) {
  for (size_t k = 0; k < values; ++k) {
    if (width) {
      number(to, below(3) ? below(20) : random_bits(), width);
      continue;
    }
    const size_t n = below(4) ? below(12) : below(120);
    number(to, n, 4);
    for (size_t b = 0; b < n; ++b) to.push_back(static_cast<uint8_t>('a' + below(3)));
  }
}

void field(Bytes& to, int& last, int id, int64_t value) {
  to.push_back(static_cast<uint8_t>((id - last) << 4 | 5));
  last = id;
  varint(to, static_cast<uint64_t>(value << 1 ^ value >> 63));
}

// A page behind its header; `levels` bytes in front stay as they are (version 2).
void page(Bytes& to, const Bytes& body, size_t levels, Codec codec, int kind, size_t values, int encoding,
          size_t nulls) {
  const Bytes front(body.begin(), body.begin() + static_cast<ptrdiff_t>(levels));
  const Bytes rest(body.begin() + static_cast<ptrdiff_t>(levels), body.end());
  const bool pack = codec != Codec::None && !(kind == 3 && (rest.empty() || below(4) == 0));
  Bytes stored(front);
  append(stored, !pack ? rest : codec == Codec::Lz4 ? lz4(rest) : snappy(rest));
  int last = 0, inner = 0;
  field(to, last, 1, kind);
  field(to, last, 2, static_cast<int64_t>(body.size()));
  field(to, last, 3, static_cast<int64_t>(stored.size()));
  to.push_back(static_cast<uint8_t>((kind == 0 ? 5 - last : kind == 2 ? 7 - last : 8 - last) << 4 | 12));
  field(to, inner, 1, static_cast<int64_t>(values));
  if (kind == 3) {
    field(to, inner, 2, static_cast<int64_t>(nulls));
    field(to, inner, 3, static_cast<int64_t>(values));
    field(to, inner, 4, encoding);
    field(to, inner, 5, static_cast<int64_t>(levels));
    field(to, inner, 6, 0);
    to.push_back(pack ? 0x11 : 0x12);
  } else {
    field(to, inner, 2, encoding);
    if (kind == 0) {
      field(to, inner, 3, 3);
      field(to, inner, 4, 3);
    }
  }
  to.push_back(0);
  to.push_back(0);
  append(to, stored);
}

struct Chunk {
  Bytes stored;
  ColumnShape shape;
};

Chunk some_chunk() {
  Chunk chunk;
  ColumnShape& shape = chunk.shape;
  shape = {static_cast<Codec>(below(3)), static_cast<uint32_t>(below(3) * 4), below(3) > 0, 0};
  size_t entries = 0;
  if (below(2)) {
    entries = 1 + below(40);
    Bytes body;
    plain(body, entries, shape.width);
    page(chunk.stored, body, 0, shape.codec, 2, entries, below(2) ? 0 : 2, 0);
  }
  const size_t nulls_in_eight = below(3) ? below(9) : 0;
  for (size_t pages = 1 + below(3); pages; --pages) {
    const bool v2 = below(2), coded = entries && below(5);
    const size_t n = below(6) ? below(150) : below(3);
    std::vector<uint32_t> levels(n, 1);
    if (shape.nullable)
      for (size_t k = 0; k < n; ++k) levels[k] = below(8) >= nulls_in_eight;
    const size_t there = static_cast<size_t>(std::count(levels.begin(), levels.end(), 1u));
    Bytes body;
    size_t front = 0;
    if (shape.nullable) {
      const Bytes packed = hybrid(levels, 1);
      if (!v2) number(body, packed.size(), 4);
      append(body, packed);
      front = v2 ? packed.size() : 0;
    }
    if (coded) {
      const unsigned width = entries > 1 ? 6 + static_cast<unsigned>(below(3)) : static_cast<unsigned>(below(2));
      std::vector<uint32_t> places(there);
      for (uint32_t& place : places) place = static_cast<uint32_t>(below(4) ? below(entries) : 0);
      body.push_back(static_cast<uint8_t>(width));
      append(body, hybrid(places, width));
    } else {
      plain(body, there, shape.width);
    }
    page(chunk.stored, body, front, shape.codec, v2 ? 3 : 0, n, coded ? 8 : 0, n - there);
    shape.rows += static_cast<int64_t>(n);
  }
  return chunk;
}

// ---- both readers
// -----------------------------------------------------------------------------------------------------

// A row as bytes, or nothing where it is null.
using Rows = std::vector<std::optional<Bytes>>;

std::optional<Rows> by_the_cpu(const Chunk& chunk) {
  const std::optional<DecodedColumn> got = decode(chunk.stored.data(), chunk.stored.size(), chunk.shape);
  if (!got) return std::nullopt;
  Rows rows;
  for (size_t k = 0; k < static_cast<size_t>(chunk.shape.rows); ++k) {
    if (got->nulls && !(got->valid.data()[k / 8] >> (k % 8) & 1)) {
      rows.emplace_back();
      continue;
    }
    const uint8_t* from = got->values.data() + chunk.shape.width * k;
    size_t n = chunk.shape.width;
    if (!n) {
      from = got->values.data() + got->offsets.data()[k];
      n = static_cast<size_t>(got->offsets.data()[k + 1] - got->offsets.data()[k]);
    }
    rows.emplace_back(Bytes(from, from + n));
  }
  return rows;
}

// The tables that the core writes are those that the kernels read.
static_assert(sizeof(StagedPage) == sizeof(dev::StoredPage) && sizeof(StagedColumn) == sizeof(dev::PageColumn));
static_assert(sizeof(StagedResult) == sizeof(dev::PageResult) && StagedPages::kSlack == 64);
static_assert(offsetof(StagedPage, raw) == offsetof(dev::StoredPage, raw) &&
              offsetof(StagedPage, row) == offsetof(dev::StoredPage, row) &&
              offsetof(StagedPage, stored_size) == offsetof(dev::StoredPage, stored_size) &&
              offsetof(StagedPage, raw_size) == offsetof(dev::StoredPage, raw_size) &&
              offsetof(StagedPage, values) == offsetof(dev::StoredPage, values) &&
              offsetof(StagedPage, plain) == offsetof(dev::StoredPage, plain) &&
              offsetof(StagedPage, column) == offsetof(dev::StoredPage, column) &&
              offsetof(StagedPage, dictionary) == offsetof(dev::StoredPage, dictionary) &&
              offsetof(StagedPage, codec) == offsetof(dev::StoredPage, codec) &&
              offsetof(StagedPage, kind) == offsetof(dev::StoredPage, kind));
static_assert(offsetof(StagedColumn, levels) == offsetof(dev::PageColumn, levels) &&
              offsetof(StagedColumn, bits) == offsetof(dev::PageColumn, bits) &&
              offsetof(StagedColumn, between) == offsetof(dev::PageColumn, between) &&
              offsetof(StagedColumn, words) == offsetof(dev::PageColumn, words) &&
              offsetof(StagedColumn, text) == offsetof(dev::PageColumn, text) &&
              offsetof(StagedColumn, rows) == offsetof(dev::PageColumn, rows) &&
              offsetof(StagedColumn, width) == offsetof(dev::PageColumn, width) &&
              offsetof(StagedColumn, nullable) == offsetof(dev::PageColumn, nullable) &&
              offsetof(StagedColumn, out_width) == offsetof(dev::PageColumn, out_width));

// Decodes chunks as columns of one call; nothing for a column that is refused.
std::vector<std::optional<Rows>> by_the_device(const std::vector<Chunk>& chunks) {
  std::vector<std::vector<StagedChunk>> columns;
  for (const Chunk& chunk : chunks) columns.push_back({{0, static_cast<int64_t>(chunk.stored.size()), chunk.shape, 0}});
  StagedPages staged(std::move(columns));
  for (size_t k = 0; k < chunks.size(); ++k) {
    // The kernels read at places that are counted from one buffer; here each chunk has memory of just its size.
    staged.found(k, chunks[k].stored.data());
  }
  staged.lay_out();
  Bytes held(staged.held_bytes()), between(staged.between_bytes()), table(staged.table_bytes());
  staged.write(table.data(), 0, reinterpret_cast<uint64_t>(held.data()), reinterpret_cast<uint64_t>(between.data()));
  auto* const pages = reinterpret_cast<dev::StoredPage*>(table.data());
  auto* const shapes = reinterpret_cast<dev::PageColumn*>(pages + staged.pages());
  auto* const dictionaries = reinterpret_cast<uint32_t*>(shapes + staged.shapes());
  auto* const data = dictionaries + staged.dictionaries();
  std::vector<size_t> numbers;  // of the chunks, by the column of the table
  for (size_t k = 0; k < chunks.size(); ++k)
    if (staged.decoded(k)) numbers.push_back(k);
  CHECK(numbers.size() == staged.shapes());
  for (size_t k = 0; k < staged.pages(); ++k) {
    const size_t number = numbers[pages[k].column];
    pages[k].stored =
        chunks[number].stored.data() + (reinterpret_cast<uint64_t>(pages[k].stored) - staged.place(number));
  }
  std::vector<StagedResult> said(staged.pages(), StagedResult{99, 99});
  auto* const results = reinterpret_cast<dev::PageResult*>(said.data());
  // One block too many: it finds no page.
  for (blockIdx.x = 0; blockIdx.x <= staged.pages(); ++blockIdx.x) pages_unpack(pages, results, staged.pages());
  for (blockIdx.x = 0; blockIdx.x <= staged.dictionaries(); ++blockIdx.x)
    pages_words(pages, shapes, results, dictionaries, staged.dictionaries());
  for (blockIdx.x = 0; blockIdx.x <= staged.data(); ++blockIdx.x)
    pages_values(pages, shapes, results, data, staged.data());
  blockIdx.x = 0;
  for (blockIdx.y = 0; blockIdx.y < staged.shapes(); ++blockIdx.y) pages_bits(shapes);
  blockIdx.y = 0;
  std::vector<std::optional<Rows>> given;
  for (const std::optional<StagedPages::Column>& c : staged.outcome(said, reinterpret_cast<uint64_t>(held.data()))) {
    given.emplace_back();
    if (!c || c->failed) continue;
    Rows& rows = given.back().emplace();
    const auto at = [](uint64_t address) { return reinterpret_cast<const uint8_t*>(address); };
    for (size_t k = 0; k < c->rows; ++k) {
      if (c->bits && !(at(c->bits)[k / 8] >> (k % 8) & 1)) {
        rows.emplace_back();
        continue;
      }
      const uint8_t* from = at(c->values) + c->width * k;
      size_t n = c->width;
      if (!n) {
        TextView view;
        std::memcpy(&view, at(c->values) + 8 * k, 8);
        from = at(c->text) + view.at;
        n = view.n;
      }
      rows.emplace_back(Bytes(from, from + n));
    }
  }
  return given;
}

}  // namespace

int main() {
  size_t refused = 0, changed = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<Chunk> chunks{some_chunk()};
    std::vector<std::optional<Rows>> want{by_the_cpu(chunks[0])};
    CHECK(want[0]);
    for (int mutant = 0; mutant < 6; ++mutant) {
      Chunk bad = chunks[0];
      for (size_t k = 1 + below(3); k; --k) {
        uint8_t& byte = bad.stored[below(below(2) ? std::min<size_t>(bad.stored.size(), 80) : bad.stored.size())];
        byte = static_cast<uint8_t>(below(2) ? below(256) : byte ^ 1u << below(8));
      }
      if (below(20) == 0) bad.stored.resize(below(bad.stored.size() + 1));
      bad.stored.shrink_to_fit();
      want.push_back(by_the_cpu(bad));
      chunks.push_back(std::move(bad));
      refused += !want.back();
      changed += want.back() && *want.back() != *want[0];
    }
    CHECK(by_the_device(chunks) == want);
  }
  CHECK(refused > 1000 && changed > 300);
  std::printf("device pages: ok, %zu chunks refused by both, %zu changed\n", refused, changed);
}
