// List operators: which kernel runs which body.
#include "core/program/kernel_shapes.h"
#include "operators/lists.h"

namespace cb {
namespace {

// Lists too long for the bodies' table on the stack get one in scratch memory.
template <class Body>
void set_rows(Run& run, const Params& q, const List<uint64_t>* a, const List<uint64_t>* b, int64_t* to) {
  for (uint32_t r = 0; r < run.rows; ++r) {
    List<uint64_t> second = b ? b[r] : List<uint64_t>{nullptr, 0};
    uint64_t values = uint64_t{a[r].n} + second.n;
    if (is_small(a[r], second) || values >= (uint64_t{1} << 31)) {
      if constexpr (std::is_same_v<Body, DistinctCount>)
        to[r] = Body::apply(q, a[r]);
      else
        to[r] = Body::apply(q, a[r], second);
      continue;
    }
    char* memory = run.scratch->reserve(shared_bytes(static_cast<uint32_t>(values)));
    to[r] = Body::of(shared_by_table(a[r], second, memory));
  }
}

void overlap_rows(Run& run, const Params& q, const Column* in, Column* out) {
  int64_t* to = static_cast<int64_t*>(out->data);
  set_rows<OverlapCount>(run, q, entries<List<uint64_t>>(in[0]), entries<List<uint64_t>>(in[1]), to);
  propagate(run.rows, in, 2, out->valid);
  blank_nulls(run.rows, to, out->valid);
}

void distinct_count_rows(Run& run, const Params& q, const Column* in, Column* out) {
  int64_t* to = static_cast<int64_t*>(out->data);
  set_rows<DistinctCount>(run, q, entries<List<uint64_t>>(in[0]), nullptr, to);
  propagate(run.rows, in, 1, out->valid);
  blank_nulls(run.rows, to, out->valid);
}

template <class T>
void add_parts(Lines& lists, const std::string& kind) {
  lists.add("length", "*" + kind, "i", CB_RUN_OF(map, ListLength, T));
  lists.add("first", "*" + kind, "*" + kind, CB_RUN_OF(map, First, T));
  lists.add("last", "*" + kind, "*" + kind, CB_RUN_OF(map, Last, T));
  lists.add("get", "*" + kind, kind, CB_RUN_OF(partial, Get, T));
}

template <class T>
void add_distinct(Lines& lists, const std::string& kind) {
  lists.add("distinct", "*" + kind, "*" + kind, CB_RUN_OF(items, Distinct, T));
}

template <class T>
void add_extremes(Lines& lists, const std::string& kind) {
  lists.add("max", "*" + kind, kind, CB_RUN_OF(partial, ListMax, T));
  lists.add("min", "*" + kind, kind, CB_RUN_OF(partial, ListMin, T));
}

}  // namespace

void add_lists(Catalogue& c) {
  Lines lists(c, "lists.h");
  add_parts<uint8_t>(lists, "b");
  add_parts<int64_t>(lists, "i");
  add_parts<double>(lists, "f");
  add_parts<int64_t>(lists, "t");
  add_parts<Str>(lists, "s");
  add_parts<uint64_t>(lists, "k");
  lists.add("join", "*s", "s", CB_RUN(items, Join));
  lists.add("distinct", "*b", "*b", CB_RUN(items, DistinctBool));
  add_distinct<int64_t>(lists, "i");
  add_distinct<int64_t>(lists, "t");
  add_distinct<Str>(lists, "s");
  add_distinct<uint64_t>(lists, "k");
  lists.add("ngrams", "*k", "*k", CB_RUN(items, ListNgrams));
  lists.add("overlap_count", "*k,*k", "i", special("overlap_count", overlap_rows));
  lists.add("distinct_count", "*k", "i", special("distinct_count", distinct_count_rows));
  lists.add("jaccard", "i,i,i", "f", CB_RUN(map, Jaccard));
  lists.add("contains", "*k,k", "b", CB_RUN(map, ListContains));
  lists.add("sum", "*i", "i", CB_RUN(map, SumInt));
  lists.add("sum", "*f", "f", CB_RUN(map, SumFloat));
  lists.add("mean", "*f", "f", CB_RUN(partial, Mean));
  add_extremes<int64_t>(lists, "i");
  add_extremes<double>(lists, "f");
}

}  // namespace cb
