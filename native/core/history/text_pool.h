// Texts by number: each distinct text that events hold is stored once.
//
// Layout: the bytes of all texts one after the other, their ends, and a table of slots from hash to number. Numbers
// stay until keep_only(), which forgets texts that no event holds any more and tells the new numbers.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "operators/hash.h"

namespace cb {

class TextPool {
 public:
  uint64_t number(std::string_view text) {
    if (text.size() > UINT32_MAX) throw std::length_error("a text of more than 4,294,967,295 bytes");
    if ((ends_.size() + 1) * 2 > slots_.size()) rebuild(slots_.size() * 2);
    size_t slot = slot_of(text);
    if (!slots_[slot]) {
      if (ends_.size() >= UINT32_MAX - 1) throw std::length_error("more than 4,294,967,294 distinct texts");
      bytes_.append(text);
      ends_.push_back(bytes_.size());
      slots_[slot] = static_cast<uint32_t>(ends_.size());
    }
    return slots_[slot] - 1;
  }

  std::string_view text(uint64_t number) const {
    const uint64_t begin = number ? ends_[number - 1] : 0;
    return {bytes_.data() + begin, ends_[number] - begin};
  }

  size_t size() const { return ends_.size(); }
  size_t bytes() const {
    return bytes_.capacity() + ends_.capacity() * sizeof(uint64_t) + slots_.capacity() * sizeof(uint32_t);
  }

  // Keeps the texts whose flag is set, in their order; returns the new number of each.
  std::vector<uint64_t> keep_only(const std::vector<bool>& held) {
    TextPool kept;
    std::vector<uint64_t> numbers(size());
    for (size_t k = 0; k < size(); ++k)
      if (held[k]) numbers[k] = kept.number(text(k));
    *this = std::move(kept);
    return numbers;
  }

 private:
  size_t slot_of(std::string_view wanted) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash_bytes(wanted.data() ? wanted.data() : "", static_cast<uint32_t>(wanted.size())) & mask;
    while (slots_[slot] && text(slots_[slot] - 1) != wanted) slot = (slot + 1) & mask;
    return slot;
  }

  void rebuild(size_t slots) {
    slots_.assign(slots, 0);
    for (size_t k = 0; k < ends_.size(); ++k) slots_[slot_of(text(k))] = static_cast<uint32_t>(k + 1);
  }

  std::string bytes_;
  std::vector<uint64_t> ends_;
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(16);
};

}  // namespace cb
