#include "core/parquet/column_chunk.h"

#include <cstring>
#include <limits>
#include <vector>

#include "core/parquet/lz4.h"
#include "core/parquet/page_list.h"
#include "core/parquet/run_length_bit_packing.h"
#include "core/parquet/snappy.h"

namespace cb::parquet {

namespace {

struct Span {
  const uint8_t* at;
  const uint8_t* end;
  size_t size() const { return static_cast<size_t>(end - at); }
};

// Copies a string; 16 bytes at a time, so that up to 15 behind its end are read and written.
inline void copy_text(uint8_t* to, const uint8_t* from, size_t n) {
  for (size_t k = 0; k < n; k += 16) std::memcpy(to + k, from + k, 16);
}

class ColumnReader {
 public:
  explicit ColumnReader(const ColumnShape& shape) : shape_(shape) {}

  bool read(const std::vector<Page>& pages) {
    const size_t rows = static_cast<size_t>(shape_.rows);
    size_t text = 0;
    for (const Page& page : pages)
      if (page.header.kind != static_cast<int32_t>(PageKind::Dictionary))
        text += static_cast<size_t>(page.header.raw_size);
    if (shape_.width) {
      out_.values.resize(rows * shape_.width);
    } else {
      if (text > kMostText) return false;
      room_ = text;  // enough for PLAIN pages; a dictionary's strings are counted page by page
      out_.values.reserve(room_ + kSlack);
      out_.offsets.resize(rows + 1);
      out_.offsets.data()[0] = 0;
    }
    for (const Page& page : pages) {
      const bool dictionary = page.header.kind == static_cast<int32_t>(PageKind::Dictionary);
      if (!(dictionary ? read_dictionary(page) : read_data(page))) return false;
    }
    if (!shape_.width) out_.values.resize(text_);
    if (out_.nulls == 0) out_.valid.resize(0);
    return true;
  }

  DecodedColumn take() { return std::move(out_); }

 private:
  static constexpr size_t kMostText = std::numeric_limits<int32_t>::max() - 2 * kSlack;

  bool decompress(const uint8_t* from, size_t stored, uint8_t* to, size_t raw) const {
    switch (shape_.codec) {
      case Codec::Lz4:
        return lz4_decompress(from, stored, to, raw);
      case Codec::Snappy:
        return snappy_decompress(from, stored, to, raw);
      case Codec::None:
        break;
    }
    if (stored != raw) return false;
    if (raw) std::memcpy(to, from, raw);
    return true;
  }

  // The page's bytes in `into`, kSlack of it behind them. `plain` bytes in front are stored as they are.
  std::optional<Span> open(const Page& page, Buffer<uint8_t>& into, size_t plain = 0) const {
    const size_t stored = static_cast<size_t>(page.header.stored_size), raw = static_cast<size_t>(page.header.raw_size);
    into.resize(0);
    into.resize(raw + kSlack);
    uint8_t* to = into.data();
    if (plain) std::memcpy(to, page.stored, plain);
    bool good;
    if (page.header.compressed) {
      // A page of nothing but nulls may be stored as no bytes at all.
      good =
          (stored == plain && raw == plain) || decompress(page.stored + plain, stored - plain, to + plain, raw - plain);
    } else {
      good = stored == raw;
      if (good && raw > plain) std::memcpy(to + plain, page.stored + plain, raw - plain);
    }
    if (!good) return std::nullopt;
    std::memset(to + raw, 0, kSlack);
    return Span{to, to + raw};
  }

  bool read_dictionary(const Page& page) {
    std::optional<Span> body = open(page, words_);
    if (!body) return false;
    const size_t n = static_cast<size_t>(page.header.values);
    dictionary_ = n;
    if (shape_.width) return body->size() == n * shape_.width;
    if (n > body->size() / 4) return false;
    word_at_.resize(n);
    for (size_t k = 0; k < n; ++k) {
      uint32_t length;
      if (body->size() < 4) return false;
      std::memcpy(&length, body->at, 4);
      body->at += 4;
      if (length > body->size()) return false;
      word_at_[k] = {static_cast<uint32_t>(body->at - words_.data()), length};
      body->at += length;
    }
    return body->size() == 0;
  }

  bool read_data(const Page& page) {
    const PageHeader& h = page.header;
    const size_t n = static_cast<size_t>(h.values);
    const bool v2 = h.kind == static_cast<int32_t>(PageKind::DataV2);
    std::optional<Span> body = open(page, page_, v2 ? static_cast<size_t>(h.definition_bytes) : 0);
    if (!body) return false;
    size_t there = n;  // values that are not null
    if (v2 && !shape_.nullable && h.definition_bytes) return false;
    if (shape_.nullable) {
      Span levels{body->at, body->at};
      if (v2) {
        levels.end += h.definition_bytes;
      } else {
        uint32_t length;
        if (body->size() < 4) return false;
        std::memcpy(&length, body->at, 4);
        levels.at += 4;
        if (length > body->size() - 4) return false;
        levels.end = levels.at + length;
      }
      body->at = levels.end;
      if (!read_levels(levels, n, there)) return false;
    }
    const bool good = dictionary_coded(h) ? read_places(*body, n, there) : read_plain(*body, n, there);
    if (good) row_ += n;
    return good;
  }

  // Which of the page's rows are there: levels_ a byte each, and bits of `valid` once a row has been null.
  bool read_levels(Span levels, size_t n, size_t& there) {
    levels_.resize(n);
    if (!hybrid_decode(levels.at, levels.end, 1, n, 2, levels_.data())) return false;
    there = 0;
    for (uint8_t level : levels_) there += level;
    if (there == n && out_.nulls == 0) return true;
    const size_t rows = static_cast<size_t>(shape_.rows);
    if (out_.nulls == 0) {
      out_.valid.resize((rows + 7) / 8);
      std::memset(out_.valid.data(), 255, out_.valid.size());
    }
    out_.nulls += static_cast<int64_t>(n - there);
    uint8_t* bits = out_.valid.data();
    for (size_t k = 0; k < n; ++k) {
      const size_t row = row_ + k;
      bits[row / 8] = static_cast<uint8_t>(bits[row / 8] & ~((levels_[k] ^ 1u) << (row % 8)));
    }
    return true;
  }

  bool read_plain(Span body, size_t n, size_t there) {
    if (!shape_.width) return read_texts(body, n, there);
    if (body.size() != there * shape_.width) return false;
    uint8_t* to = out_.values.data() + row_ * shape_.width;
    if (there == n) {
      if (n) std::memcpy(to, body.at, n * shape_.width);
      return true;
    }
    for (size_t k = 0; k < n; ++k, to += shape_.width) {
      if (levels_[k]) {
        std::memcpy(to, body.at, shape_.width);
        body.at += shape_.width;
      } else {
        std::memset(to, 0, shape_.width);
      }
    }
    return true;
  }

  bool read_texts(Span body, size_t n, size_t there) {
    // The page's strings are shorter than the page, so there is room for them unless a dictionary's came before.
    if (!room_for(body.size())) return false;
    uint8_t* to = out_.values.data() + text_;
    uint8_t* const from = to;
    int32_t* offsets = out_.offsets.data() + row_ + 1;
    for (size_t k = 0; k < n; ++k) {
      if (there == n || levels_[k]) {
        uint32_t length;
        if (body.size() < 4) return false;
        std::memcpy(&length, body.at, 4);
        body.at += 4;
        if (length > body.size()) return false;
        copy_text(to, body.at, length);
        to += length;
        body.at += length;
      }
      offsets[k] = static_cast<int32_t>(text_ + static_cast<size_t>(to - from));
    }
    text_ += static_cast<size_t>(to - from);
    out_.values.resize(text_);
    return body.size() == 0;
  }

  bool room_for(size_t more) {
    if (text_ + more > kMostText) return false;
    if (text_ + more > room_) {
      room_ = std::min(kMostText, std::max(text_ + more, 2 * room_));
      out_.values.reserve(room_ + kSlack);
    }
    return true;
  }

  // Places in the dictionary: a byte that says how many bits each has, then the hybrid.
  bool read_places(Span body, size_t n, size_t there) {
    places_.resize(there);
    if (there) {
      if (!body.size() || *body.at > 32) return false;
      const unsigned width = *body.at;
      if (!hybrid_decode(body.at + 1, body.end, width, there, dictionary_, places_.data())) return false;
    }
    if (!shape_.width) return place_texts(n, there);
    if (shape_.width == 4)
      place_numbers<uint32_t>(n, there);
    else
      place_numbers<uint64_t>(n, there);
    return true;
  }

  template <class T>
  void place_numbers(size_t n, size_t there) {
    const uint8_t* words = words_.data();
    uint8_t* to = out_.values.data() + row_ * sizeof(T);
    size_t next = 0;
    for (size_t k = 0; k < n; ++k, to += sizeof(T)) {
      if (there == n || levels_[k])
        std::memcpy(to, words + places_[next++] * sizeof(T), sizeof(T));
      else
        std::memset(to, 0, sizeof(T));
    }
  }

  bool place_texts(size_t n, size_t there) {
    size_t bytes = 0;
    for (uint32_t place : places_) bytes += word_at_[place].length;
    if (!room_for(bytes)) return false;
    uint8_t* to = out_.values.data() + text_;
    int32_t* offsets = out_.offsets.data() + row_ + 1;
    size_t next = 0;
    for (size_t k = 0; k < n; ++k) {
      if (there == n || levels_[k]) {
        const Word word = word_at_[places_[next++]];
        copy_text(to, words_.data() + word.at, word.length);
        to += word.length;
      }
      offsets[k] = static_cast<int32_t>(to - out_.values.data());
    }
    text_ += bytes;
    out_.values.resize(text_);
    return true;
  }

  struct Word {
    uint32_t at, length;  // within words_
  };

  const ColumnShape& shape_;
  DecodedColumn out_;
  size_t row_ = 0;   // rows of the pages before
  size_t text_ = 0;  // bytes of their strings
  size_t room_ = 0;  // bytes of strings that have room, kSlack not counted
  Buffer<uint8_t> page_, words_;
  std::vector<Word> word_at_;
  size_t dictionary_ = 0;
  std::vector<uint8_t> levels_;
  std::vector<uint32_t> places_;
};

}  // namespace

std::optional<DecodedColumn> decode(const uint8_t* chunk, size_t bytes, const ColumnShape& shape) {
  std::optional<std::vector<Page>> pages = pages_of(chunk, bytes, shape);
  if (!pages) return std::nullopt;
  ColumnReader reader(shape);
  if (!reader.read(*pages)) return std::nullopt;
  return reader.take();
}

}  // namespace cb::parquet
