// Eviction policies against plain twins (lists, maps, sorting) under random operations, and the promises that all of
// them make: a pinned row never leaves, no row leaves twice, every row can leave, wishes are met as far as pins allow.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ssd/eviction_policy.h"
#include "tests/check.h"

using namespace cb;

namespace {

using Pinned = std::function<bool(uint32_t)>;
using Rows = std::vector<uint32_t>;
const std::vector<std::string> kNames = {"default", "heat", "clock", "lfu"};

const Pinned kNobody = [](uint32_t) { return false; };
const Pinned kEverybody = [](uint32_t) { return true; };

Rows all_victims(Policy& policy, size_t wanted, const Pinned& pinned = kNobody) {
  Rows out;
  policy.victims(wanted, pinned, out);
  return out;
}

// ---- twins
// -----------------------------------------------------------------------------------------------------------

class ClockTwin final : public Policy {
 public:
  explicit ClockTwin(uint32_t capacity) : capacity_(capacity) {}
  void insert(uint32_t row, uint64_t) override { asks_[row] = 0; }
  void hit(uint32_t row) override { asks_[row] = std::min(asks_[row] + 1, 3); }
  void victims(size_t wanted, const Pinned& pinned, Rows& out) override {
    for (int turn = 0; turn < 4; ++turn)
      for (uint32_t k = 0; k < capacity_ && wanted > 0; ++k) {
        const uint32_t row = hand_ >= capacity_ ? 0 : hand_;
        hand_ = row + 1;
        const auto at = asks_.find(row);
        if (at == asks_.end()) continue;
        if (at->second > 0) {
          --at->second;
        } else if (!pinned(row)) {
          asks_.erase(at);
          out.push_back(row);
          --wanted;
        }
      }
  }
  void remove(uint32_t row) override { asks_.erase(row); }
  void resize(uint32_t capacity) override { capacity_ = capacity; }
  size_t bytes() const override { return 0; }

 private:
  uint32_t capacity_, hand_ = 0;
  std::map<uint32_t, int> asks_;
};

// Heat on a clock that is not set back, with logarithms taken where they are needed.
class HeatTwin final : public Policy {
 public:
  HeatTwin(uint32_t capacity, double half_life) : capacity_(capacity), half_life_(half_life) {}
  void insert(uint32_t row, uint64_t) override {
    tick();
    heat_[row] = now_;
    due_.erase(row);
  }
  void reload(uint32_t row, uint64_t, uint8_t worth) override {
    tick();
    heat_[row] = warmer(now_ + worth - 8);
    due_.erase(row);
  }
  void hit(uint32_t row) override {
    tick();
    heat_[row] = warmer(heat_[row]);
    due_.erase(row);
  }
  void foresee(uint64_t number) override { batch_ = static_cast<int64_t>(number); }
  void due(uint32_t row, uint8_t in) override {
    due_.erase(row);
    if (in > 0) due_[row] = batch_ + in;
  }
  uint8_t worth(uint32_t row) const override {
    const auto at = heat_.find(row);
    return at == heat_.end() ? left_.at(row) : static_cast<uint8_t>(std::clamp<int64_t>(at->second - now_ + 8, 1, 15));
  }
  void victims(size_t wanted, const Pinned& pinned, Rows& out) override {
    // Levels that go as a whole, in the order of rows; then one level by the hand. If pins left too few, the same again
    // with the levels above, counted without pinned rows.
    const auto take = [&](uint32_t row) {
      if (wanted == 0 || pinned(row)) return;
      left_[row] = worth(row);
      heat_.erase(row);
      out.push_back(row);
      --wanted;
    };
    int64_t above = std::numeric_limits<int64_t>::min();
    for (const bool without_pinned : {false, true}) {
      std::map<int64_t, std::set<uint32_t>> levels;
      for (const auto& [row, heat] : heat_)
        if (level_of(row, heat) > above && !(without_pinned && pinned(row))) levels[level_of(row, heat)].insert(row);
      auto level = levels.begin();
      std::set<uint32_t> whole;
      for (; level != levels.end() && whole.size() + level->second.size() < wanted; ++level)
        whole.insert(level->second.begin(), level->second.end());
      for (uint32_t row : whole) take(row);
      if (level == levels.end()) return;
      above = level->first;
      for (uint32_t k = 0; k < capacity_ && wanted > 0; ++k) {
        const uint32_t row = hand_ >= capacity_ ? 0 : hand_;
        hand_ = row + 1;
        if (level->second.count(row)) take(row);
      }
    }
  }
  void remove(uint32_t row) override { heat_.erase(row); }
  void resize(uint32_t capacity) override { capacity_ = capacity; }
  size_t bytes() const override { return 0; }

 private:
  int64_t level_of(uint32_t row, int64_t heat) const {
    constexpr int64_t kBeyondAnyHeat = int64_t{1} << 40;
    const auto at = due_.find(row);
    return at != due_.end() && at->second >= batch_ ? kBeyondAnyHeat - at->second : heat;
  }
  int64_t warmer(int64_t heat) const {
    const double apart = static_cast<double>(std::abs(heat - now_));
    const int64_t sum = std::lround(8 * std::log2(1 + std::exp2(-apart / 8)));
    return std::min(std::max(heat, now_) + sum, now_ + 16);
  }
  void tick() {
    if (++asks_ < std::max<int64_t>(1, static_cast<int64_t>(half_life_ * capacity_ / 8))) return;
    asks_ = 0;
    // What is colder than a byte can say is as cold as it can say.
    if (++now_ % 64 == 0)
      for (auto& [row, heat] : heat_) heat = std::max(heat, now_ - 127);
  }
  uint32_t capacity_, hand_ = 0;
  double half_life_;
  int64_t now_ = 0, asks_ = 0, batch_ = 0;
  std::map<uint32_t, int64_t> heat_, due_;
  std::map<uint32_t, uint8_t> left_;
};

// The paper's two lists a bucket, sorted by walking.
class PaperTwin final : public Policy {
 public:
  PaperTwin(size_t buckets, size_t max_lfu, size_t flush_step)
      : lru_(buckets), lfu_(buckets), max_lfu_(max_lfu), flush_step_(flush_step) {}
  void insert(uint32_t row, uint64_t mix) override {
    bucket_[row] = (mix >> 16 & 0xffffffff) * lru_.size() / (uint64_t{1} << 32);
    asks_[row] = 1;
    lru_[bucket_[row]].push_front(row);
  }
  void hit(uint32_t row) override {
    remove(row);
    ++asks_[row];
    lru_[bucket_[row]].push_front(row);
  }
  void victims(size_t wanted, const Pinned& pinned, Rows& out) override {
    const size_t goal = out.size() + wanted;
    const auto take = [&](std::list<uint32_t>& list, size_t most) {
      const std::list<uint32_t> last_first(list.rbegin(), list.rend());
      for (uint32_t row : last_first)
        if (most > 0 && out.size() < goal && !pinned(row)) {
          list.remove(row);
          out.push_back(row);
          --most;
        }
    };
    for (const size_t least : {max_lfu_ + 1, size_t{1}})
      for (bool any = true; any && out.size() < goal;) {
        any = false;
        for (size_t k = 0; k < lfu_.size() && out.size() < goal; ++k) {
          const size_t bucket = hand_++ % lfu_.size();
          const size_t before = out.size();
          if (lfu_[bucket].size() >= least) take(lfu_[bucket], flush_step_);
          any = any || out.size() > before;
        }
      }
    for (auto& list : lru_) take(list, wanted);
  }
  void remove(uint32_t row) override {
    lru_[bucket_[row]].remove(row);
    lfu_[bucket_[row]].remove(row);
  }
  void resize(uint32_t) override {}
  size_t bytes() const override { return 0; }
  void next_pass() override {
    for (size_t b = 0; b < lru_.size(); ++b) {
      // Candidates of the last pass stand in front of older ones of as many asks.
      lru_[b].splice(lru_[b].end(), lfu_[b]);
      lfu_[b].swap(lru_[b]);
      lfu_[b].sort([&](uint32_t one, uint32_t two) { return asks_[one] > asks_[two]; });
    }
  }

 private:
  std::vector<std::list<uint32_t>> lru_, lfu_;
  size_t max_lfu_, flush_step_, hand_ = 0;
  std::map<uint32_t, size_t> bucket_;
  std::map<uint32_t, unsigned> asks_;
};

// ---- random operations
// -----------------------------------------------------------------------------------------------

// Puts policies (one alone, or one and its twin) through the same operations; where the slab may shrink and grow it
// does.
void run(const std::vector<Policy*>& policies, uint32_t capacity, unsigned seed, size_t steps, bool resizing) {
  std::mt19937_64 random(seed);
  std::map<uint32_t, uint64_t> resident;  // its key
  std::map<uint64_t, uint8_t> on_disk;    // key: worth
  const uint32_t most = capacity;
  uint64_t batch = random() % 300;
  const auto each = [&](const auto& what) {
    for (Policy* policy : policies) what(*policy);
  };
  const auto some_resident = [&] { return std::next(resident.begin(), random() % resident.size())->first; };
  for (size_t step = 0; step < steps; ++step) {
    const unsigned what = random() % 32;
    if (what < 12 && resident.size() < capacity) {
      uint32_t row = random() % capacity;
      while (resident.count(row)) row = (row + 1) % capacity;
      const uint64_t key = random() % (4 * most);
      const uint64_t mix = (key + 1) * 0x9e3779b97f4a7c15ull;
      resident[row] = key;
      const auto seen = on_disk.find(key);
      if (seen == on_disk.end())
        each([&](Policy& policy) { policy.insert(row, mix); });
      else
        each([&](Policy& policy) { policy.reload(row, mix, seen->second); });
    } else if (what < 24 && !resident.empty()) {
      const uint32_t row = some_resident();
      each([&](Policy& policy) { policy.hit(row); });
    } else if (what == 24) {
      each([](Policy& policy) { policy.next_pass(); });
    } else if (what == 25 && seed % 3 != 0) {  // in every third run nobody knows anything
      batch += 1 + random() % 3;
      each([&](Policy& policy) { policy.foresee(batch); });
      for (size_t k = random() % (1 + resident.size() / 4); k > 0 && !resident.empty(); --k) {
        const uint32_t row = some_resident();
        const uint8_t in = static_cast<uint8_t>(random() % 4 ? random() % 10 : random() % 128);
        each([&](Policy& policy) { policy.hit(row); });
        each([&](Policy& policy) { policy.due(row, in); });
      }
    } else if (what == 26 && !resident.empty()) {
      const uint32_t row = some_resident();
      resident.erase(row);
      each([&](Policy& policy) { policy.remove(row); });
    } else if (what == 27 && resizing) {
      const uint32_t least = resident.empty() ? 1 : resident.rbegin()->first + 1;
      capacity = least + static_cast<uint32_t>(random() % (most - least + 1));
      each([&](Policy& policy) { policy.resize(capacity); });
    } else if (what > 27) {
      std::set<uint32_t> pins;
      const unsigned percent = std::vector<unsigned>{0, 10, 60, 95, 100}[random() % 5];
      for (const auto& [row, key] : resident)
        if (random() % 100 < percent) pins.insert(row);
      const size_t wanted = random() % 4 ? random() % (capacity / 8 + 2) : random() % (2 * capacity + 1);
      const Pinned pinned = [&](uint32_t row) { return pins.count(row) > 0; };
      const Rows out = all_victims(*policies[0], wanted, pinned);
      for (size_t k = 1; k < policies.size(); ++k) CHECK(all_victims(*policies[k], wanted, pinned) == out);
      CHECK(out.size() == std::min(wanted, resident.size() - pins.size()));
      for (uint32_t row : out) {
        CHECK(!pins.count(row));
        const uint8_t worth = policies[0]->worth(row);
        CHECK(worth >= 1 && worth <= 15);
        for (Policy* policy : policies) CHECK(policies.size() == 1 || policy->worth(row) == worth);
        on_disk[resident.at(row)] = worth;
        CHECK(resident.erase(row) == 1);
      }
    }
  }
  // Every row is still to be found.
  const Rows rest = all_victims(*policies[0], resident.size() + 1);
  CHECK(std::set<uint32_t>(rest.begin(), rest.end()).size() == rest.size());
  CHECK(rest.size() == resident.size());
  for (uint32_t row : rest) CHECK(resident.count(row));
}

void promises_hold_under_random_operations() {
  for (const std::string& name : kNames)
    for (const uint32_t capacity : {1u, 2u, 7u, 64u, 1000u})
      for (const bool resizing : {false, true}) {
        const auto policy = make_policy(name, capacity);
        run({policy.get()}, capacity, capacity + resizing, capacity == 1000 ? 4000 : 8000, resizing);
      }
}

void policies_do_what_their_twins_do() {
  for (unsigned seed = 0; seed < 6; ++seed)
    for (const uint32_t capacity : {1u, 2u, 10u, 100u, 300u}) {
      const bool resizing = seed % 2;
      const size_t steps = 3000;
      {
        policy::Clock fast(capacity);
        ClockTwin slow(capacity);
        run({&fast, &slow}, capacity, seed, steps, resizing);
      }
      // A short half-life, so that the clock is set back several times.
      for (const double half_life : {0.2, 2.0, 12.0}) {
        policy::Heat fast(capacity, half_life);
        HeatTwin slow(capacity, half_life);
        run({&fast, &slow}, capacity, seed, steps, resizing);
      }
      for (const uint32_t bucket_rows : {4u, 1000u}) {
        policy::PaperLfu fast(capacity, bucket_rows, bucket_rows / 2, 2);
        PaperTwin slow(std::max(1u, capacity / bucket_rows), bucket_rows / 2, 2);
        run({&fast, &slow}, capacity, seed, steps, resizing);
      }
    }
}

// ---- single promises
// -------------------------------------------------------------------------------------------------

void rows_all_pinned_give_none() {
  for (const std::string& name : kNames) {
    const auto policy = make_policy(name, 20);
    for (uint32_t row = 0; row < 20; ++row) policy->insert(row, row * 0x9e3779b97f4a7c15ull);
    for (uint32_t row = 0; row < 20; row += 2) policy->hit(row);
    CHECK(all_victims(*policy, 5, kEverybody).empty());
    CHECK(all_victims(*policy, 5, [](uint32_t row) { return row != 13; }) == Rows{13});
    CHECK(all_victims(*policy, 100).size() == 19);
    CHECK(all_victims(*policy, 1).empty());
  }
}

void a_slab_of_no_row_or_one_works() {
  for (const std::string& name : kNames) {
    const auto policy = make_policy(name, 0);
    CHECK(all_victims(*policy, 3).empty());
    policy->resize(1);
    for (int turn = 0; turn < 300; ++turn) {
      policy->insert(0, 7);
      for (int k = 0; k < turn % 7; ++k) policy->hit(0);
      if (turn % 3 == 0) {
        policy->remove(0);
        CHECK(all_victims(*policy, 1).empty());
      } else {
        CHECK(all_victims(*policy, 1) == Rows{0});
      }
    }
  }
}

void memory_is_what_the_head_of_the_file_says() {
  const std::map<std::string, double> bytes = {{"default", 2}, {"heat", 2}, {"clock", 1}, {"lfu", 15.4}};
  for (const auto& [name, row] : bytes) {
    const uint32_t capacity = 100'000;
    const auto policy = make_policy(name, capacity);
    const auto near = [&](double rows) { return std::abs(policy->bytes() / rows - row) < 0.02 * row; };
    CHECK(near(capacity));
    // Buckets of the paper's stay, so that it is measured at its first size only.
    if (name == "lfu") continue;
    policy->resize(capacity / 2);
    CHECK(near(capacity / 2));
    policy->resize(capacity);
    CHECK(near(capacity));
  }
}

void heat_survives_the_way_over_the_disk() {
  policy::Heat policy(100);
  for (uint32_t row = 0; row < 40; ++row) policy.insert(row, row);
  for (uint32_t row = 0; row < 20; ++row)
    for (int k = 0; k < 3; ++k) policy.hit(row);
  std::map<uint32_t, uint8_t> worth;
  for (uint32_t row : all_victims(policy, 40)) worth[row] = policy.worth(row);
  CHECK(worth.size() == 40);
  CHECK(worth[0] > worth[39] && worth[39] == Policy::kSeen);
  for (uint32_t row = 0; row < 40; ++row) policy.reload(row, row, worth[row]);
  for (uint32_t row = 40; row < 60; ++row) policy.insert(row, row);
  // New ones leave first, then those that were asked for once before, then the hot ones.
  for (const uint32_t low : {40u, 20u, 0u}) {
    Rows out = all_victims(policy, 20);
    std::sort(out.begin(), out.end());
    CHECK(out.size() == 20 && out.front() == low && out.back() == low + 19);
  }
}

void rows_that_come_again_stay_the_soonest_longest() {
  policy::Heat policy(6);
  for (uint32_t row = 0; row < 6; ++row) policy.insert(row, row);
  for (int k = 0; k < 5; ++k) policy.hit(0);  // the hottest, and nobody knows of it
  policy.foresee(7);
  for (uint32_t row = 1; row < 6; ++row) policy.hit(row);
  policy.due(1, 127);
  policy.due(2, 1);
  policy.due(3, 20);
  policy.due(5, 0);
  CHECK(all_victims(policy, 1) == Rows{4});
  CHECK(all_victims(policy, 1) == Rows{5});
  CHECK(all_victims(policy, 1) == Rows{0});
  policy.insert(0, 0);
  policy.foresee(9);  // row 2 was due and did not come
  CHECK((all_victims(policy, 2) == Rows{0, 2}));
  CHECK(all_victims(policy, 1) == Rows{1});
  policy.insert(1, 1);
  for (int k = 0; k < 5; ++k) policy.hit(1);
  policy.foresee(9 + 400);  // what is known is long over: row 3 is the colder one
  CHECK(all_victims(policy, 1) == Rows{3});
}

// Due numbers go round every 255 batches. Row 0 is due at batch 3 and row 1 is warmer, so row 0 stays up to batch 3 and
// leaves first ever after, however many batches lie between two calls.
void what_was_due_long_ago_is_forgotten() {
  for (const uint64_t gap : {1u, 2u, 63u, 64u, 65u, 127u, 128u, 129u, 200u, 255u, 256u})
    for (uint64_t last = 1; last < 600; last += last < 400 && gap > 2 ? 1 : 7) {
      policy::Heat heat(2, 1000);
      heat.foresee(1);
      heat.insert(0, 0);
      heat.insert(1, 0);
      heat.hit(1);
      heat.due(0, 2);
      for (uint64_t batch = 1 + gap; batch < last; batch += gap) heat.foresee(batch);
      heat.foresee(last);
      CHECK(all_victims(heat, 1) == (last <= 3 ? Rows{1} : Rows{0}));
    }
}

// A row whose next use lies kFarthest batches ahead is kept until that use comes.
void the_farthest_due_is_kept_until_it_comes() {
  for (const uint64_t start : {1u, 300u})
    for (const uint64_t passed : {0u, 1u, 63u, 125u, 126u}) {
      policy::Heat heat(2, 1000);
      for (uint64_t batch = 1; batch <= start; ++batch) heat.foresee(batch);
      heat.insert(0, 0);
      heat.insert(1, 0);
      heat.hit(1);
      heat.due(0, Policy::kFarthest);
      // The policy may skip batches 2 to 126 without a call; later batches are told one by one.
      for (uint64_t batch = start == 1 ? start + passed : start + 1; batch <= start + passed; ++batch)
        heat.foresee(batch);
      CHECK(all_victims(heat, 1) == Rows{1});
      heat.due(0, Policy::kFarthest + 1);  // farther than can be said: nobody knows
      heat.insert(1, 0);
      heat.hit(1);
      CHECK(all_victims(heat, 1) == Rows{0});
    }
}

// Fifty rows asked for in every batch, and a stream of keys that never come back.
void a_stream_of_new_keys_does_not_wash_out_hot_rows() {
  for (const char* name : {"default", "clock", "lfu"}) {
    const auto policy = make_policy(name, 200);
    std::set<uint32_t> room;
    for (uint32_t row = 50; row < 200; ++row) room.insert(row);
    for (uint32_t row = 0; row < 50; ++row) policy->insert(row, row * 0x9e3779b97f4a7c15ull);
    uint64_t key = 1000;
    for (int batch = 0; batch < 300; ++batch) {
      policy->next_pass();
      for (uint32_t row = 0; row < 50; ++row) policy->hit(row);
      for (int k = 0; k < 40; ++k) {
        if (room.empty())
          for (uint32_t row : all_victims(*policy, 25)) {
            CHECK(row >= 50);
            room.insert(row);
          }
        policy->insert(*room.begin(), ++key * 0x9e3779b97f4a7c15ull);
        room.erase(room.begin());
      }
    }
  }
}

void an_unknown_name_is_refused() {
  std::string met;
  try {
    make_policy("arc", 10);
  } catch (const std::invalid_argument& e) {
    met = e.what();
  }
  CHECK(met == "policy 'arc' is not one of default, heat, clock, lfu");
}

}  // namespace

int main() {
  promises_hold_under_random_operations();
  policies_do_what_their_twins_do();
  rows_all_pinned_give_none();
  a_slab_of_no_row_or_one_works();
  memory_is_what_the_head_of_the_file_says();
  heat_survives_the_way_over_the_disk();
  rows_that_come_again_stay_the_soonest_longest();
  what_was_due_long_ago_is_forgotten();
  the_farthest_due_is_kept_until_it_comes();
  a_stream_of_new_keys_does_not_wash_out_hot_rows();
  an_unknown_name_is_refused();
  std::puts("policies: all well");
}
