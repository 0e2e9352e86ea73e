// The state of past events against a plain list of all events, and its file against damage.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "core/history/read_then_feed.h"
#include "core/history/state_file.h"
#include "core/system/checked_file.h"
#include "tests/check.h"

using namespace cb;

namespace {

using Random = std::mt19937_64;

struct Row {
  uint64_t key;
  int64_t time;
  bool event;
  uint64_t value;
};

std::vector<Row> log_of(Random& random, size_t rows, int64_t lateness) {
  std::vector<Row> log;
  int64_t now = -50;
  for (size_t k = 0; k < rows; ++k) {
    now += static_cast<int64_t>(random() % 4);
    const int64_t late = lateness ? static_cast<int64_t>(random() % static_cast<uint64_t>(lateness + 1)) : 0;
    // A late row must not lie before the newest time by more than the lateness, and the newest time is at most `now`.
    log.push_back({random() % 7, now - late, random() % 3 > 0, random() % 1000});
  }
  return log;
}

// Returns the events that a row sees, by looking at every earlier row; sorted by time, then by order of arrival.
std::vector<Row> seen_by(const std::vector<Row>& log, size_t row, const PastShape& shape) {
  std::vector<Row> seen;
  const int64_t time = log[row].time;
  for (size_t k = 0; k < row; ++k)
    if (log[k].event && log[k].key == log[row].key && log[k].time < time - shape.gap &&
        (!shape.within || log[k].time >= time - shape.within))
      seen.push_back(log[k]);
  std::stable_sort(seen.begin(), seen.end(), [](const Row& a, const Row& b) { return a.time < b.time; });
  if (shape.last && seen.size() > shape.last) seen.erase(seen.begin(), seen.end() - static_cast<ptrdiff_t>(shape.last));
  return seen;
}

struct Columns {
  std::vector<uint64_t> key, value;
  std::vector<int64_t> time;
  std::vector<uint8_t> feeds;

  Columns(const std::vector<Row>& log, size_t begin, size_t end) {
    for (size_t k = begin; k < end; ++k) {
      key.push_back(log[k].key);
      value.push_back(log[k].value);
      time.push_back(log[k].time);
      feeds.push_back(log[k].event);
    }
  }
  PastRows rows(size_t words) const {
    PastRows in{key.size(), key.data(), time.data(), nullptr, nullptr, feeds.data(), {}};
    in.columns.assign(words, PastColumn{value.data(), nullptr, nullptr});
    return in;
  }
};

void lists_are_what_a_search_of_all_rows_finds() {
  Random random(1);
  for (int round = 0; round < 24; ++round) {
    const int64_t lateness = round % 2 ? static_cast<int64_t>(random() % 6) : 0;
    const PastShape shape{{{PastWordKind::kValue, 0}},
                          static_cast<int64_t>(random() % 5),
                          lateness,
                          round % 3 ? static_cast<int64_t>(10 + random() % 50) : 0,
                          random() % 5,
                          false};
    const std::vector<Row> log = log_of(random, 200, lateness);
    HistoryState state(shape);
    for (size_t begin = 0; begin < log.size();) {
      const size_t end = std::min(log.size(), begin + 1 + random() % 80);
      const Columns part(log, begin, end);
      CHECK(state.late(part.time.data(), nullptr, part.time.size()) == -1);
      const PastLists found = past_lists(state, part.rows(1), 1 + random() % 3);
      for (size_t row = begin; row < end; ++row) {
        const std::vector<Row> expected = seen_by(log, row, shape);
        const size_t at = static_cast<size_t>(found.offsets[row - begin]);
        CHECK(static_cast<size_t>(found.offsets[row - begin + 1]) - at == expected.size());
        for (size_t e = 0; e < expected.size(); ++e) {
          CHECK(found.words[0][at + e] == expected[e].value);
          CHECK(found.ages[at + e] == static_cast<double>(log[row].time - expected[e].time) / 1e6);
        }
      }
      begin = end;
    }
  }
}

void counters_are_what_a_search_of_all_rows_finds() {
  Random random(2);
  for (int round = 0; round < 12; ++round) {
    const int64_t lateness = round % 2 ? 4 : 0;
    const PastShape shape{{{PastWordKind::kTotal, 0}, {PastWordKind::kFloatTotal, 0}, {PastWordKind::kDecayed, 20}},
                          static_cast<int64_t>(random() % 3),
                          lateness,
                          30,
                          0,
                          true};
    std::vector<Row> log = log_of(random, 200, lateness);
    for (Row& row : log) row.value = std::bit_cast<uint64_t>(static_cast<double>(row.value));
    HistoryState state(shape);
    const Columns all(log, 0, log.size());
    const std::vector<PastCounter> asked = {{CounterKind::kFloatTotal, 1, 10}, {CounterKind::kFloatTotal, 1, 30},
                                            {CounterKind::kFloatTotal, 1, 0},  {CounterKind::kDecayed, 2, 0},
                                            {CounterKind::kSince, 0, 0},       {CounterKind::kTotal, 0, 10}};
    const PastCounts found = past_counts(state, all.rows(3), asked, 2);
    for (size_t row = 0; row < log.size(); ++row) {
      for (size_t c = 0; c < asked.size(); ++c) {
        PastShape window = shape;
        window.within = asked[c].within;
        const std::vector<Row> expected = seen_by(log, row, window);
        CHECK(found.seen[c][row] == !expected.empty());
        double sum = 0, decayed = 0;
        uint64_t bits = 0;
        for (const Row& event : expected) {
          const double value = std::bit_cast<double>(event.value);
          sum += value;
          bits += event.value;
          decayed += value * std::exp2(-static_cast<double>(log[row].time - event.time) / 20);
        }
        const double met = std::bit_cast<double>(found.values[c][row]);
        if (asked[c].kind == CounterKind::kFloatTotal) CHECK(met == sum);
        if (asked[c].kind == CounterKind::kTotal) CHECK(found.values[c][row] == bits);
        if (asked[c].kind == CounterKind::kDecayed) CHECK(std::abs(met - decayed) <= 1e-9 * (1 + decayed));
        if (asked[c].kind == CounterKind::kSince && !expected.empty())
          CHECK(met == static_cast<double>(log[row].time - expected.back().time) / 1e6);
      }
    }
  }
}

void a_busy_key_and_many_keys_stay_bounded() {
  HistoryState state({{{PastWordKind::kValue, 0}}, 10, 0, 1000, 5, false});
  const uint64_t value = 1;
  for (int64_t t = 0; t < 20'000; ++t) state.feed(1, t, &value);
  CHECK(state.events() <= 5 + 10 + 2);
  const size_t before = state.bytes();
  for (int64_t t = 0; t < 80'000; ++t) state.feed(static_cast<uint64_t>(t) + 2, 20'000 + t, &value);
  CHECK(state.keys() < 40'000);  // keys without an event in the last 1000 microseconds are forgotten
  CHECK(state.bytes() < before + 64'000'000);
}

void a_float_window_keeps_its_digits_after_many_events() {
  HistoryState state({{{PastWordKind::kWideTotal, 0}}, 0, 0, 10, 0, false});
  std::vector<Row> log;
  for (int64_t t = 0; t < 1000; ++t) log.push_back({1, t, true, std::bit_cast<uint64_t>(t < 900 ? 1e15 / 3 : 0.1)});
  log.push_back({1, 1000, false, 0});
  const Columns all(log, 0, log.size());
  const PastCounts found = past_counts(state, all.rows(1), {{CounterKind::kWideTotal, 0, 10}}, 1);
  CHECK(std::abs(std::bit_cast<double>(found.values[0].back()) - 1.0) < 1e-12);
}

void a_window_of_floats_is_exact_whatever_came_before_and_beside() {
  // Values of 2^-300 to 2^350 of both signs, next to each other.
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    const int64_t lateness = round % 2 ? 4 : 0, within = 5 + round;
    const PastShape shape{{{PastWordKind::kWideTotal, 0}}, 0, lateness, within, 0, false};
    HistoryState state(shape);
    std::vector<Row> log = log_of(random, 200, lateness);
    for (Row& row : log) {
      const int power = static_cast<int>(random() % (round < 10 ? 600 : 20)) - (round < 10 ? 300 : 10);
      const double value = std::ldexp(static_cast<double>(random() >> 11), power) * (random() % 2 ? 1 : -1);
      row.value = std::bit_cast<uint64_t>(value);
    }
    const Columns all(log, 0, log.size());
    const PastCounts found = past_counts(state, all.rows(1), {{CounterKind::kWideTotal, 0, within}}, 2);
    for (size_t row = 0; row < log.size(); ++row) {
      long double approximate = 0, size = 0;
      double met = std::bit_cast<double>(found.values[0][row]);
      ExactSum sum;
      for (const Row& event : seen_by(log, row, shape)) {
        sum.add(std::bit_cast<double>(event.value));
        approximate += std::bit_cast<double>(event.value);
        size += std::abs(std::bit_cast<double>(event.value));
      }
      CHECK(std::abs(met - sum.rounded()) <= std::abs(met) * 0x1p-52);
      CHECK(std::abs(static_cast<long double>(met) - approximate) <= size * 0x1p-50L);
    }
  }
}

void times_at_the_ends_of_64_bits_do_not_overflow() {
  const int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  HistoryState state({{{PastWordKind::kDecayed, 5}}, 7, 0, 9, 0, true});
  const uint64_t value = std::bit_cast<uint64_t>(1.0);
  state.feed(1, low, &value);
  CHECK(state.read(1, low).end == 0);
  CHECK(state.read(1, high).end == 1);
  state.feed(1, high, &value);
  CHECK(state.read(1, high).end == 1);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void a_state_comes_back_from_its_file_and_damage_is_refused() {
  const std::string path = std::filesystem::temp_directory_path() / ("past-" + std::to_string(getpid()) + ".state");
  const PastShape shape{{{PastWordKind::kText, 0}, {PastWordKind::kValue, 0}}, 1, 2, 100, 3, false};
  HistoryState state(shape);
  Random random(3);
  for (int64_t t = 0; t < 200; ++t) {
    const uint64_t values[] = {state.texts().number("text " + std::to_string(random() % 9)), random()};
    state.feed(random() % 20, t, values);
  }
  save_past(state, path);
  const HistoryState back = load_past(shape, path);
  CHECK(back.events() == state.events() && back.keys() == state.keys() && back.newest() == state.newest());
  const std::string saved = bytes_of(path);
  save_past(back, path);
  CHECK(bytes_of(path) == saved);
  auto refused = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    try {
      load_past(shape, path);
    } catch (const DamagedFile&) {
      return true;
    }
    return false;
  };
  for (size_t cut : {size_t{0}, size_t{5}, size_t{40}, saved.size() / 2, saved.size() - 1})
    CHECK(refused(saved.substr(0, cut)));
  CHECK(refused(saved + "x"));
  for (int k = 0; k < 200; ++k) {
    std::string changed = saved;
    changed[random() % changed.size()] ^= static_cast<char>(1 << (random() % 8));
    CHECK(refused(changed));
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << saved;
  PastShape other = shape;
  other.last = 4;
  bool differs = false;
  try {
    load_past(other, path);
  } catch (const std::invalid_argument&) {
    differs = true;
  }
  CHECK(differs);
  std::filesystem::remove(path);
}

void several_states_lie_in_one_file() {
  const std::string path = std::filesystem::temp_directory_path() / ("pasts-" + std::to_string(getpid()) + ".state");
  std::ofstream(path, std::ios::binary) << "a head";
  const PastShape one{{{PastWordKind::kValue, 0}}, 0, 0, 0, 3, false},
      two{{{PastWordKind::kTotal, 0}}, 1, 0, 9, 0, true};
  HistoryState first(one), second(two);
  const uint64_t value = 7;
  for (int64_t t = 0; t < 50; ++t) first.feed(static_cast<uint64_t>(t % 5), t, &value);
  for (int64_t t = 0; t < 20; ++t) second.feed(1, t, &value);
  save_past(first, path, true);
  save_past(second, path, true);
  uint64_t end = 0;
  CHECK(load_past(one, path, 6, &end).events() == first.events());
  CHECK(load_past(two, path, end).events() == second.events());
  for (uint64_t begin : {uint64_t{0}, uint64_t{5}, end - 1, end + 1, uint64_t{1} << 40}) {
    bool refused = false;
    try {
      load_past(two, path, begin);
    } catch (const DamagedFile&) {
      refused = true;
    }
    CHECK(refused);
  }
  std::filesystem::remove(path);
}

void reads_that_come_later_than_events_find_what_they_would_have_found() {
  PastShape shape{{{PastWordKind::kValue, 0}}, 0, 0, 100, 2, false};
  shape.back = 30;
  HistoryState state(shape);
  for (int64_t t = 0; t < 200; ++t) {
    const auto value = static_cast<uint64_t>(t);
    state.feed(1, t, &value);
  }
  const PastSeen seen = state.read(1, 169);  // 30 before the newest event: the last two are still there
  CHECK(seen.end >= 2 && seen.ring->at(seen.end - 2, 2)[1] == 167);
}

void events_on_a_disk_change_neither_reads_nor_files() {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = folder / ("spilled-" + std::to_string(getpid()) + ".state");
  Random random(11);
  for (int round = 0; round < 4; ++round) {
    PastShape shape{{{PastWordKind::kText, 0}, {PastWordKind::kValue, 0}}, 1, 2, 900, round % 2 ? 0u : 30u, false};
    HistoryState inside(shape), spilled(shape);
    spilled.spill_to(folder, 100'000);
    for (int64_t t = 0; t < 20'000; ++t) {
      const uint64_t key = random() % 300, asked = random() % 300;
      if (t % 7'000 == 0) spilled.share_room();
      const uint64_t other = random();
      for (HistoryState* state : {&inside, &spilled}) {
        const uint64_t values[] = {state->texts().number("text " + std::to_string(t % 9'000)), other};
        state->feed(key, t / 3, values);
        state->forget_texts();
      }
      const PastSeen mine = inside.read(asked, t / 3), theirs = spilled.read(asked, t / 3);
      CHECK(mine.end == theirs.end);
      for (uint32_t e = 0; e < mine.end; ++e)
        for (size_t w = 0; w < 3; ++w) CHECK(mine.ring->at(e, 3)[w] == theirs.ring->at(e, 3)[w]);
    }
    CHECK(spilled.spilled_bytes() > 0 && spilled.spill_error() == 0);
    save_past(inside, path);
    const std::string expected = bytes_of(path);
    save_past(spilled, path);
    CHECK(bytes_of(path) == expected);
    HistoryState again(shape);
    again.spill_to(folder, 100'000);
    again = load_past(std::move(again), path);
    save_past(again, path);
    CHECK(bytes_of(path) == expected && again.spilled_bytes() > 0);
  }
  std::filesystem::remove(path);
}

// Lets writes to the open files below a folder fail, and nothing else.
void fail_writes_below(const std::filesystem::path& folder) {
  std::vector<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(folder.string() + "/.past-")) files.push_back(std::stoi(entry.path().filename()));
  }
  for (const int file : files) {
    const int readable = ::open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(readable >= 0 && ::dup2(readable, file) == file);
    ::close(readable);
  }
}

// A write that the disk reported as done and lost leaves what an earlier write left in the same block.
void a_lost_write_over_a_block_of_the_same_size_is_refused() {
  const auto folder = std::filesystem::temp_directory_path() / ("lost-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  PastSpill spill(folder);
  int file = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(folder.string() + "/.past-")) file = std::stoi(entry.path().filename());
  }
  CHECK(file >= 0);
  constexpr size_t kWords = 7;  // and the checksum: one cell
  const std::vector<uint64_t> older{1, 2, 3, 4, 5, 6, 7}, newer{1, 2, 3, 4, 5, 6, 8};
  std::vector<uint64_t> found(kWords), before(kWords + 1);
  const size_t bytes = before.size() * sizeof(uint64_t);
  for (const bool again : {false, true}) {  // the block of another key, and an older version of the same block
    const SpillPlace first = spill.put(older.data(), kWords);
    spill.get(first, found.data(), kWords);
    CHECK(found == older);
    const auto at = static_cast<off_t>(first.cell) * 64;
    CHECK(::pread(file, before.data(), bytes, at) == static_cast<ssize_t>(bytes));
    if (!again) spill.free(first, kWords);
    const SpillPlace second = again ? spill.write(first.cell, newer.data(), kWords) : spill.put(newer.data(), kWords);
    CHECK(second.cell == first.cell);
    spill.get(second, found.data(), kWords);
    CHECK(found == newer);
    CHECK(::pwrite(file, before.data(), bytes, at) == static_cast<ssize_t>(bytes));  // as if the last write were lost
    bool refused = false;
    try {
      spill.get(second, found.data(), kWords);
    } catch (const DamagedFile&) {
      refused = true;
    }
    CHECK(refused);
  }
  std::filesystem::remove_all(folder);
}

void a_disk_that_fails_while_texts_are_forgotten_leaves_nothing_to_read() {
  const auto folder = std::filesystem::temp_directory_path() / ("failing-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  HistoryState state({{{PastWordKind::kText, 0}}, 0, 0, 0, 2, false});
  state.spill_to(folder, 100'000);
  bool failed = false;
  for (int64_t t = 0; t < 60'000 && !failed; ++t) {
    if (t % 1'000 == 0) state.share_room();
    if (t == 5'000) fail_writes_below(folder);
    const uint64_t number = state.texts().number(std::to_string(t));
    state.feed(static_cast<uint64_t>(t) % (t < 5'000 ? 3'000 : 100), t, &number);
    try {
      state.forget_texts();
    } catch (const std::system_error&) {
      failed = true;
    }
  }
  CHECK(failed && state.spilled_bytes() > 0);
  const uint64_t key = 1;
  const int64_t time = 100'000;
  const uint8_t feeds = 0;
  PastRows rows;
  rows.rows = 1;
  rows.key = &key;
  rows.time = &time;
  rows.feeds = &feeds;
  const int64_t offsets[] = {0, 0};
  rows.columns.push_back({.offsets = offsets, .text = ""});
  const std::string saved = folder / "state";
  for (const bool reads : {true, false}) {
    bool refused = false;
    try {
      if (reads)
        past_lists(state, rows, 1);
      else
        save_past(state, saved);
    } catch (const DamagedFile&) {
      refused = true;
    }
    CHECK(refused && !std::filesystem::exists(saved));
  }
  std::filesystem::remove_all(folder);
}

void a_search_finds_the_same_event_wherever_it_begins() {
  Random random(12);
  const PastShape shape{{}, 0, 0, 0, 0, false};
  RingPool pool(1);
  for (int round = 0; round < 60; ++round) {
    EventRing ring;
    int64_t now = 0;
    const auto size = static_cast<uint32_t>(random() % 80);
    for (uint32_t k = 0; k < size; ++k) ring.insert(shape, 1, now += static_cast<int64_t>(random() % 3), nullptr, pool);
    for (uint64_t drops = size ? random() % size : 0; drops > 0; --drops) ring.drop_oldest();
    const uint32_t n = ring.size();
    for (int64_t limit = -1; limit <= now + 2; ++limit) {
      uint32_t expected = 0;
      while (expected < n && ring.time(expected, 1) < limit) ++expected;
      for (uint32_t low = 0; low <= expected; low += 1 + static_cast<uint32_t>(random() % 9)) {
        const uint32_t high = expected + static_cast<uint32_t>(random() % (n - expected + 1));
        CHECK(ring.before(limit, 1, low, high, static_cast<uint32_t>(random() % (2 * n + 2))) == expected);
        CHECK(ring.before(limit, 1, low, high, UINT32_MAX) == expected);
      }
    }
    ring.release(pool);
  }
}

void rings_of_a_pool_share_pieces_and_never_events() {
  Random random(13);
  const PastShape shape{{{PastWordKind::kValue, 0}}, 0, 0, 0, 0, false};
  RingPool pool(2);
  std::vector<EventRing> rings(200);
  std::vector<std::vector<uint64_t>> expected(rings.size());
  for (int step = 0; step < 40'000; ++step) {
    const size_t k = random() % rings.size();
    if (step == 20'000) pool.use_heap();  // pieces that were given out before still go back to the pool
    if (random() % 60 == 0) {
      rings[k].release(pool);
      expected[k].clear();
      continue;
    }
    const uint64_t value = random();
    rings[k].insert(shape, 2, step, &value, pool);
    expected[k].push_back(value);
  }
  for (size_t k = 0; k < rings.size(); ++k) {
    CHECK(rings[k].size() == expected[k].size());
    for (uint32_t e = 0; e < rings[k].size(); ++e) CHECK(rings[k].at(e, 2)[1] == expected[k][e]);
  }
  for (EventRing& ring : rings) ring.release(pool);
}

void texts_that_no_event_holds_are_forgotten() {
  HistoryState state({{{PastWordKind::kText, 0}}, 0, 0, 0, 2, false});
  for (int64_t t = 0; t < 20'000; ++t) {
    const uint64_t number = state.texts().number(std::to_string(t));
    state.feed(1, t, &number);
    state.forget_texts();
  }
  CHECK(state.texts().size() < 10'000);
  const PastSeen seen = state.read(1, 20'000);
  CHECK(state.texts().text(seen.ring->at(seen.end - 1, 2)[1]) == "19999");
}

}  // namespace

int main() {
  lists_are_what_a_search_of_all_rows_finds();
  counters_are_what_a_search_of_all_rows_finds();
  a_busy_key_and_many_keys_stay_bounded();
  a_float_window_keeps_its_digits_after_many_events();
  a_window_of_floats_is_exact_whatever_came_before_and_beside();
  times_at_the_ends_of_64_bits_do_not_overflow();
  a_state_comes_back_from_its_file_and_damage_is_refused();
  several_states_lie_in_one_file();
  reads_that_come_later_than_events_find_what_they_would_have_found();
  events_on_a_disk_change_neither_reads_nor_files();
  a_lost_write_over_a_block_of_the_same_size_is_refused();
  a_disk_that_fails_while_texts_are_forgotten_leaves_nothing_to_read();
  a_search_finds_the_same_event_wherever_it_begins();
  rings_of_a_pool_share_pieces_and_never_events();
  texts_that_no_event_holds_are_forgotten();
}
