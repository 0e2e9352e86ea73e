// List operators: which kernel runs which body.
#include "core/kernel.h"
#include "operators/lists.h"

namespace cb {
namespace {

// Lists too long for the body's table on the stack get one in scratch memory.
template <class Body, class R>
void overlap_rows(Run& run, const Params& q, const Column* in, Column* out) {
  const List<uint64_t>* a = entries<List<uint64_t>>(in[0]);
  const List<uint64_t>* b = entries<List<uint64_t>>(in[1]);
  R* to = static_cast<R*>(out->data);
  for (uint32_t r = 0; r < run.rows; ++r) {
    uint64_t values = uint64_t{a[r].n} + b[r].n;
    if (is_small(a[r], b[r]) || values >= (uint64_t{1} << 31)) {
      to[r] = Body::apply(q, a[r], b[r]);
      continue;
    }
    char* memory = run.scratch->reserve(shared_bytes(static_cast<uint32_t>(values)));
    to[r] = Body::of(shared_by_table(a[r], b[r], memory));
  }
  propagate(run.rows, in, 2, out->valid);
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
  c.push_back({"overlap_count", "*k,*k", "i", overlap_rows<OverlapCount, int64_t>, false});
  c.push_back({"overlap_jaccard", "*k,*k", "f", overlap_rows<OverlapJaccard, double>, false});
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
