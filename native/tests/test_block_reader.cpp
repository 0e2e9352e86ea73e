// Blocks read by io_uring and by threads: against the bytes written, every failure, several callers, a forked child.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/ssd/block_reader.h"
#include "core/system/checked_file.h"
#include "tests/check.h"

// The thread sanitizer else ends a forked child of several threads that starts one.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

using namespace cb;

namespace {

using Way = BlockReader::Way;

constexpr size_t kPage = 4096, kPages = 2000, kTail = 1000;  // the file ends within a page

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<char, Free>;

Memory pages_of_memory(size_t pages) {
  auto* p = static_cast<char*>(std::aligned_alloc(kPage, std::max<size_t>(1, pages) * kPage));
  CHECK(p);
  std::memset(p, 0x5a, std::max<size_t>(1, pages) * kPage);
  return Memory(p);
}

struct File {
  std::string path, bytes;
  int plain = -1, direct = -1;  // direct is plain's twin where the file system knows no O_DIRECT

  File() {
    path = "block_reader_" + std::to_string(::getpid()) + ".tmp";
    std::mt19937_64 random(7);
    bytes.resize(kPages * kPage + kTail);
    for (size_t k = 0; k + 8 <= bytes.size(); k += 8) {
      uint64_t word = random();
      std::memcpy(bytes.data() + k, &word, 8);
    }
    std::FILE* out = std::fopen(path.c_str(), "wb");
    CHECK(out && std::fwrite(bytes.data(), 1, bytes.size(), out) == bytes.size() && std::fclose(out) == 0);
    plain = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(plain >= 0);
    direct = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (direct < 0) direct = ::dup(plain);
    CHECK(direct >= 0);
    std::remove(path.c_str());  // the two descriptors are enough, and a killed test leaves nothing behind
  }
  ~File() {
    ::close(plain);
    ::close(direct);
  }
};

struct Plan {
  std::vector<BlockRead> blocks;
  Memory memory;
};

// Random blocks of one to four pages within the file.
Plan random_plan(int file, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Plan plan{std::vector<BlockRead>(n), pages_of_memory(4 * n)};
  for (size_t k = 0; k < n; ++k) {
    const size_t pages = 1 + random() % 4;
    plan.blocks[k] = {file, random() % (kPages - pages + 1) * kPage, plan.memory.get() + 4 * k * kPage,
                      static_cast<uint32_t>(pages * kPage)};
  }
  return plan;
}

bool holds(const File& file, const BlockRead& b) {
  return std::memcmp(b.to, file.bytes.data() + b.offset, b.bytes) == 0;
}

// Every block once, its bytes there when done is called, on this thread.
void read_and_compare(BlockReader& reader, const File& file, const Plan& plan) {
  std::vector<int> seen(plan.blocks.size());
  const auto caller = std::this_thread::get_id();
  reader.read(plan.blocks, [&](size_t k) {
    CHECK(std::this_thread::get_id() == caller);
    CHECK(holds(file, plan.blocks.at(k)));
    ++seen[k];
  });
  CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

void random_blocks_are_the_bytes_of_the_file(const File& file, Way way) {
  uint64_t seed = 0;
  for (unsigned depth : {0u, 1u, 2u, 7u, 64u, 5000u}) {
    BlockReader reader(depth, way);
    CHECK(reader.depth() == std::clamp(depth, 1u, BlockReader::kMostDepth));
    for (size_t n : {0, 1, 2, 63, 64, 65, 1500})
      for (int fd : {file.plain, file.direct}) read_and_compare(reader, file, random_plan(fd, n, ++seed));
  }
}

void a_plain_file_may_be_read_at_any_byte(const File& file, Way way) {
  std::mt19937_64 random(3);
  std::vector<BlockRead> blocks(2000);
  std::string memory(blocks.size() * 5000, '\0');
  for (size_t k = 0; k < blocks.size(); ++k) {
    const auto bytes = static_cast<uint32_t>(random() % 5000);
    blocks[k] = {file.plain, random() % (file.bytes.size() - bytes + 1), memory.data() + 5000 * k, bytes};
  }
  size_t calls = 0;
  BlockReader(16, way).read(blocks, [&](size_t k) {
    CHECK(holds(file, blocks[k]));
    ++calls;
  });
  CHECK(calls == blocks.size());
}

#if !defined(__SANITIZE_THREAD__)  // whose shadow of the block would be 8 GiB
// A read of the kernel ends after 0x7ffff000 bytes: the rest is asked for. The file is a hole but for its last pages,
// and the memory but for its last MiB is 64 MiB mapped again and again.
void a_block_larger_than_one_read_of_the_kernel_is_whole(const File& file, Way way) {
  const size_t part = size_t{64} << 20, last = size_t{1} << 20, bytes = 32 * part + last, mark = 2 * kPage;
  const std::string path = file.path + ".large";
  int out = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  CHECK(out >= 0 && ::ftruncate(out, static_cast<off_t>(bytes)) == 0);
  CHECK(::pwrite(out, file.bytes.data(), mark, static_cast<off_t>(bytes - mark)) == static_cast<ssize_t>(mark));
  CHECK(::fsync(out) == 0);
  int in = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (in < 0) in = ::dup(out);
  CHECK(in >= 0 && std::remove(path.c_str()) == 0);

  int shared = ::memfd_create("memory", MFD_CLOEXEC);
  CHECK(shared >= 0 && ::ftruncate(shared, static_cast<off_t>(part + last)) == 0);
  void* memory = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  for (size_t at = 0; at < bytes; at += part) {
    const bool end = bytes - at == last;
    CHECK(::mmap(static_cast<char*>(memory) + at, end ? last : part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 shared, end ? static_cast<off_t>(part) : 0) != MAP_FAILED);
  }
  const BlockRead block{in, 0, memory, static_cast<uint32_t>(bytes)};
  size_t calls = 0;
  BlockReader(4, way).read({&block, 1}, [&](size_t) { ++calls; });
  CHECK(calls == 1);
  CHECK(std::memcmp(static_cast<char*>(memory) + bytes - mark, file.bytes.data(), mark) == 0);
  ::munmap(memory, bytes);
  for (int fd : {out, in, shared}) ::close(fd);
}
#endif

// What read threw: its message, and how often done was called before.
template <class Error>
std::string failure_of(BlockReader& reader, const std::vector<BlockRead>& blocks, size_t* calls = nullptr) {
  size_t n = 0;
  std::string met;
  try {
    reader.read(blocks, [&](size_t) { ++n; });
  } catch (const Error& e) {
    met = e.what();
    if constexpr (std::is_same_v<Error, std::system_error>) met = std::to_string(e.code().value());
  }
  if (calls) *calls = n;
  return met;
}

void failures_are_named_and_leave_a_reader_that_works(const File& file, Way way) {
  for (unsigned depth : {1u, 64u}) {
    BlockReader reader(depth, way);
    for (int fd : {file.plain, file.direct}) {
      Plan plan = random_plan(fd, 500, depth);
      const std::vector<BlockRead> good = plan.blocks;

      plan.blocks[250].file = -1;
      size_t calls = 0;
      CHECK(failure_of<std::system_error>(reader, plan.blocks, &calls) == std::to_string(EBADF));
      CHECK(calls < 500);
      plan.blocks = good;
      read_and_compare(reader, file, plan);

      plan.blocks[499].offset = kPages * kPage;  // the last 1,000 bytes
      plan.blocks[499].bytes = kPage;
      std::string met = failure_of<DamagedFile>(reader, plan.blocks, &calls);
      CHECK(met.find("at offset 8192000 ") != std::string::npos && met.find("has 1000") != std::string::npos);
      CHECK(calls < 500);
      plan.blocks[499].offset = (kPages - 2) * kPage;  // two pages are there
      plan.blocks[499].bytes = 3 * kPage;
      CHECK(failure_of<DamagedFile>(reader, plan.blocks).find("it has 9192") != std::string::npos);
      plan.blocks[499].offset = (kPages + 50) * kPage;  // nothing
      CHECK(failure_of<DamagedFile>(reader, plan.blocks).find("it has 0") != std::string::npos);
      plan.blocks = good;
      read_and_compare(reader, file, plan);
    }
  }
}

void what_done_throws_comes_when_no_read_is_under_way(const File& file, Way way) {
  for (unsigned depth : {1u, 64u}) {
    BlockReader reader(depth, way);
    for (size_t last : {0, 1, 100, 499}) {
      Plan plan = random_plan(file.direct, 500, last);
      size_t calls = 0;
      bool met = false;
      try {
        reader.read(plan.blocks, [&](size_t) {
          if (calls++ == last) throw std::out_of_range("enough");
        });
      } catch (const std::out_of_range&) {
        met = true;
      }
      CHECK(met && calls == last + 1);
      // A read still under way would now spoil what is ours again.
      std::memset(plan.memory.get(), 1, 2000 * kPage);
      ::usleep(2000);
      CHECK(std::all_of(plan.memory.get(), plan.memory.get() + 2000 * kPage, [](char c) { return c == 1; }));
      read_and_compare(reader, file, plan);
    }
  }
}

// Blocks found while others are read: some for every prepare, some of them none, and one more for every seventh that is
// done. `fails`: the call, counted over all, that throws.
struct Finding final : BlockSource {
  Finding(const File& f, uint64_t seed, size_t fails_at) : file(f), fails(fails_at), random(seed) {}
  void count() {
    if (++calls == fails) throw std::runtime_error("enough");
  }
  bool next(BlockRead& block) override {
    if (waiting.empty() || free.empty()) return false;
    count();
    const size_t to = free.back();
    free.pop_back();
    block = {file.direct, waiting.back() * kPage, memory.get() + to * kPage, static_cast<uint32_t>(kPage), to};
    coming[to] = block;
    waiting.pop_back();
    ++given;
    return true;
  }
  bool prepare() override {
    CHECK(!over);
    count();
    if (waiting.size() >= kMostWaiting && prepared < 39) return true;  // no more until some of these are read
    for (size_t n = random() % 3 == 0 ? 0 : random() % 90; n > 0; --n) waiting.push_back(random() % kPages);
    over = ++prepared == 40;
    return !over;
  }
  void done(uint64_t tag) override {
    count();
    CHECK(holds(file, coming.at(tag)));
    free.push_back(tag);
    if (++finished % 7 == 0) waiting.push_back(random() % kPages);
  }
  static constexpr size_t kBuffers = 50, kMostWaiting = 20;
  const File& file;
  const size_t fails;
  std::mt19937_64 random;
  Memory memory = pages_of_memory(kBuffers);
  std::vector<size_t> waiting, free = [] {
    std::vector<size_t> all(kBuffers);
    for (size_t k = 0; k < kBuffers; ++k) all[k] = k;
    return all;
  }();
  std::vector<BlockRead> coming = std::vector<BlockRead>(kBuffers);
  size_t calls = 0, prepared = 0, given = 0, finished = 0;
  bool over = false;
};

void blocks_may_be_found_as_others_are_read(const File& file, Way way) {
  for (unsigned depth : {1u, 8u, 128u}) {
    BlockReader reader(depth, way);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Finding all(file, seed, 0);
      reader.read(all);
      CHECK(all.over && all.waiting.empty() && all.given == all.finished && all.free.size() == Finding::kBuffers);
      Finding some(file, seed, 1 + seed * 37);
      bool met = false;
      try {
        reader.read(some);
      } catch (const std::runtime_error&) {
        met = true;
      }
      CHECK(met ? some.calls == some.fails : some.calls < some.fails);  // not called again after it
    }
  }
}

void several_threads_read_at_once_each_with_its_own(const File& file, Way way) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      BlockReader reader(16, way);
      for (uint64_t turn = 0; turn < 10; ++turn)
        read_and_compare(reader, file, random_plan(turn % 2 ? file.plain : file.direct, 200, 100 * t + turn));
    });
  for (std::thread& t : threads) t.join();
}

void threads_may_take_turns_with_one_reader(const File& file, Way way) {
  BlockReader reader(32, way);
  for (uint64_t turn = 0; turn < 10; ++turn)
    std::thread([&] { read_and_compare(reader, file, random_plan(file.direct, 300, turn)); }).join();
  read_and_compare(reader, file, random_plan(file.direct, 300, 99));
}

void a_forked_child_reads_with_its_own(const File& file, Way way) {
  BlockReader reader(32, way);
  read_and_compare(reader, file, random_plan(file.direct, 300, 1));
  std::vector<pid_t> children;
  for (uint64_t c = 0; c < 3; ++c) {
    const pid_t child = ::fork();
    CHECK(child >= 0);
    if (child == 0) {
      for (uint64_t turn = 0; turn < 10; ++turn)
        read_and_compare(reader, file, random_plan(file.direct, 300, 10 * c + turn));
      {
        BlockReader unused(8, way);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (uint64_t turn = 0; turn < 20; ++turn) read_and_compare(reader, file, random_plan(file.direct, 300, 1000 + turn));
  for (pid_t child : children) {
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  // A child that lets go of a reader it never used leaves the parent's alone.
  auto* unused = new BlockReader(8, way);
  const pid_t child = ::fork();
  if (child == 0) {
    delete unused;
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  read_and_compare(*unused, file, random_plan(file.direct, 300, 5));
  delete unused;
}

// Way::ring never falls back in silence.
void a_ring_is_had_or_refused(bool expected) {
  bool met = false;
  try {
    met = BlockReader(64, Way::ring).ring();
  } catch (const std::system_error&) {
  }
  CHECK(met == expected);
}

}  // namespace

int main() {
  const File file;
  const bool ring = BlockReader().ring();
  CHECK(!BlockReader(64, Way::threads).ring());
  a_ring_is_had_or_refused(ring);
  for (Way way : {Way::best, Way::threads}) {
    random_blocks_are_the_bytes_of_the_file(file, way);
    a_plain_file_may_be_read_at_any_byte(file, way);
    failures_are_named_and_leave_a_reader_that_works(file, way);
    what_done_throws_comes_when_no_read_is_under_way(file, way);
    blocks_may_be_found_as_others_are_read(file, way);
    several_threads_read_at_once_each_with_its_own(file, way);
    threads_may_take_turns_with_one_reader(file, way);
    a_forked_child_reads_with_its_own(file, way);
#if !defined(__SANITIZE_THREAD__)
    a_block_larger_than_one_read_of_the_kernel_is_whole(file, way);
#endif
  }
  std::printf("block reader: ok, %s\n",
              ring ? "io_uring and threads" : "threads only, the kernel has no io_uring for us");
}
