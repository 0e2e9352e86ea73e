// Records errors of the background compaction, which has no caller to throw to.
//
// They are counted, and the last one is kept with the count in the table's folder (COMPACTION_ERRORS: the count, a line
// break, the text), so that `ctrbox table stat` shows it when the process has ended. A compaction of the whole table
// that succeeds removes the file. Writing it is a best effort: on a full disk the count is in memory alone, and the
// file is written by the next error or checkpoint that finds room.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

namespace cb {

class CompactionErrors {
 public:
  // Takes over what earlier processes left in the folder. A table that is only read has no compaction, so nothing is
  // written for it.
  explicit CompactionErrors(const std::string& folder);

  void add(const std::string& what);
  void clear();
  uint64_t count() const;
  std::string last() const;  // text of the last error; empty where there was none

  struct News {
    uint64_t count = 0;  // errors since the last take()
    std::string last;
  };
  News take();

 private:
  void keep();  // under the lock

  const std::string path_;
  mutable std::mutex lock_;
  uint64_t count_ = 0, told_ = 0;
  std::string last_;
  bool kept_ = true;
};

}  // namespace cb
