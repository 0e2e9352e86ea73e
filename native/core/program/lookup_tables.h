// Defines the tables of dictionaries and click histories.
#pragma once
#include <cstdint>
#include <vector>

#include "core/join/hash_index.h"
#include "core/program/operator_table.h"

namespace cb {

// hashes: of the words. Exactly one of ids (one per word) and vectors (width a word) is given. The first of equal words
// counts.
class Dictionary : public Table {
 public:
  Dictionary(const std::vector<uint64_t>& hashes, std::vector<int64_t> ids, std::vector<double> vectors,
             uint32_t width);
  const void* view() const override { return &view_; }
  size_t bytes() const override { return index_.bytes() + ids_.size() * 8 + vectors_.size() * 8; }

 protected:
  void put_image(ImageWriter& to) const override;

 private:
  HashIndex index_;
  std::vector<int64_t> ids_;
  std::vector<double> vectors_;
  DictionaryView view_;
};

// Rows sorted by (hash, bucket), at most one of each pair; shows and clicks of that bucket alone.
class History : public Table {
 public:
  History(const std::vector<uint64_t>& hashes, std::vector<int64_t> buckets, std::vector<int64_t> shows,
          std::vector<int64_t> clicks);
  const void* view() const override { return &view_; }
  size_t bytes() const override { return index_.bytes() + begin_.size() * 8 + bucket_.size() * 24; }

 protected:
  void put_image(ImageWriter& to) const override;

 private:
  HashIndex index_;
  std::vector<uint64_t> begin_;
  std::vector<int64_t> bucket_, shows_, clicks_;
  HistoryView view_;
};

}  // namespace cb
