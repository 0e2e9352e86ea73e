// Applies patches without Python. docs/how_it_works/codes_and_patches.md describes the format; publish/patch.py is the
// Python twin.
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/publish/patch.h"

namespace cb {

struct WrongBase : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TooLarge : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct NoZstd : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the patch makes of the base. BadPatch (damaged), WrongBase, TooLarge (the result has more than `most_bytes`),
// NoZstd. Sizes are held against each other and the limit before anything of theirs is allocated.
std::vector<uint8_t> patched(Bytes base, Bytes patch, uint64_t most_bytes);

// The same from file to file; 0: twice the base, or 1 GiB more than it.
void apply_patch(const std::string& base, const std::string& patch, const std::string& result, uint64_t most_bytes);

}  // namespace cb
