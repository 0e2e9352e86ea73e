// List operators: {pointer, count} in, {pointer, count} out. first and last are views.
//
// Equal elements are found by open addressing with linear probing. Up to kSmall elements the table has a byte
// a slot, is at most a quarter full and lies on the stack. Longer lists use memory the caller gives, at most
// half full, so that cost stays linear in the length. Two lists of kTiny elements together are compared pair
// by pair: at 8 + 8 elements that takes two thirds of the table's time, at 16 + 16 as much.
#pragma once
#include "operators/hash.h"
#include "operators/unicode.h"

namespace cb {

CB_BODY bool equal(int64_t a, int64_t b) { return a == b; }
CB_BODY bool equal(uint64_t a, uint64_t b) { return a == b; }
CB_BODY bool equal(Str a, Str b) { return same(a, b); }

// Its high bits are good, and a table uses those.
CB_BODY uint64_t slot_hash(uint64_t x) { return x * 0x9e3779b97f4a7c15ull; }
CB_BODY uint64_t slot_hash(int64_t x) { return slot_hash((uint64_t)x); }
CB_BODY uint64_t slot_hash(Str s) { return hash_str(s); }

// For small tables, where a poor spread costs a few comparisons: cheaper than hashing every byte.
CB_BODY uint64_t rough_hash(uint64_t x) { return slot_hash(x); }
CB_BODY uint64_t rough_hash(int64_t x) { return slot_hash(x); }
CB_BODY uint64_t rough_hash(Str s) {
  uint64_t x = s.n >= 8 ? load64(s.p) * 31 + load64(s.p + s.n - 8) : load_short(s.p, s.n);
  return slot_hash(x ^ s.n);
}

constexpr uint32_t kTiny = 20, kSmall = 64;

// A table of positions for up to 2 × kSmall values. slots: 1 + position; 0: empty.
struct SmallTable {
  alignas(8) uint8_t slots[8 * kSmall];  // cleared eight at a time
  uint32_t shift, mask;

  CB_BODY explicit SmallTable(uint32_t values) {
    uint32_t bits = 5;
    while ((1u << bits) < 4 * values) ++bits;
    shift = 64 - bits;
    mask = (1u << bits) - 1;
    for (uint32_t k = 0; k <= mask; k += 8) store64((char*)slots + k, 0);
  }
};

// The power of two that holds n values at most half full, as an exponent. n < 2^31.
CB_BODY uint32_t slot_bits(uint32_t n) {
  uint32_t bits = 6;
  while ((1ull << bits) < 2ull * n) ++bits;
  return bits;
}

// ---- parts ----------------------------------------------------------------------------------------------

template <class T>
struct ListLength {
  CB_BODY static int64_t apply(const Params&, List<T> a) { return a.n; }
};

// i[0]: how many; below zero as zero.
template <class T>
struct First {
  CB_BODY static List<T> apply(const Params& q, List<T> a) {
    if (q.i[0] <= 0) return List<T>{a.p, 0};
    return List<T>{a.p, (uint64_t)q.i[0] < a.n ? (uint32_t)q.i[0] : a.n};
  }
};
template <class T>
struct Last {
  CB_BODY static List<T> apply(const Params& q, List<T> a) {
    uint32_t n = First<T>::apply(q, a).n;
    return List<T>{a.p + (a.n - n), n};
  }
};

// i[0]: the index, below zero from the end; null out of range.
template <class T>
struct Get {
  CB_BODY static bool apply(const Params& q, T* out, List<T> a) {
    int64_t at = q.i[0] < 0 ? q.i[0] + (int64_t)a.n : q.i[0];
    if (at < 0 || at >= (int64_t)a.n) return false;
    *out = a.p[at];
    return true;
  }
};

// s[0]: the separator. At most 4 GiB; a longer result ends after the last whole part and is counted.
struct Join {
  CB_BODY static uint64_t length(const Params& q, List<Str> a) {
    uint64_t n = a.n ? (uint64_t)(a.n - 1) * q.s[0].n : 0;
    for (uint32_t k = 0; k < a.n; ++k) n += a.p[k].n;
    return n;
  }
  CB_BODY static uint32_t bound(const Params& q, List<Str> a) {
    uint64_t n = length(q, a);
    return (uint32_t)(n < 0xffffffffull ? n : 0xffffffffull);
  }
  CB_BODY static bool cut(const Params& q, List<Str> a) { return length(q, a) > 0xffffffffull; }
  CB_BODY static uint32_t write(const Params& q, char* out, List<Str> a) {
    uint64_t o = 0;
    for (uint32_t k = 0; k < a.n; ++k) {
      uint32_t between_n = k ? q.s[0].n : 0;
      if (o + between_n + a.p[k].n > 0xffffffffull) break;
      copy_bytes(out + o, q.s[0].p, between_n);
      o += between_n;
      copy_bytes(out + o, a.p[k].p, a.p[k].n);
      o += a.p[k].n;
    }
    return (uint32_t)o;
  }
};

// ---- distinct -------------------------------------------------------------------------------------------

// The first of equal elements stays, in order. Long lists keep a table of positions behind the results, in
// the same reservation. A row has at most kMost elements; what lies behind is cut and counted.
template <class T>
struct Distinct {
  static constexpr uint32_t kMost = 0x7fffffffu;

  CB_BODY static uint32_t table_items(uint32_t n) {
    return n <= kSmall ? 0 : (uint32_t)((sizeof(uint32_t) << slot_bits(n)) / sizeof(T));
  }
  CB_BODY static uint32_t size(List<T> a) { return a.n < kMost ? a.n : kMost; }
  CB_BODY static uint32_t bound(const Params&, List<T> a) { return size(a) + table_items(size(a)); }
  CB_BODY static bool cut(const Params&, List<T> a) { return a.n > kMost; }

  CB_BODY static uint32_t write(const Params&, T* out, List<T> a) {
    uint32_t n = size(a);
    if (n < 2) {
      if (n) out[0] = a.p[0];
      return n;
    }
    return n <= kSmall ? write_small(out, a.p, n) : write_long(out, a.p, n);
  }

  CB_BODY static uint32_t write_small(T* out, const T* p, uint32_t n) {
    SmallTable table(n);
    uint32_t kept = 0;
    for (uint32_t k = 0; k < n; ++k) {
      T x = p[k];
      uint32_t at = (uint32_t)(rough_hash(x) >> table.shift);
      while (table.slots[at] && !equal(out[table.slots[at] - 1], x)) at = (at + 1) & table.mask;
      if (table.slots[at]) continue;
      out[kept++] = x;
      table.slots[at] = (uint8_t)kept;
    }
    return kept;
  }

  CB_BODY static uint32_t write_long(T* out, const T* p, uint32_t n) {
    uint32_t* slots = (uint32_t*)(out + n);  // 1 + position in out; 0: empty
    const uint32_t bits = slot_bits(n), shift = 64 - bits;
    const uint64_t mask = (1ull << bits) - 1;
    for (uint64_t k = 0; k <= mask; ++k) slots[k] = 0;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < n; ++k) {
      T x = p[k];
      uint64_t at = slot_hash(x) >> shift;
      while (slots[at] && !equal(out[slots[at] - 1], x)) at = (at + 1) & mask;
      if (slots[at]) continue;
      out[kept++] = x;
      slots[at] = kept;
    }
    return kept;
  }
};

// A list of bools has two distinct values at most.
struct DistinctBool {
  CB_BODY static uint32_t bound(const Params&, List<uint8_t> a) { return a.n < 2 ? a.n : 2; }
  CB_BODY static uint32_t write(const Params&, uint8_t* out, List<uint8_t> a) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < a.n && kept < 2; ++k)
      if (kept == 0 || (a.p[k] != 0) != (out[0] != 0)) out[kept++] = a.p[k] != 0;
    return kept;
  }
};

// i[0] = n: the fold of each n consecutive hashes, left to right; none where the list is shorter.
struct ListNgrams {
  CB_BODY static uint32_t bound(const Params& q, List<uint64_t> a) {
    return q.i[0] < 1 || (uint64_t)q.i[0] > a.n ? 0 : a.n - (uint32_t)q.i[0] + 1;
  }
  CB_BODY static uint32_t write(const Params& q, uint64_t* out, List<uint64_t> a) {
    uint32_t grams = bound(q, a);
    for (uint32_t k = 0; k < grams; ++k) {
      uint64_t h = a.p[k];
      for (uint32_t j = 1; j < (uint32_t)q.i[0]; ++j) h = fold(h, a.p[k + j]);
      out[k] = h;
    }
    return grams;
  }
};

// ---- overlap of two lists of hashes ---------------------------------------------------------------------

struct Shared {
  uint32_t both, either;  // distinct values in both lists, in at least one
};

CB_BODY bool holds(const uint64_t* p, uint32_t n, uint64_t x) {
  for (uint32_t k = 0; k < n; ++k)
    if (p[k] == x) return true;
  return false;
}

// The same without a branch on the values.
CB_BODY uint32_t holds_steadily(const uint64_t* p, uint32_t n, uint64_t x) {
  uint32_t found = 0;
  for (uint32_t k = 0; k < n; ++k) found |= p[k] == x;
  return found;
}

// All pairs, (a.n + b.n)² / 2 comparisons.
CB_BODY Shared shared_tiny(List<uint64_t> a, List<uint64_t> b) {
  Shared s = {0, 0};
  for (uint32_t k = 0; k < a.n; ++k) {
    uint32_t fresh = 1 ^ holds_steadily(a.p, k, a.p[k]);
    s.either += fresh;
    s.both += fresh & holds_steadily(b.p, b.n, a.p[k]);
  }
  for (uint32_t k = 0; k < b.n; ++k) s.either += 1 ^ holds_steadily(b.p, k, b.p[k]);
  s.either -= s.both;
  return s;
}

// For a.n + b.n <= 2 × kSmall.
CB_BODY Shared shared_small(List<uint64_t> a, List<uint64_t> b) {
  Shared s = {0, 0};
  uint64_t met[2] = {0, 0};  // a bit for each value of a that b has too
  SmallTable table(a.n + b.n);
  for (uint32_t k = 0; k < a.n + b.n; ++k) {
    const bool second = k >= a.n;
    const uint64_t x = second ? b.p[k - a.n] : a.p[k];
    uint32_t at = (uint32_t)(slot_hash(x) >> table.shift), found = 0;
    for (; table.slots[at]; at = (at + 1) & table.mask) {
      found = table.slots[at] - 1u;
      if ((found < a.n ? a.p[found] : b.p[found - a.n]) == x) break;
    }
    if (!table.slots[at]) {
      table.slots[at] = (uint8_t)(k + 1);
      ++s.either;
    } else if (second && found < a.n) {
      const uint64_t bit = 1ull << (found & 63);
      s.both += !(met[found >> 6] & bit);
      met[found >> 6] |= bit;
    }
  }
  return s;
}

// By comparison, a.n × b.n steps: what there is for long lists where no memory is given, and the tables'
// twin.
CB_BODY Shared shared_by_comparison(List<uint64_t> a, List<uint64_t> b) {
  Shared s = {0, 0};
  for (uint32_t k = 0; k < a.n; ++k) {
    if (holds(a.p, k, a.p[k])) continue;
    ++s.either;
    s.both += holds(b.p, b.n, a.p[k]);
  }
  for (uint32_t k = 0; k < b.n; ++k) s.either += !holds(b.p, k, b.p[k]) && !holds(a.p, a.n, b.p[k]);
  return s;
}

// Bytes of working memory for shared_by_table, 8-byte aligned: the slots' values, then a mark for each.
CB_BODY uint64_t shared_bytes(uint32_t values) { return 9ull << slot_bits(values); }

// By table, linear in a.n + b.n, which must be below 2^31.
CB_BODY Shared shared_by_table(List<uint64_t> a, List<uint64_t> b, char* memory) {
  enum : uint8_t { kEmpty = 0, kFirst = 1, kSecond = 2, kBoth = 3 };
  const uint32_t bits = slot_bits(a.n + b.n), shift = 64 - bits;
  const uint64_t slots = 1ull << bits, mask = slots - 1;
  uint64_t* values = (uint64_t*)memory;
  uint8_t* marks = (uint8_t*)(values + slots);
  for (uint64_t k = 0; k < slots; ++k) marks[k] = kEmpty;
  Shared s = {0, 0};
  for (int side = 0; side < 2; ++side) {
    List<uint64_t> list = side ? b : a;
    for (uint32_t k = 0; k < list.n; ++k) {
      uint64_t x = list.p[k], at = slot_hash(x) >> shift;
      while (marks[at] != kEmpty && values[at] != x) at = (at + 1) & mask;
      if (marks[at] == kEmpty) {
        values[at] = x;
        marks[at] = side ? kSecond : kFirst;
        ++s.either;
      } else if (side && marks[at] == kFirst) {
        marks[at] = kBoth;
        ++s.both;
      }
    }
  }
  return s;
}

CB_BODY bool is_small(List<uint64_t> a, List<uint64_t> b) { return (uint64_t)a.n + b.n <= 2 * kSmall; }
CB_BODY Shared shared(List<uint64_t> a, List<uint64_t> b) {
  if ((uint64_t)a.n + b.n <= kTiny) return shared_tiny(a, b);
  return is_small(a, b) ? shared_small(a, b) : shared_by_comparison(a, b);
}

// Distinct values in both lists.
struct OverlapCount {
  CB_BODY static int64_t of(Shared s) { return s.both; }
  CB_BODY static int64_t apply(const Params&, List<uint64_t> a, List<uint64_t> b) {
    if ((uint64_t)a.n + b.n > kTiny) return of(shared(a, b));
    uint32_t both = 0;
    for (uint32_t k = 0; k < a.n; ++k) both += (1 ^ holds_steadily(a.p, k, a.p[k])) & holds_steadily(b.p, b.n, a.p[k]);
    return both;
  }
};

struct DistinctCount {
  CB_BODY static int64_t of(Shared s) { return s.either; }
  CB_BODY static int64_t apply(const Params&, List<uint64_t> a) {
    if (a.n > kTiny) return of(shared(a, List<uint64_t>{nullptr, 0}));
    uint32_t distinct = 0;
    for (uint32_t k = 0; k < a.n; ++k) distinct += 1 ^ holds_steadily(a.p, k, a.p[k]);
    return distinct;
  }
};

// From the sizes of two sets and of what they share. Its own operator, so that a size is counted once and, where a list
// comes from a joined view, once per row of that view.
struct Jaccard {
  CB_BODY static double apply(const Params&, int64_t both, int64_t a, int64_t b) {
    int64_t either = (int64_t)((uint64_t)a + (uint64_t)b - (uint64_t)both);
    return either ? (double)both / (double)either : 0.0;
  }
};

struct ListContains {
  CB_BODY static uint8_t apply(const Params&, List<uint64_t> a, uint64_t x) { return holds(a.p, a.n, x); }
};

// ---- numbers of a list ----------------------------------------------------------------------------------

// Wraps around, as + does.
struct SumInt {
  CB_BODY static int64_t apply(const Params&, List<int64_t> a) {
    uint64_t sum = 0;
    for (uint32_t k = 0; k < a.n; ++k) sum += (uint64_t)a.p[k];
    return (int64_t)sum;
  }
};
// Left to right, so that every machine rounds alike.
struct SumFloat {
  CB_BODY static double apply(const Params&, List<double> a) {
    double sum = 0.0;
    for (uint32_t k = 0; k < a.n; ++k) sum += a.p[k];
    return sum;
  }
};
struct Mean {
  CB_BODY static bool apply(const Params& q, double* out, List<double> a) {
    if (a.n == 0) return false;
    *out = SumFloat::apply(q, a) / (double)a.n;
    return true;
  }
};

// Empty: null. A NaN anywhere makes the result NaN; of equal zeros the first stays.
template <class T>
struct ListMax {
  CB_BODY static bool apply(const Params&, T* out, List<T> a) {
    if (a.n == 0) return false;
    T best = a.p[0];
    for (uint32_t k = 1; k < a.n && best == best; ++k)
      if (a.p[k] > best || a.p[k] != a.p[k]) best = a.p[k];
    *out = best;
    return true;
  }
};
template <class T>
struct ListMin {
  CB_BODY static bool apply(const Params&, T* out, List<T> a) {
    if (a.n == 0) return false;
    T best = a.p[0];
    for (uint32_t k = 1; k < a.n && best == best; ++k)
      if (a.p[k] < best || a.p[k] != a.p[k]) best = a.p[k];
    *out = best;
    return true;
  }
};

}  // namespace cb
