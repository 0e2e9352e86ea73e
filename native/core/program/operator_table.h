// A table an operator was given: a set, boundaries, compiled JSON paths, a dictionary. Built once, then read by all
// threads.
//
// view() is what bodies get as Params::table: a plain struct of pointers (defined beside the body in operators/), so
// that the same struct can point into GPU memory. image() writes it with all it points at, ready to be copied there
// (core/join/device_image.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cb {

class ImageWriter;

class Table {
 public:
  virtual ~Table() = default;
  virtual const void* view() const = 0;
  virtual size_t bytes() const = 0;

  // The image for memory at `device_base`, a multiple of 16, goes to `out`, image_bytes() long.
  size_t image_bytes() const;
  void image(char* out, uint64_t device_base) const;

 protected:
  virtual void put_image(ImageWriter& to) const = 0;
};

}  // namespace cb
