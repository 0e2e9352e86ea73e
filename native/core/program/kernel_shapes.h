// Turns a per-row body into a loop over a chunk: one template per shape (operators/types.h).
//
// A kernel reads its input registers and writes its output registers for `rows` rows. It never allocates except from
// the pools, never throws except std::bad_alloc, and upholds the invariant of null rows: validity 0, entry zero /
// empty.
#pragma once
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/system/bump_allocator.h"
#include "operators/types.h"

namespace cb {

// A register as a kernel sees it. data: one entry a row. valid: a byte a row, or nullptr where nulls cannot occur.
struct Column {
  void* data;
  uint8_t* valid;
};

struct Converted;

struct Run {
  uint32_t rows;
  Bump* pool;          // results that later layers point into; lives until the chunk is done
  Bump* scratch;       // working memory of a kernel; gone when the layer is done
  uint64_t* warnings;  // of this operator: rows cut or malformed
  int64_t bad_row;     // first malformed row of the chunk, or -1; with strict the engine turns it into an error
  Converted* lost;     // one for each result, of kernels that count what they lose themselves (Conversion::Json)
};

using Kernel = void (*)(Run&, const Params&, const Column* in, Column* out);

template <class T>
const T* entries(const Column& c) {
  return static_cast<const T*>(c.data);
}

// Validity of a result that is null where any input is null.
inline void propagate(uint32_t rows, const Column* in, int n, uint8_t* valid) {
  if (!valid) return;
  std::memset(valid, 1, rows);
  for (int k = 0; k < n; ++k)
    if (const uint8_t* v = in[k].valid)
      for (uint32_t r = 0; r < rows; ++r) valid[r] &= v[r];
}

template <class T>
void blank_nulls(uint32_t rows, T* out, const uint8_t* valid) {
  if (!valid) return;
  for (uint32_t r = 0; r < rows; ++r)
    if (!valid[r]) out[r] = T{};
}

namespace detail {

template <class Body, class R, class... A, size_t... K>
void map_rows(R (*)(const Params&, A...), std::index_sequence<K...>, Run& run, const Params& q, const Column* in,
              Column* out) {
  R* __restrict to = static_cast<R*>(out->data);
  for (uint32_t r = 0; r < run.rows; ++r) to[r] = Body::apply(q, entries<A>(in[K])[r]...);
  if (out->valid) {
    propagate(run.rows, in, sizeof...(A), out->valid);
    blank_nulls(run.rows, to, out->valid);
  }
}

template <class Body, class R, class... A, size_t... K>
void partial_rows(bool (*)(const Params&, R*, A...), std::index_sequence<K...>, Run& run, const Params& q,
                  const Column* in, Column* out) {
  R* to = static_cast<R*>(out->data);
  propagate(run.rows, in, sizeof...(A), out->valid);
  for (uint32_t r = 0; r < run.rows; ++r) {
    R value{};
    bool ok = Body::apply(q, &value, entries<A>(in[K])[r]...) && out->valid[r];
    out->valid[r] = ok;
    to[r] = ok ? value : R{};
  }
}

template <class Body, class T, class... A, size_t... K>
void items_rows(uint32_t (*)(const Params&, T*, A...), std::index_sequence<K...>, Run& run, const Params& q,
                const Column* in, Column* out) {
  // Bytes (T = char) make strings, everything else makes lists; both are {pointer, count}.
  using Entry = std::conditional_t<std::is_same_v<T, char>, Str, List<T>>;
  Entry* to = static_cast<Entry*>(out->data);
  propagate(run.rows, in, sizeof...(A), out->valid);
  for (uint32_t r = 0; r < run.rows; ++r) {
    if (out->valid && !out->valid[r]) {
      to[r] = Entry{};
      continue;
    }
    uint32_t most = Body::bound(q, entries<A>(in[K])[r]...);
    T* at;
    if constexpr (std::is_same_v<T, char>)
      at = run.pool->reserve_bytes(most);
    else
      at = reinterpret_cast<T*>(run.pool->reserve(size_t{most} * sizeof(T)));
    uint32_t used = Body::write(q, at, entries<A>(in[K])[r]...);
    run.pool->commit(size_t{used} * sizeof(T));
    to[r] = Entry{at, used};
    if constexpr (requires { Body::cut(q, entries<A>(in[K])[r]...); })
      *run.warnings += Body::cut(q, entries<A>(in[K])[r]...);
  }
}

// Whether lists lie end to end, as they do when one kernel made them row after row.
template <class E>
bool end_to_end(const List<E>* lists, uint32_t rows) {
  bool together = true;
  for (uint32_t r = 1; r < rows; ++r) together &= lists[r].p == lists[r - 1].p + lists[r - 1].n;
  return together;
}

// A Map body over the elements of its first argument, a list; the other arguments are the row's.
template <class Body, class R, class E, class... A, size_t... K>
void each_rows(R (*)(const Params&, E, A...), std::index_sequence<K...>, Run& run, const Params& q, const Column* in,
               Column* out) {
  List<R>* to = static_cast<List<R>*>(out->data);
  const List<E>* from = entries<List<E>>(in[0]);
  propagate(run.rows, in, 1 + sizeof...(A), out->valid);
  if constexpr (sizeof...(A) == 0) {
    // Lists are short: one loop over all elements has none of the mispredicted ends of a loop a row.
    if (run.rows && end_to_end(from, run.rows)) {
      const E* first = from[0].p;
      size_t total = static_cast<size_t>(from[run.rows - 1].p + from[run.rows - 1].n - first);
      R* at = run.pool->take<R>(total);
      for (size_t k = 0; k < total; ++k) at[k] = Body::apply(q, first[k]);
      for (uint32_t r = 0; r < run.rows; ++r) to[r] = List<R>{at + (from[r].p - first), from[r].n};
      return;
    }
  }
  for (uint32_t r = 0; r < run.rows; ++r) {
    List<E> list = from[r];
    if (out->valid && !out->valid[r]) list.n = 0;
    R* at = run.pool->take<R>(list.n);
    for (uint32_t k = 0; k < list.n; ++k) at[k] = Body::apply(q, list.p[k], entries<A>(in[K + 1])[r]...);
    to[r] = List<R>{at, list.n};
  }
}

template <class R, class... A>
constexpr size_t arity(R (*)(const Params&, A...)) {
  return sizeof...(A);
}

}  // namespace detail

template <class Body>
void map(Run& run, const Params& q, const Column* in, Column* out) {
  detail::map_rows<Body>(&Body::apply, std::make_index_sequence<detail::arity(&Body::apply)>{}, run, q, in, out);
}
template <class Body>
void partial(Run& run, const Params& q, const Column* in, Column* out) {
  detail::partial_rows<Body>(&Body::apply, std::make_index_sequence<detail::arity(&Body::apply) - 1>{}, run, q, in,
                             out);
}
template <class Body>
void items(Run& run, const Params& q, const Column* in, Column* out) {
  detail::items_rows<Body>(&Body::write, std::make_index_sequence<detail::arity(&Body::write) - 1>{}, run, q, in, out);
}
template <class Body>
void each(Run& run, const Params& q, const Column* in, Column* out) {
  detail::each_rows<Body>(&Body::apply, std::make_index_sequence<detail::arity(&Body::apply) - 1>{}, run, q, in, out);
}

// ---- the list of kernels -----------------------------------------------------------------------------------------

// One line of the catalogue: operator `name` for arguments `args` gives `result`; kinds by letter, comma between
// ("i,i", "*s,s"). makes_nulls: the result may be null although no input is.
//
// shape, body and header say in words what the kernel runs, so that source for another engine can be written from them:
//
//   shape    "map", "partial", "items", "each": the template above; "special": a kernel of its own, body is its name
//   body     the body's type as C++ inside namespace cb: "HashInt", "Eq<int64_t>"
//   header   of native/operators: declares the body, or what a special is made of
struct Entry {
  std::string name;
  std::string args;
  std::string result;
  Kernel kernel;
  bool makes_nulls;
  std::string shape;
  std::string body;
  std::string header;
};

using Catalogue = std::vector<Entry>;

// What a line runs. Kernel and words come from one spelling, CB_RUN or CB_RUN_OF, so they cannot disagree.
struct Runs {
  Kernel kernel;
  std::string shape;
  std::string body;
  bool makes_nulls = false;  // beyond what the shape says: every partial does

  // The same results from a kernel that suits a CPU better.
  Runs by(Kernel own) const { return {own, shape, body, makes_nulls}; }
};

inline Runs special(const char* name, Kernel kernel, bool makes_nulls = false) {
  return {kernel, "special", name, makes_nulls};
}

template <class T>
constexpr const char* type_text() {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return "uint8_t";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "int64_t";
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return "uint64_t";
  } else if constexpr (std::is_same_v<T, double>) {
    return "double";
  } else {
    static_assert(std::is_same_v<T, Str>, "a type without a text");
    return "Str";
  }
}

// CB_RUN(map, HashInt), CB_RUN(items, Distinct<Str>); inside a template over T: CB_RUN_OF(map, Eq, T).
#define CB_RUN(shape, ...) \
  Runs { shape<__VA_ARGS__>, #shape, #__VA_ARGS__ }
#define CB_RUN_OF(shape, body, T) Runs{shape<body<T>>, #shape, std::string(#body "<") + type_text<T>() + ">"}

// Adds lines whose bodies are declared in operators/<header>.
class Lines {
 public:
  Lines(Catalogue& catalogue, const char* header) : catalogue_(catalogue), header_(header) {}

  void add(const std::string& name, const std::string& args, const std::string& result, const Runs& runs) {
    const bool makes_nulls = runs.makes_nulls || runs.shape == "partial";
    catalogue_.push_back({name, args, result, runs.kernel, makes_nulls, runs.shape, runs.body, header_});
  }

 private:
  Catalogue& catalogue_;
  std::string header_;
};

// Each family adds its lines in its own file, core/kernels_<family>.cpp.
void add_keys(Catalogue&);
void add_numbers(Catalogue&);
void add_times(Catalogue&);
void add_strings(Catalogue&);
void add_lists(Catalogue&);
void add_nulls(Catalogue&);
void add_tables(Catalogue&);

const Catalogue& catalogue();
const Entry& find_kernel(const std::string& name, const std::string& args);  // throws std::invalid_argument

}  // namespace cb
