// Computes and applies the difference between two files, word by word.
//
// The result is cut into regions, each laid beside a piece of the base: words behind that piece are compared with 0. A
// word is 1, 2 or 4 bytes. A change is
//
//   positions   varints, two for each run: words since the end of the run before, words of the run
//   planes      one for each byte of a word: that byte of zigzag(new - old), for every word of every run
//
// Runs lie over all words of the result, regions one behind the other; up to kJoin equal words within a run are cheaper
// than a new run. A varint has 7 bits a byte, low ones first, the top bit set on all bytes but the last. Streams are
// compressed by whoever writes the file (docs/how_it_works/codes_and_patches.md); apply() believes none of them.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace cb {

using Bytes = std::span<const uint8_t>;

struct Region {
  uint64_t base_at = 0, base_size = 0;  // bytes of the base
  uint64_t size = 0;                    // bytes of the result; a whole number of words but in the last region
};

inline constexpr uint64_t kJoin = 3;

struct Change {
  std::vector<uint8_t> positions;
  std::array<std::vector<uint8_t>, 4> planes;  // the first `word` of them
  uint64_t changed = 0;                        // words that differ
};

// A change or regions that contradict themselves or the base.
struct BadPatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Regions must lie within the base and cover the result; BadPatch.
void check_regions(uint64_t base_size, uint64_t result_size, unsigned word, std::span<const Region> regions);

Change diff(Bytes base, Bytes result, unsigned word, std::span<const Region> regions);

// Writes the whole result. Reads nothing outside the spans whatever the change says; BadPatch where it is no change of
// this base, and then the result means nothing.
void apply(Bytes base, unsigned word, std::span<const Region> regions, Bytes positions, std::span<const Bytes> planes,
           std::span<uint8_t> result);

}  // namespace cb
