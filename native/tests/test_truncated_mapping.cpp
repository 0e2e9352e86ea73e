// A file that is cut while it is mapped: reads go on with zeros, its range says so, and every other SIGBUS goes to the
// handler that was there before.
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "core/system/truncated_mapping.h"
#include "tests/check.h"

using namespace cb;

namespace {

sigjmp_buf back;
volatile sig_atomic_t met = 0;

void earlier(int) {
  met = met + 1;
  siglongjmp(back, 1);
}

struct File {
  explicit File(size_t size) : size(size) {
    char name[] = "/tmp/ctrbox-range-XXXXXX";
    file = mkstemp(name);
    unlink(name);
    std::vector<char> bytes(size, 'x');
    CHECK(write(file, bytes.data(), size) == static_cast<ssize_t>(size));
    data = static_cast<const char*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0));
    CHECK(data != MAP_FAILED);
  }
  ~File() {
    munmap(const_cast<char*>(data), size);
    close(file);
  }
  char at(size_t place) const { return *static_cast<const volatile char*>(data + place); }
  void cut(size_t rest) const { CHECK(ftruncate(file, static_cast<off_t>(rest)) == 0); }

  size_t size;
  int file;
  const char* data;
};

}  // namespace

int main() {
  struct sigaction action = {};
  action.sa_handler = earlier;
  sigaction(SIGBUS, &action, nullptr);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

  File first(8 * page), second(8 * page), bare(8 * page);
  auto range = std::make_unique<MappedRange>(first.data, first.size);
  const MappedRange other(second.data, second.size);
  CHECK(first.at(7 * page) == 'x' && !range->cut());
  first.cut(2 * page + 5);
  CHECK(first.at(2 * page) == 'x' && !range->cut());  // this page is still there
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&] {
      for (size_t place = 3 * page; place < 8 * page; place += 97) CHECK(first.at(place) == 0 && range->cut());
    });
  for (std::thread& one : threads) one.join();
  CHECK(!other.cut() && second.at(3 * page) == 'x' && met == 0);

  bare.cut(0);  // no range: the earlier handler hears of it
  if (sigsetjmp(back, 1) == 0) bare.at(0);
  CHECK(met == 1);

  range.reset();  // its place is taken by the next one
  const MappedRange again(bare.data, bare.size);
  CHECK(!again.cut() && bare.at(page) == 0 && again.cut() && !other.cut() && met == 1);
  second.cut(0);
  CHECK(second.at(0) == 0 && other.cut());

  sigaction(SIGBUS, &action, nullptr);  // a library puts its handler in the place of ours; the next range restores it
  File third(4 * page);
  const MappedRange later(third.data, third.size);
  third.cut(0);
  CHECK(third.at(page) == 0 && later.cut() && met == 1);
  std::puts("ok");
}
