// The in-memory table without Python: many keys against a plain map, and prefetch, pull, push and save at once (run
// under the thread sanitizer by `make test-sanitize`).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/embed/memory_table.h"
#include "core/system/checked_file.h"
#include "core/system/parallel.h"
#include "tests/check.h"

using namespace cb;

namespace {

TableShape shape_of(OptimizerKind kind) {
  TableShape shape;
  shape.dim = 8;
  shape.linear = true;
  shape.weight = shape.vector = {kind, {0.1, 1e-8, 0.0, 0.0, 0.0}};
  if (kind == OptimizerKind::Adam) shape.weight = shape.vector = {kind, {0.1, 0.9, 0.99, 1e-8, 0.0}};
  if (kind == OptimizerKind::DenseAdamW) shape.weight = shape.vector = {kind, {0.1, 0.9, 0.99, 1e-8, 0.1}};
  shape.init = 0.01;
  shape.seed = 3;
  return shape;
}

std::vector<int64_t> keys_from(uint64_t start, size_t n) {
  std::vector<int64_t> keys(n);
  for (size_t k = 0; k < n; ++k) keys[k] = static_cast<int64_t>(start + k);
  return keys;
}

void tasks_run_once_on_any_number_of_threads() {
  for (size_t threads : {1, 2, 5}) {
    std::vector<int> seen(1000);
    for (int turn = 0; turn < 50; ++turn) parallel_for(threads, seen.size(), [&](size_t t) { ++seen[t]; });
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 50; }));
  }
  std::atomic<int> inner{0};
  parallel_for(3, 8, [&](size_t) { parallel_for(3, 8, [&](size_t) { ++inner; }); });
  CHECK(inner == 64);
  for (size_t threads : {1, 3}) {
    std::string met;
    try {
      parallel_for(threads, 64, [](size_t t) {
        if (t >= 7) throw std::runtime_error(std::to_string(t));
      });
    } catch (const std::runtime_error& e) {
      met = e.what();
    }
    CHECK(met == "7");
  }
}

void sgd_equals_a_plain_map() {
  TableShape shape = shape_of(OptimizerKind::SGD);
  shape.vector.parameters = shape.weight.parameters = {0.5, 0.0, 0.0, 0.0, 0.0};
  MemoryTable table(shape, size_t{1} << 30, 3);
  std::map<int64_t, std::vector<float>> plain;
  uint64_t state = 1;
  for (int turn = 0; turn < 30; ++turn) {
    std::vector<int64_t> keys;
    for (int k = 0; k < 4000; ++k) keys.push_back(static_cast<int64_t>(finish(++state) % 20000));
    std::vector<float> rows(keys.size() * 9), g(keys.size() * 9);
    if (turn % 3 == 0) table.prefetch(keys);
    table.pull(keys, rows.data(), true);
    for (size_t k = 0; k < keys.size(); ++k) {
      const float* row = rows.data() + k * 9;
      if (keys[k] == 0) {
        CHECK(std::all_of(row, row + 9, [](float v) { return v == 0.0f; }));
        continue;
      }
      auto [at, fresh] = plain.try_emplace(keys[k], row, row + 9);
      CHECK(fresh || std::equal(row, row + 9, at->second.begin()));
    }
    for (size_t k = 0; k < g.size(); ++k) g[k] = static_cast<float>(finish(++state) % 1000) * 0.001f;
    CHECK(table.push(keys, g.data(), 1.0) == -1);
    for (size_t k = 0; k < keys.size(); ++k)
      for (size_t c = 0; keys[k] != 0 && c < 9; ++c) plain[keys[k]][c] -= 0.5f * g[k * 9 + c];
  }
  CHECK(table.size() == plain.size());
}

void a_spent_budget_leaves_a_table_that_works() {
  MemoryTable table(shape_of(OptimizerKind::Adagrad), 600000, 2);
  std::vector<int64_t> few = keys_from(1, 100), many = keys_from(1, 50000);
  std::vector<float> rows(many.size() * 9);
  table.pull(few, rows.data(), true);
  bool full = false;
  try {
    table.pull(many, rows.data(), true);
  } catch (const TableFull&) {
    full = true;
  }
  CHECK(full);
  CHECK(table.bytes() <= 600000);
  table.pull(few, rows.data(), true);
  CHECK(table.push(few, rows.data(), 1.0) == -1);
}

// One thread prefetches, one trains, one looks without creating, one saves.
void all_verbs_at_once_give_what_one_thread_gives(OptimizerKind kind) {
  TableShape shape = shape_of(kind);
  MemoryTable table(shape, size_t{1} << 30, 2), alone(shape, size_t{1} << 30, 1);
  std::vector<std::vector<int64_t>> batches;
  for (uint64_t b = 0; b < 24; ++b) batches.push_back(keys_from(1 + b * 700, 3000));
  const std::string path = "/tmp/ctrbox_test_" + std::to_string(getpid()) + ".ctrtable";
  std::atomic<bool> over{false};
  std::thread ahead([&] {
    for (const auto& keys : batches) table.prefetch(keys);
  });
  std::thread looker([&] {
    std::vector<float> rows(3000 * 9);
    while (!over) table.pull(batches[5], rows.data(), false);
  });
  std::thread saver([&] {
    for (int k = 0; k < 3; ++k) table.save(path);
  });
  for (MemoryTable* t : {&table, &alone}) {
    std::vector<float> rows(3000 * 9);
    for (const auto& keys : batches) {
      t->pull(keys, rows.data(), true);
      for (float& v : rows) v = v * 2.0f + 0.1f;
      CHECK(t->push(keys, rows.data(), 1.0) == -1);
    }
  }
  ahead.join();
  saver.join();
  over = true;
  looker.join();
  table.save(path);
  auto loaded = MemoryTable::load(path, size_t{1} << 30, 2);
  std::vector<int64_t> all = keys_from(1, 24 * 700 + 2300);
  std::vector<float> a(all.size() * 9), b(a.size()), c(a.size());
  table.pull(all, a.data(), false);
  alone.pull(all, b.data(), false);
  loaded->pull(all, c.data(), false);
  CHECK(a == b);
  CHECK(a == c);
  std::remove(path.c_str());
}

}  // namespace

int main() {
  tasks_run_once_on_any_number_of_threads();
  sgd_equals_a_plain_map();
  a_spent_budget_leaves_a_table_that_works();
  all_verbs_at_once_give_what_one_thread_gives(OptimizerKind::Adam);
  all_verbs_at_once_give_what_one_thread_gives(OptimizerKind::DenseAdamW);
  std::puts("memory table: ok");
}
