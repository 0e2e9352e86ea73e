// The index of a joined view, built by several threads, against rows inserted one after the other.
#include "core/join/hash_index.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/join/view_rows.h"
#include "tests/check.h"

using namespace cb;

namespace {

using Random = std::mt19937_64;

// Hashes that are random, crowd at the ends of the ranges that threads fill, or repeat.
std::vector<uint64_t> hashes_of(Random& random, size_t rows, int crowded, int repeated) {
  std::vector<uint64_t> hashes(rows);
  const uint64_t slots = std::bit_ceil(std::max<uint64_t>(16, rows * 2));
  for (size_t r = 0; r < rows; ++r) {
    uint64_t hash = random();
    if (static_cast<int>(random() % 100) < crowded) {  // the last slots of a range, of the table too
      const uint64_t home = (random() % 16 + 1) * (slots / 16) - 1 - random() % 3;
      hash = (hash & ~(slots - 1)) | (home & (slots - 1));
    }
    if (r && static_cast<int>(random() % 1000) < repeated) hash = hashes[random() % r];
    hashes[r] = hash;
  }
  return hashes;
}

void an_index_of_several_threads_finds_what_one_by_one_finds() {
  Random random(1);
  for (size_t rows : {0, 1, 1000, 32767, 32768, 70000})
    for (int crowded : {0, 10})
      for (int repeated : {0, 3})
        for (bool keep_last : {false, true}) {
          const std::vector<uint64_t> hashes = hashes_of(random, rows, crowded, repeated);
          HashIndex plain(16);
          HashIndex::Duplicate expected;
          for (size_t r = 0; r < rows; ++r) {
            const uint32_t row = static_cast<uint32_t>(r), there = plain.insert(hashes[r], row);
            if (there == HashIndex::kEmpty) continue;
            if (keep_last)
              plain.replace(hashes[r], row);
            else if (expected.second < 0)
              expected = {there, row};
          }
          std::vector<IndexSlot> first;
          for (size_t threads : {1, 2, 5}) {
            HashIndex::Duplicate duplicate;
            const HashIndex index = HashIndex::of_rows(hashes, keep_last, threads, duplicate);
            CHECK(duplicate.first == expected.first && duplicate.second == expected.second);
            CHECK(index.size() == plain.size());
            if (threads == 5)
              for (uint64_t hash : hashes) CHECK(index.find(hash) == plain.find(hash));
            for (int k = 0; k < 100; ++k) {
              const uint64_t hash = random();
              CHECK(index.find(hash) == plain.find(hash));
            }
            const IndexView view = index.view();
            std::vector<IndexSlot> slots(view.slots, view.slots + view.mask + 1);
            if (first.empty()) first = slots;
            for (size_t k = 0; k < slots.size(); ++k)
              CHECK(slots[k].hash == first[k].hash && slots[k].row == first[k].row);
          }
        }
}

void renumbering_by_threads_changes_every_row() {
  Random random(2);
  for (size_t rows : {0, 10, 70000}) {
    const std::vector<uint64_t> hashes = hashes_of(random, rows, 1, 0);
    std::vector<uint32_t> handles(rows);
    for (size_t r = 0; r < rows; ++r) handles[r] = static_cast<uint32_t>(3 * r + 5);
    HashIndex::Duplicate duplicate;
    HashIndex index = HashIndex::of_rows(hashes, false, 3, duplicate);
    index.renumber(handles, 3);
    for (size_t r = 0; r < rows; ++r) CHECK(index.find(hashes[r]) == 3 * r + 5);
  }
}

// Parts of different sizes are placed in order and put by several threads at once.
void records_put_by_threads_are_those_added_one_by_one() {
  constexpr size_t kParts = 200;
  auto row_bytes = [](size_t part, size_t row) { return 8 * (1 + (part * 7 + row) % 60); };
  auto write = [](char* block, size_t bytes, size_t part, size_t row) {
    for (size_t k = 0; k < bytes; ++k) block[k] = static_cast<char>(part + 3 * row + k);
  };
  Records whole({}), together({});
  std::vector<Records> parts;
  for (size_t part = 0; part < kParts; ++part) {
    parts.emplace_back(std::vector<RecordField>{});
    for (size_t row = 0; row < part * part % 97; ++row) {
      const size_t bytes = row_bytes(part, row);
      write(whole.add(bytes), bytes, part, row);
      write(parts.back().add(bytes), bytes, part, row);
    }
  }
  std::atomic<size_t> placed{0};
  std::vector<Records::Place> places(kParts);
  parallel_for(4, kParts + 1, [&](size_t task) {
    if (task == 0) {  // the first task that a thread takes: it places, the others follow behind it
      for (size_t part = 0; part < kParts; ++part) {
        places[part] = together.place(parts[part]);
        placed.store(part + 1, std::memory_order_release);
      }
      return;
    }
    while (placed.load(std::memory_order_acquire) < task) std::this_thread::yield();
    together.put(places[task - 1], std::move(parts[task - 1]));
    CHECK(parts[task - 1].rows() == 0);
  });
  CHECK(together.handles() == whole.handles());
  CHECK(together.bytes() >= 8 * static_cast<size_t>(whole.handles().back()));
  size_t number = 0;
  for (size_t part = 0; part < kParts; ++part)
    for (size_t row = 0; row < part * part % 97; ++row, ++number) {
      const int64_t handle = whole.handles()[number];
      CHECK(std::memcmp(together.at(handle), whole.at(handle), row_bytes(part, row)) == 0);
    }
}

}  // namespace

int main() {
  an_index_of_several_threads_finds_what_one_by_one_finds();
  renumbering_by_threads_changes_every_row();
  records_put_by_threads_are_those_added_one_by_one();
  return 0;
}
