// Numbers, decimal text, times, sets and nulls at their limits; exact answers, no tolerance.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/program/operator_tables.h"
#include "operators/times.h"
#include "tests/check.h"

using namespace cb;

namespace {

const int64_t kLeast = std::numeric_limits<int64_t>::min();
const int64_t kMost = std::numeric_limits<int64_t>::max();
const double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

bool same_bits(double a, double b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

Str str(const std::string& s) { return {s.data(), static_cast<uint32_t>(s.size())}; }

// The text in memory of its exact size: a sanitizer then sees any read past its end.
template <class T, class F>
bool parse(const std::string& s, F parser, T* out) {
  std::vector<char> exact(s.begin(), s.end());
  return parser(Str{exact.data(), static_cast<uint32_t>(exact.size())}, out);
}

void integers_wrap() {
  Params q{};
  CHECK(AddInt::apply(q, kMost, 1) == kLeast);
  CHECK(SubInt::apply(q, kLeast, 1) == kMost);
  CHECK(MulInt::apply(q, kMost, 2) == -2);
  CHECK(NegInt::apply(q, kLeast) == kLeast);
  CHECK(AbsInt::apply(q, kLeast) == kLeast);
  int64_t v = 0;
  CHECK(FloorDivInt::apply(q, &v, kLeast, -1) && v == kLeast);
  CHECK(FloorDivInt::apply(q, &v, -7, 2) && v == -4);
  CHECK(FloorDivInt::apply(q, &v, 7, -2) && v == -4);
  CHECK(FloorDivInt::apply(q, &v, -8, -2) && v == 4);
  CHECK(!FloorDivInt::apply(q, &v, 1, 0) && !ModInt::apply(q, &v, 1, 0));
  CHECK(ModInt::apply(q, &v, -7, 3) && v == 2);
  CHECK(ModInt::apply(q, &v, 7, -3) && v == -2);
  CHECK(ModInt::apply(q, &v, kLeast, -1) && v == 0);
  CHECK(!FloatToInt::apply(q, &v, kNan) && !FloatToInt::apply(q, &v, 9223372036854775808.0));
  CHECK(FloatToInt::apply(q, &v, -9223372036854775808.0) && v == kLeast);
  CHECK(FloatToInt::apply(q, &v, -1.9) && v == -1);
}

void rounding_equals_the_c_library() {
  std::vector<double> xs = {0.0,
                            0.5,
                            1.5,
                            2.5,
                            0.49999999999999994,
                            4503599627370495.5,
                            4503599627370496.0,
                            9e15,
                            1e300,
                            5e-324,
                            0.9999999999999999,
                            1e-300,
                            kInfinity,
                            2.0,
                            3.7};
  Params q{};
  for (double m : xs)
    for (double x : {m, -m}) {
      CHECK(same_bits(nearest(x), std::nearbyint(x)));
      CHECK(same_bits(floor_of(x), std::floor(x)));
      CHECK(same_bits(ceil_of(x), std::ceil(x)));
      q.i[0] = 0;
      CHECK(same_bits(Round::apply(q, x), std::nearbyint(x)));
    }
  CHECK(std::isnan(nearest(kNan)) && std::isnan(floor_of(kNan)) && std::isnan(ceil_of(kNan)));
  q.i[0] = 15;
  CHECK(same_bits(Round::apply(q, 1e300), 1e300));
  q.i[0] = 2;
  CHECK(Round::apply(q, 2.675) == 2.68 && Round::apply(q, -0.001) == 0.0 && std::signbit(Round::apply(q, -0.001)));
}

void log1p_is_within_one_ulp() {
  Params q{};
  CHECK(same_bits(Log1p::apply(q, -1.0), -kInfinity) && same_bits(Log1p::apply(q, kInfinity), kInfinity));
  CHECK(std::isnan(Log1p::apply(q, -1.5)) && std::isnan(Log1p::apply(q, -kInfinity)) &&
        std::isnan(Log1p::apply(q, kNan)));
  CHECK(same_bits(Log1p::apply(q, 0.0), 0.0) && same_bits(Log1p::apply(q, -0.0), -0.0));
  CHECK(same_bits(Log1p::apply(q, 5e-324), 5e-324) && same_bits(Log1p::apply(q, -5e-324), -5e-324));
  double x = -0.999999;
  for (int k = 0; k < 400000; ++k) {
    // The C library's is itself within one ulp of the truth, so two neighbors are allowed between them.
    double ours = Log1p::apply(q, x), theirs = std::log1p(x);
    int64_t apart = static_cast<int64_t>(bits_of(ours)) - static_cast<int64_t>(bits_of(theirs));
    CHECK(apart >= -2 && apart <= 2);
    x = x < 1 ? x + 7.1e-6 : x * 1.004;
    if (x > 1e300) break;
  }
}

void order_of_floats() {
  Params q{};
  CHECK(std::isnan(MinFloat::apply(q, kNan, 1)) && std::isnan(MinFloat::apply(q, 1, kNan)));
  CHECK(std::isnan(MaxFloat::apply(q, kNan, 1)) && std::isnan(MaxFloat::apply(q, 1, kNan)));
  CHECK(same_bits(MinFloat::apply(q, 0.0, -0.0), 0.0) && same_bits(MaxFloat::apply(q, -0.0, 0.0), -0.0));
  q.f[0] = -1;
  q.f[1] = 1;
  CHECK(ClipFloat::apply(q, -kInfinity) == -1 && ClipFloat::apply(q, 2) == 1 && std::isnan(ClipFloat::apply(q, kNan)));
  CHECK(!Eq<double>::apply(q, kNan, kNan) && Ne<double>::apply(q, kNan, kNan) && !Ge<double>::apply(q, kNan, kNan));
}

void decimals_equal_the_c_library() {
  std::vector<std::string> texts = {"0",
                                    "-0",
                                    "1",
                                    "1.5",
                                    ".5",
                                    "5.",
                                    "1e22",
                                    "1e23",
                                    "9007199254740993",
                                    "9007199254740992.99999999999999999999",
                                    "1.7976931348623157e308",
                                    "1.7976931348623158e308",
                                    "1.7976931348623159e308",
                                    "2.4703282292062327e-324",
                                    "2.4703282292062328e-324",
                                    "4.9e-324",
                                    "2.2250738585072011e-308",
                                    "2.2250738585072014e-308",
                                    "1e-400",
                                    "1e400",
                                    "0e99999999999999999999",
                                    "1e99999999999999999999",
                                    "1e-99999999999999999999",
                                    "123456789012345678901234567890",
                                    "6.02214076e23",
                                    "8.988465674311580e307",
                                    "inf",
                                    "-Infinity",
                                    "nan",
                                    "+1E+2",
                                    "0." + std::string(400, '0') + "1e400",
                                    std::string(800, '9') + "e-700",
                                    "1" + std::string(2000, '0') + "e-2000",
                                    "2."
                                    "470328229206232720882843964341106861825299013071623822127928412503377536"
                                    "35104375932649918180817996189898282347722"
                                    "858865463328355177969898199387398005390939063150356595155702263922908583"
                                    "9244910518443593180284993653615250031937045"
                                    "767824921936562366986365848075700158576926990370631192827955855133292783"
                                    "4338409351978015531246597263579574622766465"
                                    "272827220056374006485499977096599470454020828166226237857393450736339007"
                                    "9677305775067501763246736009689513405355374"
                                    "585166611342237666786041621596804619144672918403005300575308490487653917"
                                    "1138659164623952491262365388187963623937328"
                                    "042389101867234849766823508986338858792562830275599565752445550725518931"
                                    "3690836254779186948667994968324049705821028"
                                    "5131854513962138377228261454376934125320985913276672363281250000e-324"};
  uint64_t state = 88172645463325252ull;
  for (int k = 0; k < 100000; ++k) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    double x = from_bits(state);
    if (!(std::fabs(x) < kInfinity)) continue;
    char text[64];
    std::snprintf(text, sizeof text, k % 2 ? "%.17g" : "%.21e", x);
    texts.push_back(text);
    std::snprintf(text, sizeof text, "%llu.%llue%d", (unsigned long long)(state >> 40),
                  (unsigned long long)(state >> 7), static_cast<int>(state % 80) - 40);
    texts.push_back(text);
  }
  for (const std::string& s : texts) {
    double v = 0;
    CHECK(parse(s, parse_float, &v));
    CHECK(same_bits(v, std::strtod(s.c_str(), nullptr)));
    for (const char* space : {" ", "\t", "\n", "\v", "\f", "\r"})
      CHECK(!parse(space + s, parse_float, &v) && !parse(s + space, parse_float, &v));
  }
  double v;
  for (const char* s : {"", " ", ".", "-", "+", "e5", "1e", "1e+", "1_0", "0x10", "1 2", "--1", "1.2.3", "1e5.5",
                        "infi", "inf inity", "na", "1f", "$1"})
    CHECK(!parse(s, parse_float, &v));
}

// A scaled integer of every width equals what the C library makes of its text.
void scaled_integers_are_the_nearest_doubles() {
  uint64_t state = 88172645463325252ull;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  const int widths[] = {1, 2, 4, 8};
  for (int k = 0; k < 200000; ++k) {
    const int n = widths[k % 4];
    uint32_t words[8];
    const int used = static_cast<int>(next() % static_cast<uint64_t>(n)) + 1;  // short ones too
    for (int w = 0; w < n; ++w) words[w] = w < used ? static_cast<uint32_t>(next() >> 13) : 0;
    if (k % 3 == 0) words[used - 1] >>= next() % 32;
    if (k % 7 == 0)
      for (int w = 0; w < n; ++w) words[w] = w + 1 < n ? 0 : 0x80000000u;  // the least of its width
    const int64_t scale = k % 5 ? static_cast<int64_t>(next() % 90) - 12 : static_cast<int64_t>(next() % 800) - 400;
    uint32_t left[8];
    const bool negative = words[n - 1] >> 31;
    uint64_t carry = negative;
    for (int w = 0; w < n; ++w) {
      carry += negative ? static_cast<uint32_t>(~words[w]) : words[w];
      left[w] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    std::string digits;
    for (int d = 0; d < 80; ++d) {
      uint64_t rest = 0;
      for (int w = n; w-- > 0;) {
        rest = rest << 32 | left[w];
        left[w] = static_cast<uint32_t>(rest / 10);
        rest %= 10;
      }
      digits.insert(digits.begin(), static_cast<char>('0' + rest));
    }
    const bool zero = digits.find_first_not_of('0') == std::string::npos;
    const std::string text = (negative && !zero ? "-" : "") + digits + "e" + std::to_string(-scale);
    CHECK(same_bits(scaled_integer(words, n, scale), std::strtod(text.c_str(), nullptr)));
  }
  const uint32_t price[] = {1999, 0, 0, 0};
  CHECK(same_bits(scaled_integer(price, 4, 2), 19.99));
}

void integers_as_text() {
  int64_t v = 0;
  CHECK(parse("9223372036854775807", parse_int, &v) && v == kMost);
  CHECK(parse("-9223372036854775808", parse_int, &v) && v == kLeast);
  CHECK(parse("+0042", parse_int, &v) && v == 42);
  CHECK(parse("-0", parse_int, &v) && v == 0);
  for (const char* s : {"9223372036854775808",
                        "-9223372036854775809",
                        "99999999999999999999",
                        "",
                        " ",
                        "-",
                        "+",
                        "1.0",
                        "1e3",
                        "1 2",
                        "0x1",
                        "1_0",
                        "a",
                        "--1",
                        " 1",
                        "1 ",
                        "\t1",
                        "1\n",
                        "1\v",
                        "\f1",
                        "1\r"})
    CHECK(!parse(s, parse_int, &v));
  char text[20];
  for (int64_t x : {int64_t{0}, int64_t{-1}, int64_t{10}, kMost, kLeast}) {
    std::string s(text, write_int(x, text));
    CHECK(s == std::to_string(x));
  }
  Decimal d;
  for (const char* s : {"7", "7.0", "70e-1", "0.7e1", "7.000000000000000000000000"})
    CHECK(read_decimal(str(s), &d) && decimal_whole(d, &v) && v == 7);
  CHECK(read_decimal(str("-9223372036854775808.0"), &d) && decimal_whole(d, &v) && v == kLeast);
  CHECK(read_decimal(str("0e999999999999"), &d) && decimal_whole(d, &v) && v == 0);
  for (const char* s : {"7.5", "9223372036854775808", "1e19", "1e999999999999999999", "1e-1", "1e-999999999999999999",
                        "7.0000000000000000000000001"})
    CHECK(read_decimal(str(s), &d) && !decimal_whole(d, &v));
}

void times_before_and_after_1970() {
  Params q{};
  CHECK(YearOf::apply(q, -1) == 1969 && MonthOf::apply(q, -1) == 12 && DayOf::apply(q, -1) == 31);
  CHECK(HourOf::apply(q, -1) == 23 && MinuteOf::apply(q, -1) == 59 && EpochDay::apply(q, -1) == -1);
  CHECK(Weekday::apply(q, 0) == 3 && Weekday::apply(q, -1) == 2);
  CHECK(YearOf::apply(q, kLeast) == -290308 && YearOf::apply(q, kMost) == 294247);
  int64_t t = 0;
  CHECK(parse("2024-02-29T23:59:59.999999Z", parse_time, &t) && t == 1709251199999999);
  CHECK(parse("2024-02-29 23:59", parse_time, &t) && t == 1709251140000000);
  CHECK(parse("1969-12-31", parse_time, &t) && t == -86400000000);
  CHECK(parse("1970-01-01T00:00:00.1234567+05:30", parse_time, &t) && t == 123456 - 19800000000);
  q.i[0] = 330;
  CHECK(HourOf::apply(q, 0) == 5 && MinuteOf::apply(q, 0) == 30);
  for (int64_t day = -800000; day < 3000000; day += 37) {
    Date date = date_of(day);
    CHECK(epoch_day_of(date) == day && date.day >= 1 && date.day <= days_in_month(date.year, date.month));
  }
  for (const char* s : {"",
                        "2024",
                        "2024-02-30",
                        "2023-02-29",
                        "1900-02-29",
                        "2024-13-01",
                        "2024-00-01",
                        "2024-01-00",
                        "0000-01-01",
                        "2024-01-01T",
                        "2024-01-01T24:00",
                        "2024-01-01T12",
                        "2024-01-01T12:60",
                        "2024-01-01T12:00:60",
                        "2024-01-01T12:00:00.",
                        "2024-01-01T12:00:00.1234567890",
                        "2024-01-01T12:00+24:00",
                        "2024-01-01T12:00+0100",
                        "2024-01-01Z",
                        "24-01-01",
                        "2024-01-01T12:00ZZ",
                        "2024/01/01",
                        " 2024-01-01",
                        "2024-01-01 ",
                        "2024-01-01T12:00Z\n"})
    CHECK(!parse(s, parse_time, &t));
}

void sets_of_every_size() {
  for (int n : {0, 1, 8, 9, 16, 1000}) {
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::vector<std::string> strs;
    for (int k = 0; k < n; ++k) {
      ints.push_back(k % 2 ? k : -k);
      ints.push_back(ints.back());
      floats.push_back(k * 0.5);
      strs.push_back(std::string(static_cast<size_t>(k), 'x'));
    }
    floats.push_back(kNan);
    IntSet a(ints);
    FloatSet b(floats);
    StrSet c(strs);
    Params q{};
    for (int k = 0; k < n + 5; ++k) {
      q.table = a.view();
      CHECK(IntIsIn::apply(q, k % 2 ? k : -k) == (k < n));
      q.table = b.view();
      CHECK(FloatIsIn::apply(q, k * 0.5) == (k < n) && !FloatIsIn::apply(q, k * 0.5 + 0.25));
      q.table = c.view();
      CHECK(StrIsIn::apply(q, str(std::string(static_cast<size_t>(k), 'x'))) == (k < n));
    }
    q.table = b.view();
    CHECK(FloatIsIn::apply(q, -0.0) == (n > 0) && !FloatIsIn::apply(q, kNan));
    q.table = a.view();
    CHECK(!IntIsIn::apply(q, kMost) && !IntIsIn::apply(q, kLeast));
  }
}

void buckets_equal_counting() {
  for (int n = 0; n < 40; ++n) {
    std::vector<double> bounds;
    for (int k = 0; k < n; ++k) bounds.push_back(k / 2);  // each twice
    Boundaries table(bounds);
    Params q{};
    q.table = table.view();
    for (double x = -1; x < 21; x += 0.5) {
      int64_t count = 0;
      for (double bound : bounds) count += bound <= x;
      CHECK(Bucketize::apply(q, x) == count);
    }
    CHECK(Bucketize::apply(q, kNan) == n && Bucketize::apply(q, kInfinity) == n &&
          Bucketize::apply(q, -kInfinity) == 0);
  }
  for (const std::vector<double>& bad : {std::vector<double>{2, 1}, std::vector<double>{1, kNan}}) {
    bool refused = false;
    try {
      Boundaries table(bad);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

Kernel line(const std::string& name, const std::string& args) {
  Catalogue c;
  add_numbers(c);
  add_times(c);
  add_nulls(c);
  for (const Entry& e : c)
    if (e.name == name && e.args == args) return e.kernel;
  std::fprintf(stderr, "no kernel %s(%s)\n", name.c_str(), args.c_str());
  std::exit(1);
}

void nulls_are_chosen_and_filled() {
  Bump pool, scratch;
  uint64_t warnings = 0;
  Run run{4, &pool, &scratch, &warnings, -1, nullptr};
  Params q{};
  int64_t a[] = {1, 0, 3, 0}, b[] = {10, 20, 0, 0};
  uint8_t has_a[] = {1, 0, 1, 0}, has_b[] = {1, 1, 0, 0}, when[] = {1, 0, 0, 1}, has_when[] = {1, 1, 0, 1};
  int64_t out[4];
  uint8_t has_out[4];
  Column to{out, has_out};
  Column pair[] = {{a, has_a}, {b, has_b}};
  line("fill", "i,i")(run, q, pair, &to);
  CHECK(out[0] == 1 && out[1] == 20 && out[2] == 3 && out[3] == 0);
  CHECK(has_out[0] && has_out[1] && has_out[2] && !has_out[3]);
  Column full[] = {{a, has_a}, {b, nullptr}};
  Column bare{out, nullptr};
  line("fill", "i,i")(run, q, full, &bare);
  CHECK(out[0] == 1 && out[1] == 20 && out[3] == 0);
  Column three[] = {{when, has_when}, {a, has_a}, {b, has_b}};
  line("select", "b,i,i")(run, q, three, &to);
  CHECK(out[0] == 1 && out[1] == 20 && out[2] == 0 && out[3] == 0);
  CHECK(has_out[0] && has_out[1] && !has_out[2] && !has_out[3]);
  uint8_t missing[4];
  Column flag{missing, nullptr};
  line("is_null", "i")(run, q, pair, &flag);
  CHECK(!missing[0] && missing[1] && !missing[2] && missing[3]);
  Str s[] = {{"12", 2}, {"x", 1}, {}, {"-3", 2}};
  List<Str> lists[] = {{s, 4}, {}, {s, 2}, {s + 3, 1}};
  List<int64_t> ints[4];
  Column words{lists, nullptr}, numbers{ints, nullptr};
  line("cast_i", "*s")(run, q, &words, &numbers);
  CHECK(ints[0].n == 2 && ints[0].p[1] == -3 && ints[1].n == 0 && ints[2].n == 1 && ints[3].p[0] == -3);
  List<Str> back[4];
  Column texts{back, nullptr};
  line("cast_s", "*i")(run, q, &numbers, &texts);
  CHECK(back[0].n == 2 && std::string(back[0].p[1].p, back[0].p[1].n) == "-3" && back[1].n == 0);
}

}  // namespace

int main() {
  integers_wrap();
  rounding_equals_the_c_library();
  log1p_is_within_one_ulp();
  order_of_floats();
  decimals_equal_the_c_library();
  scaled_integers_are_the_nearest_doubles();
  integers_as_text();
  times_before_and_after_1970();
  sets_of_every_size();
  buckets_equal_counting();
  nulls_are_chosen_and_filled();
  std::puts("numbers: ok");
}
