// A table an operator was given: a set, boundaries, compiled JSON paths, a dictionary. Built once, then read by all
// threads.
//
// view() is what bodies get as Params::table: a plain struct of pointers (defined beside the body in operators/), so
// that the same struct can point into GPU memory.
#pragma once
#include <cstddef>
#include <string>

namespace cb {

class Table {
 public:
  virtual ~Table() = default;
  virtual const void* view() const = 0;
  virtual size_t bytes() const = 0;
};

}  // namespace cb
