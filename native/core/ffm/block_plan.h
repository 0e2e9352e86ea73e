// Finds the rows that the examples of one block share, and decides which thread changes which weight.
//
// A block is up to some thousand examples whose gradients are computed with the same weights (block_learner.h). It is
// cut into kSlices slices of neighboring examples. A row that one feature of the block has alone is stepped at once by
// the slice that met it, since nobody else reads it. A row that several features have is shared: each slice adds up its
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
#include "core/ffm/weight_layout.h"

namespace cb {

struct BlockPlan {
  static constexpr size_t kSlices = 32, kShards = 32;
  static constexpr uint32_t kAlone = 0xffffffff, kFirst = 0x80000000;

  struct Part {
    uint32_t slice, sum;
  };
  struct SharedRow {
    uint32_t row, first_part, parts;
  };

  // The memory that making a plan takes; one for each thread.
  class Scratch {
    friend struct BlockPlan;
    struct Feature {
      uint32_t row, feature;
    };
    struct Entry {
      uint32_t row, id;
    };
    struct Found {
      uint32_t row;
      uint32_t first;              // its first feature
      uint32_t slice, sum, parts;  // the last slice that has it and that slice's sum; no parts: of one feature alone
    };
    struct Made {
      uint32_t id;
      Part part;
    };
    std::vector<Feature> sorted;  // by the shard of the row, each shard in the order of features
    std::vector<Entry> table;     // of the rows of one shard, as are found and made
    std::vector<Found> found;
    std::vector<Made> made;
    std::vector<uint32_t> rows;
    std::vector<uint64_t> records;
  };

  size_t begin = 0, end = 0;  // examples
  uint32_t features = 0;      // the first of the block's features

  // For each feature of the block: kAlone, or the number of its slice's sum, with kFirst at the first feature of the
  // slice that has it.
  std::vector<uint32_t> sums;
  std::array<uint32_t, kSlices> count{};  // sums of each slice
  std::vector<SharedRow> rows;            // shard after shard
  std::array<uint32_t, kShards + 1> rows_of{};
  std::vector<Part> parts;  // of a row: in the order of slices

  // First-order weights: gradients lie shard after shard, each shard in the order of examples, so that a shard reads
  // them one after the other and a slice writes runs of them.
  std::vector<uint32_t> first_order;  // for each feature of the block: the place of its gradient
  std::vector<uint64_t> records;      // for each gradient: the record of its weight
  std::array<uint32_t, kShards + 1> records_of{};

  size_t slice(size_t s) const { return begin + (end - begin) * s / kSlices; }  // its first example

  void make(const Examples& examples, size_t from, size_t to, const FfmSettings& settings, const FfmLayout& layout,
            Scratch& scratch);

 private:
  void find_shared(const Examples& examples, const FfmLayout& layout, Scratch& scratch);
  void find_in_shard(const Scratch::Feature* from, size_t n, const std::array<uint32_t, kSlices + 1>& ends,
                     Scratch& scratch);
  void sort_first_order(const Examples& examples, const FfmSettings& settings, const FfmLayout& layout,
                        Scratch& scratch);
};

}  // namespace cb
