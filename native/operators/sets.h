// Membership in a set and the bucket of a number. The tables are built by core/program/operator_tables.h and never
// change.
//
// Sets of up to kLinear members are compared one by one; larger ones are open addressing, at most half full,
// linear probing.
#pragma once
#include "operators/hash.h"
#include "operators/numbers.h"

namespace cb {

const uint32_t kLinear = 8;

// slots: the members themselves where n ≤ kLinear, else mask + 1 slots. `empty` is a value that is no member.
struct IntSetView {
  const int64_t* slots;
  uint32_t n;
  uint32_t mask;
  int64_t empty;
};

struct StrSlot {
  uint64_t hash;  // 0: empty slot; members' hashes are made odd
  uint32_t at;    // into bytes
  uint32_t n;
};

struct StrSetView {
  const StrSlot* slots;
  const char* bytes;
  uint32_t n;
  uint32_t mask;
};

struct BoundariesView {
  const double* p;  // ascending
  uint32_t n;
};

CB_BODY bool in_ints(const IntSetView& set, int64_t x) {
  if (set.n <= kLinear) {
    bool found = false;
    for (uint32_t k = 0; k < set.n; ++k) found |= set.slots[k] == x;
    return found;
  }
  for (uint32_t at = (uint32_t)hash_int(x) & set.mask;; at = (at + 1) & set.mask) {
    int64_t member = set.slots[at];
    if (member == set.empty) return false;
    if (member == x) return true;
  }
}

CB_BODY bool in_strs(const StrSetView& set, Str x) {
  if (set.n <= kLinear) {
    for (uint32_t k = 0; k < set.n; ++k) {
      StrSlot s = set.slots[k];
      if (s.n == x.n && same(Str{set.bytes + s.at, s.n}, x)) return true;
    }
    return false;
  }
  uint64_t hash = hash_str(x) | 1;
  for (uint32_t at = (uint32_t)(hash >> 32) & set.mask;; at = (at + 1) & set.mask) {
    StrSlot s = set.slots[at];
    if (s.hash == 0) return false;
    if (s.hash == hash && s.n == x.n && same(Str{set.bytes + s.at, s.n}, x)) return true;
  }
}

// Floats are looked up by their bits, −0.0 as 0.0. NaN is in no set.
CB_BODY int64_t float_member(double x) { return (int64_t)bits_of(x == 0.0 ? 0.0 : x); }

// How many boundaries are ≤ x; NaN goes last. The halves are taken by arithmetic, not by a branch that nobody
// can predict.
CB_BODY uint32_t bucket_of(const BoundariesView& b, double x) {
  uint32_t base = 0, left = b.n;
  while (left > 0) {
    uint32_t half = (left + 1) >> 1;
    uint32_t above = x < b.p[base + half - 1];
    base += half & (above - 1);
    left -= half;
  }
  return base;
}

// ---- bodies: table is the view
// ----------------------------------------------------------------------------------

struct IntIsIn {
  CB_BODY static uint8_t apply(const Params& q, int64_t x) { return in_ints(*(const IntSetView*)q.table, x); }
};
struct FloatIsIn {
  CB_BODY static uint8_t apply(const Params& q, double x) {
    return in_ints(*(const IntSetView*)q.table, float_member(x));
  }
};
struct StrIsIn {
  CB_BODY static uint8_t apply(const Params& q, Str x) { return in_strs(*(const StrSetView*)q.table, x); }
};
struct Bucketize {
  CB_BODY static int64_t apply(const Params& q, double x) { return bucket_of(*(const BoundariesView*)q.table, x); }
};

}  // namespace cb
