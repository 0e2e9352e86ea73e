// Adds hashed interactions: features that combine one feature of each of several fields.
//
// An example with features x in field a and y in field b gets, in the interaction's own field, a feature for each such
// pair: its key is made of theirs in the order of the fields named and of the interaction's name, its value is the
// product of theirs. A field that an example lacks, or a product of 0, gives none.
#pragma once
#include <cstdint>
#include <vector>

#include "core/ffm/examples.h"

namespace cb {

struct Interaction {
  std::vector<uint16_t> fields;  // two or more
  uint16_t to;                   // its own field, behind all others
  uint64_t salt;                 // the hash of its name
};

// Throws std::invalid_argument that names the example: more than kMostFeatures of them, a value that is not finite.
Examples crossed(const Examples& examples, const std::vector<Interaction>& interactions);

}  // namespace cb
