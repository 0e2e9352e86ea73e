// The values of one column of a request, in the register format of a frame's kept columns (frame.h, Storage::Entries).
#pragma once
#include <cstring>
#include <vector>

namespace cb {

struct Filling {
  std::vector<char> entries;
  std::vector<char> valid;
  bool nulls = false;

  template <class T>
  void add(T value) {
    size_t at = entries.size();
    entries.resize(at + sizeof(T));
    std::memcpy(entries.data() + at, &value, sizeof(T));
    valid.push_back(1);
  }
};

}  // namespace cb
