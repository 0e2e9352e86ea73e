#include "core/embed/row_lifetime.h"

#include <string>

#include "core/system/checked_file.h"

namespace cb {

void LifeState::join(const LifeState& part, bool first) {
  if (part.sketch_.size() != sketch_.size()) throw DamagedFile("its counts of keys without a row have another size");
  if (first) {
    clock.store(part.clock.load());
    pushes = part.pushes;
    sketch_ = part.sketch_;
    return;
  }
  if (part.clock.load() != clock.load() || part.pushes != pushes)
    throw DamagedFile("it is at period " + std::to_string(part.clock.load()) + " and push " +
                      std::to_string(part.pushes) + ", but another part of the table is at period " +
                      std::to_string(clock.load()) + " and push " + std::to_string(pushes));
  for (size_t k = 0; k < sketch_.size(); ++k) sketch_[k] = std::max(sketch_[k], part.sketch_[k]);
}

void LifeState::put(CheckedWriter& file) const {
  file.put(clock.load());
  file.put(pushes);
  if (!sketch_.empty()) file.put(sketch_.data(), sketch_.size());
  file.seal();
}

void LifeState::get(CheckedReader& file) {
  clock.store(file.get<uint64_t>());
  pushes = file.get<uint64_t>();
  if (clock.load() >= kMostPeriods) throw DamagedFile("its clock is beyond the last possible period");
  if (!sketch_.empty()) file.get(sketch_.data(), sketch_.size());
  file.check_seal("its counts of keys without a row");
}

}  // namespace cb
