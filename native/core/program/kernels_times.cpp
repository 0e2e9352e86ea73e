// Parts of a time, age, text and numbers to times.
#include "core/program/kernel_shapes.h"
#include "operators/times.h"

namespace cb {

void add_times(Catalogue& c) {
  Lines times(c, "times.h"), numbers(c, "numbers.h");
  times.add("hour", "t", "i", CB_RUN(map, HourOf));
  times.add("minute", "t", "i", CB_RUN(map, MinuteOf));
  times.add("weekday", "t", "i", CB_RUN(map, Weekday));
  times.add("day", "t", "i", CB_RUN(map, DayOf));
  times.add("month", "t", "i", CB_RUN(map, MonthOf));
  times.add("year", "t", "i", CB_RUN(map, YearOf));
  times.add("epoch_day", "t", "i", CB_RUN(map, EpochDay));
  times.add("age", "t,t", "f", CB_RUN(map, Age));
  numbers.add("cast_t", "i", "t", CB_RUN(map, SameInt));
  times.add("cast_t", "s", "t", CB_RUN(partial, StrToTime));
}

}  // namespace cb
