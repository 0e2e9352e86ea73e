// Arithmetic, comparison, logic, casts of numbers and their text, is_in, bucketize.
#include "core/tables.h"
#include "operators/decimal.h"
#include "operators/numbers.h"
#include "operators/sets.h"

namespace cb {

namespace {

void ints_to_strs(Run& run, const Params&, const Column* in, Column* out) {
  const List<int64_t>* from = entries<List<int64_t>>(in[0]);
  List<Str>* to = static_cast<List<Str>*>(out->data);
  propagate(run.rows, in, 1, out->valid);
  for (uint32_t r = 0; r < run.rows; ++r) {
    const uint32_t n = from[r].n;  // 0 where the row is null
    Str* items = n ? run.pool->take<Str>(n) : nullptr;
    for (uint32_t k = 0; k < n; ++k) {
      char* bytes = run.pool->reserve_bytes(20);
      uint32_t used = write_int(from[r].p[k], bytes);
      run.pool->commit(used);
      items[k] = {bytes, used};
    }
    to[r] = {items, n};
  }
}

void add_arithmetic(Catalogue& c) {
  c.push_back({"add", "i,i", "i", map<AddInt>, false});
  c.push_back({"sub", "i,i", "i", map<SubInt>, false});
  c.push_back({"sub", "t,t", "i", map<SubInt>, false});
  c.push_back({"mul", "i,i", "i", map<MulInt>, false});
  c.push_back({"floordiv", "i,i", "i", partial<FloorDivInt>, true});
  c.push_back({"mod", "i,i", "i", partial<ModInt>, true});
  c.push_back({"neg", "i", "i", map<NegInt>, false});
  c.push_back({"abs", "i", "i", map<AbsInt>, false});
  c.push_back({"add", "f,f", "f", map<AddFloat>, false});
  c.push_back({"sub", "f,f", "f", map<SubFloat>, false});
  c.push_back({"mul", "f,f", "f", map<MulFloat>, false});
  c.push_back({"div", "f,f", "f", map<DivFloat>, false});
  c.push_back({"floordiv", "f,f", "f", map<FloorDivFloat>, false});
  c.push_back({"neg", "f", "f", map<NegFloat>, false});
  c.push_back({"abs", "f", "f", map<AbsFloat>, false});
  c.push_back({"sqrt", "f", "f", map<Sqrt>, false});
  c.push_back({"log1p", "f", "f", map<Log1p>, false});
  c.push_back({"round", "f", "f", map<Round>, false});
  c.push_back({"floor", "f", "f", map<Floor>, false});
  c.push_back({"ceil", "f", "f", map<Ceil>, false});
  c.push_back({"standardise", "f", "f", map<Standardise>, false});
  c.push_back({"min", "i,i", "i", map<MinInt>, false});
  c.push_back({"max", "i,i", "i", map<MaxInt>, false});
  c.push_back({"min", "t,t", "t", map<MinInt>, false});
  c.push_back({"max", "t,t", "t", map<MaxInt>, false});
  c.push_back({"min", "f,f", "f", map<MinFloat>, false});
  c.push_back({"max", "f,f", "f", map<MaxFloat>, false});
  c.push_back({"clip", "i", "i", map<ClipInt>, false});
  c.push_back({"clip", "f", "f", map<ClipFloat>, false});
}

template <class T>
void add_order(Catalogue& c, const std::string& args) {
  c.push_back({"eq", args, "b", map<Eq<T>>, false});
  c.push_back({"ne", args, "b", map<Ne<T>>, false});
  c.push_back({"lt", args, "b", map<Lt<T>>, false});
  c.push_back({"le", args, "b", map<Le<T>>, false});
  c.push_back({"gt", args, "b", map<Gt<T>>, false});
  c.push_back({"ge", args, "b", map<Ge<T>>, false});
}

void add_logic(Catalogue& c) {
  add_order<int64_t>(c, "i,i");
  add_order<int64_t>(c, "t,t");
  add_order<double>(c, "f,f");
  add_order<uint8_t>(c, "b,b");
  c.push_back({"eq", "k,k", "b", map<Eq<uint64_t>>, false});
  c.push_back({"ne", "k,k", "b", map<Ne<uint64_t>>, false});
  c.push_back({"and", "b,b", "b", map<And>, false});
  c.push_back({"or", "b,b", "b", map<Or>, false});
  c.push_back({"not", "b", "b", map<Not>, false});
  c.push_back({"is_nan", "f", "b", map<IsNan>, false});
}

void add_casts(Catalogue& c) {
  c.push_back({"cast_f", "i", "f", map<IntToFloat>, false});
  c.push_back({"cast_f", "b", "f", map<BoolToFloat>, false});
  c.push_back({"cast_f", "s", "f", partial<StrToFloat>, true});
  c.push_back({"cast_f", "*i", "*f", each<IntToFloat>, false});
  c.push_back({"cast_f", "*s", "*f", items<StrsToFloats>, false});
  c.push_back({"cast_i", "b", "i", map<BoolToInt>, false});
  c.push_back({"cast_i", "f", "i", partial<FloatToInt>, true});
  c.push_back({"cast_i", "t", "i", map<SameInt>, false});
  c.push_back({"cast_i", "s", "i", partial<StrToInt>, true});
  c.push_back({"cast_i", "*s", "*i", items<StrsToInts>, false});
  c.push_back({"cast_b", "i", "b", map<IntToBool>, false});
  c.push_back({"cast_b", "f", "b", map<FloatToBool>, false});
  c.push_back({"cast_s", "i", "s", items<IntToStr>, false});
  c.push_back({"cast_s", "b", "s", items<BoolToStr>, false});
  c.push_back({"cast_s", "*i", "*s", ints_to_strs, false});
}

void add_sets(Catalogue& c) {
  c.push_back({"is_in", "i", "b", map<IntIsIn>, false});
  c.push_back({"is_in", "t", "b", map<IntIsIn>, false});
  c.push_back({"is_in", "f", "b", map<FloatIsIn>, false});
  c.push_back({"is_in", "s", "b", map<StrIsIn>, false});
  c.push_back({"bucketize", "f", "i", map<Bucketize>, false});
}

}  // namespace

void add_numbers(Catalogue& c) {
  add_arithmetic(c);
  add_logic(c);
  add_casts(c);
  add_sets(c);
}

}  // namespace cb
