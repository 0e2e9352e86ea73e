// Stores the rows of a dimension view after hoisting: one block of bytes per row, with everything the row needs.
//
//   block:  fixed part    an entry a field (widest first, so all are aligned), then a validity byte for each nullable
//   field;
//                         a number is its 8 bytes, a bool 1, a string or list {u32 offset in the block, u32 count}
//           variable part what the strings and lists hold, in the order of the fields, each 8-byte aligned
//
// An impression that needs ten columns of its user touches a few neighboring cache lines of one page. A row is known
// by its handle, the block's offset / 8, so tables up to 32 GiB fit 32 bits. Only lists of strings leave the block:
// their entries are pointers. Built by one thread (RecordSink), or in parts by several threads that place() and put()
// bring together, then read by all; handles stay valid while rows are added, addresses do not. image() is the same for
// a device (core/join/device_image.h): the blocks, then what lists of strings hold.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/program/kernel_shapes.h"
#include "core/system/bump_allocator.h"
#include "core/system/huge_pages.h"

namespace cb {

class ImageWriter;

inline size_t entry_width(const std::string& kind) { return kind[0] == '*' || kind == "s" ? 16 : kind == "b" ? 1 : 8; }

struct RecordField {
  std::string kind;
  bool nullable;
  uint32_t offset = 0;        // of the entry inside the block
  uint32_t valid_offset = 0;  // of its validity byte, when nullable

  bool inside() const { return entry_width(kind) == 16 && kind != "*s"; }  // its elements lie in the block
  size_t width() const { return inside() ? 8 : entry_width(kind); }        // of the entry
  size_t element() const { return kind == "s" || kind == "*b" ? 1 : 8; }   // of what it holds
};

// A string or list of a block.
struct Inside {
  uint32_t offset;
  uint32_t count;
};

class Records {
 public:
  explicit Records(std::vector<RecordField> fields) : fields_(std::move(fields)), memory_(kFirstBlock) {
    uint32_t at = 0;
    for (size_t width : {size_t{16}, size_t{8}, size_t{1}})
      for (RecordField& f : fields_)
        if (f.width() == width) {
          f.offset = at;
          at += static_cast<uint32_t>(width);
        }
    for (RecordField& f : fields_)
      if (f.nullable) f.valid_offset = at++;
    fixed_ = at ? (at + 7) / 8 * 8 : 8;
  }

  const std::vector<RecordField>& fields() const { return fields_; }
  uint32_t fixed_bytes() const { return fixed_; }
  const char* at(int64_t handle) const { return blob_.data() + handle * 8; }
  const std::vector<uint32_t>& handles() const { return handles_; }
  size_t rows() const { return handles_.size(); }
  size_t blob_bytes() const { return used_; }  // of the blocks, which lie end to end in the order of the rows
  size_t bytes() const { return used_ + memory_.capacity() + handles_.capacity() * sizeof(uint32_t); }

  // The image for memory at `device_base`, a multiple of 16, goes to `out`, image_bytes() long.
  size_t image_bytes() const;
  void image(char* out, uint64_t device_base) const;

  // For the builder: a block of `bytes` zeros, a multiple of 8.
  char* add(size_t bytes) {
    handles_.push_back(handle(used_ / 8));
    size_t need = used_ + bytes + Bump::kSlack;
    if (need > blob_.size()) blob_.grow(need);
    char* block = blob_.data() + used_;
    used_ += bytes;
    return block;
  }
  Bump& memory() { return memory_; }

  // Where the rows of other records go: their first byte and their first row.
  struct Place {
    size_t at, row;
  };

  // Makes room for the rows of `other`, which has the same fields, behind these; put() brings them there. One thread
  // calls place() in the order of the rows, while others may be within put(). Until all rows have been put nothing else
  // may be called.
  Place place(Records& other) {
    std::unique_lock<std::shared_mutex> hold(*moving_);
    const Place place{used_, handles_.size()};
    const size_t need = used_ + other.used_ + Bump::kSlack;
    if (other.used_) handle((used_ + other.used_) / 8);
    if (need > blob_.size()) blob_.grow(need);
    handles_.resize(handles_.size() + other.handles_.size());
    used_ += other.used_;
    memory_.adopt(std::move(other.memory_));
    return place;
  }

  // Copies the rows of `other`, which is empty afterwards, to their place. Several threads may do so at once.
  void put(const Place& place, Records&& other) {
    {
      std::shared_lock<std::shared_mutex> hold(*moving_);
      if (place.at % 8 || place.at > used_ || other.used_ > used_ - place.at || place.row > handles_.size() ||
          other.handles_.size() > handles_.size() - place.row)
        throw std::out_of_range("no room was made for these records");
      if (other.used_) std::memcpy(blob_.data() + place.at, other.blob_.data(), other.used_);
      const uint32_t base = static_cast<uint32_t>(place.at / 8);
      for (size_t k = 0; k < other.handles_.size(); ++k) handles_[place.row + k] = base + other.handles_[k];
    }
    other = Records(fields_);
  }

 private:
  static uint32_t handle(size_t eighth) {
    if (eighth >= UINT32_MAX) throw std::length_error("a joined view of more than 32 GiB");
    return static_cast<uint32_t>(eighth);
  }
  void put_image(ImageWriter& to) const;

  static constexpr size_t kFirstBlock = 256;  // of many small parts each keeps its own; blocks double

  std::vector<RecordField> fields_;
  uint32_t fixed_ = 8;
  size_t used_ = 0;
  GrowingBlock blob_;
  std::vector<uint32_t> handles_;
  Bump memory_;                                                                        // lists of strings
  std::unique_ptr<std::shared_mutex> moving_ = std::make_unique<std::shared_mutex>();  // blob_ and handles_ may move
};

}  // namespace cb
