// The paper's store and both filters behind C functions, for benchmarks/table_layout.py. A function that may fail gives
// null, or what went wrong, valid until the next call on the same store.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/ssd/bloom_filter.h"
#include "paper_store/group_store.h"
#include "paper_store/paper_bloom.h"

namespace {

struct Store {
  std::unique_ptr<cb::GroupStore> groups;
  std::string said;
};

template <class Work>
const char* tried(Store* store, const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    store->said = error.what();
    return store->said.c_str();
  }
}

double cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

std::vector<uint64_t> mixes(int64_t start, size_t n) {
  std::vector<uint64_t> out(n);
  for (size_t k = 0; k < n; ++k) out[k] = cb::mix_of(start + static_cast<int64_t>(k));
  return out;
}

// Asks one after the other, as a key that missed the lists does; the least of some rounds.
template <class Filter>
double ns_a_probe(const Filter& filter, const std::vector<uint64_t>& asked, size_t* yes) {
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const double began = cpu_ns();
    size_t found = 0;
    for (const uint64_t mix : asked) found += filter.maybe(mix);
    best = std::min(best, cpu_ns() - began);
    *yes = found;
  }
  return best / static_cast<double>(asked.size());
}

// Bits a key it takes, share of keys not there that it says maybe to, ns a key that is there, ns one that is not.
template <class Filter>
void figures_of(size_t keys, double bits, double* out) {
  Filter filter(keys, bits);
  for (const uint64_t mix : mixes(0, keys)) filter.add(mix);
  std::vector<uint64_t> there = mixes(0, keys), others = mixes(int64_t{1} << 40, 2'000'000);
  size_t yes = 0;
  out[0] = 8.0 * static_cast<double>(filter.bytes()) / static_cast<double>(keys);
  there.resize(std::min<size_t>(there.size(), 2'000'000));
  out[2] = ns_a_probe(filter, there, &yes);
  out[3] = ns_a_probe(filter, others, &yes);
  out[1] = static_cast<double>(yes) / static_cast<double>(others.size());
}

}  // namespace

extern "C" {

// A store of plain SGD rows.
const char* group_open(const char* folder, uint64_t dim, double lr, double init, uint64_t seed, uint64_t ram,
                       uint64_t keys, uint64_t bucket_groups, uint64_t max_lfu, uint64_t flush_step, Store** out) {
  auto* store = *out = new Store;
  return tried(store, [&] {
    cb::TableShape shape;
    shape.dim = static_cast<uint32_t>(dim);
    shape.weight = shape.vector = {cb::OptimizerKind::SGD, {lr}};
    shape.init = init;
    shape.seed = seed;
    cb::GroupOptions options;
    options.ram = ram;
    options.keys = keys;
    options.bucket_groups = static_cast<uint32_t>(bucket_groups);
    options.max_lfu = static_cast<uint32_t>(max_lfu);
    options.flush_step = static_cast<uint32_t>(flush_step);
    store->groups = std::make_unique<cb::GroupStore>(folder, shape, options);
  });
}

const char* group_pull(Store* store, const int64_t* keys, uint64_t n, float* out) {
  return tried(store, [&] { store->groups->pull({keys, n}, out); });
}

const char* group_push(Store* store, const int64_t* keys, uint64_t n, const float* gradients) {
  return tried(store, [&] { store->groups->push({keys, n}, gradients, 1.0); });
}

// Lines of a name and a number.
const char* group_stats(Store* store) {
  store->said.clear();
  for (const auto& [name, value] : store->groups->stats()) store->said += name + " " + std::to_string(value) + "\n";
  return store->said.c_str();
}

void group_close(Store* store) { delete store; }

void filter_figures(int blocked, uint64_t keys, double bits, double* out) {
  blocked ? figures_of<cb::BlockedFilter>(keys, bits, out) : figures_of<cb::BloomFilter>(keys, bits, out);
}

}  // extern "C"
