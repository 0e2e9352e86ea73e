// Levenshtein distance over code points, up to a limit, in a working row on the stack.
//
// Cells further than `limit` from the diagonal cannot be part of a path of at most `limit` edits, so a row of
// the matrix is a band of 2·limit + 1 cells (Ukkonen 1985). Time: limit × length of the shorter string;
// memory: 1.2 kB. Limits above kMostEdits are refused when the plan is built; here they are lowered to it.
#pragma once
#include "operators/unicode.h"

namespace cb {

constexpr uint32_t kMostEdits = 64;

// Distance of a and b, limit + 1 where it is larger.
CB_BODY uint32_t edit_distance(Str a, Str b, uint32_t limit) {
  const char *p = a.p, *p_end = a.p + a.n, *q = b.p, *q_end = b.p + b.n;

  // Equal ends cost nothing and are most of what near-duplicates consist of. Cut whole units only.
  while (p_end - p >= 8 && q_end - q >= 8) {
    uint64_t w = load64(p);
    if (w != load64(q) || (w & kHighs)) break;
    p += 8;
    q += 8;
  }
  while (p < p_end && q < q_end) {
    Unit x = decode_unit(p, p_end), y = decode_unit(q, q_end);
    if (x.code != y.code) break;
    p += x.n;
    q += y.n;
  }
  while (p < p_end && q < q_end) {
    uint32_t x = unit_length_before(p, p_end), y = unit_length_before(q, q_end);
    if (x != y || !same(Str{p_end - x, x}, Str{q_end - y, y})) break;
    p_end -= x;
    q_end -= y;
  }
  uint32_t m = count_units(Str{p, (uint32_t)(p_end - p)});
  uint32_t n = count_units(Str{q, (uint32_t)(q_end - q)});
  if (m > n) {  // rows are units of the shorter string
    const char* c = p;
    p = q, q = c;
    c = p_end, p_end = q_end, q_end = c;
    uint32_t t = m;
    m = n, n = t;
  }
  if (n - m > limit) return limit + 1;
  if (m == 0) return n;
  if (limit > n) limit = n;  // the distance is at most n

  // Column j of row i lies at band[j - i + limit]. Column j's unit is kept in a ring, a power of two above
  // the band.
  constexpr uint32_t kRing = 256;
  static_assert(2 * kMostEdits + 1 <= kRing, "the band must fit the ring");
  uint32_t ring[kRing];
  uint8_t band[2 * kMostEdits + 2];
  const uint32_t width = 2 * limit + 1, far = limit + 1;
  for (uint32_t t = 0; t < width; ++t) band[t] = (uint8_t)(t < limit || t - limit > n ? far : t - limit);
  band[width] = (uint8_t)far;

  uint32_t read = 0;  // units of q in the ring so far; column j (from 1) is ring[(j - 1) % kRing]
  for (uint32_t i = 1; i <= m; ++i) {
    Unit x = decode_unit(p, p_end);
    p += x.n;
    uint32_t last = n < i + limit ? n : i + limit;
    for (; read < last; ++read) {
      Unit y = decode_unit(q, q_end);
      q += y.n;
      ring[read % kRing] = y.code;
    }
    uint32_t left = far, least = far;
    uint32_t j = i > limit ? i - limit : 0;
    for (uint32_t t = j + limit - i; t < width; ++t, ++j) {
      uint32_t cell = far;
      if (j == 0) {
        cell = i < far ? i : far;
      } else if (j <= n) {
        cell = band[t] + (ring[(j - 1) % kRing] != x.code);
        if (left + 1 < cell) cell = left + 1;
        if (band[t + 1] + 1u < cell) cell = band[t + 1] + 1u;
        if (cell > far) cell = far;
      }
      band[t] = (uint8_t)cell;
      left = cell;
      if (cell < least) least = cell;
    }
    if (least == far) return far;
  }
  return band[n - m + limit];
}

// i[0]: the limit.
struct EditDistance {
  CB_BODY static int64_t apply(const Params& q, Str a, Str b) {
    int64_t limit = q.i[0]<0 ? 0 : q.i[0]>(int64_t) kMostEdits ? (int64_t)kMostEdits : q.i[0];
    return edit_distance(a, b, (uint32_t)limit);
  }
};

}  // namespace cb
