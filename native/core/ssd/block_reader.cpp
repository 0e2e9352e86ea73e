#include "core/ssd/block_reader.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/system/checked_file.h"

namespace cb {

namespace {

// More threads than cores: they sleep in pread. Each read costs 8 us of a core this way, 3 us by the ring.
constexpr unsigned kMostThreads = 64;
constexpr size_t kGathered = 1024;  // blocks that the threads are given at once

std::exception_ptr system_failure(int reason) {
  return std::make_exception_ptr(std::system_error(reason, std::generic_category(), "cannot read a block"));
}

std::exception_ptr cut_short(const BlockRead& block, uint32_t got) {
  const std::string name = block.path ? block.path : "it";
  return std::make_exception_ptr(DamagedFile(name + " ends before byte " + std::to_string(block.offset + block.bytes) +
                                             ": of the block of " + std::to_string(block.bytes) + " bytes at offset " +
                                             std::to_string(block.offset) + " it has " + std::to_string(got)));
}

// How much of a block has come, of a read that ended early: the rest is asked for. A file that ends within the block
// answers 0 to that, or EINVAL where its end is no place that O_DIRECT may read from.
struct Progress {
  uint32_t got = 0;

  enum class Step { complete, again, short_file, failed };

  // result: bytes, or the error below 0.
  Step take(const BlockRead& block, int64_t result) {
    if (result == -EINTR || result == -EAGAIN) return Step::again;
    if (result == -EINVAL && got > 0) return Step::short_file;
    if (result < 0) return Step::failed;
    got += static_cast<uint32_t>(result);
    if (got >= block.bytes) return Step::complete;
    return result == 0 ? Step::short_file : Step::again;
  }
};

// One block by pread; what went wrong, or null.
std::exception_ptr read_block(const BlockRead& block) try {
  for (Progress progress;;) {
    const ssize_t n = ::pread(block.file, static_cast<char*>(block.to) + progress.got, block.bytes - progress.got,
                              static_cast<off_t>(block.offset + progress.got));
    const int64_t result = n < 0 ? -errno : n;
    switch (progress.take(block, result)) {
      case Progress::Step::complete:
        return nullptr;
      case Progress::Step::again:
        break;
      case Progress::Step::short_file:
        return cut_short(block, progress.got);
      case Progress::Step::failed:
        return system_failure(static_cast<int>(-result));
    }
  }
} catch (...) {  // no memory for the message
  return std::current_exception();
}

}  // namespace

#if defined(__linux__)

namespace {

// What we use of the kernel's <linux/io_uring.h>, in our words: wheels are built where that header is too old or
// missing. The numbers are the same on every architecture but alpha.
constexpr long kSetupCall = 425, kEnterCall = 426;
constexpr uint8_t kReadOp = 22;
constexpr uint32_t kCoopTaskrun = 1u << 8;                           // setup flag, since 5.19
constexpr uint32_t kGetEvents = 1;                                   // enter flag
constexpr uint32_t kSingleMap = 1u, kNoDrop = 2u, kReads = 1u << 3;  // features; the last came with kReadOp in 5.6
constexpr off_t kRingsAt = 0, kEntriesAt = 0x10000000;

struct Submission {  // io_uring_sqe
  uint8_t op, flags;
  uint16_t priority;
  int32_t file;
  uint64_t offset, to;
  uint32_t bytes, read_flags;
  uint64_t tag;
  uint64_t unused[3];
};
static_assert(sizeof(Submission) == 64);

struct Completion {  // io_uring_cqe
  uint64_t tag;
  int32_t result;
  uint32_t flags;
};
static_assert(sizeof(Completion) == 16);

struct Setup {  // io_uring_params
  uint32_t entries, completions, flags, poll_cpu, poll_idle, features, shared, unused[3];
  struct {
    uint32_t head, tail, mask, entries, flags, dropped, array, unused;
    uint64_t user;
  } queue;
  struct {
    uint32_t head, tail, mask, entries, overflow, completions, flags, unused;
    uint64_t user;
  } answers;
};
static_assert(sizeof(Setup) == 120);

}  // namespace

// The two queues shared with the kernel. Between two calls of read both are empty, so threads may take turns.
class BlockReader::Ring {
 public:
  // Throws std::system_error where the kernel has no ring for us.
  explicit Ring(unsigned depth) : depth_(depth) {
    Setup setup{};
    setup.flags = kCoopTaskrun;  // completions wait for our next call instead of interrupting us
    file_ = start(setup);
    if (file_ < 0) {  // an old kernel refuses the flag, so try without it
      setup = Setup{};
      file_ = start(setup);
    }
    if (file_ < 0) refuse(errno);
    try {
      map(setup);
    } catch (...) {
      close();
      throw;
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { close(); }

  void read(BlockSource& source) {
    Batch batch;
    batch.blocks.resize(depth_);  // nothing may throw while the kernel writes
    for (uint32_t k = depth_; k > 0; --k) batch.free.push_back(k - 1);
    batch.ready.reserve(depth_);
    batch.again.reserve(depth_);
    for (bool more = true, prepared = false;;) {
      const uint32_t queued = fill(batch, source);
      // Where preparing gave nothing the source waits for memory that reads under way have.
      const bool stuck = prepared && queued == 0 && batch.flying > 0;
      const bool prepares = more && batch.none_at_hand && !batch.error && !stuck;
      prepared = prepares;
      if (queued == 0 && batch.flying == 0 && batch.ready.empty() && !prepares) break;
      enter(batch, queued, batch.ready.empty() && !prepares);
      try {
        for (uint64_t tag : batch.ready)
          if (!batch.error) source.done(tag);
        if (prepares) more = source.prepare();
      } catch (...) {
        batch.error = std::current_exception();
      }
      batch.ready.clear();
      harvest(batch);
    }
    if (batch.error) std::rethrow_exception(batch.error);
  }

 private:
  struct Batch {
    std::vector<BlockRead> blocks{};                  // what is under way, by the tag of the ring
    std::vector<uint32_t> free{};                     // places in it
    uint32_t flying = 0;                              // reads the kernel has taken and not answered
    bool none_at_hand = false;                        // the source said so
    std::vector<uint64_t> ready{};                    // tags of the source: complete, done not yet called
    std::vector<uint32_t> again{};                    // to be asked for again
    std::unordered_map<uint32_t, Progress> partly{};  // blocks of which a part has come
    std::exception_ptr error{};                       // the first; nothing is asked for after it
  };

  [[noreturn]] static void refuse(int reason) {
    throw std::system_error(reason, std::generic_category(), "the kernel does not allow this process to use io_uring");
  }

  int start(Setup& setup) const { return static_cast<int>(::syscall(kSetupCall, depth_, &setup)); }

  void map(const Setup& setup) {
    constexpr uint32_t needed = kSingleMap | kNoDrop | kReads;
    if ((setup.features & needed) != needed) refuse(ENOSYS);
    if (::syscall(kEnterCall, file_, 0, 0, 0, nullptr, 0) < 0)
      refuse(errno);  // seccomp may allow the one, not the other
    rings_bytes_ = std::max<size_t>(setup.queue.array + setup.entries * sizeof(uint32_t),
                                    setup.answers.completions + setup.completions * sizeof(Completion));
    entries_bytes_ = setup.entries * sizeof(Submission);
    rings_ = map(rings_bytes_, kRingsAt);
    entries_ = static_cast<Submission*>(map(entries_bytes_, kEntriesAt));
    queue_head_ = number(setup.queue.head);
    queue_tail_ = number(setup.queue.tail);
    queue_mask_ = *number(setup.queue.mask);
    head_ = number(setup.answers.head);
    tail_ = number(setup.answers.tail);
    mask_ = *number(setup.answers.mask);
    completions_ = reinterpret_cast<Completion*>(static_cast<char*>(rings_) + setup.answers.completions);
    uint32_t* array = number(setup.queue.array);
    for (uint32_t k = 0; k < setup.entries; ++k) array[k] = k;  // place k of the queue is always entry k
  }

  void* map(size_t bytes, off_t at) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, at);
    if (p == MAP_FAILED) refuse(errno);
    return p;
  }

  uint32_t* number(uint32_t at) const { return reinterpret_cast<uint32_t*>(static_cast<char*>(rings_) + at); }

  // In a forked child this ends its share of the parent's ring only.
  void close() {
    if (entries_) ::munmap(entries_, entries_bytes_);
    if (rings_) ::munmap(rings_, rings_bytes_);
    ::close(file_);
  }

  static uint32_t load(uint32_t* p) { return std::atomic_ref<uint32_t>(*p).load(std::memory_order_acquire); }
  static void store(uint32_t* p, uint32_t v) { std::atomic_ref<uint32_t>(*p).store(v, std::memory_order_release); }

  // Queues reads up to the depth; how many the kernel has not taken yet. After an error it takes them back.
  uint32_t fill(Batch& batch, BlockSource& source) {
    const uint32_t head = load(queue_head_);
    uint32_t tail = *queue_tail_;
    batch.none_at_hand = false;
    while (!batch.error && batch.flying + (tail - head) < depth_) {
      uint32_t k;
      if (!batch.again.empty()) {
        k = batch.again.back();
        batch.again.pop_back();
      } else {
        k = batch.free.back();
        try {
          batch.none_at_hand = !source.next(batch.blocks[k]);
        } catch (...) {
          batch.error = std::current_exception();
        }
        if (batch.none_at_hand || batch.error) break;
        batch.free.pop_back();
      }
      uint32_t from = 0;
      if (!batch.partly.empty())
        if (auto it = batch.partly.find(k); it != batch.partly.end()) from = it->second.got;
      const BlockRead& block = batch.blocks[k];
      Submission& entry = entries_[tail & queue_mask_];
      entry = Submission{};
      entry.op = kReadOp;
      entry.file = block.file;
      entry.offset = block.offset + from;
      entry.to = reinterpret_cast<uint64_t>(block.to) + from;
      entry.bytes = block.bytes - from;
      entry.tag = k;
      ++tail;
    }
    if (batch.error) tail = head;
    store(queue_tail_, tail);
    return tail - head;
  }

  // Hands over what is queued and, if asked to, waits for answers: an eighth of what is under way, so that the queue
  // stays full and the device is told of new reads less often.
  void enter(Batch& batch, uint32_t queued, bool wait) {
    if (queued == 0 && !wait) return;
    const uint32_t answers = wait ? std::max(1u, (batch.flying + queued) / 8) : 0;
    const long n = ::syscall(kEnterCall, file_, queued, answers, wait ? kGetEvents : 0, nullptr, 0);
    if (n >= 0) {
      batch.flying += static_cast<uint32_t>(n);
      return;
    }
    const int reason = errno;
    if (reason == EINTR) return;
    if (reason != EAGAIN && reason != EBUSY && !batch.error) batch.error = system_failure(reason);
    // The kernel has no memory for more now, or the ring is broken: what flies still ends, the queue is looked at soon.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  void harvest(Batch& batch) {
    uint32_t head = *head_;
    const uint32_t tail = load(tail_);
    for (; head != tail; ++head) {
      const Completion& c = completions_[head & mask_];
      --batch.flying;
      try {
        answer(batch, static_cast<uint32_t>(c.tag), c.result);
      } catch (...) {  // no memory for the message
        batch.error = std::current_exception();
      }
    }
    store(head_, head);
  }

  static void complete(Batch& batch, uint32_t k) {
    batch.ready.push_back(batch.blocks[k].tag);
    batch.free.push_back(k);
    if (!batch.partly.empty()) batch.partly.erase(k);
  }

  static void answer(Batch& batch, uint32_t k, int32_t result) {
    if (batch.error) return;
    const BlockRead& block = batch.blocks[k];
    if (result >= 0 && static_cast<uint32_t>(result) == block.bytes) return complete(batch, k);  // nearly always
    Progress& progress = batch.partly[k];
    switch (progress.take(block, result)) {
      case Progress::Step::complete:
        complete(batch, k);
        break;
      case Progress::Step::again:
        batch.again.push_back(k);
        break;
      case Progress::Step::short_file:
        batch.error = cut_short(block, progress.got);
        break;
      case Progress::Step::failed:
        batch.error = system_failure(-result);
        break;
    }
  }

  const unsigned depth_;
  int file_ = -1;
  void* rings_ = nullptr;
  size_t rings_bytes_ = 0, entries_bytes_ = 0;
  Submission* entries_ = nullptr;
  uint32_t *queue_head_ = nullptr, *queue_tail_ = nullptr, *head_ = nullptr, *tail_ = nullptr;
  uint32_t queue_mask_ = 0, mask_ = 0;
  Completion* completions_ = nullptr;
};

#else

class BlockReader::Ring {
 public:
  explicit Ring(unsigned) { throw std::system_error(ENOSYS, std::generic_category(), "io_uring exists only on Linux"); }
  void read(BlockSource&) {}
};

#endif

class BlockReader::Threads {
 public:
  explicit Threads(unsigned count) {
    try {
      for (unsigned k = 0; k < count; ++k) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // fewer will do, none will not
      if (workers_.empty()) throw;
    }
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  ~Threads() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void read(std::span<const BlockRead> blocks, const std::function<void(size_t)>& done) {
    std::vector<size_t> ready;
    ready.reserve(blocks.size());
    std::unique_lock<std::mutex> hold(mutex_);
    finished_.reserve(blocks.size());  // a worker never allocates
    blocks_ = blocks;
    for (size_t k = std::min(workers_.size(), blocks.size()); k > 0; --k) wake_.notify_one();
    for (;;) {
      come_.wait(hold, [&] { return !finished_.empty() || (active_ == 0 && next_ == blocks_.size()); });
      if (finished_.empty()) break;
      ready.swap(finished_);
      if (!error_) {
        hold.unlock();
        std::exception_ptr thrown = call(ready, done);
        hold.lock();
        if (thrown) fail(std::move(thrown));
      }
      ready.clear();
    }
    blocks_ = {};
    next_ = 0;
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  static std::exception_ptr call(const std::vector<size_t>& ready, const std::function<void(size_t)>& done) try {
    for (size_t k : ready) done(k);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }

  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);
    next_ = blocks_.size();
  }

  void work() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      wake_.wait(hold, [&] { return over_ || next_ < blocks_.size(); });
      if (over_) return;
      const size_t k = next_++;
      const BlockRead block = blocks_[k];
      ++active_;
      hold.unlock();
      std::exception_ptr error = read_block(block);
      hold.lock();
      --active_;
      if (error)
        fail(std::move(error));
      else
        finished_.push_back(k);
      if (finished_.size() <= 1 || active_ == 0) come_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, come_;  // there are blocks to read; a block has come
  std::vector<std::thread> workers_;
  std::span<const BlockRead> blocks_;
  size_t next_ = 0;               // the first block nobody has taken
  size_t active_ = 0;             // reads under way
  std::vector<size_t> finished_;  // complete, not yet seen by the caller
  std::exception_ptr error_;
  bool over_ = false;
};

BlockReader::BlockReader(unsigned depth, Way way) : depth_(std::clamp(depth, 1u, kMostDepth)), way_(way) { open(); }

BlockReader::~BlockReader() {
  if (process_ != ::getpid()) (void)threads_.release();  // they are the parent's and did not come along
}

void BlockReader::open() {
  if (way_ != Way::threads) {
    try {
      ring_ = std::make_unique<Ring>(depth_);
    } catch (const std::system_error&) {
      if (way_ == Way::ring) throw;
    }
  }
  if (!ring_) threads_ = std::make_unique<Threads>(std::min(depth_, kMostThreads));
  process_ = ::getpid();
}

// A forked child leaves its parent's ring and threads alone.
void BlockReader::own() {
  if (process_ == ::getpid()) return;
  ring_.reset();
  (void)threads_.release();
  open();
}

void BlockReader::read(BlockSource& source) {
  own();
  if (ring_) return ring_->read(source);
  std::vector<BlockRead> blocks;
  for (bool more = true;;) {
    blocks.clear();
    while (blocks.size() < kGathered) {
      BlockRead block{};
      if (source.next(block)) {
        blocks.push_back(block);
        continue;
      }
      if (!more) break;
      more = source.prepare();
      if (source.next(block))
        blocks.push_back(block);
      else if (!blocks.empty())
        break;  // it waits for the memory of these
    }
    if (blocks.empty()) return;
    threads_->read(blocks, [&](size_t k) { source.done(blocks[k].tag); });
  }
}

void BlockReader::read(std::span<const BlockRead> blocks, const std::function<void(size_t)>& done) {
  struct Known final : BlockSource {
    Known(std::span<const BlockRead> b, const std::function<void(size_t)>& d) : blocks(b), call(d) {}
    bool next(BlockRead& block) override {
      if (at == blocks.size()) return false;
      block = blocks[at];
      block.tag = at++;
      return true;
    }
    bool prepare() override { return false; }
    void done(uint64_t tag) override { call(tag); }
    std::span<const BlockRead> blocks;
    const std::function<void(size_t)>& call;
    size_t at = 0;
  };
  Known known(blocks, done);
  if (!blocks.empty()) read(known);
}

}  // namespace cb
