// Shapes of operators for one row of a block: what core/program/kernel_shapes.h does for a chunk on the CPU.
//
// Those that use the pool are called by every thread of the block, `live` where it has a row to work on (not null, not
// behind the last); the others have nothing to say about memory and are written out by the generator.
#pragma once
#include "cuda/chunk_memory.h"
#include "operators/decimal.h"
#include "operators/json.h"
#include "operators/lists.h"
#include "operators/strings.h"
#include "operators/table_lookup.h"

namespace cb {

template <class T>
struct EntryOf {
  typedef List<T> Type;
};
template <>
struct EntryOf<char> {
  typedef Str Type;
};

// Counts a value that a cast lost at `lost`, and a null that it was given behind it.
__device__ inline void count_lost(const Slot& s, uint32_t lost, bool valid, bool kept) {
  if (!kept) warn(s, valid ? lost : lost + 1, true);
}

// Body::bound, reserve, Body::write.
template <class Body, class T, class... A>
__device__ inline typename EntryOf<T>::Type items_row(const Slot& s, uint32_t warning, const Pool& pool,
                                                      const Params& q, bool live, const A&... a) {
  typename EntryOf<T>::Type out = {nullptr, 0};
  uint32_t most = live ? Body::bound(q, a...) : 0;
  T* at = (T*)reserve(pool, (uint64_t)most * sizeof(T));
  if (at) {
    out.p = at;
    out.n = Body::write(q, at, a...);
  }
  if constexpr (requires { Body::cut(q, a...); }) warn(s, warning, live && Body::cut(q, a...));
  return out;
}

// A Map body over the elements of a list.
template <class Body, class R, class E, class... A>
__device__ inline List<R> each_row(const Pool& pool, const Params& q, bool live, List<E> list, const A&... a) {
  uint32_t n = live ? list.n : 0;
  R* at = (R*)reserve(pool, (uint64_t)n * sizeof(R));
  if (!at) return List<R>{nullptr, 0};
  for (uint32_t k = 0; k < n; ++k) at[k] = Body::apply(q, list.p[k], a...);
  return List<R>{at, n};
}

// Strings that need no change are passed on as views.
__device__ inline Str lower_row(const Slot& slot, uint32_t warning, const Pool& pool, const Params&, bool live, Str s) {
  uint32_t kept = live ? Lower::unchanged(s) : s.n;
  bool changes = live && kept < s.n;
  char* at = reserve(pool, changes ? Lower::bound(Params{}, s) : 0);
  if (!changes) return live ? s : Str{nullptr, 0};
  if (!at) return Str{nullptr, 0};
  warn(slot, warning, Lower::cut(Params{}, s));
  if (kept > Lower::kMost) kept = Lower::kMost;
  copy_bytes(at, s.p, kept);
  return Str{at, Lower::write_from(kept, at, Lower::head(s))};
}

__device__ inline Str replace_row(const Slot& slot, uint32_t warning, const Pool& pool, const Params& q, bool live,
                                  Str s) {
  bool changes = live && q.s[0].n && s.n && find_bytes(s, q.s[0], 0) < s.n;
  char* at = reserve(pool, changes ? Replace::bound(q, s) : 0);
  if (!changes) return live ? s : Str{nullptr, 0};
  warn(slot, warning, Replace::cut(q, s));
  return at ? Str{at, Replace::write(q, at, s)} : Str{nullptr, 0};
}

__device__ inline List<Str> ints_to_strs_row(const Pool& pool, bool live, List<int64_t> list) {
  uint32_t n = live ? list.n : 0;
  char* at = reserve(pool, (uint64_t)n * (sizeof(Str) + 24));
  if (!at) return List<Str>{nullptr, 0};
  Str* out = (Str*)at;
  char* bytes = at + (uint64_t)n * sizeof(Str);
  for (uint32_t k = 0; k < n; ++k, bytes += 24) out[k] = Str{bytes, write_int(list.p[k], bytes)};
  return List<Str>{out, n};
}

// Sets too long for the body's table on the stack get one in working memory.
template <class Body>
__device__ inline int64_t set_row(const Pool& scratch, bool live, List<uint64_t> a, List<uint64_t> b) {
  uint64_t values = live ? (uint64_t)a.n + b.n : 0;
  bool large = live && !is_small(a, b) && values < (1ull << 31);
  char* memory = reserve(scratch, large ? shared_bytes((uint32_t)values) : 0);
  if (!live) return 0;
  if (!large) return Body::of(shared(a, b));
  return memory ? Body::of(shared_by_table(a, b, memory)) : 0;
}

// ---- JSON: one scan, as many results as paths ----------------------------------------------------------------------

__device__ inline uint64_t json_text_bytes(const JsonSlice& v) { return v.escaped ? (v.n + 15ull) / 16 * 16 : 0; }

// Bytes that a result needs besides its entry, each part rounded up to 16.
__device__ inline uint64_t json_bytes(uint8_t kind, const JsonSlice& v) {
  if (kind == kJsonS) return json_has_text(v) ? json_text_bytes(v) : 0;
  if (v.type != kJsonArray || (kind != kJsonSs && kind != kJsonIs && kind != kJsonFs)) return 0;
  uint64_t bytes = 0, n = 0;
  const char* p = v.p + 1;
  for (JsonSlice item; json_next(&p, v.p + v.n, &item);) {
    ++n;
    if (kind == kJsonSs && json_has_text(item)) bytes += json_text_bytes(item);
  }
  return bytes + (n * (kind == kJsonSs ? sizeof(Str) : 8) + 15) / 16 * 16;
}

__device__ inline Str json_text(const JsonSlice& v, char** at) {
  if (!v.escaped) return Str{v.p, v.n};
  char* out = *at;
  *at += json_text_bytes(v);
  return Str{out, json_unescape(v, out)};
}

// True: the value converts. whole: cleared where a list leaves out an element that is not null.
__device__ inline bool json_store(const JsonSlice& v, char** at, Str* out, bool*) {
  if (!json_has_text(v)) return false;
  *out = json_text(v, at);
  return true;
}
__device__ inline bool json_store(const JsonSlice& v, char**, int64_t* out, bool*) { return json_int(v, out); }
__device__ inline bool json_store(const JsonSlice& v, char**, double* out, bool*) { return json_float(v, out); }
__device__ inline bool json_store(const JsonSlice& v, char**, uint8_t* out, bool*) { return json_bool(v, out); }

__device__ inline uint32_t json_count(const JsonSlice& v, bool texts) {
  uint32_t n = 0;
  const char* p = v.p + 1;
  for (JsonSlice item; json_next(&p, v.p + v.n, &item);) n += !texts || json_has_text(item);
  return n;
}
__device__ inline bool json_store(const JsonSlice& v, char** at, List<Str>* out, bool*) {
  if (v.type != kJsonArray) return false;
  Str* items = (Str*)*at;
  *at += (json_count(v, false) * sizeof(Str) + 15) / 16 * 16;
  uint32_t n = 0;
  const char* p = v.p + 1;
  for (JsonSlice item; json_next(&p, v.p + v.n, &item);)
    if (json_has_text(item)) items[n++] = json_text(item, at);
  *out = List<Str>{items, n};
  return true;
}
__device__ inline bool json_element(const JsonSlice& v, int64_t* out) { return json_int(v, out); }
__device__ inline bool json_element(const JsonSlice& v, double* out) { return json_float(v, out); }
template <class T>
__device__ inline bool json_store(const JsonSlice& v, char** at, List<T>* out, bool* whole) {
  if (v.type != kJsonArray) return false;
  T* items = (T*)*at;
  *at += (json_count(v, false) * 8ull + 15) / 16 * 16;
  uint32_t n = 0;
  const char* p = v.p + 1;
  for (JsonSlice item; json_next(&p, v.p + v.n, &item);) {
    const bool ok = json_element(item, items + n);
    n += ok;
    *whole &= ok || item.type == kJsonNull;
  }
  *out = List<T>{items, n};
  return true;
}

// ---- records of a joined view --------------------------------------------------------------------------------------

// Counts keys without a row at `missed`, and null keys behind it.
__device__ inline int64_t join_row(const Slot& s, uint32_t missed, const void* index, bool valid, uint64_t hash,
                                   int64_t missing) {
  uint32_t row = valid ? find_row(*(const IndexView*)index, hash) : 0xffffffffu;
  if (row == 0xffffffffu) warn(s, valid ? missed : missed + 1, true);
  return row == 0xffffffffu ? missing : (int64_t)row;
}

// The same for an as-of join; `valid`: neither the key nor the time is null.
__device__ inline int64_t join_row_as_of(const Slot& s, uint32_t missed, const void* index, bool valid, uint64_t hash,
                                         int64_t time, int64_t missing) {
  uint32_t row = valid ? find_as_of(*(const AsOfView*)index, hash, time) : 0xffffffffu;
  if (row == 0xffffffffu) warn(s, valid ? missed : missed + 1, true);
  return row == 0xffffffffu ? missing : (int64_t)row;
}

struct Inside {  // a string or list whose elements lie in the block
  uint32_t offset, count;
};

template <class T>
__device__ inline T gather_inside(const char* block, uint32_t offset) {
  Inside inside = *(const Inside*)(block + offset);
  T out;
  out.p = (decltype(out.p))(block + inside.offset);
  out.n = inside.count;
  return out;
}

}  // namespace cb
