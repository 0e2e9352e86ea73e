// A joined view on disk, against a search of all rows; damage, a full disk, a budget that is too small.
#include "core/join/spill_writer.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/system/checked_file.h"
#include "tests/check.h"

using namespace cb;

namespace {

using Random = std::mt19937_64;

struct TestRow {
  uint64_t hash;
  int64_t time;
  int64_t number;
  std::string text;
  std::vector<std::string> words;
};

// A file without a name.
struct TestFile {
  TestFile() {
    char path[] = "/tmp/ctrbox-test-XXXXXX";
    number = ::mkstemp(path);
    CHECK(number >= 0);
    CHECK(::unlink(path) == 0);
  }
  ~TestFile() { ::close(number); }
  int number;
};

Records no_records() { return Records({{"i", false}, {"s", true}, {"*s", false}}); }

// The last row of each record has a null text where it is empty.
void add(Records& records, const TestRow& row) {
  const std::vector<RecordField>& f = records.fields();
  const uint32_t fixed = records.fixed_bytes();
  char* block = records.add(fixed + (row.text.size() + 7) / 8 * 8);
  std::memcpy(block + f[0].offset, &row.number, 8);
  const Inside inside{fixed, static_cast<uint32_t>(row.text.size())};
  std::memcpy(block + f[1].offset, &inside, sizeof inside);
  block[f[1].valid_offset] = !row.text.empty();
  std::memcpy(block + fixed, row.text.data(), row.text.size());
  Str* words = row.words.empty() ? nullptr : records.memory().take<Str>(row.words.size());
  for (size_t k = 0; k < row.words.size(); ++k) {
    char* bytes = records.memory().take<char>(row.words[k].size());
    std::memcpy(bytes, row.words[k].data(), row.words[k].size());
    words[k] = {bytes, static_cast<uint32_t>(row.words[k].size())};
  }
  const List<Str> list{words, static_cast<uint32_t>(row.words.size())};
  std::memcpy(block + f[2].offset, &list, sizeof list);
}

void check_row(const SpillShape& shape, const char* at, const TestRow& row) {
  int64_t number;
  std::memcpy(&number, at + shape.fields[0].offset, 8);
  CHECK(number == row.number);
  Inside inside;
  std::memcpy(&inside, at + shape.fields[1].offset, sizeof inside);
  CHECK(std::string(at + inside.offset, inside.count) == row.text);
  CHECK(at[shape.fields[1].valid_offset] == !row.text.empty());
  List<Str> list;
  std::memcpy(&list, at + shape.fields[2].offset, sizeof list);
  CHECK(list.n == row.words.size());
  for (uint32_t k = 0; k < list.n; ++k) CHECK(std::string(list.p[k].p, list.p[k].n) == row.words[k]);
}

std::string text(Random& random, size_t most) { return std::string(random() % (most + 1), 'a' + random() % 26); }

std::vector<TestRow> world(Random& random, size_t rows, uint64_t keys, size_t longest) {
  std::vector<TestRow> out;
  for (size_t r = 0; r < rows; ++r) {
    const uint64_t key = random() % keys;
    const uint64_t hash = key == 0 ? 0 : key == 1 ? UINT64_MAX : key % 7 == 2 ? key : key * 0x9E3779B97F4A7C15u;
    TestRow row{hash,
                static_cast<int64_t>(random() % 50) - 25,
                static_cast<int64_t>(random()),
                text(random, random() % 50 == 0 ? longest : 9),
                {}};
    for (size_t k = random() % 4; k > 0; --k) row.words.push_back(text(random, 6));
    out.push_back(row);
  }
  return out;
}

struct Written {
  TestFile runs, view;
  std::unique_ptr<SpillWriter> writer;
};

void write(Written& to, const std::vector<TestRow>& rows, size_t run_rows, bool as_of, bool keep_last,
           uint64_t budget) {
  Records layout = no_records();
  to.writer = std::make_unique<SpillWriter>(to.runs.number, to.view.number, layout, as_of, keep_last, budget);
  for (size_t from = 0; from < rows.size(); from += run_rows) {
    Records records = no_records();
    std::vector<uint64_t> hashes, numbers;
    std::vector<int64_t> times;
    for (size_t r = from; r < std::min(rows.size(), from + run_rows); ++r) {
      add(records, rows[r]);
      hashes.push_back(rows[r].hash);
      numbers.push_back(3 * r);  // a filter dropped the others
      if (as_of) times.push_back(rows[r].time);
    }
    to.writer->add_run(records, hashes, times, numbers, 1 + from % 3);
  }
}

const TestRow kNull{0, 0, -1, "", {"none", ""}};

std::shared_ptr<SpilledView> finished(Written& to, size_t step = 13) {
  while (to.writer->merge(step)) {
  }
  Records null_row = no_records();
  add(null_row, kNull);
  return to.writer->finish("view 'test'", null_row);
}

// The place of the row that a look-up should find, or -1.
int64_t searched(const std::vector<TestRow>& rows, uint64_t hash, int64_t time, bool as_of) {
  int64_t found = -1;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].hash != hash || (as_of && rows[r].time > time)) continue;
    if (found < 0 || !as_of || rows[static_cast<size_t>(found)].time <= rows[r].time) found = static_cast<int64_t>(r);
  }
  return found;
}

void look_up(const SpilledView& view, const std::vector<TestRow>& rows, Random& random, uint64_t keys, bool as_of,
             size_t calls) {
  Bump pool;
  for (size_t call = 0; call < calls; ++call) {
    const uint32_t n = static_cast<uint32_t>(random() % 300);
    std::vector<uint64_t> hashes(n);
    std::vector<int64_t> times(n), out(n);
    std::vector<uint8_t> valid(n), timed(n);
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t key = random() % (keys + keys / 4 + 1);
      hashes[r] = key == 0 ? 0 : key == 1 ? UINT64_MAX : key % 7 == 2 ? key : key * 0x9E3779B97F4A7C15u;
      times[r] = static_cast<int64_t>(random() % 60) - 30;
      valid[r] = random() % 10 != 0;
      timed[r] = random() % 10 != 0;
    }
    const uint8_t* both[2] = {valid.data(), as_of ? timed.data() : nullptr};
    const uint32_t met = view.look_up(n, hashes.data(), as_of ? times.data() : nullptr, both, pool, out.data());
    uint32_t expected = 0;
    for (uint32_t r = 0; r < n; ++r) {
      const bool asks = valid[r] && (!as_of || timed[r]);
      const int64_t row = asks ? searched(rows, hashes[r], times[r], as_of) : -1;
      expected += row >= 0;
      if (row < 0) CHECK(out[r] == view.null_row());
      check_row(view.shape(), reinterpret_cast<const char*>(out[r]), row < 0 ? kNull : rows[static_cast<size_t>(row)]);
    }
    CHECK(met == expected);
    pool.reset();
  }
}

void same_rows_as_a_search() {
  Random random(7);
  for (size_t round = 0; round < 24; ++round) {
    const bool as_of = round % 2;
    const size_t count = round < 2 ? 0 : 1 + random() % 3000;
    const uint64_t keys = 2 + random() % 2000;
    const std::vector<TestRow> rows = world(random, count, keys, round % 5 == 0 ? 20'000 : 300);
    // The cache has room for nothing, for some, for all.
    const uint64_t budget = round % 3 == 0 ? 1 : round % 3 == 1 ? 40'000 : 4'000'000;
    Written written;
    write(written, rows, 1 + random() % 1000, as_of, true, budget);
    const std::shared_ptr<SpilledView> view = finished(written);
    CHECK(view->memory_bytes() <= budget + 100'000);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        Random own(round * 10 + t);
        look_up(*view, rows, own, keys, as_of, 4);
      });
    for (std::thread& thread : threads) thread.join();
  }
}

void the_first_repeated_key_is_named() {
  Random random(11);
  for (size_t round = 0; round < 10; ++round) {
    const bool as_of = round % 2;
    const std::vector<TestRow> rows = world(random, 300, as_of ? 20 : 3000, 20);
    HashIndex::Duplicate expected;
    for (size_t second = 0; second < rows.size() && expected.second < 0; ++second)
      for (size_t first = 0; first < second && expected.second < 0; ++first)
        if (rows[first].hash == rows[second].hash && (!as_of || rows[first].time == rows[second].time))
          expected = {static_cast<int64_t>(3 * first), static_cast<int64_t>(3 * second)};
    Written written;
    write(written, rows, 50, as_of, false, 1000);
    finished(written);
    CHECK(written.writer->duplicate().first == expected.first);
    CHECK(written.writer->duplicate().second == expected.second);
  }
}

template <class Error>
bool throws(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void flip(int file, off_t at) {
  char byte;
  CHECK(::pread(file, &byte, 1, at) == 1);
  byte = static_cast<char>(byte ^ 1);
  CHECK(::pwrite(file, &byte, 1, at) == 1);
}

void damage_is_refused() {
  Random random(13);
  const std::vector<TestRow> rows = world(random, 2000, 100'000, 50);
  for (int round = 0; round < 20; ++round) {
    Written written;
    write(written, rows, 500, false, true, 1);
    // The page cache must not hold what is written past it: flip while the descriptor has no O_DIRECT.
    const off_t runs = ::lseek(written.runs.number, 0, SEEK_END);
    if (round % 2) {
      flip(written.runs.number, static_cast<off_t>(random() % static_cast<uint64_t>(runs)));
      CHECK(throws<DamagedFile>([&] { finished(written); }));
      continue;
    }
    const std::shared_ptr<SpilledView> view = finished(written);
    const int plain = ::open(("/proc/self/fd/" + std::to_string(written.view.number)).c_str(), O_RDWR);
    CHECK(plain >= 0);
    const uint64_t bytes = view->file_bytes();
    if (round % 4)
      CHECK(::ftruncate(plain, static_cast<off_t>(bytes - 4096)) == 0);
    else
      for (uint64_t page = 1; page < bytes / 4096; ++page)
        flip(plain, static_cast<off_t>(page * 4096 + random() % 4096));
    ::close(plain);
    std::vector<uint64_t> hashes;
    for (const TestRow& row : rows) hashes.push_back(row.hash);
    std::vector<int64_t> out(hashes.size());
    const uint8_t* valid[2] = {nullptr, nullptr};
    Bump pool;
    CHECK(throws<SpilledViewError>(
        [&] { view->look_up(static_cast<uint32_t>(hashes.size()), hashes.data(), nullptr, valid, pool, out.data()); }));
  }
}

void a_full_disk_is_an_error_of_the_system() {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  CHECK(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  Random random(17);
  const std::vector<TestRow> rows = world(random, 4000, 100'000, 50);
  {
    Written written;
    const rlimit small{100'000, before.rlim_max};
    CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(throws<std::system_error>([&] { write(written, rows, 1000, false, true, 1); }));
  }
  CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  {
    Written written;
    write(written, rows, 1000, false, true, 1);
    const rlimit small{100'000, before.rlim_max};
    CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(throws<std::system_error>([&] { finished(written); }));
  }
  CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
}

void fences_beyond_half_of_the_budget_are_refused() {
  Records records = no_records();
  std::vector<uint64_t> hashes, numbers;
  for (uint64_t k = 0; k < 5000; ++k) {
    add(records, {k, 0, 0, std::string(3000, 'x'), {}});
    hashes.push_back(k);
    numbers.push_back(k);
  }
  TestFile runs, view;
  SpillWriter small(runs.number, view.number, records, false, true, 1000);
  CHECK(throws<IndexTooLarge>([&] { small.add_run(records, hashes, {}, numbers, 2); }));
  TestFile more_runs;
  SpillWriter enough(more_runs.number, view.number, records, false, true, 200'000);
  enough.add_run(records, hashes, {}, numbers, 2);
}

void the_cache_keeps_what_is_used() {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{100}, uint64_t{5000}, uint64_t{1} << 20}) {
    Recent recent(bytes, 40);
    CHECK(recent.bytes() <= bytes);
    Random random(19);
    uint64_t hits = 0;
    for (size_t k = 0; k < 20'000; ++k) {
      const uint64_t id = random() % 4 ? random() % 8 : random() % 4000;
      const std::string expected(id % 97, static_cast<char>('a' + id % 26));
      const bool hit = recent.get(id, [&](const char* p, size_t n) { CHECK(std::string(p, n) == expected); });
      if (!hit) recent.put(id, expected.data(), expected.size());
      hits += hit;
    }
    CHECK((bytes < 5000) == (hits == 0));
    if (bytes >= 5000) CHECK(hits > 12'000);
  }
}

}  // namespace

int main() {
  same_rows_as_a_search();
  the_first_repeated_key_is_named();
  damage_is_refused();
  a_full_disk_is_an_error_of_the_system();
  fences_beyond_half_of_the_budget_are_refused();
  the_cache_keeps_what_is_used();
}
