// Decompresses LZ4 blocks and Snappy streams, the pages of Parquet column chunks (parquet_pages.h): one warp for each.
//
// All lanes of the warp read the same lengths and tokens, so control flow is the same for all of them, and they share
// the copies. CB_HOST_BLOCKS: a warp is one thread (tests on the CPU).
#pragma once
#include "cuda/raw_column.h"

namespace cb::pages {

#if defined(CB_HOST_BLOCKS)
#define CB_UNROLL
constexpr uint32_t kLanes = 1;
inline uint32_t lane() { return 0; }
inline void meet() {}
inline uint32_t lanes_with(bool chosen) { return chosen; }
inline uint32_t lanes_before(uint32_t) { return 0; }
inline uint32_t chosen_count(uint32_t mask) { return mask; }
inline uint32_t sum_of(uint32_t value) { return value; }
#else
#define CB_UNROLL _Pragma("unroll")
constexpr uint32_t kLanes = 32;
__device__ inline uint32_t lane() { return threadIdx.x & 31; }
__device__ inline void meet() { __syncwarp(); }
__device__ inline uint32_t lanes_with(bool chosen) { return __ballot_sync(0xffffffffu, chosen); }
__device__ inline uint32_t lanes_before(uint32_t mask) { return __popc(mask & ((1u << lane()) - 1)); }
__device__ inline uint32_t chosen_count(uint32_t mask) { return __popc(mask); }
__device__ inline uint32_t sum_of(uint32_t value) {
  for (uint32_t step = 16; step; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}
#endif

// ---- bytes, by all lanes
// ----------------------------------------------------------------------------------------------

// Copies bytes between places that do not overlap.
__device__ inline void copy_apart(uint8_t* to, const uint8_t* from, uint64_t n) {
  if (n <= 2 * 32) {
    for (uint64_t k = lane(); k < n; k += kLanes) to[k] = from[k];
    return;
  }
  const uint64_t head = (0 - (uint64_t)to) & 7, words = (n - head) / 8;
  for (uint64_t k = lane(); k < head; k += kLanes) to[k] = from[k];
  uint64_t* out = (uint64_t*)(to + head);
  const char* in = (const char*)(from + head);
  uint64_t w = lane();
  for (; w + 3 * kLanes < words; w += 4 * kLanes) {
    const uint64_t a = load64(in + 8 * w), b = load64(in + 8 * (w + kLanes));
    const uint64_t c = load64(in + 8 * (w + 2 * kLanes)), d = load64(in + 8 * (w + 3 * kLanes));
    out[w] = a;
    out[w + kLanes] = b;
    out[w + 2 * kLanes] = c;
    out[w + 3 * kLanes] = d;
  }
  for (; w < words; w += kLanes) out[w] = load64(in + 8 * w);
  for (uint64_t k = head + 8 * words + lane(); k < n; k += kLanes) to[k] = from[k];
}

// Moves `at` behind a number of at most 32 bits in groups of seven, lowest first.
__device__ inline bool read_number(const uint8_t*& at, const uint8_t* end, uint64_t& value) {
  value = 0;
  for (uint32_t shift = 0; shift < 32; shift += 7) {
    if (at == end) return false;
    const uint8_t byte = *at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value >> 32 == 0;
  }
  return false;
}

// ---- compression
// ------------------------------------------------------------------------------------------------------
//
// Tokens have to be read one after the other, but they do not depend on the output. So a warp first reads the tokens of
// up to kBatch sequences, literals followed by a match, and then all its lanes write the bytes of the batch. Each byte
// looks for its own source: a match that begins in bytes of the same batch is followed to the sequence that makes them,
// which is an earlier one.

constexpr uint32_t kBatch = 32;          // sequences
constexpr uint32_t kBatchBytes = 4096;   // of output, after which a batch ends early
constexpr uint32_t kStep = 512;          // bytes of input that are fetched at a time, 16 a lane
constexpr uint32_t kAhead = 2 * kStep;   // room for them
constexpr uint32_t kMostLiterals = 256;  // of a sequence; more are copied at once
constexpr uint32_t kUnrolled = 4;        // bytes that a lane looks for at a time

// The sequences of a batch; `begin` counts from the batch's first byte and ascends.
struct Batch {
  uint32_t begin[kBatch], from[kBatch], literals[kBatch], back[kBatch];
};

struct Scratch {
  Batch* batch;
  uint8_t* ahead;  // kAhead bytes, 16-byte aligned
};

// The input of a decompressor. Bytes are read at places that only grow; reach(end) comes before byte(place < end), and
// `end` is at most kMostLiterals + 32 bytes behind the first place that is still read. At most 24 bytes behind the
// input are fetched.
class Input {
 public:
  const uint8_t* const from;
  const uint32_t size;

  __device__ Input(const uint8_t* in, uint32_t n, const Scratch& scratch) : from(in), size(n), ahead_(scratch.ahead) {
    fetch();
  }
#if defined(CB_HOST_BLOCKS)
  __device__ void reach(uint32_t) {}
  __device__ void skip_to(uint32_t) {}
  __device__ uint8_t byte(uint32_t place) const { return from[place]; }

 private:
  __device__ void fetch() {}
  uint8_t* ahead_;
#else
  __device__ void reach(uint32_t end) {
    const uint32_t most = end < size ? end : size;
    while (there_ < most) {
      meet();  // nobody reads what is about to go
      uint64_t* const to = (uint64_t*)(ahead_ + there_ % kAhead) + 2 * lane();
      to[0] = low_;
      to[1] = high_;
      there_ += kStep;
      meet();
      fetch();
    }
  }
  // Skip to `place`; the bytes before it are not read again.
  __device__ void skip_to(uint32_t place) {
    if (place < there_) return;
    there_ = place / kStep * kStep;
    fetch();
  }
  __device__ uint8_t byte(uint32_t place) const { return ahead_[place % kAhead]; }

 private:
  // The next step is on its way while the one before it is used.
  __device__ void fetch() {
    const uint32_t at = there_ + 16 * lane();
    if (at >= size) return;
    low_ = load64((const char*)from + at);
    high_ = load64((const char*)from + at + 8);
  }
  uint8_t* ahead_;
  uint32_t there_ = 0;
  uint64_t low_ = 0, high_ = 0;
#endif
};

// The output of a decompressor, a batch of sequences at a time.
class Output {
 public:
  __device__ Output(uint8_t* to, const uint8_t* in, const Scratch& scratch)
      : out_(to), in_(in), batch_(*scratch.batch) {}

  uint32_t at = 0;  // bytes so far, with those of the batch

  // `literals` bytes from place `from` of the input on, where that many are; then `n` bytes from `back` bytes before, a
  // repeated pattern where n > back. 0 < back <= the place of the match, unless n is 0.
  __device__ void sequence(uint32_t from, uint32_t literals, uint32_t back, uint32_t n) {
    if (literals > kMostLiterals) {
      write();
      copy_apart(out_ + at, in_ + from, literals);
      at += literals;
      begun_ = at;
      literals = 0;
    }
    if (literals == 0 && n == 0) return;
    if (lane() == 0) {
      batch_.begin[count_] = at - begun_;
      batch_.from[count_] = from;
      batch_.literals[count_] = literals;
      batch_.back[count_] = back;
    }
    ++count_;
    at += literals + n;
    if (count_ == kBatch || at - begun_ >= kBatchBytes) write();
  }

  // Writes what is left of a batch.
  __device__ void write() {
    if (!count_) return;
    meet();  // the batch, and bytes that other lanes have written, can be read
    const uint32_t size = at - begun_;
    for (uint32_t first = lane(); first < size; first += kUnrolled * kLanes) {
      uint32_t place[kUnrolled];
      const uint8_t* source[kUnrolled];
      CB_UNROLL
      for (uint32_t u = 0; u < kUnrolled; ++u) {
        const uint32_t wanted = first + u * kLanes;
        place[u] = wanted < size ? wanted : size - 1;
      }
      CB_UNROLL
      for (uint32_t u = 0; u < kUnrolled; ++u) source[u] = source_of(place[u]);
      CB_UNROLL
      for (uint32_t u = 0; u < kUnrolled; ++u)
        while (!source[u]) source[u] = source_of(place[u]);
      uint8_t byte[kUnrolled];
      CB_UNROLL
      for (uint32_t u = 0; u < kUnrolled; ++u) byte[u] = *source[u];
      CB_UNROLL
      for (uint32_t u = 0; u < kUnrolled; ++u) {
        const uint32_t wanted = first + u * kLanes;
        if (wanted < size) out_[begun_ + wanted] = byte[u];
      }
    }
    count_ = 0;
    begun_ = at;
    meet();  // nobody reads the batch any more
  }

 private:
  // Where the byte at `place` of the batch comes from; nullptr: from an earlier place of the batch, which `place`
  // becomes.
  __device__ const uint8_t* source_of(uint32_t& place) const {
    uint32_t s = 0;
    CB_UNROLL
    for (uint32_t step = kBatch / 2; step; step /= 2)
      if (s + step < count_ && batch_.begin[s + step] <= place) s += step;
    const uint32_t literals = batch_.literals[s], match = batch_.begin[s] + literals, back = batch_.back[s];
    if (place < match) return in_ + batch_.from[s] + (literals - (match - place));
    uint32_t k = place - match;
    if (k >= back) k %= back;
    place = match + k - back;
    return match + k < back ? out_ + (uint32_t)(begun_ + place) : nullptr;
  }

  uint8_t* const out_;
  const uint8_t* const in_;
  Batch& batch_;
  uint32_t begun_ = 0;  // where the batch begins
  uint32_t count_ = 0;  // sequences of the batch
};

// A length that does not fit into its half of the token; see core/parquet/lz4.h.
__device__ inline bool lz4_length(Input& in, uint32_t& at, uint32_t most, uint32_t& length) {
  for (;;) {
    if (at == in.size) return false;
    in.reach(at + 1);
    const uint8_t byte = in.byte(at++);
    length += byte;
    if (length > most) return false;
    if (byte != 255) return true;
  }
}

// Whether the input is one whole LZ4 block of exactly `size` bytes. Sizes are below 2^31.
__device__ inline bool lz4_block(Input& in, Output& out, uint32_t size) {
  uint32_t at = 0;
  while (at < in.size) {
    in.reach(at + 20);  // a token, literals that it counts itself, an offset
    const uint8_t token = in.byte(at++);
    uint32_t literals = token >> 4, length = token & 15;
    const uint32_t room = size - out.at;
    if (literals == 15 && !lz4_length(in, at, room, literals)) return false;
    if (literals > room || literals > in.size - at) return false;
    const uint32_t from = at;
    at += literals;
    if (at == in.size) {
      out.sequence(from, literals, 0, 0);
      out.write();
      return out.at == size;
    }
    if (in.size - at < 2) return false;
    if (literals > kMostLiterals) in.skip_to(at);
    in.reach(at + 2);
    const uint32_t back = (uint32_t)in.byte(at) | (uint32_t)in.byte(at + 1) << 8, still = room - literals;
    at += 2;
    if (length == 15 && !lz4_length(in, at, still, length)) return false;
    length += 4;
    if (length > still || back == 0 || back > out.at + literals) return false;
    out.sequence(from, literals, back, length);
  }
  return false;  // a block ends with literals
}

__device__ inline uint64_t little(const uint8_t* p, uint32_t bytes) {
  uint64_t value = 0;
  for (uint32_t k = 0; k < bytes; ++k) value |= (uint64_t)p[k] << (8 * k);
  return value;
}

// Whether the input is one whole Snappy stream of exactly `size` bytes; see core/parquet/snappy.h.
__device__ inline bool snappy_stream(Input& in, Output& out, uint32_t size) {
  const uint8_t* behind = in.from;
  uint64_t told = 0;
  if (!read_number(behind, in.from + in.size, told) || told != size) return false;
  uint32_t at = (uint32_t)(behind - in.from);
  while (at < in.size) {
    in.reach(at + 8);  // a tag and what belongs to it
    const uint8_t tag = in.byte(at++);
    const uint32_t left = in.size - at, room = size - out.at;
    const uint32_t bytes = (tag & 3) == 3 ? 4 : (tag & 3) ? tag & 3 : (tag >> 2) >= 60 ? (tag >> 2) - 59 : 0;
    if (left < bytes) return false;
    uint32_t number = 0;
    for (uint32_t k = 0; k < bytes; ++k) number |= (uint32_t)in.byte(at + k) << (8 * k);
    at += bytes;
    if ((tag & 3) == 0) {
      const uint64_t length = bytes ? (uint64_t)number + 1 : (tag >> 2) + 1ull;
      if (length > room || length > left - bytes) return false;
      out.sequence(at, (uint32_t)length, 0, 0);
      at += (uint32_t)length;
      if (length > kMostLiterals) in.skip_to(at);
      continue;
    }
    uint32_t length = (tag >> 2) + 1u;
    if (bytes == 1) {
      number |= (uint32_t)(tag >> 5) << 8;
      length = ((tag >> 2) & 7) + 4u;
    }
    if (length > room || number == 0 || number > out.at) return false;
    out.sequence(at, 0, number, length);
  }
  out.write();
  return out.at == size;
}

}  // namespace cb::pages
