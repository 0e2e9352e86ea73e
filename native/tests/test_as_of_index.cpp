// The index of an as-of join, built by several threads, against a search of all rows.
#include "core/join/as_of_index.h"

#include <cstring>
#include <random>
#include <vector>

#include "tests/check.h"

using namespace cb;

namespace {

using Random = std::mt19937_64;

struct World {
  std::vector<uint64_t> hashes;
  std::vector<int64_t> times;
};

// Few keys and few times, so that keys have many versions and some of the same time; the extremes of both are among
// them.
World world(Random& random, size_t rows, uint64_t keys, int64_t span) {
  World w;
  for (size_t r = 0; r < rows; ++r) {
    const uint64_t key = random() % keys;
    w.hashes.push_back(key == 0 ? 0 : key == 1 ? UINT64_MAX : key * 0x9E3779B97F4A7C15u);
    const int64_t time = static_cast<int64_t>(random() % static_cast<uint64_t>(span));
    w.times.push_back(time == 0 ? INT64_MIN : time == 1 ? INT64_MAX : time - span / 2);
  }
  return w;
}

// The last row of the newest time at or before `time`.
uint32_t searched(const World& w, uint64_t hash, int64_t time) {
  uint32_t found = HashIndex::kEmpty;
  for (size_t r = 0; r < w.hashes.size(); ++r)
    if (w.hashes[r] == hash && w.times[r] <= time && (found == HashIndex::kEmpty || w.times[found] <= w.times[r]))
      found = static_cast<uint32_t>(r);
  return found;
}

void the_newest_row_at_or_before_a_time_is_found() {
  Random random(1);
  for (size_t rows : {0, 1, 2, 50, 3000})
    for (uint64_t keys : {1, 3, 500}) {
      const World w = world(random, rows, keys, 40);
      HashIndex::Duplicate duplicate;
      const AsOfIndex index(w.hashes, w.times, true, 2, duplicate);
      CHECK(duplicate.first == -1 && duplicate.second == -1);
      const AsOfView& view = *static_cast<const AsOfView*>(index.view());
      for (int k = 0; k < 300; ++k) {
        const World asked = world(random, 1, keys + 2, 44);
        CHECK(find_as_of(view, asked.hashes[0], asked.times[0]) == searched(w, asked.hashes[0], asked.times[0]));
      }
    }
}

void threads_change_no_bit() {
  Random random(2);
  for (size_t rows : {1000, 140000}) {
    const World w = world(random, rows, rows / 7, 1000);
    HashIndex::Duplicate expected;
    const AsOfIndex one(w.hashes, w.times, false, 1, expected);
    CHECK(expected.second > expected.first && expected.first >= 0);
    const size_t first = static_cast<size_t>(expected.first), second = static_cast<size_t>(expected.second);
    CHECK(w.hashes[first] == w.hashes[second] && w.times[first] == w.times[second]);
    for (size_t threads : {2, 5}) {
      HashIndex::Duplicate duplicate;
      AsOfIndex several(w.hashes, w.times, false, threads, duplicate);
      CHECK(duplicate.first == expected.first && duplicate.second == expected.second);
      CHECK(several.rows() == one.rows() && several.keys() == one.keys() && several.bytes() == one.bytes());
      const AsOfView &a = *static_cast<const AsOfView*>(one.view()), &b = *static_cast<const AsOfView*>(several.view());
      CHECK(std::memcmp(a.versions, b.versions, one.rows() * sizeof(Version)) == 0);
      CHECK(a.index.mask == b.index.mask);
      for (uint64_t k = 0; k <= a.index.mask; ++k)
        CHECK(a.index.slots[k].hash == b.index.slots[k].hash && a.index.slots[k].row == b.index.slots[k].row);
      std::vector<uint32_t> handles(rows);
      for (size_t r = 0; r < rows; ++r) handles[r] = static_cast<uint32_t>(3 * r + 5);
      several.renumber(handles, threads);
      for (size_t k = 0; k < one.rows(); ++k) CHECK(b.versions[k].row == 3 * a.versions[k].row + 5);
    }
  }
}

}  // namespace

int main() {
  the_newest_row_at_or_before_a_time_is_found();
  threads_change_no_bit();
}
