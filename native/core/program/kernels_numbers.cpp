// Arithmetic, comparison, logic, casts of numbers and their text, is_in, bucketize.
#include "core/program/operator_tables.h"
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

void add_arithmetic(Lines& numbers) {
  numbers.add("add", "i,i", "i", CB_RUN(map, AddInt));
  numbers.add("sub", "i,i", "i", CB_RUN(map, SubInt));
  numbers.add("sub", "t,t", "i", CB_RUN(map, SubInt));
  numbers.add("mul", "i,i", "i", CB_RUN(map, MulInt));
  numbers.add("floordiv", "i,i", "i", CB_RUN(partial, FloorDivInt));
  numbers.add("mod", "i,i", "i", CB_RUN(partial, ModInt));
  numbers.add("neg", "i", "i", CB_RUN(map, NegInt));
  numbers.add("abs", "i", "i", CB_RUN(map, AbsInt));
  numbers.add("add", "f,f", "f", CB_RUN(map, AddFloat));
  numbers.add("sub", "f,f", "f", CB_RUN(map, SubFloat));
  numbers.add("mul", "f,f", "f", CB_RUN(map, MulFloat));
  numbers.add("div", "f,f", "f", CB_RUN(map, DivFloat));
  numbers.add("floordiv", "f,f", "f", CB_RUN(map, FloorDivFloat));
  numbers.add("neg", "f", "f", CB_RUN(map, NegFloat));
  numbers.add("abs", "f", "f", CB_RUN(map, AbsFloat));
  numbers.add("sqrt", "f", "f", CB_RUN(map, Sqrt));
  numbers.add("log1p", "f", "f", CB_RUN(map, Log1p));
  numbers.add("round", "f", "f", CB_RUN(map, Round));
  numbers.add("floor", "f", "f", CB_RUN(map, Floor));
  numbers.add("ceil", "f", "f", CB_RUN(map, Ceil));
  numbers.add("standardize", "f", "f", CB_RUN(map, Standardize));
  numbers.add("min", "i,i", "i", CB_RUN(map, MinInt));
  numbers.add("max", "i,i", "i", CB_RUN(map, MaxInt));
  numbers.add("min", "t,t", "t", CB_RUN(map, MinInt));
  numbers.add("max", "t,t", "t", CB_RUN(map, MaxInt));
  numbers.add("min", "f,f", "f", CB_RUN(map, MinFloat));
  numbers.add("max", "f,f", "f", CB_RUN(map, MaxFloat));
  numbers.add("clip", "i", "i", CB_RUN(map, ClipInt));
  numbers.add("clip", "f", "f", CB_RUN(map, ClipFloat));
}

template <class T>
void add_order(Lines& numbers, const std::string& args) {
  numbers.add("eq", args, "b", CB_RUN_OF(map, Eq, T));
  numbers.add("ne", args, "b", CB_RUN_OF(map, Ne, T));
  numbers.add("lt", args, "b", CB_RUN_OF(map, Lt, T));
  numbers.add("le", args, "b", CB_RUN_OF(map, Le, T));
  numbers.add("gt", args, "b", CB_RUN_OF(map, Gt, T));
  numbers.add("ge", args, "b", CB_RUN_OF(map, Ge, T));
}

void add_logic(Lines& numbers) {
  add_order<int64_t>(numbers, "i,i");
  add_order<int64_t>(numbers, "t,t");
  add_order<double>(numbers, "f,f");
  add_order<uint8_t>(numbers, "b,b");
  numbers.add("eq", "k,k", "b", CB_RUN(map, Eq<uint64_t>));
  numbers.add("ne", "k,k", "b", CB_RUN(map, Ne<uint64_t>));
  numbers.add("and", "b,b", "b", CB_RUN(map, And));
  numbers.add("or", "b,b", "b", CB_RUN(map, Or));
  numbers.add("not", "b", "b", CB_RUN(map, Not));
  numbers.add("is_nan", "f", "b", CB_RUN(map, IsNan));
}

void add_casts(Lines& numbers, Lines& decimal) {
  numbers.add("cast_f", "i", "f", CB_RUN(map, IntToFloat));
  numbers.add("cast_f", "b", "f", CB_RUN(map, BoolToFloat));
  decimal.add("cast_f", "s", "f", CB_RUN(partial, StrToFloat));
  numbers.add("cast_f", "*i", "*f", CB_RUN(each, IntToFloat));
  decimal.add("cast_f", "*s", "*f", CB_RUN(items, StrsToFloats));
  numbers.add("cast_i", "b", "i", CB_RUN(map, BoolToInt));
  numbers.add("cast_i", "f", "i", CB_RUN(partial, FloatToInt));
  numbers.add("cast_i", "t", "i", CB_RUN(map, SameInt));
  decimal.add("cast_i", "s", "i", CB_RUN(partial, StrToInt));
  decimal.add("cast_i", "*s", "*i", CB_RUN(items, StrsToInts));
  numbers.add("cast_b", "i", "b", CB_RUN(map, IntToBool));
  numbers.add("cast_b", "f", "b", CB_RUN(map, FloatToBool));
  decimal.add("cast_s", "i", "s", CB_RUN(items, IntToStr));
  decimal.add("cast_s", "b", "s", CB_RUN(items, BoolToStr));
  decimal.add("cast_s", "*i", "*s", special("ints_to_strs", ints_to_strs));
}

void add_sets(Lines& sets) {
  sets.add("is_in", "i", "b", CB_RUN(map, IntIsIn));
  sets.add("is_in", "t", "b", CB_RUN(map, IntIsIn));
  sets.add("is_in", "f", "b", CB_RUN(map, FloatIsIn));
  sets.add("is_in", "s", "b", CB_RUN(map, StrIsIn));
  sets.add("bucketize", "f", "i", CB_RUN(map, Bucketize));
}

}  // namespace

void add_numbers(Catalogue& c) {
  Lines numbers(c, "numbers.h"), decimal(c, "decimal.h"), sets(c, "sets.h");
  add_arithmetic(numbers);
  add_logic(numbers);
  add_casts(numbers, decimal);
  add_sets(sets);
}

}  // namespace cb
