// A bump-pointer pool: reserve the most a row can need, commit what it used, reset everything in constant time.
//
// Memory comes in blocks. A reservation never spans blocks and committed memory never moves until reset(), which trades
// several blocks for one as large: after the first few chunks there is one block, nothing is allocated, and what is
// reserved row after row lies end to end. Every block has kSlack bytes behind it that a copy may read (never use).
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

namespace cb {

class Bump {
 public:
  explicit Bump(size_t block = size_t{1} << 16) : block_(block) {}
  Bump(const Bump&) = delete;
  Bump& operator=(const Bump&) = delete;
  Bump(Bump&&) = default;
  Bump& operator=(Bump&&) = default;

  // Room for `bytes`, 8-byte aligned; valid until the next reserve() unless committed. Throws std::bad_alloc.
  char* reserve(size_t bytes) {
    head_ = (head_ + 7) & ~size_t{7};
    if (bytes > room() || blocks_.empty()) grow(bytes);
    return blocks_[at_].memory.get() + head_;
  }
  // The same without alignment, for bytes of strings.
  char* reserve_bytes(size_t bytes) {
    if (bytes > room() || blocks_.empty()) grow(bytes);
    return blocks_[at_].memory.get() + head_;
  }
  void commit(size_t bytes) { head_ += bytes; }

  template <class T>
  T* take(size_t n) {
    T* p = reinterpret_cast<T*>(reserve(n * sizeof(T)));
    commit(n * sizeof(T));
    return p;
  }

  void reset() {
    if (at_ > 0) {
      size_t total = capacity();
      blocks_.clear();
      add(total);
    }
    at_ = 0;
    head_ = 0;
  }

  // Takes over the blocks of another pool: what was committed there stays where it is. The rest of the own block is
  // not used any more.
  void adopt(Bump&& other) {
    if (other.blocks_.empty()) return;
    blocks_.insert(blocks_.end(), std::make_move_iterator(other.blocks_.begin()),
                   std::make_move_iterator(other.blocks_.end()));
    other = Bump(other.block_);
    at_ = blocks_.size() - 1;
    head_ = blocks_[at_].size;
  }

  static constexpr size_t kSlack = 64;

  bool owns(const void* p) const {
    const char* c = static_cast<const char*>(p);
    for (size_t k = 0; k < blocks_.size() && k <= at_; ++k)
      if (c >= blocks_[k].memory.get() && c < blocks_[k].memory.get() + blocks_[k].size) return true;
    return false;
  }

  size_t capacity() const {
    size_t total = 0;
    for (const Block& b : blocks_) total += b.size;
    return total;
  }

 private:
  struct Block {
    std::unique_ptr<char[]> memory;
    size_t size;
  };

  size_t room() const { return blocks_.empty() || head_ > blocks_[at_].size ? 0 : blocks_[at_].size - head_; }

  void grow(size_t bytes) {
    while (!blocks_.empty() && at_ + 1 < blocks_.size()) {
      ++at_;
      head_ = 0;
      if (blocks_[at_].size >= bytes) return;
    }
    size_t size = block_;
    while (size < bytes + 8) size *= 2;
    add(size);
    if (block_ < (size_t{1} << 24)) block_ *= 2;  // few blocks, however long the strings
    at_ = blocks_.size() - 1;
    head_ = 0;
  }

  void add(size_t size) { blocks_.push_back({std::unique_ptr<char[]>(new char[size + kSlack]), size}); }

  std::vector<Block> blocks_;
  size_t at_ = 0;
  size_t head_ = 0;
  size_t block_;
};

}  // namespace cb
