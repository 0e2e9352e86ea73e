// The paper's store: the bits of the table in memory over random calls with few rows resident, groups of one and of
// many blocks, its lists, its files and its budget.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/sparse/group_store.h"
#include "core/table/memory_table.h"
#include "tests/check.h"

using namespace cb;
namespace fs = std::filesystem;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 25;
#else
constexpr int kSteps = 60;
#endif

struct Folder {
  Folder() {
    path = (fs::temp_directory_path() / "ctrbox-groups-XXXXXX").string();
    CHECK(::mkdtemp(path.data()) != nullptr);
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

TableShape shape_of(OptimizerKind kind, uint32_t dim, bool linear) {
  TableShape shape;
  shape.dim = dim;
  shape.linear = linear;
  shape.weight = shape.vector = {kind, {0.1, 1e-8, 0.0, 0.0, 0.0}};
  if (kind == OptimizerKind::Adam) shape.weight = shape.vector = {kind, {0.1, 0.9, 0.99, 1e-8, 0.0}};
  shape.init = 0.01;
  shape.seed = 3;
  return shape;
}

// Room for so many rows beside the index.
size_t ram_for(const TableShape& shape, size_t keys, size_t rows) {
  GroupOptions options;
  options.ram = size_t{1} << 30;
  options.keys = keys;
  options.bucket_groups = 1;
  Folder folder;
  const auto stats = GroupStore(folder.path, shape, options).stats();
  const size_t each = BucketCache::kNodeBytes + shape.floats() * sizeof(float);
  return stats.at("memory") - stats.at("capacity") * each + (rows + kShards) * each + 8 * kShards;
}

// Few keys often, many seldom; now and then the null slot, a negative key and one given twice.
std::vector<int64_t> batch(std::mt19937_64& random, size_t space, size_t n, bool grouped) {
  std::vector<int64_t> keys;
  for (size_t k = 0; k < n; ++k) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const int64_t key = 1 + static_cast<int64_t>(u * u * u * static_cast<double>(space));
    keys.push_back(random() % 50 == 0 ? 0 : key % 7 == 0 ? -key : key);
    if (random() % 40 == 0) keys.push_back(keys[random() % keys.size()]);
  }
  if (grouped)
    std::stable_sort(keys.begin(), keys.end(), [](int64_t a, int64_t b) { return shard_of(a) < shard_of(b); });
  return keys;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Case {
  TableShape shape;
  size_t space, rows, expected;  // keys there are, rows in memory, keys the store was told of
  uint32_t bucket_groups, max_lfu, flush_step;
  double replication;
};

void gives_the_bits_of_the_table_in_memory(const Case& c, uint64_t seed) {
  Folder folder;
  GroupOptions options;
  options.keys = c.expected;
  options.ram = ram_for(c.shape, c.expected, c.rows);
  options.threads = 2;
  options.bucket_groups = c.bucket_groups;
  options.max_lfu = c.max_lfu;
  options.flush_step = c.flush_step;
  options.max_replication = c.replication;
  options.segment_bytes = size_t{64} << 10;
  const size_t width = c.shape.width();
  std::mt19937_64 random(seed);
  MemoryTable memory(c.shape, size_t{1} << 30, 2);
  {
    GroupStore store(folder.path, c.shape, options);
    CHECK(store.stats().at("capacity") >= c.rows);
    std::vector<float> expected, met, gradients;
    const auto pull_both = [&](const std::vector<int64_t>& keys) {
      expected.assign(keys.size() * width, -1);
      met.assign(keys.size() * width, -2);
      memory.pull(keys, expected.data(), true);
      store.pull(keys, met.data());
      CHECK(same(expected, met));
    };
    for (int step = 0; step < kSteps; ++step) {
      // A quarter of the rows at most: a shard's share of a batch varies. Drawn one by one: the order of arguments is
      // the compiler's, and x86 had other batches than ARM.
      const size_t n = random() % (c.rows / 4);
      const bool grouped = random() % 2 == 0;
      auto keys = batch(random, c.space, n, grouped);
      if (random() % 8 != 0) pull_both(keys);
      if (random() % 8 == 0) {  // pushed without a pull
        const size_t others = random() % (c.rows / 4);
        keys = batch(random, c.space, others, false);
      }
      gradients.resize(keys.size() * width);
      for (float& g : gradients) g = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
      const double factor = random() % 4 == 0 ? 0.5 : 1.0;
      CHECK(memory.push(keys, gradients.data(), factor) == -1);
      CHECK(store.push(keys, gradients.data(), factor) == -1);
      if (random() % 40 == 0) {
        store.flush();
        CHECK(store.stats().at("resident") == 0);
      }
      const auto stats = store.stats();
      CHECK(stats.at("resident") <= stats.at("capacity") && stats.at("memory") <= options.ram);
      CHECK(stats.at("keys") == memory.size());
    }
    std::vector<int64_t> all(memory.size());
    std::vector<float> values(memory.size() * width), states(memory.size() * c.shape.states() + 1);
    memory.copy_out(all.data(), values.data(), states.data(), all.size());
    std::shuffle(all.begin(), all.end(), random);  // they came shard by shard
    for (size_t k = 0; k < all.size(); k += c.rows / 4)
      pull_both({all.begin() + static_cast<std::ptrdiff_t>(k),
                 all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), k + c.rows / 4))});
    const auto stats = store.stats();
    CHECK(stats.at("evicted") > 0 && stats.at("flush_reads") > 0 && stats.at("misses") > 0);
    CHECK(stats.at("merges") > 0 && stats.at("groups_moved") > 0);
    CHECK(stats.at("new") == stats.at("keys"));
    // Of the disk: the files that are there, and no more of them than allowed by much.
    uint64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(folder.path)) bytes += file.file_size();
    CHECK(bytes == stats.at("disk_bytes") && stats.at("live_bytes") <= bytes);
    CHECK(static_cast<double>(bytes) <= c.replication * static_cast<double>(stats.at("live_bytes")) + 1);
    std::printf("groups: %zu keys a group, %llu keys, %llu evicted, %llu groups written, %llu moved\n",
                GroupStore::group_keys(c.shape), static_cast<unsigned long long>(stats.at("keys")),
                static_cast<unsigned long long>(stats.at("evicted")),
                static_cast<unsigned long long>(stats.at("groups_written")),
                static_cast<unsigned long long>(stats.at("groups_moved")));
  }
  CHECK(fs::is_empty(folder.path));
}

// A key that was never there costs no read, but for the filter's mistakes.
void new_keys_cost_no_read() {
  Folder folder;
  const TableShape shape = shape_of(OptimizerKind::SGD, 16, false);
  GroupOptions options;
  options.keys = 100'000;
  options.ram = size_t{4} << 20;
  GroupStore store(folder.path, shape, options);
  std::vector<float> out(10'000 * 16);
  for (int64_t from = 0; from < 100'000; from += 10'000) {
    std::vector<int64_t> keys(10'000);
    for (int64_t k = 0; k < 10'000; ++k) keys[static_cast<size_t>(k)] = 1 + from + k;
    store.pull(keys, out.data());
  }
  const auto stats = store.stats();
  CHECK(stats.at("new") == 100'000 && stats.at("misses") == 0 && stats.at("hits") == 0);
  CHECK(stats.at("reads") <= stats.at("false_positives") && stats.at("false_positives") < 2'000);
  CHECK(stats.at("pruned") + stats.at("false_positives") <= 100'000 && stats.at("pruned") > 98'000);
}

void groups_are_sized_to_the_block() {
  CHECK(GroupStore::group_keys(shape_of(OptimizerKind::SGD, 16, false)) == 56);      // 4096 / (8 + 64)
  CHECK(GroupStore::group_keys(shape_of(OptimizerKind::Adagrad, 16, false)) == 30);  // 4096 / (8 + 128)
  CHECK(GroupStore::group_keys(shape_of(OptimizerKind::SGD, 1100, false)) == 1);
}

// Three rows of one bucket, one of another: MAX_LFU 2, FLUSH_STEP 1.
void lists_give_what_is_asked_least() {
  BucketCache cache;
  std::vector<float> rows(8);
  cache.begin(8, 2, 2, 1, rows.data(), 1);
  CHECK(cache.room() == 8 && cache.candidates() == 0);
  const uint32_t often = cache.insert(0, 10, 1), once = cache.insert(0, 11, 1), late = cache.insert(0, 12, 1);
  const uint32_t other = cache.insert(1, 13, 1);
  CHECK(cache.find(0, 11) == once && cache.find(1, 11) == BucketCache::kNone && cache.find(1, 13) == other);
  cache.ask(0, often, 2);
  cache.ask(0, late, 2);
  cache.end_pass(2);  // `once` and `other` were not asked for
  CHECK(cache.candidates() == 2 && cache.node(once).in_lfu && !cache.node(late).in_lfu);
  cache.ask(0, often, 3);
  cache.end_pass(3);
  CHECK(cache.candidates() == 3);
  cache.end_pass(4);
  CHECK(cache.candidates() == 4 && cache.find(0, 10) == often);
  std::vector<uint32_t> out;
  cache.victims(4, out);  // the long list first, then both in turn
  CHECK(out.size() == 4 && out[0] == once && cache.candidates() == 0 && cache.find(0, 11) == BucketCache::kNone);
  CHECK(std::find(out.begin(), out.end(), often) > std::find(out.begin(), out.end(), late));
  CHECK(cache.room() == 4);
  for (const uint32_t node : out) cache.free(node);
  CHECK(cache.room() == 8);
  CHECK(cache.find(cache.insert(1, 20, 5) < 8 ? 1 : 0, 20) != BucketCache::kNone);
}

template <class Error, class F>
bool throws(F&& fn) {
  try {
    fn();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void refuses_what_does_not_fit() {
  Folder folder;
  const TableShape shape = shape_of(OptimizerKind::SGD, 4, false);
  GroupOptions options;
  options.keys = 1000;
  options.ram = 1000;
  CHECK(throws<TableFull>([&] { GroupStore(folder.path, shape, options); }));
  options.ram = ram_for(shape, options.keys, 2000);
  options.fill = 0;
  CHECK(throws<std::invalid_argument>([&] { GroupStore(folder.path, shape, options); }));
  options.fill = 0.8;
  options.bucket_groups = 3;
  CHECK(throws<std::invalid_argument>([&] { GroupStore(folder.path, shape, options); }));
  options.bucket_groups = 1;
  GroupStore store(folder.path, shape, options);
  std::vector<int64_t> few{5, -5}, many(10'000);
  for (size_t k = 0; k < many.size(); ++k) many[k] = static_cast<int64_t>(k + 1);
  std::vector<float> before(8), after(8), out(many.size() * 4);
  store.pull(few, before.data());
  CHECK(throws<TableFull>([&] { store.pull(many, out.data()); }));
  // Gradients that are not finite change nothing and are named.
  std::vector<float> gradients(8, 1.0f);
  gradients[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(store.push(few, gradients.data(), 1.0) == 5);
  store.pull(few, after.data());
  CHECK(same(before, after));
  store.pull({}, nullptr);
  CHECK(store.push({}, nullptr, 1.0) == -1);
}

}  // namespace

int main() {
  groups_are_sized_to_the_block();
  lists_give_what_is_asked_least();
  const auto sgd = OptimizerKind::SGD, adagrad = OptimizerKind::Adagrad, adam = OptimizerKind::Adam;
  // Keys as many as told; ten times as many, so that groups have several blocks; rows larger than a block.
  gives_the_bits_of_the_table_in_memory({shape_of(sgd, 16, false), 20'000, 2000, 20'000, 1, 0, 2, 1.3}, 1);
  gives_the_bits_of_the_table_in_memory({shape_of(adagrad, 8, true), 30'000, 3000, 3'000, 4, 3, 3, 1.5}, 2);
  gives_the_bits_of_the_table_in_memory({shape_of(adam, 5, true), 8'000, 1500, 8'000, 16, 1, 100, 1.2}, 3);
  gives_the_bits_of_the_table_in_memory({shape_of(sgd, 1100, false), 6'000, 1500, 3'000, 2, 1, 1, 1.1}, 4);
  new_keys_cost_no_read();
  refuses_what_does_not_fit();
  std::puts("groups: ok");
}
