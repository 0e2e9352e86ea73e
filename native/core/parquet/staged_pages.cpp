#include "core/parquet/staged_pages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace cb::parquet {

namespace {

constexpr uint64_t kSpacing = 16;              // of buffers
constexpr uint64_t kMostStored = 1ull << 62;   // what a damaged footer says beyond that is not added up
constexpr uint64_t kMostText = 0xffffffffull;  // a view of a string counts in 32 bits
constexpr uint32_t kViewBytes = 8;             // of a string's view
constexpr uint64_t kLevelSlack = 8;            // bytes behind a column's levels
constexpr uint32_t kDictionary = 0, kData = 1, kDataV2 = 2;

uint64_t spaced(uint64_t size) { return (size + kSpacing - 1) & ~(kSpacing - 1); }

bool is_dictionary(const Page& page) { return page.header.kind == static_cast<int32_t>(PageKind::Dictionary); }

// Gives room of `size` bytes at the end of a buffer.
uint64_t take(uint64_t& end, uint64_t size) {
  const uint64_t at = end;
  end += spaced(size);
  return at;
}

}  // namespace

StagedPages::StagedPages(std::vector<std::vector<StagedChunk>> columns) : columns_(std::move(columns)) {
  for (size_t k = 0; k < columns_.size(); ++k)
    for (const StagedChunk& chunk : columns_[k]) {
      places_.push_back({&chunk, stored_bytes_, k, std::nullopt, nullptr});
      const uint64_t size = chunk.size > 0 ? static_cast<uint64_t>(chunk.size) : 0;
      stored_bytes_ = size < kMostStored && stored_bytes_ < kMostStored ? stored_bytes_ + spaced(size) : kMostStored;
    }
}

void StagedPages::found(size_t number, const uint8_t* stored) {
  Place& place = places_[number];
  place.pages = pages_of(stored, static_cast<size_t>(place.chunk->size), place.chunk->shape);
  place.stored = stored;
}

bool StagedPages::decodable(std::span<const Place> places) const {
  if (places.empty()) return false;
  uint64_t text = 0;
  for (const Place& place : places) {
    if (!place.pages) return false;
    if (places[0].chunk->shape.width) continue;
    for (const Page& page : *place.pages) {
      text += static_cast<uint64_t>(page.header.raw_size) + kSlack + kSpacing;
      if (is_dictionary(page) && page.header.values > page.header.raw_size / 4) return false;
    }
  }
  return text <= kMostText;
}

void StagedPages::add_pages(std::span<const Place> places, uint64_t& text, uint64_t& numbers) {
  const bool texts = places[0].chunk->shape.width == 0;
  uint64_t row = 0, entry = 0;
  for (const Place& place : places) {
    const size_t first = pages_.size();  // a dictionary is the first page of its chunk
    for (const Page& from : *place.pages) {
      const PageHeader& h = from.header;
      const bool dictionary = is_dictionary(from), v2 = h.kind == static_cast<int32_t>(PageKind::DataV2);
      StagedPage p{};
      p.stored = place.at + static_cast<uint64_t>(from.stored - place.stored);
      p.stored_size = static_cast<uint32_t>(h.stored_size);
      p.raw_size = static_cast<uint32_t>(h.raw_size);
      p.values = static_cast<uint32_t>(h.values);
      p.plain = v2 ? static_cast<uint32_t>(h.definition_bytes) : 0;
      p.column = static_cast<uint32_t>(shapes_.size());
      p.dictionary = !dictionary && dictionary_coded(h) ? static_cast<int32_t>(first) : -1;
      p.codec = static_cast<uint8_t>(h.compressed ? place.chunk->shape.codec : Codec::None);
      p.kind = static_cast<uint8_t>(dictionary ? kDictionary : v2 ? kDataV2 : kData);
      p.raw = take(texts ? text : numbers, uint64_t{p.raw_size} + kSlack);
      uint64_t& before = dictionary ? entry : row;
      p.row = before;
      before += p.values;
      (dictionary ? dictionaries_ : data_).push_back(static_cast<uint32_t>(pages_.size()));
      pages_.push_back(p);
    }
  }
  const StagedChunk& chunk = *places[0].chunk;
  StagedColumn c{};
  for (const Place& place : places) c.rows += static_cast<uint64_t>(place.chunk->shape.rows);
  c.width = chunk.shape.width;
  c.nullable = chunk.shape.nullable;
  c.out_width = static_cast<uint16_t>(chunk.narrow ? chunk.narrow : texts ? kViewBytes : c.width);
  c.words = texts ? entry : 0;  // until lay_out() gives them a place
  shapes_.push_back(c);
}

void StagedPages::lay_out() {
  pages_.clear();
  shapes_.clear();
  numbers_.clear();
  dictionaries_.clear();
  data_.clear();
  uint64_t held = 0, between = 0;
  for (size_t at = 0; at < places_.size();) {
    size_t end = at + 1;
    while (end < places_.size() && places_[end].column == places_[at].column) ++end;
    const std::span<const Place> mine(places_.data() + at, end - at);
    at = end;
    if (!decodable(mine)) continue;
    const uint64_t text = held;
    numbers_.push_back(mine[0].column);
    add_pages(mine, held, between);
    shapes_.back().text = text;
  }
  for (StagedColumn& c : shapes_) c.values = take(held, c.rows * c.out_width);
  for (StagedColumn& c : shapes_) c.bits = take(held, c.nullable ? (c.rows + 7) / 8 : 0);
  for (StagedColumn& c : shapes_) c.levels = take(between, c.nullable ? c.rows + kLevelSlack : 0);
  for (StagedColumn& c : shapes_) c.between = take(between, c.nullable ? 8 * c.rows : 0);
  for (StagedColumn& c : shapes_) c.words = take(between, kViewBytes * c.words);
  held_ = held + kSlack;
  between_ = between + kSlack;
}

bool StagedPages::nullable() const {
  return std::any_of(shapes_.begin(), shapes_.end(), [](const StagedColumn& c) { return c.nullable != 0; });
}

size_t StagedPages::table_bytes() const {
  return pages_.size() * sizeof(StagedPage) + shapes_.size() * sizeof(StagedColumn) +
         (dictionaries_.size() + data_.size()) * sizeof(uint32_t);
}

void StagedPages::write(uint8_t* to, uint64_t stored, uint64_t held, uint64_t between) const {
  const auto put = [&to](const void* from, size_t bytes) {
    if (bytes) std::memcpy(to, from, bytes);
    to += bytes;
  };
  for (StagedPage p : pages_) {
    p.stored += stored;
    p.raw += shapes_[p.column].width ? between : held;
    put(&p, sizeof(p));
  }
  for (StagedColumn c : shapes_) {
    c.values += held;
    c.bits += held;
    c.text += held;
    c.levels += between;
    c.between += between;
    c.words += between;
    put(&c, sizeof(c));
  }
  put(dictionaries_.data(), dictionaries_.size() * sizeof(uint32_t));
  put(data_.data(), data_.size() * sizeof(uint32_t));
}

std::vector<std::optional<StagedPages::Column>> StagedPages::outcome(std::span<const StagedResult> results,
                                                                     uint64_t held) const {
  if (results.size() != pages_.size()) throw std::invalid_argument("expected one result for each page");
  std::vector<Column> mine;
  for (const StagedColumn& c : shapes_)
    mine.push_back(
        {0, c.rows, c.rows, c.values + held, c.text + held, c.bits + held, c.width ? uint32_t{c.out_width} : 0u});
  for (size_t k = 0; k < results.size(); ++k) {
    Column& column = mine[pages_[k].column];
    column.failed = std::max(column.failed, results[k].failed);
    if (pages_[k].kind != kDictionary) column.nulls -= results[k].there;
  }
  std::vector<std::optional<Column>> given(columns_.size());
  for (size_t k = 0; k < mine.size(); ++k) {
    if (!mine[k].nulls) mine[k].bits = 0;
    given[numbers_[k]] = mine[k];
  }
  return given;
}

}  // namespace cb::parquet
