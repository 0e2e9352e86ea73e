// Hashes values to 64-bit keys.
//
//   hash(value)   bytes and kind → 64 bits; 5, 5.0-as-time and "5" all differ
//   fold(a, b)    an ordered pair of hashes → one hash (crosses, n-grams)
//   key(h, salt)  a hash in a field → the key; salt is hash(field name)
//
// Integers and times go through bijections only (finish, xor), so two integers of one field never collide. Strings
// collide with probability 2^-64 a pair. Key 0 is the embedders' null slot and is never produced. The functions are
// part of the file format: models carry keys. Changing one bit means a new format version.
#pragma once
#include "operators/types.h"

namespace cb {

CB_BODY uint64_t finish(uint64_t x) {
  x ^= x >> 32;
  x *= 0xe9846af9b1a615dull;
  x ^= x >> 32;
  x *= 0xe9846af9b1a615dull;
  x ^= x >> 28;
  return x;
}

CB_BODY uint64_t multiply_fold(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 Wide;
  Wide r = (Wide)a * b;
  return (uint64_t)r ^ (uint64_t)(r >> 64);
#endif
}

CB_BODY uint64_t hash_int(int64_t v) { return finish((uint64_t)v ^ 0x2545f4914f6cdd1dull); }
CB_BODY uint64_t hash_time(int64_t v) { return finish((uint64_t)v ^ 0x9fb21c651e98df25ull); }
CB_BODY uint64_t hash_bool(uint8_t v) { return finish((uint64_t)(v != 0) ^ 0xd6e8feb86659fd93ull); }

// Short strings (up to 16 bytes, most tokens) take two overlapping loads and two multiplications.
CB_BODY uint64_t hash_bytes(const char* p, uint32_t n) {
  const uint64_t k0 = 0xa0761d6478bd642full, k1 = 0xe7037ed1a0b428dbull, k2 = 0x8ebc6af09c88c6e3ull;
  uint64_t a, b, seed = k2;
  if (n <= 16) {
    if (n >= 8) {
      a = load64(p);
      b = load64(p + n - 8);
#if defined(__CUDA_ARCH__)
    } else if (n > 0) {  // the same two numbers from the one or two words that hold all bytes
      const uint64_t v = load_words(p, n), byte = 0xff;
      a = n >= 4 ? v & 0xffffffffull : (v & byte) << 16 | (v >> (8 * (n >> 1)) & byte) << 8 | v >> (8 * (n - 1));
      b = n >= 4 ? v >> (8 * (n - 4)) : 0;
#else
    } else if (n >= 4) {
      a = load32(p);
      b = load32(p + n - 4);
    } else if (n > 0) {
      a = (uint64_t)(uint8_t)p[0] << 16 | (uint64_t)(uint8_t)p[n >> 1] << 8 | (uint8_t)p[n - 1];
      b = 0;
#endif
    } else {
      a = b = 0;
    }
  } else {
    uint32_t left = n;
    const char* q = p;
    while (left > 16) {
      seed = multiply_fold(load64(q) ^ k0, load64(q + 8) ^ seed);
      q += 16;
      left -= 16;
    }
    a = load64(q + left - 16);
    b = load64(q + left - 8);
  }
  return multiply_fold(k1 ^ n, multiply_fold(a ^ k0, b ^ seed) ^ k0);
}

CB_BODY uint64_t hash_str(Str s) { return hash_bytes(s.p, s.n); }

CB_BODY uint64_t fold(uint64_t a, uint64_t b) { return finish((a * 0x9e3779b97f4a7c15ull) ^ b); }

CB_BODY uint64_t key_of(uint64_t h, uint64_t salt) {
  uint64_t k = finish(h ^ salt);
  return k ? k : 1;
}

// ---- bodies ---------------------------------------------------------------------------------------------------

struct HashInt {
  CB_BODY static uint64_t apply(const Params&, int64_t v) { return hash_int(v); }
};
struct HashTime {
  CB_BODY static uint64_t apply(const Params&, int64_t v) { return hash_time(v); }
};
struct HashBool {
  CB_BODY static uint64_t apply(const Params&, uint8_t v) { return hash_bool(v); }
};
struct HashStr {
  CB_BODY static uint64_t apply(const Params&, Str v) { return hash_str(v); }
};

// i[0]: the field's salt.
struct Key {
  CB_BODY static uint64_t apply(const Params& q, uint64_t h) { return key_of(h, (uint64_t)q.i[0]); }
};

// Numbers that are keys already, such as materialized ones.
struct AsKey {
  CB_BODY static uint64_t apply(const Params&, int64_t v) { return (uint64_t)v; }
};

struct Cross {
  CB_BODY static uint64_t apply(const Params&, uint64_t a, uint64_t b) { return fold(a, b); }
};

// Crosses with lists: all pairs, the left member outermost. i[0]: the most keys of a row; the rest are cut and counted.
CB_BODY uint32_t capped(uint64_t n, const Params& q) { return (uint32_t)(n < (uint64_t)q.i[0] ? n : (uint64_t)q.i[0]); }

struct CrossListScalar {
  CB_BODY static uint32_t bound(const Params& q, List<uint64_t> a, uint64_t) { return capped(a.n, q); }
  CB_BODY static bool cut(const Params& q, List<uint64_t> a, uint64_t) { return a.n > (uint64_t)q.i[0]; }
  CB_BODY static uint32_t write(const Params& q, uint64_t* out, List<uint64_t> a, uint64_t b) {
    uint32_t n = capped(a.n, q);
    for (uint32_t k = 0; k < n; ++k) out[k] = fold(a.p[k], b);
    return n;
  }
};

struct CrossScalarList {
  CB_BODY static uint32_t bound(const Params& q, uint64_t, List<uint64_t> b) { return capped(b.n, q); }
  CB_BODY static bool cut(const Params& q, uint64_t, List<uint64_t> b) { return b.n > (uint64_t)q.i[0]; }
  CB_BODY static uint32_t write(const Params& q, uint64_t* out, uint64_t a, List<uint64_t> b) {
    uint32_t n = capped(b.n, q);
    for (uint32_t k = 0; k < n; ++k) out[k] = fold(a, b.p[k]);
    return n;
  }
};

struct CrossLists {
  CB_BODY static uint32_t bound(const Params& q, List<uint64_t> a, List<uint64_t> b) {
    return capped((uint64_t)a.n * b.n, q);
  }
  CB_BODY static bool cut(const Params& q, List<uint64_t> a, List<uint64_t> b) {
    return (uint64_t)a.n * b.n > (uint64_t)q.i[0];
  }
  CB_BODY static uint32_t write(const Params& q, uint64_t* out, List<uint64_t> a, List<uint64_t> b) {
    uint32_t limit = bound(q, a, b), n = 0;
    for (uint32_t x = 0; x < a.n && n < limit; ++x)
      for (uint32_t y = 0; y < b.n && n < limit; ++y) out[n++] = fold(a.p[x], b.p[y]);
    return n;
  }
};

}  // namespace cb
