// The Sparse Table under threads: pulls, pushes, prefetches, looks, checkpoints and compaction at once, on few rows in
// memory; in the end every row has what was pushed to it, and a reopened table what the last checkpoint had.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/ssd/next_use.h"
#include "core/ssd/sparse_table.h"

using namespace cb;
namespace fs = std::filesystem;

namespace {

constexpr int kKeys = 6000;

TableShape plain_shape() {
  TableShape shape;
  shape.dim = 2;
  shape.vector.kind = shape.weight.kind = OptimizerKind::SGD;
  shape.vector.parameters[0] = shape.weight.parameters[0] = 1.0;  // the learning rate
  return shape;
}

std::string fresh_folder() {
  std::string name = (fs::temp_directory_path() / "ctrbox-sparse-XXXXXX").string();
  CHECK(::mkdtemp(name.data()) != nullptr);
  fs::create_directory(name + "/segments");
  return name;
}

SparseOptions small() {
  SparseOptions options;
  options.ram = 200'000;
  options.threads = 8;  // two of them for compaction
  options.segment_bytes = size_t{256} << 10;
  return options;
}

// Distinct keys of a batch.
std::vector<int64_t> batch(std::mt19937_64& random, int n) {
  std::vector<int64_t> keys;
  std::vector<bool> taken(kKeys + 1);
  while (static_cast<int>(keys.size()) < n) {
    const int64_t key = 1 + static_cast<int64_t>(random() % kKeys);
    if (!taken[static_cast<size_t>(key)]) keys.push_back(key);
    taken[static_cast<size_t>(key)] = true;
  }
  return keys;
}

// All rows of a shard.
Scanned scanned(SparseTable& table, unsigned shard) {
  Scan scan(shard, 0);
  Scanned all;
  for (;;) {
    const Scanned some = table.scan_next(scan);
    if (some.keys.empty()) return all;
    all.keys.insert(all.keys.end(), some.keys.begin(), some.keys.end());
    all.versions.insert(all.versions.end(), some.versions.begin(), some.versions.end());
    all.rows.insert(all.rows.end(), some.rows.begin(), some.rows.end());
  }
}

void all_at_once() {
  const std::string folder = fresh_folder();
  std::vector<uint64_t> pushed(kKeys + 1);
  {
    SparseTable table(folder, plain_shape(), small());
    std::atomic<bool> stop{false};
    std::vector<std::thread> others;
    for (int t = 0; t < 2; ++t)
      others.emplace_back([&, t] {  // looks
        std::mt19937_64 random(static_cast<uint64_t>(100 + t));
        std::vector<float> out(2 * 300);
        while (!stop) {
          const auto keys = batch(random, 300);
          table.pull(keys, out.data(), false);
          for (float x : out) CHECK(std::isfinite(x));
        }
      });
    others.emplace_back([&] {
      while (!stop) {
        table.checkpoint();
        table.compact();
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    });
    others.emplace_back([&] {
      while (!stop) {
        CHECK(table.verify().empty());
        CHECK(table.stats().at("keys") <= kKeys);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    std::mt19937_64 random(1);
    std::vector<std::vector<int64_t>> batches;
    for (int step = 0; step < 150; ++step) batches.push_back(batch(random, 300));
    std::atomic<int> ahead{0}, done{0};
    // Of two batches in three next uses are told.
    std::vector<std::span<const int64_t>> views(batches.begin(), batches.end());
    const auto next_use = next_uses(views, views.size());
    std::thread prefetching([&] {
      for (size_t k = 0; k < batches.size(); ++k) {
        while (ahead - done >= 3) std::this_thread::yield();
        if (k % 3)
          table.prefetch(batches[k], next_use[k]);
        else
          table.prefetch(batches[k]);
        ++ahead;
      }
    });
    std::vector<float> rows(2 * 300), gradients(2 * 300, 1.0f);
    for (const auto& keys : batches) {
      while (ahead <= done) std::this_thread::yield();
      table.pull(keys, rows.data(), true);
      CHECK(table.push(keys, gradients.data(), 1.0) == -1);
      for (int64_t key : keys) ++pushed[static_cast<size_t>(key)];
      ++done;
    }
    prefetching.join();
    stop = true;
    for (auto& other : others) other.join();
    table.checkpoint();
  }
  SparseTable table(folder, plain_shape(), small());
  CHECK(table.verify().empty());
  uint64_t keys = 0;
  for (unsigned s = 0; s < kShards; ++s) {
    const Scanned found = scanned(table, s);
    keys += found.keys.size();
    for (size_t k = 0; k < found.keys.size(); ++k) {
      float initial[2];
      NewRows(plain_shape()).values(found.keys[k], initial);
      float expected = initial[0];
      for (uint64_t n = 0; n < pushed[static_cast<size_t>(found.keys[k])]; ++n) expected -= 1.0f;
      CHECK(found.rows[2 * k] == expected);
    }
  }
  CHECK(keys == table.size());
  fs::remove_all(folder);
}

// A checkpoint taken while all rows are pushed again and again has each of them after the same number of pushes, and
// those of keys that came meanwhile are all there or none: it is what the table was at one moment.
void one_moment() {
  const std::string folder = fresh_folder();
  TableShape shape = plain_shape();
  shape.init = 0;
  shape.life.decay = 0.5;
  {
    SparseTable table(folder, shape, small());
    std::vector<int64_t> keys;
    for (int64_t key = 1; key <= kKeys / 8; ++key) keys.push_back(key);
    const std::vector<float> minus_one(keys.size() * 2, -1.0f);
    std::atomic<bool> stop{false};
    std::thread pusher([&] {
      std::mt19937_64 random(7);
      std::vector<float> out(2 * 300);
      while (!stop) {
        table.push(keys, minus_one.data(), 1.0);
        table.pull(batch(random, 300), out.data(), true);  // pushes others out
      }
    });
    std::thread tidy([&] {
      while (!stop) {
        table.compact();
        table.expire({.unseen = 5});
        table.flush();
      }
    });
    float before = 0;
    for (int round = 0; round < 12; ++round) {
      table.checkpoint();
      SparseOptions looking = small();
      looking.read_only = true;
      SparseTable saved(folder, shape, looking);
      std::vector<float> out(keys.size() * 2);
      saved.pull(keys, out.data(), false);
      for (float x : out) CHECK(x == out[0]);
      CHECK(out[0] >= before);
      before = out[0];
      std::vector<float> counters(keys.size() * 3);
      saved.counters(keys, counters.data());
      for (size_t k = 0; k < keys.size(); ++k) CHECK(counters[3 * k] == out[0]);  // a show a push
    }
    stop = true;
    pusher.join();
    tidy.join();
    CHECK(before > 0);
    CHECK(table.verify().empty());
  }
  fs::remove_all(folder);
}

// Keys whose fences are all the same fill more than a page: they are found all the same.
void equal_fences() {
  const std::string folder = fresh_folder();
  {
    Segments segments(folder + "/segments");
    const PageShape shape(2);
    const uint64_t high = uint64_t{5} << 58 | uint64_t{77} << 26;  // shard 5, fence 77
    std::vector<std::pair<uint64_t, int64_t>> sorted;
    RunWriter writer(segments, shape, 1000, 10);
    for (uint64_t low = 0; low < 1000; ++low) {
      const uint64_t mix = low < 20 ? high - (uint64_t{1} << 30) + low : high + low;
      const float row[2] = {static_cast<float>(low), 0};
      writer.add(mix, static_cast<int64_t>(low + 1), 1, row);  // keys are not those of the mixes: pages do not mind
      sorted.emplace_back(mix, static_cast<int64_t>(low + 1));
    }
    const RunPtr run = writer.finish();
    CHECK(run->straddles);
    AlignedBuffer page(shape.bytes);
    for (const auto& [mix, key] : sorted) {
      CHECK(run->filter.maybe(mix));
      const auto [first, last] = run->pages_of(mix);
      bool found = false;
      for (uint32_t p = first; p <= last; ++p) {
        run->place.segment->read(page.data(), shape.bytes, run->offset_of(p));
        check_page(*run, p, page.data(), shape);
        found = found || find_on(page.data(), shape, key) >= 0;
      }
      CHECK(found);
    }
  }
  fs::remove_all(folder);
}

// Places given up while rows are pinned there: whoever stays is found, nothing new goes there, and in the end the
// memory holds the rows that a map says.
void narrowed() {
  std::mt19937_64 random(5);
  for (const char* policy : {"heat", "clock", "lfu"}) {
    const uint32_t most = 4000;
    const size_t stride = 5;
    HugeBlock slots(slots_for(most) * sizeof(uint32_t)), marks(most * sizeof(Mark)), floats(most * stride * 4);
    Resident rows;
    rows.begin(most, stride, reinterpret_cast<uint32_t*>(slots.data()), reinterpret_cast<Mark*>(marks.data()),
               reinterpret_cast<float*>(floats.data()), make_policy(policy, most));
    std::map<int64_t, uint32_t> here;
    const auto leave = [&](std::map<int64_t, uint32_t>::iterator who) {
      rows.policy->remove(who->second);
      rows.erase(who->second);
      return here.erase(who);
    };
    for (int64_t key = 1; key < 30'000; ++key) {
      if (rows.room() == 0)
        for (auto who = here.begin(); who != here.end();)
          who = random() % 3 == 0 && rows.mark(who->second).pins == 0 ? leave(who) : std::next(who);
      if (rows.room() > 0) {
        const uint32_t place = rows.insert(key, mix_of(key));
        CHECK(place < rows.capacity());
        rows.mark(place).pins = random() % 50 == 0;
        std::fill_n(rows.row(place), stride, static_cast<float>(key));
        here[key] = place;
      }
      if (key % 3'000 == 0) {
        const uint32_t left = rows.capacity() - rows.capacity() / (key % 2 == 0 ? 5 : 40);
        for (auto who = here.begin(); who != here.end();)
          who = who->second >= left && rows.mark(who->second).pins == 0 ? leave(who) : std::next(who);
        const size_t before = rows.bytes();
        rows.narrow(left);
        CHECK(rows.capacity() == left && rows.bytes() <= before);
      }
      if (key % 1'000 != 0) continue;
      uint32_t seen = 0;
      for (uint32_t place = 0; place < rows.places(); ++place) seen += rows.mark(place).key != 0;
      CHECK(seen == here.size() && rows.count() == here.size());
      for (const auto& [k, place] : here) {
        CHECK(rows.find(k, mix_of(k)) == place);
        CHECK(rows.row(place)[0] == static_cast<float>(k) && rows.row(place)[stride - 1] == static_cast<float>(k));
      }
    }
    for (auto who = here.begin(); who != here.end();) who = leave(who);
    CHECK(rows.room() == rows.capacity() && rows.count() == 0);
  }
}

// Slots with 24, 27 and 32 bits for the place: every key is found, whatever is left of its mix beside the place. The
// homes of these keys are the first slots of the shard, so there is no memory for the others.
void wide_places() {
  for (const uint32_t most : {1'000u, 100'000'000u, kMostPlaces}) {
    std::vector<uint32_t> slots(slots_for(1'000));
    std::vector<Mark> marks(1'000);
    std::vector<float> floats(1'000);
    Resident rows;
    rows.begin(most, 1, slots.data(), marks.data(), floats.data(), make_policy("clock", 1'000));
    CHECK(place_bits(most) == (most == 1'000u ? 24u : most == kMostPlaces ? 32u : 27u));
    std::map<int64_t, uint32_t> here;
    // Keys of one shard whose homes lie side by side: the bits of their mixes below the shard's are nearly equal.
    for (uint64_t k = 0; k < 300; ++k) {
      const uint64_t mix = (k << 20) | (k * 977 % 4096);
      const auto key = static_cast<int64_t>(k + 1);
      here[key] = rows.insert(key, mix);
      CHECK(rows.find(key, mix) == here[key]);
    }
    CHECK(rows.count() == 300 && rows.find(301, uint64_t{300} << 20) == kNowhere);
    for (uint64_t k = 0; k < 300; ++k)
      CHECK(rows.find(static_cast<int64_t>(k + 1), (k << 20) | (k * 977 % 4096)) == here[static_cast<int64_t>(k + 1)]);
  }
}

}  // namespace

int main() {
  equal_fences();
  wide_places();
  narrowed();
  all_at_once();
  one_moment();
  return 0;
}
