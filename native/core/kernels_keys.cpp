// Hash, key and cross.
#include "core/kernel.h"
#include "operators/hash.h"

namespace cb {

void add_keys(Catalogue& c) {
  c.push_back({"hash", "i", "k", map<HashInt>, false});
  c.push_back({"hash", "t", "k", map<HashTime>, false});
  c.push_back({"hash", "b", "k", map<HashBool>, false});
  c.push_back({"hash", "s", "k", map<HashStr>, false});
  c.push_back({"hash", "*i", "*k", each<HashInt>, false});
  c.push_back({"hash", "*t", "*k", each<HashTime>, false});
  c.push_back({"hash", "*b", "*k", each<HashBool>, false});
  c.push_back({"hash", "*s", "*k", each<HashStr>, false});
  c.push_back({"key", "k", "k", map<Key>, false});
  c.push_back({"key", "*k", "*k", each<Key>, false});
  c.push_back({"as_key", "i", "k", map<AsKey>, false});
  c.push_back({"as_key", "*i", "*k", each<AsKey>, false});  // copied: key lists always lie in pools (copy_keys)
  c.push_back({"cross", "k,k", "k", map<Cross>, false});
  c.push_back({"cross", "*k,k", "*k", items<CrossListScalar>, false});
  c.push_back({"cross", "k,*k", "*k", items<CrossScalarList>, false});
  c.push_back({"cross", "*k,*k", "*k", items<CrossLists>, false});
}

}  // namespace cb
