// Parts of a time, age of an event, ISO 8601 text to a time. A time is microseconds since 1970 UTC, before it
// negative.
//
// The parts take i[0], the offset from UTC in minutes, and are right for every int64; a local time past the
// ends of int64 (the years −290308 and 294247) wraps around. No leap seconds, as in Unix time; the calendar
// is Gregorian throughout.
#pragma once
#include "operators/decimal.h"

namespace cb {

const int64_t kSecond = 1000000ll;
const int64_t kMinute = 60 * kSecond;
const int64_t kHour = 60 * kMinute;
const int64_t kDay = 24 * kHour;

CB_BODY int64_t floor_quotient(int64_t a, int64_t b) {  // b > 0
  return a / b - (a % b < 0);
}
CB_BODY int64_t floor_rest(int64_t a, int64_t b) {
  int64_t r = a % b;
  return r < 0 ? r + b : r;
}

CB_BODY int64_t local_time(const Params& q, int64_t t) {
  return (int64_t)((uint64_t)t + (uint64_t)q.i[0] * (uint64_t)kMinute);
}

struct Date {
  int64_t year;
  int32_t month;  // 1…12
  int32_t day;    // 1…31
};

// Years are counted from March, so that the leap day is the last of its year; 400 years have 146097 days.
CB_BODY Date date_of(int64_t epoch_day) {
  int64_t days = epoch_day + 719468;  // since 0000-03-01
  int64_t era = floor_quotient(days, 146097);
  uint32_t in_era = (uint32_t)(days - era * 146097);
  uint32_t year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
  uint32_t in_year = in_era - (365 * year + year / 4 - year / 100);
  uint32_t from_march = (5 * in_year + 2) / 153;
  Date d;
  d.day = (int32_t)(in_year - (153 * from_march + 2) / 5 + 1);
  d.month = (int32_t)(from_march < 10 ? from_march + 3 : from_march - 9);
  d.year = era * 400 + year + (d.month <= 2);
  return d;
}

CB_BODY int64_t epoch_day_of(Date d) {
  int64_t year = d.year - (d.month <= 2);
  int64_t era = floor_quotient(year, 400);
  int64_t in_era = year - era * 400;
  int64_t from_march = d.month > 2 ? d.month - 3 : d.month + 9;
  int64_t in_year = (153 * from_march + 2) / 5 + d.day - 1;
  return era * 146097 + in_era * 365 + in_era / 4 - in_era / 100 + in_year - 719468;
}

CB_BODY int32_t days_in_month(int64_t year, int32_t month) {
  if (month == 2) return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
  return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

// Exactly `digits` decimal digits at *p; −1 where there is something else.
CB_BODY int32_t take_digits(const char** p, const char* end, int digits) {
  if (end - *p < digits) return -1;
  int32_t v = 0;
  for (int k = 0; k < digits; ++k, ++*p) {
    if (!is_digit(**p)) return -1;
    v = v * 10 + (**p - '0');
  }
  return v;
}

CB_BODY bool take_char(const char** p, const char* end, char c) {
  if (*p == end || **p != c) return false;
  ++*p;
  return true;
}

// YYYY-MM-DD, then maybe ' ' or 'T' and hh:mm[:ss[.f…]] with 1 to 9 digits of fraction (past six they are cut
// off), then maybe Z or ±hh:mm; without it UTC is meant. Years 0001 to 9999. White space around it does not parse.
CB_BODY bool parse_time(Str s, int64_t* out) {
  const char* p = s.p;
  const char* end = p + s.n;
  int32_t year = take_digits(&p, end, 4);
  if (year < 1 || !take_char(&p, end, '-')) return false;
  int32_t month = take_digits(&p, end, 2);
  if (month < 1 || month > 12 || !take_char(&p, end, '-')) return false;
  int32_t day = take_digits(&p, end, 2);
  if (day < 1 || day > days_in_month(year, month)) return false;
  Date date = {year, month, day};
  int64_t t = epoch_day_of(date) * kDay;
  if (p < end) {
    if (*p != ' ' && *p != 'T') return false;
    ++p;
    int32_t hour = take_digits(&p, end, 2);
    if (hour < 0 || hour > 23 || !take_char(&p, end, ':')) return false;
    int32_t minute = take_digits(&p, end, 2);
    if (minute < 0 || minute > 59) return false;
    t += hour * kHour + minute * kMinute;
    if (take_char(&p, end, ':')) {
      int32_t second = take_digits(&p, end, 2);
      if (second < 0 || second > 59) return false;
      t += second * kSecond;
      if (take_char(&p, end, '.')) {
        int digits = 0;
        int64_t unit = kSecond;
        for (; p < end && is_digit(*p); ++p, ++digits) {
          unit /= 10;
          t += (*p - '0') * unit;
        }
        if (digits < 1 || digits > 9) return false;
      }
    }
    if (!take_char(&p, end, 'Z') && p < end) {
      if (*p != '+' && *p != '-') return false;
      int64_t sign = *p++ == '-' ? -1 : 1;
      int32_t hours = take_digits(&p, end, 2);
      if (hours < 0 || hours > 23 || !take_char(&p, end, ':')) return false;
      int32_t minutes = take_digits(&p, end, 2);
      if (minutes < 0 || minutes > 59) return false;
      t -= sign * (hours * kHour + minutes * kMinute);
    }
  }
  if (p != end) return false;
  *out = t;
  return true;
}

// ---- bodies
// ---------------------------------------------------------------------------------------------------

struct HourOf {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return floor_rest(local_time(q, t), kDay) / kHour; }
};
struct MinuteOf {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return floor_rest(local_time(q, t), kHour) / kMinute; }
};
struct EpochDay {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return floor_quotient(local_time(q, t), kDay); }
};
// Monday is 0; 1970-01-01 was a Thursday.
struct Weekday {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return floor_rest(EpochDay::apply(q, t) + 3, 7); }
};
struct DayOf {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return date_of(EpochDay::apply(q, t)).day; }
};
struct MonthOf {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return date_of(EpochDay::apply(q, t)).month; }
};
struct YearOf {
  CB_BODY static int64_t apply(const Params& q, int64_t t) { return date_of(EpochDay::apply(q, t)).year; }
};
// f[0]: the unit in microseconds.
struct Age {
  CB_BODY static double apply(const Params& q, int64_t now, int64_t then) {
    return (double)(int64_t)((uint64_t)now - (uint64_t)then) / q.f[0];
  }
};
struct StrToTime {
  CB_BODY static bool apply(const Params&, int64_t* out, Str s) { return parse_time(s, out); }
};

}  // namespace cb
