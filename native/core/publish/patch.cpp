#include "core/publish/patch.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace cb {

namespace {

template <class T>
T load(const uint8_t* p, uint64_t at, uint64_t size) {  // bytes behind the end are 0
  T value = 0;
  if (at < size) std::memcpy(&value, p + at, std::min<uint64_t>(sizeof(T), size - at));
  return value;
}

template <class T>
T zigzag(T delta) {
  constexpr int kTop = 8 * sizeof(T) - 1;
  return static_cast<T>(static_cast<T>(delta << 1) ^ static_cast<T>((delta >> kTop) ? ~T{0} : T{0}));
}

template <class T>
T unzigzag(T z) {
  return static_cast<T>(static_cast<T>(z >> 1) ^ static_cast<T>((z & 1) ? ~T{0} : T{0}));
}

void put(std::vector<uint8_t>& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<uint8_t>(value | 128));
  out.push_back(static_cast<uint8_t>(value));
}

uint64_t get(Bytes in, size_t& at) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 63; shift += 7) {
    if (at == in.size()) throw BadPatch("its positions end within a number");
    const uint8_t byte = in[at++];
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  throw BadPatch("a number of its positions is too long");
}

uint64_t words_of(uint64_t bytes, unsigned word) { return bytes / word + (bytes % word != 0); }

// The first word from `at` that differs, or `words`.
template <class T>
uint64_t first_different(const uint8_t* old, uint64_t old_size, const uint8_t* now, uint64_t size, uint64_t at,
                         uint64_t words) {
  constexpr uint64_t kStep = 64 / sizeof(T);  // words skipped at once
  const uint64_t both = std::min(old_size, size) / sizeof(T);
  while (at < words) {
    if (at + kStep <= both && std::memcmp(old + at * sizeof(T), now + at * sizeof(T), 64) == 0) {
      at += kStep;
      continue;
    }
    for (const uint64_t stop = std::min(at + kStep, words); at < stop; ++at)
      if (load<T>(old, at * sizeof(T), old_size) != load<T>(now, at * sizeof(T), size)) return at;
  }
  return words;
}

class Writer {
 public:
  explicit Writer(Change& out) : out_(out) {}
  void run(uint64_t begin, uint64_t end) {
    if (open_ && begin == end_) {
      end_ = end;
      return;
    }
    close();
    open_ = true;
    begin_ = begin;
    end_ = end;
  }
  void close() {
    if (!open_) return;
    put(out_.positions, begin_ - last_);
    put(out_.positions, end_ - begin_);
    last_ = end_;
    open_ = false;
  }

 private:
  Change& out_;
  bool open_ = false;
  uint64_t begin_ = 0, end_ = 0, last_ = 0;
};

template <class T>
void diff_words(Bytes base, Bytes result, std::span<const Region> regions, Change& out) {
  Writer writer(out);
  uint64_t offset = 0, word0 = 0;  // of the region
  for (const Region& r : regions) {
    const uint8_t *old = base.data() + r.base_at, *now = result.data() + offset;
    const uint64_t words = words_of(r.size, sizeof(T));
    const uint64_t old_size = std::min(r.base_size, r.size);  // what is behind the end is no difference
    uint64_t at = first_different<T>(old, old_size, now, r.size, 0, words);
    while (at < words) {
      const uint64_t begin = at;
      uint64_t end = at;  // behind the last word that differs
      for (uint64_t w = at; w < words && w - end <= kJoin; ++w) {
        const uint64_t byte = w * sizeof(T);
        if (load<T>(old, byte, old_size) != load<T>(now, byte, r.size)) end = w + 1;
      }
      for (uint64_t w = begin; w < end; ++w) {
        const uint64_t byte = w * sizeof(T);
        const T delta = static_cast<T>(load<T>(now, byte, r.size) - load<T>(old, byte, old_size));
        out.changed += delta != 0;
        const T z = zigzag(delta);
        for (size_t b = 0; b < sizeof(T); ++b) out.planes[b].push_back(static_cast<uint8_t>(z >> (8 * b)));
      }
      writer.run(word0 + begin, word0 + end);
      at = first_different<T>(old, old_size, now, r.size, end, words);
    }
    offset += r.size;
    word0 += words;
  }
  writer.close();
}

template <class T>
void apply_words(Bytes base, std::span<const Region> regions, Bytes positions, std::span<const Bytes> planes,
                 std::span<uint8_t> result) {
  uint64_t offset = 0;
  for (const Region& r : regions) {
    const uint64_t copied = std::min(r.base_size, r.size);
    if (copied) std::memcpy(result.data() + offset, base.data() + r.base_at, copied);
    if (r.size > copied) std::memset(result.data() + offset + copied, 0, r.size - copied);
    offset += r.size;
  }
  // Only the last region may end within a word, so words of the result are those of the regions.
  const uint64_t words = words_of(result.size(), sizeof(T)), held = planes[0].size();
  uint64_t at = 0, value = 0;
  for (size_t p = 0; p < positions.size();) {
    const uint64_t gap = get(positions, p);
    if (gap > words - at) throw BadPatch("a run begins after the end of the result");
    at += gap;
    const uint64_t run = get(positions, p);
    if (run == 0 || run > words - at) throw BadPatch("a run is empty or ends after the end of the result");
    if (run > held - value) throw BadPatch("it has fewer values than its runs need");
    for (uint64_t end = at + run; at < end; ++at, ++value) {
      T z = 0;
      for (size_t b = 0; b < sizeof(T); ++b) z = static_cast<T>(z | static_cast<T>(T{planes[b][value]} << (8 * b)));
      const uint64_t byte = at * sizeof(T);
      const T now = static_cast<T>(load<T>(result.data(), byte, result.size()) + unzigzag(z));
      std::memcpy(result.data() + byte, &now, std::min<uint64_t>(sizeof(T), result.size() - byte));
    }
  }
  if (value != held) throw BadPatch("it has more values than its runs need");
}

template <class F>
void by_word(unsigned word, F f) {
  if (word == 1) return f(uint8_t{});
  if (word == 2) return f(uint16_t{});
  if (word == 4) return f(uint32_t{});
  throw BadPatch("its words have " + std::to_string(word) + " bytes, expected 1, 2 or 4");
}

}  // namespace

void check_regions(uint64_t base_size, uint64_t result_size, unsigned word, std::span<const Region> regions) {
  uint64_t covered = 0;
  for (size_t n = 0; n < regions.size(); ++n) {
    const Region& r = regions[n];
    if (r.base_at > base_size || r.base_size > base_size - r.base_at) throw BadPatch("a region lies outside the base");
    if (r.size > result_size - covered) throw BadPatch("its regions are longer than the result");
    if (n + 1 < regions.size() && r.size % word != 0) throw BadPatch("a region ends within a word");
    covered += r.size;
  }
  if (covered != result_size) throw BadPatch("its regions are shorter than the result");
}

Change diff(Bytes base, Bytes result, unsigned word, std::span<const Region> regions) {
  Change out;
  by_word(word, [&](auto type) {
    check_regions(base.size(), result.size(), word, regions);
    diff_words<decltype(type)>(base, result, regions, out);
  });
  return out;
}

void apply(Bytes base, unsigned word, std::span<const Region> regions, Bytes positions, std::span<const Bytes> planes,
           std::span<uint8_t> result) {
  by_word(word, [&](auto type) {
    if (planes.size() != word) throw BadPatch("it does not have one plane for each byte of a word");
    for (const Bytes& plane : planes)
      if (plane.size() != planes[0].size()) throw BadPatch("its planes differ in length");
    check_regions(base.size(), result.size(), word, regions);
    apply_words<decltype(type)>(base, regions, positions, planes, result);
  });
}

}  // namespace cb
