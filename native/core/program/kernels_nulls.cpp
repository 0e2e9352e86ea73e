// What reads or chooses validity: fill, is_null, select. They move entries and know nothing of their kind but
// the width.
#include <algorithm>

#include "core/program/kernel_shapes.h"

namespace cb {

namespace {

struct Wide {  // a string's or a list's entry
  const void* p;
  uint64_t n;
};
static_assert(sizeof(Wide) == sizeof(Str) && sizeof(Wide) == sizeof(List<double>));

// First where valid, else second. Null only where both are.
template <class T>
void fill(Run& run, const Params&, const Column* in, Column* out) {
  const T* a = entries<T>(in[0]);
  const T* b = entries<T>(in[1]);
  T* __restrict to = static_cast<T*>(out->data);
  const uint8_t* has = in[0].valid;
  if (!has) {
    std::copy_n(a, run.rows, to);
    if (out->valid) std::memset(out->valid, 1, run.rows);
    return;
  }
  for (uint32_t r = 0; r < run.rows; ++r) to[r] = has[r] ? a[r] : b[r];
  if (!out->valid) return;
  for (uint32_t r = 0; r < run.rows; ++r) out->valid[r] = has[r] | (in[1].valid ? in[1].valid[r] : 1);
}

// Entry and validity of the first branch where the condition is true, of the second where it is false or
// null.
template <class T>
void select(Run& run, const Params&, const Column* in, Column* out) {
  const uint8_t* when = entries<uint8_t>(in[0]);  // 0 where null
  const T* a = entries<T>(in[1]);
  const T* b = entries<T>(in[2]);
  T* __restrict to = static_cast<T*>(out->data);
  for (uint32_t r = 0; r < run.rows; ++r) to[r] = when[r] ? a[r] : b[r];
  if (!out->valid) return;
  for (uint32_t r = 0; r < run.rows; ++r) {
    const uint8_t* valid = in[when[r] ? 1 : 2].valid;
    out->valid[r] = valid ? valid[r] : 1;
  }
}

void is_null(Run& run, const Params&, const Column* in, Column* out) {
  uint8_t* to = static_cast<uint8_t*>(out->data);
  for (uint32_t r = 0; r < run.rows; ++r) to[r] = in[0].valid ? in[0].valid[r] ^ 1 : 0;
  if (out->valid) std::memset(out->valid, 1, run.rows);
}

template <class T>
void add_kind(Lines& nulls, const std::string& kind) {
  nulls.add("fill", kind + "," + kind, kind, special("fill", fill<T>));
  nulls.add("select", "b," + kind + "," + kind, kind, special("select", select<T>));
  nulls.add("is_null", kind, "b", special("is_null", is_null));
}

}  // namespace

void add_nulls(Catalogue& c) {
  Lines nulls(c, "types.h");
  add_kind<uint8_t>(nulls, "b");
  for (const char* kind : {"i", "f", "t", "k"}) add_kind<uint64_t>(nulls, kind);
  for (const char* kind : {"s", "*b", "*i", "*f", "*t", "*s", "*k"}) add_kind<Wide>(nulls, kind);
}

}  // namespace cb
