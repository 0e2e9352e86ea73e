// Which rows the examples of one block have in common, and who changes which weight.
//
// A block is up to 512 examples whose gradients are computed with the same weights (block_learner.h). It is cut into
// kSlices slices of neighbouring examples. A row that one feature of the block has alone is stepped at once by the
// slice that met it, since nobody else reads it. A row that several features have is shared: each slice adds up its
// gradients in a sum of its own, and behind all slices one step is made with the sums, in the order of the slices.
// Shared rows and first-order weights are divided into kShards shards by their places, and one thread at a time works
// on a shard. A plan depends on keys alone, so plans of several blocks are made at once before their examples are
// learned.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ffm/examples.h"
#include "core/ffm/layout.h"

namespace cb {

struct BlockPlan {
  static constexpr size_t kSlices = 16, kShards = 32;
  static constexpr uint32_t kAlone = 0xffffffff, kFirst = 0x80000000;

  struct Part {
    uint32_t slice, sum;
  };
  struct SharedRow {
    uint64_t row;
    uint32_t first_part, parts;
  };

  size_t begin = 0, end = 0;  // examples
  uint32_t features = 0;      // the first of the block's features

  // For each feature of the block: kAlone, or the number of its slice's sum, with kFirst at the first feature of the
  // slice that has it.
  std::vector<uint32_t> sums;
  std::array<uint32_t, kSlices> count{};  // sums of each slice
  std::vector<SharedRow> rows;            // shard after shard
  std::array<uint32_t, kShards + 1> rows_of{};
  std::vector<Part> parts;            // of a row: in the order of slices
  std::vector<uint32_t> first_order;  // the block's features, shard after shard, each shard in the order of examples
  std::array<uint32_t, kShards + 1> first_order_of{};

  size_t slice(size_t s) const { return begin + (end - begin) * s / kSlices; }  // its first example

  void make(const Examples& examples, size_t from, size_t to, const FfmSettings& settings, const FfmLayout& layout);

 private:
  void find_shared(const Examples& examples, const FfmLayout& layout);
  void sort_first_order(const Examples& examples, const FfmSettings& settings, const FfmLayout& layout);

  struct Found {  // a row of this block
    uint64_t row;
    uint32_t count, parts, slice, sum, at;
  };
  std::vector<uint32_t> table_, ids_;
  std::vector<Found> found_;
};

}  // namespace cb
