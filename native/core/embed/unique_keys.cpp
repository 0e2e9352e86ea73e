// Deduplication in three passes, each parallel, none of which leaves the second-level cache for its random accesses:
//
//   1 scatter   a chunk of references is mixed and partitioned by shard into the chunk's own area: no global counts
//   2 unique    a shard walks its segments of all chunks through a small open-addressing table and numbers keys by
//   first
//               occurrence
//   3 gather    the number of keys before each shard is known now: inverse is read back chunk by chunk
//
// The mix is a bijection, so the table compares mixed keys and only unique ones are turned back.
#include "core/embed/unique_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/system/parallel.h"

namespace cb {

namespace {

// 16,384 references: 128 KB of mixed keys, 32 KB of places. A place must fit 16 bits.
constexpr size_t kChunk = 16384;

constexpr uint64_t inverse_of(uint64_t odd) {
  uint64_t x = odd;
  for (int k = 0; k < 6; ++k) x *= 2 - odd * x;
  return x;
}

// finish(), backwards.
uint64_t unmix(uint64_t x) {
  constexpr uint64_t back = inverse_of(0xe9846af9b1a615dull);
  x ^= x >> 28 ^ x >> 56;
  x *= back;
  x ^= x >> 32;
  x *= back;
  x ^= x >> 32;
  return x;
}

struct Chunk {
  uint32_t first[kShards + 1];  // where each shard's segment begins in the chunk's area
};

// Mixed key → number of its first occurrence. Slots hold numbers, 4 bytes each: half the cache of slots that hold keys.
struct Numbers {
  std::vector<uint32_t> slots;  // number + 1; 0: free
  size_t mask = 0;

  void clear(size_t expected) {
    size_t size = std::bit_ceil(std::max<size_t>(expected * 4, 256));
    if (slots.size() < size) slots.resize(size);
    std::fill_n(slots.begin(), size, 0u);
    mask = size - 1;
  }
  void grow(const uint64_t* mixed, size_t count) {
    clear(count * 2);
    for (size_t k = 0; k < count; ++k) {
      size_t at = mixed[k] & mask;
      while (slots[at]) at = (at + 1) & mask;
      slots[at] = static_cast<uint32_t>(k + 1);
    }
  }
};

// What a thread keeps from shard to shard and batch to batch.
struct Shard {
  Numbers numbers;
  size_t expected = 0;  // keys of the shard before: shards are about equal
};

class Builder {
 public:
  Builder(Lookup& out, std::span<const FieldKeys> fields, size_t threads) : out_(out), threads_(threads) {
    total_ = out.starts.back();
    chunks_.resize((total_ + kChunk - 1) / kChunk);
    for (size_t f = 0; f < fields.size(); ++f) {
      const FieldKeys& in = fields[f];
      values_.push_back(in.values + (in.offsets ? in.offsets[0] : 0));
    }
  }

  void run() {
    mixed_.resize(total_);
    places_.resize(total_);
    unique_.resize(total_);
    out_.inverse.resize(total_ + Lookup::kPadding);
    std::fill_n(out_.inverse.data() + total_, Lookup::kPadding, 0);

    size_t threads = total_ < 2 * kChunk ? 1 : threads_;
    parallel_for(threads, chunks_.size(), [&](size_t c) { scatter(c); });
    for (size_t s = 0; s < kShards; ++s) {
      size_t size = 0;
      for (const Chunk& chunk : chunks_) size += chunk.first[s + 1] - chunk.first[s];
      out_.shard_references[s + 1] = out_.shard_references[s] + size;
    }
    parallel_for(threads, kShards, [&](size_t s) { unique(s); });
    for (size_t s = 0; s < kShards; ++s) out_.shard_keys[s + 1] = out_.shard_keys[s] + count_[s];
    out_.keys.resize(out_.shard_keys[kShards]);
    parallel_for(threads, chunks_.size() + kShards, [&](size_t k) {
      if (k < kShards) {
        settle(k);
      } else {
        gather(k - kShards);
      }
    });
  }

 private:
  void scatter(size_t c) {
    const size_t from = c * kChunk, to = std::min(total_, from + kChunk), n = to - from;
    // A vector: the address of a thread_local array is a call in a shared library, and GCC makes it anew at each use.
    thread_local std::vector<uint64_t> kept(kChunk);
    uint64_t* mixed = kept.data();
    uint64_t* to_mixed = mixed_.data() + from;
    uint32_t counts[2][kShards] = {};  // two, so that a run of one key waits less for its own counter
    size_t field = field_of(from);
    for (size_t at = from; at < to;) {
      while (at >= out_.starts[field + 1]) ++field;
      const size_t end = std::min(to, out_.starts[field + 1]), m = end - at, place = at - from;
      const int64_t* values = values_[field] + (at - out_.starts[field]);
      for (size_t k = 0; k < m; ++k) {
        // The area is cold and about to be written in 64 places at once.
        if (k % 8 == 0) __builtin_prefetch(to_mixed + place + k, 1, 2);
        const uint64_t x = mix_of(values[k]);
        mixed[place + k] = x;
        ++counts[k % 2][shard_of_mix(x)];
      }
      at = end;
    }
    Chunk& chunk = chunks_[c];
    uint32_t cursor[kShards];
    uint32_t sum = 0;
    for (size_t s = 0; s < kShards; ++s) {
      chunk.first[s] = cursor[s] = sum;
      sum += counts[0][s] + counts[1][s];
    }
    chunk.first[kShards] = sum;

    uint16_t* places = places_.data() + from;
    for (size_t k = 0; k < n; ++k) {
      const uint64_t m = mixed[k];
      const uint32_t place = cursor[shard_of_mix(m)]++;
      places[k] = static_cast<uint16_t>(place);
      to_mixed[place] = m;
    }
  }

  void unique(size_t s) {
    thread_local Shard kept;  // a reference: each use of a thread_local is a call in a shared library
    Shard& scratch = kept;
    Numbers& numbers = scratch.numbers;
    uint64_t* found = unique_.data() + out_.shard_references[s];
    uint32_t count = 0;
    numbers.clear(scratch.expected);
    for (size_t c = 0; c < chunks_.size(); ++c) {
      uint64_t* segment = mixed_.data() + c * kChunk + chunks_[c].first[s];
      const size_t n = chunks_[c].first[s + 1] - chunks_[c].first[s];
      uint32_t* slots = numbers.slots.data();
      size_t mask = numbers.mask;
      for (size_t k = 0; k < n; ++k) {
        const uint64_t m = segment[k];
        size_t at = m & mask;
        uint32_t number;
        while ((number = slots[at]) != 0 && found[number - 1] != m) at = (at + 1) & mask;
        if (number == 0) {
          found[count] = m;
          number = slots[at] = ++count;
          if (count * size_t{4} > mask + 1) {
            numbers.grow(found, count);
            slots = numbers.slots.data();
            mask = numbers.mask;
          }
        }
        segment[k] = number - 1;
      }
    }
    scratch.expected = count;
    count_[s] = count;
  }

  void settle(size_t s) {
    int64_t* keys = out_.keys.data() + out_.shard_keys[s];
    const uint64_t* found = unique_.data() + out_.shard_references[s];
    for (size_t k = 0; k < count_[s]; ++k) keys[k] = static_cast<int64_t>(unmix(found[k]));
  }

  void gather(size_t c) {
    const size_t from = c * kChunk, n = std::min(total_, from + kChunk) - from;
    thread_local std::vector<int32_t> kept(kChunk);
    int32_t* local = kept.data();
    const uint64_t* numbers = mixed_.data() + from;
    for (size_t s = 0; s < kShards; ++s) {
      const int32_t base = static_cast<int32_t>(out_.shard_keys[s]);
      const uint32_t end = chunks_[c].first[s + 1];
      for (uint32_t k = chunks_[c].first[s]; k < end; ++k) local[k] = base + static_cast<int32_t>(numbers[k]);
    }
    const uint16_t* places = places_.data() + from;
    int32_t* inverse = out_.inverse.data() + from;
    for (size_t k = 0; k < n; ++k) inverse[k] = local[places[k]];
  }

  size_t field_of(size_t reference) const {
    auto it = std::upper_bound(out_.starts.begin(), out_.starts.end(), reference);
    return static_cast<size_t>(it - out_.starts.begin()) - 1;
  }

  Lookup& out_;
  size_t threads_;
  size_t total_ = 0;
  std::vector<const int64_t*> values_;
  std::vector<Chunk> chunks_;
  size_t count_[kShards] = {};
  Buffer<uint64_t> mixed_;   // by chunk, then shard; numbers take the place of mixed keys in pass 2
  Buffer<uint16_t> places_;  // reference → place in its chunk's area
  Buffer<uint64_t> unique_;  // by shard
};

// Offsets from 0 as 32-bit numbers; nothing where each row has exactly one key.
Buffer<int32_t> rebased(const FieldKeys& in, size_t rows, size_t field) {
  auto refuse = [&](const std::string& what) {
    throw std::invalid_argument("field " + std::to_string(field) + ": " + what);
  };
  const int64_t base = in.offsets[0];
  if (base < 0) refuse("offsets begin at " + std::to_string(base) + ", below 0");
  Buffer<int32_t> out;
  out.resize(rows + 1);
  bool falls = false, single = true;
  const uint64_t zero = static_cast<uint64_t>(base);  // unsigned: offsets are not checked yet and may overflow
  for (size_t r = 0; r < rows; ++r) {
    falls |= in.offsets[r + 1] < in.offsets[r];
    single &= static_cast<uint64_t>(in.offsets[r + 1]) - zero == r + 1;
    out.data()[r] = static_cast<int32_t>(static_cast<uint64_t>(in.offsets[r]) - zero);
  }
  if (falls) refuse("offsets decrease from one row to the next");
  const int64_t last = in.offsets[rows];
  if (last > static_cast<int64_t>(in.count)) {
    refuse("offsets end at " + std::to_string(last) + ", but there are only " + std::to_string(in.count) + " values");
  }
  if (last - base > INT32_MAX) refuse("more than 2^31 - 1 references; use smaller batches");
  out.data()[rows] = static_cast<int32_t>(last - base);
  return single ? Buffer<int32_t>() : std::move(out);
}

}  // namespace

std::shared_ptr<Lookup> Lookup::of(std::span<const FieldKeys> fields, size_t rows, size_t threads) {
  auto out = std::make_shared<Lookup>();
  out->rows = rows;
  if (rows > INT32_MAX) throw std::invalid_argument("more than 2^31 - 1 rows; use smaller batches");
  out->starts.push_back(0);
  for (size_t f = 0; f < fields.size(); ++f) {
    const FieldKeys& in = fields[f];
    size_t count = rows;
    if (in.offsets) {
      out->offsets.push_back(rebased(in, rows, f));
      if (!out->single(f)) count = static_cast<size_t>(out->offsets[f].data()[rows]);
    } else {
      out->offsets.emplace_back();
      if (in.count != rows) {
        throw std::invalid_argument("field " + std::to_string(f) + ": " + std::to_string(in.count) + " values for " +
                                    std::to_string(rows) + " rows of one key");
      }
    }
    out->starts.push_back(out->starts.back() + count);
  }
  if (out->starts.back() > INT32_MAX - Lookup::kPadding) {
    throw std::invalid_argument("more than 2^31 - 1 references; use smaller batches");
  }
  Builder(*out, fields, std::max<size_t>(threads, 1)).run();
  return out;
}

}  // namespace cb
