// Parts of a time, age, text and numbers to times.
#include "core/kernel.h"
#include "operators/times.h"

namespace cb {

void add_times(Catalogue& c) {
  c.push_back({"hour", "t", "i", map<HourOf>, false});
  c.push_back({"minute", "t", "i", map<MinuteOf>, false});
  c.push_back({"weekday", "t", "i", map<Weekday>, false});
  c.push_back({"day", "t", "i", map<DayOf>, false});
  c.push_back({"month", "t", "i", map<MonthOf>, false});
  c.push_back({"year", "t", "i", map<YearOf>, false});
  c.push_back({"epoch_day", "t", "i", map<EpochDay>, false});
  c.push_back({"age", "t,t", "f", map<Age>, false});
  c.push_back({"cast_t", "i", "t", map<SameInt>, false});
  c.push_back({"cast_t", "s", "t", partial<StrToTime>, true});
}

}  // namespace cb
