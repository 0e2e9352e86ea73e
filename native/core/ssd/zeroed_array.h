// An array of zeros for values that a table keeps for each of its rows. An array of more than 32 MB takes memory only
// where it is written, because calloc then gets untouched pages from the system.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace cb {

template <typename T>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  ZeroedArray() = default;
  ZeroedArray(ZeroedArray&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  ZeroedArray& operator=(ZeroedArray&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~ZeroedArray() { std::free(data_); }

  // What is there stays, new elements are zeros.
  void resize(size_t size) {
    if (size == size_) return;
    T* fresh = size ? static_cast<T*>(std::calloc(size, sizeof(T))) : nullptr;
    if (size && !fresh) throw std::bad_alloc();
    if (const size_t kept = std::min(size, size_)) std::memcpy(static_cast<void*>(fresh), data_, kept * sizeof(T));
    std::free(data_);
    data_ = fresh;
    size_ = size;
  }
  T& operator[](size_t k) { return data_[k]; }
  const T& operator[](size_t k) const { return data_[k]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cb
