// The filter of a run: never false for a key added, wrong as rarely as its head says, the same after a way over the
// disk.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/ssd/bloom_filter.h"
#include "tests/check.h"

using namespace cb;
using Filter = BlockedFilter;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kMany = 300'000;
#else
constexpr size_t kMany = 3'000'000;
#endif

// Mixes of keys start, start + 1, … of one shard only: what a filter of the table meets.
std::vector<uint64_t> mixes_of_shard(int64_t start, size_t n) {
  std::vector<uint64_t> out;
  for (int64_t key = start; out.size() < n; ++key)
    if (uint64_t mix = mix_of(key); shard_of_mix(mix) == 5) out.push_back(mix);
  return out;
}

std::vector<uint64_t> mixes(int64_t start, size_t n) {
  std::vector<uint64_t> out(n);
  for (size_t k = 0; k < n; ++k) out[k] = mix_of(start + static_cast<int64_t>(k));
  return out;
}

Filter filter_of(const std::vector<uint64_t>& keys, double bits) {
  Filter filter(keys.size(), bits);
  for (uint64_t mix : keys) filter.add(mix);
  return filter;
}

bool has_all(const Filter& filter, const std::vector<uint64_t>& keys) {
  return std::all_of(keys.begin(), keys.end(), [&](uint64_t mix) {
    filter.prefetch(mix);
    return filter.maybe(mix);
  });
}

double rate(const Filter& filter, const std::vector<uint64_t>& others) {
  const auto yes = std::count_if(others.begin(), others.end(), [&](uint64_t mix) { return filter.maybe(mix); });
  return static_cast<double>(yes) / static_cast<double>(others.size());
}

void millions_of_keys_are_all_found() {
  const std::vector<uint64_t> keys = mixes(-1000, kMany);
  for (double bits : {0.01, 1.0, 10.0, 30.0}) CHECK(has_all(filter_of(keys, bits), keys));
}

// The rates that the head of bloom_filter.h states, in percent: keys of one shard, other keys of it asked for.
void wrong_answers_are_as_rare_as_stated() {
  const std::vector<uint64_t> keys = mixes_of_shard(0, kMany / 15);
  const std::vector<uint64_t> others = mixes_of_shard(int64_t{1} << 40, kMany / 10);
  const struct {
    double bits, percent;
  } stated[] = {{4, 14.9}, {6, 5.8}, {8, 2.4}, {10, 0.97}, {12, 0.42}, {16, 0.086}};
  for (const auto& [bits, percent] : stated) {
    // 20 more: 300,000 answers at 0.05 % scatter by a tenth, the sanitizers ask fewer.
    const double scatter = 20.0 / static_cast<double>(others.size());
    const auto filter = filter_of(keys, bits);
    const double met = rate(filter, others);
    std::printf("filter: %4.0f bits, %u hashes: %.4f %%\n", bits, filter.hashes(), 100 * met);
    CHECK(met <= 1.5 * percent / 100 + scatter && met >= percent / 150 - scatter);
    CHECK(static_cast<double>(filter.bytes()) <= static_cast<double>(keys.size()) * bits / 8 + 64);
  }
}

void few_keys_work() {
  for (size_t n = 0; n <= 100; ++n) {
    const std::vector<uint64_t> keys = mixes_of_shard(static_cast<int64_t>(1000 * n), n);
    const auto filter = filter_of(keys, 10);
    CHECK(has_all(filter, keys));
    CHECK(filter.bytes() > 0 && filter.bytes() <= 64 + n * 10 / 8);
    const double met = rate(filter, mixes_of_shard(int64_t{1} << 40, 300));
    CHECK(n == 0 ? met == 0 : met < 0.1);
  }
}

void hostile_mixes_are_found() {
  std::vector<uint64_t> keys{0, 1, std::numeric_limits<uint64_t>::max(), uint64_t{1} << 63, uint64_t{1} << 32};
  for (unsigned k = 0; k < 64; ++k) keys.push_back(uint64_t{1} << k);
  for (double bits : {0.5, 3.0, 10.0, 100.0}) CHECK(has_all(filter_of(keys, bits), keys));
  // More keys than it was made for: it fills up and says yes.
  Filter full(10, 8);
  for (uint64_t mix : mixes(0, 5000)) full.add(mix);
  CHECK(has_all(full, mixes(0, 5000)) && rate(full, mixes(int64_t{1} << 40, 1000)) > 0.99);
}

bool says_maybe_to_everything(Filter filter) {
  filter.add(7);
  filter.prefetch(8);
  return filter.maybe(7) && filter.maybe(8) && filter.bytes() == 0 && filter.words().empty();
}

void no_bits_means_maybe_to_everything() {
  CHECK(says_maybe_to_everything(Filter()));
  CHECK(says_maybe_to_everything(Filter(1000, 0)));
  CHECK(says_maybe_to_everything(Filter(0, 0)));
  CHECK(says_maybe_to_everything(Filter(1000, -1)));
  CHECK(says_maybe_to_everything(Filter(1000, std::numeric_limits<double>::quiet_NaN())));
  CHECK(says_maybe_to_everything(Filter::of_words({}, 0)));
}

void words_make_the_same_filter() {
  for (size_t n : {1, 100, 20000})
    for (double bits : {1.0, 6.0, 10.0, 16.0}) {
      const std::vector<uint64_t> keys = mixes_of_shard(3, n);
      const auto filter = filter_of(keys, bits);
      const std::vector<uint64_t> words(filter.words().begin(), filter.words().end());
      CHECK(words.size() * 8 == filter.bytes());
      Filter back = Filter::of_words(words, filter.hashes());
      CHECK(std::ranges::equal(back.words(), words) && back.hashes() == filter.hashes() &&
            back.bytes() == filter.bytes());
      for (uint64_t mix : mixes_of_shard(int64_t{1} << 40, 1000)) CHECK(back.maybe(mix) == filter.maybe(mix));
      CHECK(has_all(back, keys));
      const Filter copy = back, moved = std::move(back);
      CHECK(has_all(copy, keys) && has_all(moved, keys));
    }
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

void what_no_filter_wrote_is_refused() {
  CHECK(throws<std::invalid_argument>([] { Filter::of_words(std::vector<uint64_t>(7), 6); }));
  CHECK(throws<std::invalid_argument>([] { Filter::of_words(std::vector<uint64_t>(8), 0); }));
  CHECK(throws<std::invalid_argument>([] { Filter::of_words(std::vector<uint64_t>(8), 11); }));
  CHECK(throws<std::length_error>([] { Filter(size_t{1} << 40, 1e9); }));
  CHECK(throws<std::length_error>([] { Filter(10, std::numeric_limits<double>::infinity()); }));
}

// The bits are part of the file format.
void a_mix_sets_the_same_bits_for_ever() {
  Filter filter(100, 10);
  for (uint64_t mix : mixes(1, 100)) filter.add(mix);
  uint64_t sum = 0;
  for (uint64_t word : filter.words()) sum = finish(sum ^ word);
  CHECK(sum == 0x8ffbd2f1ef62f820ull);
}

}  // namespace

int main() {
  millions_of_keys_are_all_found();
  few_keys_work();
  hostile_mixes_are_found();
  no_bits_means_maybe_to_everything();
  words_make_the_same_filter();
  wrong_answers_are_as_rare_as_stated();
  what_no_filter_wrote_is_refused();
  a_mix_sets_the_same_bits_for_ever();
  std::puts("filter: ok");
}
