// Reads many blocks of files at once, for the rows that a batch does not find in memory.
//
//   reader.read(source)          at most depth() reads under way, of blocks that the source finds as it goes
//   reader.read(blocks, done)    the same for blocks that are known; done(k) as block k is complete
//
// By io_uring where the kernel lets us (a thread then keeps the whole disk busy), else by a few threads with pread. New
// reads are handed to the kernel before done is called, so a slow done leaves the disk at work. One caller at a time;
// it need not always be the same thread. A forked child gets a ring or threads of its own with its first read.
//
// Refused: a file that ends before a block does (DamagedFile), whatever error the system gives (std::system_error).
// Whatever is thrown, by the source too, is thrown when no read is under way any more: the memory is then the caller's
// alone. Once a failure was seen done is not called again.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace cb {

struct BlockRead {
  int file;
  uint64_t offset;  // offset, to and bytes are multiples of 4,096 where the file was opened with O_DIRECT
  void* to;
  uint32_t bytes;
  uint64_t tag = 0;            // the source's own, given back by done
  const char* path = nullptr;  // the file's name, for errors; the source keeps it alive
};

// Blocks to read, found while others are on their way. All calls come from the thread that reads.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // The next block; false: none is at hand now. Cheap: reads that are queued wait for it.
  virtual bool next(BlockRead& block) = 0;
  // Looks for more blocks, when none was at hand and those before are under way. False: it never will again.
  virtual bool prepare() = 0;
  // The block of this tag is complete. More may be at hand then.
  virtual void done(uint64_t tag) = 0;
};

class BlockReader {
 public:
  enum class Way { best, ring, threads };

  static constexpr unsigned kMostDepth = 4096;

  // A depth of 0 counts as 1. Way::best takes threads where the kernel has no ring for us (old, seccomp, a limit);
  // Way::ring throws the kernel's reason instead.
  explicit BlockReader(unsigned depth = 64, Way way = Way::best);
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  bool ring() const { return ring_ != nullptr; }
  unsigned depth() const { return depth_; }

  void read(BlockSource& source);
  void read(std::span<const BlockRead> blocks, const std::function<void(size_t)>& done);

 private:
  class Ring;
  class Threads;

  void open();
  void own();

  const unsigned depth_;
  const Way way_;
  pid_t process_ = 0;
  std::unique_ptr<Ring> ring_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace cb
