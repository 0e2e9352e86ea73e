// List operators: which kernel runs which body.
#include "core/kernel.h"
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
void add_parts(Catalogue& c, const std::string& kind) {
  c.push_back({"length", "*" + kind, "i", map<ListLength<T>>, false});
  c.push_back({"first", "*" + kind, "*" + kind, map<First<T>>, false});
  c.push_back({"last", "*" + kind, "*" + kind, map<Last<T>>, false});
  c.push_back({"get", "*" + kind, kind, partial<Get<T>>, true});
}

}  // namespace

void add_lists(Catalogue& c) {
  add_parts<uint8_t>(c, "b");
  add_parts<int64_t>(c, "i");
  add_parts<double>(c, "f");
  add_parts<int64_t>(c, "t");
  add_parts<Str>(c, "s");
  add_parts<uint64_t>(c, "k");
  c.push_back({"join", "*s", "s", items<Join>, false});
  c.push_back({"distinct", "*b", "*b", items<DistinctBool>, false});
  c.push_back({"distinct", "*i", "*i", items<Distinct<int64_t>>, false});
  c.push_back({"distinct", "*t", "*t", items<Distinct<int64_t>>, false});
  c.push_back({"distinct", "*s", "*s", items<Distinct<Str>>, false});
  c.push_back({"distinct", "*k", "*k", items<Distinct<uint64_t>>, false});
  c.push_back({"ngrams", "*k", "*k", items<ListNgrams>, false});
  c.push_back({"overlap_count", "*k,*k", "i", overlap_rows, false});
  c.push_back({"distinct_count", "*k", "i", distinct_count_rows, false});
  c.push_back({"jaccard", "i,i,i", "f", map<Jaccard>, false});
  c.push_back({"contains", "*k,k", "b", map<ListContains>, false});
  c.push_back({"sum", "*i", "i", map<SumInt>, false});
  c.push_back({"sum", "*f", "f", map<SumFloat>, false});
  c.push_back({"mean", "*f", "f", partial<Mean>, true});
  c.push_back({"max", "*i", "i", partial<ListMax<int64_t>>, true});
  c.push_back({"max", "*f", "f", partial<ListMax<double>>, true});
  c.push_back({"min", "*i", "i", partial<ListMin<int64_t>>, true});
  c.push_back({"min", "*f", "f", partial<ListMin<double>>, true});
}

}  // namespace cb
