// JSON: one kernel, as many outputs as paths. Strings without escapes stay views of the document. The kernel counts,
// for each path, the values that are not null and those among them that have another type than the result.
#include "core/program/lost_values.h"
#include "core/program/operator_tables.h"

namespace cb {

namespace {

template <class T>
T* at(const Column& c, uint32_t row) {
  return static_cast<T*>(c.data) + row;
}

Str text_of(Run& run, const JsonSlice& v) {
  if (!v.escaped) return {v.p, v.n};
  char* out = run.pool->reserve_bytes(v.n);
  uint32_t n = json_unescape(v, out);
  run.pool->commit(n);
  return {out, n};
}

// lost: the first element of another type; nulls are left out without being lost.
template <class T>
List<T> numbers_of(Run& run, const JsonSlice& array, bool (*convert)(const JsonSlice&, T*), JsonSlice* lost) {
  // An element takes at least two bytes, itself and what follows it.
  T* out = reinterpret_cast<T*>(run.pool->reserve(size_t{array.n} / 2 * sizeof(T)));
  uint32_t n = 0;
  const char* p = array.p + 1;
  for (JsonSlice item; json_next(&p, array.p + array.n, &item);) {
    if (convert(item, out + n))
      ++n;
    else if (lost->type == kJsonMissing && item.type != kJsonNull)
      *lost = item;
  }
  run.pool->commit(n * sizeof(T));
  return {out, n};
}

List<Str> texts_of(Run& run, const JsonSlice& array) {
  // Counted first: bytes of escaped elements go to the pool behind the list.
  uint32_t n = 0;
  const char* p = array.p + 1;
  for (JsonSlice item; json_next(&p, array.p + array.n, &item);) n += json_has_text(item);
  if (n == 0) return {nullptr, 0};
  Str* out = run.pool->take<Str>(n);
  p = array.p + 1;
  n = 0;
  for (JsonSlice item; json_next(&p, array.p + array.n, &item);)
    if (json_has_text(item)) out[n++] = text_of(run, item);
  return {out, n};
}

// True: the value converts and stands in the row's entry. lost: the first element that a list leaves out.
bool store(Run& run, uint8_t kind, const JsonSlice& v, const Column& out, uint32_t row, JsonSlice* lost) {
  switch (kind) {
    case kJsonS:
      if (json_has_text(v)) *at<Str>(out, row) = text_of(run, v);
      return json_has_text(v);
    case kJsonI:
      return json_int(v, at<int64_t>(out, row));
    case kJsonF:
      return json_float(v, at<double>(out, row));
    case kJsonB:
      return json_bool(v, at<uint8_t>(out, row));
    default:
      break;
  }
  if (v.type != kJsonArray) return false;
  if (kind == kJsonSs)
    *at<List<Str>>(out, row) = texts_of(run, v);
  else if (kind == kJsonIs)
    *at<List<int64_t>>(out, row) = numbers_of<int64_t>(run, v, json_int, lost);
  else
    *at<List<double>>(out, row) = numbers_of<double>(run, v, json_float, lost);
  return true;
}

void clear(uint8_t kind, const Column& out, uint32_t row) {
  switch (kind) {
    case kJsonI:
    case kJsonF:
      *at<int64_t>(out, row) = 0;  // 0.0 has the same bits
      break;
    case kJsonB:
      *at<uint8_t>(out, row) = 0;
      break;
    default:
      *at<Str>(out, row) = {};  // a list entry has the same shape
  }
}

// A value as it stands in the document, with its quotes.
Str written(const JsonSlice& v) {
  const uint32_t quotes = v.type == kJsonString;
  return {v.p - quotes, v.n + 2 * quotes};
}

void json_scan(Run& run, const Params& q, const Column* in, Column* out) {
  const JsonPathsView& view = *static_cast<const JsonPathsView*>(q.table);
  const Str* docs = entries<Str>(in[0]);
  JsonSlice slots[kJsonPaths];
  for (uint32_t r = 0; r < run.rows; ++r) {
    bool present = !in[0].valid || in[0].valid[r];
    bool good = present && JsonScan::scan(view, docs[r], slots);
    if (present && !good) {
      ++*run.warnings;
      if (run.bad_row < 0) run.bad_row = r;
    }
    for (uint32_t k = 0; k < view.n; ++k) {
      JsonSlice lost;
      lost.type = kJsonMissing;
      bool ok = good && store(run, view.kinds[k], slots[k], out[k], r, &lost);
      if (!ok) clear(view.kinds[k], out[k], r);
      if (run.lost && good && slots[k].type > kJsonNull) {
        const bool element = lost.type != kJsonMissing;
        run.lost[k].count_value(ok && !element, written(element ? lost : slots[k]));
      }
      out[k].valid[r] = ok;
    }
  }
}

}  // namespace

void add_json(Catalogue& c) { Lines(c, "json.h").add("json", "s", "?", special("json", json_scan, true)); }

}  // namespace cb
