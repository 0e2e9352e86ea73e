// Kernels of hash, key and cross.
#include "core/program/kernel_shapes.h"
#include "operators/hash.h"

namespace cb {

void add_keys(Catalogue& c) {
  Lines hash(c, "hash.h");
  hash.add("hash", "i", "k", CB_RUN(map, HashInt));
  hash.add("hash", "t", "k", CB_RUN(map, HashTime));
  hash.add("hash", "b", "k", CB_RUN(map, HashBool));
  hash.add("hash", "s", "k", CB_RUN(map, HashStr));
  hash.add("hash", "*i", "*k", CB_RUN(each, HashInt));
  hash.add("hash", "*t", "*k", CB_RUN(each, HashTime));
  hash.add("hash", "*b", "*k", CB_RUN(each, HashBool));
  hash.add("hash", "*s", "*k", CB_RUN(each, HashStr));
  hash.add("key", "k", "k", CB_RUN(map, Key));
  hash.add("key", "*k", "*k", CB_RUN(each, Key));
  hash.add("as_key", "i", "k", CB_RUN(map, AsKey));
  hash.add("as_key", "*i", "*k", CB_RUN(each, AsKey));  // copied: key lists always lie in pools (copy_keys)
  hash.add("cross", "k,k", "k", CB_RUN(map, Cross));
  hash.add("cross", "*k,k", "*k", CB_RUN(items, CrossListScalar));
  hash.add("cross", "k,*k", "*k", CB_RUN(items, CrossScalarList));
  hash.add("cross", "*k,*k", "*k", CB_RUN(items, CrossLists));
}

}  // namespace cb
