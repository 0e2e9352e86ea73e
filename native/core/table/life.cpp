#include "core/table/life.h"

#include "core/system/checked_file.h"

namespace cb {

void LifeState::put(CheckedWriter& file) const {
  file.put(clock.load());
  file.put(pushes);
  if (!sketch_.empty()) file.put(sketch_.data(), sketch_.size());
  file.seal();
}

void LifeState::get(CheckedReader& file) {
  clock.store(file.get<uint64_t>());
  pushes = file.get<uint64_t>();
  if (clock.load() >= kMostPeriods) throw DamagedFile("its clock is beyond all periods");
  if (!sketch_.empty()) file.get(sketch_.data(), sketch_.size());
  file.check_seal("its counts of keys without a row");
}

}  // namespace cb
