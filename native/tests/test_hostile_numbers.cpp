// What fuzzing (native/fuzz) found, kept: numbers at the ends of their range.
#include <limits>

#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"
#include "tests/check.h"

using namespace cb;

namespace {

template <class R, class... A>
R result_of(const char* name, const char* args, const Params& q, A... values) {
  Bump pool, scratch;
  uint64_t warnings = 0;
  Run run{1, &pool, &scratch, &warnings, -1, nullptr};
  Column in[] = {{&values, nullptr}...};
  R out{};
  Column to{&out, nullptr};
  find_kernel(name, args).kernel(run, q, in, &to);
  return out;
}

void numbers_at_their_ends() {
  const int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  const double share = result_of<double>("jaccard", "i,i,i", Params{}, most, most, least);
  CHECK(share == share);
  Params hours{};
  hours.i[0] = int64_t{1} << 62;
  const int64_t hour = result_of<int64_t>("hour", "t", hours, least);
  CHECK(hour >= 0 && hour < 24);
  // A window that begins before all time holds all that was before the row.
  const History history({7, 7}, {least, -5}, {1, 2}, {0, 1});
  Params window{};
  window.i[0] = 1;
  window.i[1] = int64_t{1} << 62;
  window.table = history.view();
  CHECK(result_of<int64_t>("history_shows", "k,t", window, uint64_t{7}, least + 3) == 1);
  CHECK(result_of<int64_t>("history_shows", "k,t", window, uint64_t{7}, int64_t{0}) == 2);
}

}  // namespace

int main() {
  numbers_at_their_ends();
  return 0;
}
