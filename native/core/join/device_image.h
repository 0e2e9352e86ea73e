// Lays out a table as one piece of memory that can be copied to a device, with device addresses as pointers.
//
//   0      the view, the struct that bodies get as Params::table (of Records: their blocks)
//   16·k   what it points at, part by part, each 16-byte aligned
//   end    at least 16 zero bytes, so that every part may be read in whole words; the size is a multiple of 16
//
// An image made for its own address is valid on the host. Memory is written and never read (it may be
// write-combined). A writer without memory only measures: size and bytes come from the same code.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace cb {

class ImageWriter {
 public:
  static constexpr size_t kAlign = 16;

  ImageWriter() = default;
  ImageWriter(char* out, uint64_t device_base) : out_(out), base_(device_base) {
    if (device_base % kAlign)
      throw std::invalid_argument("an image lies at a multiple of 16 bytes, not at " + std::to_string(device_base));
  }

  // ---- an image that begins with a view ----

  // The whole image: `point` gets a copy of the view and replaces each of its pointers by a part().
  template <class View, class Point>
  void image(View view, Point point) {
    room(sizeof(View));
    point(view);
    write(0, &view, sizeof(View));
    close();
  }
  // Where the elements will lie. nullptr stays nullptr.
  template <class T>
  const T* part(const T* from, size_t n) {
    if (!from) return nullptr;
    const size_t at = room(n * sizeof(T));
    write(at, from, n * sizeof(T));
    return static_cast<const T*>(address(at));
  }
  template <class T>
  const T* part(const std::vector<T>& from) {
    return part(from.data(), from.size());
  }

  // ---- anything else ----

  // An offset at which `bytes` are set aside, all for the caller to write.
  size_t room(size_t bytes) {
    const size_t at = (end_ + kAlign - 1) / kAlign * kAlign;
    zero(end_, at - end_);
    end_ = at + bytes;
    return at;
  }
  void write(size_t at, const void* from, size_t bytes) {
    if (out_ && bytes) std::memcpy(out_ + at, from, bytes);
  }
  const void* address(size_t at) const { return reinterpret_cast<const void*>(base_ + at); }
  void close() {
    const size_t end = (end_ + 2 * kAlign - 1) / kAlign * kAlign;
    zero(end_, end - end_);
    end_ = end;
  }

  bool measures() const { return !out_; }
  size_t bytes() const { return end_; }

 private:
  void zero(size_t at, size_t bytes) {
    if (out_ && bytes) std::memset(out_ + at, 0, bytes);
  }

  char* out_ = nullptr;
  uint64_t base_ = 0;
  size_t end_ = 0;
};

}  // namespace cb
