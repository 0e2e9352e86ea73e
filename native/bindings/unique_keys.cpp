#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "core/embed/pooling.h"
#include "core/embed/unique_keys.h"

using namespace cb;

namespace {

template <class T, size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Columns = std::vector<std::pair<size_t, int>>;  // field, kind

// Pooled memory as an array: outputs of equal size a batch would cost a page fault every 4 KB if they were fresh.
template <class T>
struct Output {
  static constexpr size_t kMostElements = size_t{1} << 40;  // far beyond any memory; what is more is a wrong argument
  std::shared_ptr<Buffer<T>> buffer = std::make_shared<Buffer<T>>();
  std::vector<size_t> shape;
  explicit Output(std::vector<size_t> dims) : shape(std::move(dims)) {
    size_t n = 1;
    for (size_t d : shape)
      if (__builtin_mul_overflow(n, d, &n) || n > kMostElements) throw std::bad_alloc();
    buffer->resize(n);
  }
  T* data() { return buffer->data(); }
  nb::object array() {
    static T empty{};
    auto* hold = new std::shared_ptr<Buffer<T>>(buffer);
    nb::capsule owner(hold, [](void* p) noexcept { delete static_cast<std::shared_ptr<Buffer<T>>*>(p); });
    T* at = buffer->data() ? buffer->data() : &empty;
    return nb::cast(nb::ndarray<nb::numpy, T>(at, shape.size(), shape.data(), owner));
  }
};

void expect(const char* what, std::initializer_list<size_t> met, std::initializer_list<size_t> expected) {
  if (std::vector<size_t>(met) == std::vector<size_t>(expected)) return;
  auto text = [](std::initializer_list<size_t> dims) {
    std::string s = "(";
    for (size_t d : dims) s += (s.size() > 1 ? ", " : "") + std::to_string(d);
    return s + ")";
  };
  throw nb::value_error((std::string(what) + " are " + text(met) + "; expected " + text(expected)).c_str());
}

std::vector<PoolColumn> columns_of(const Lookup& lookup, const Columns& columns) {
  std::vector<PoolColumn> out;
  std::vector<bool> seen(lookup.fields());
  for (auto [field, kind] : columns) {
    if (field >= lookup.fields() || seen[field])
      throw nb::value_error("each pooled field must exist and may be pooled only once");
    if (kind < 0 || kind > 2) throw nb::value_error("the kind of pooling must be 0 (sum), 1 (mean) or 2 (max)");
    seen[field] = true;
    out.push_back({field, static_cast<Pool>(kind)});
  }
  return out;
}

std::shared_ptr<Lookup> make(const std::vector<std::pair<In<int64_t, 1>, std::optional<In<int64_t, 1>>>>& fields,
                             size_t rows, size_t threads) {
  std::vector<FieldKeys> keys;
  for (const auto& [values, offsets] : fields) {
    if (offsets) expect("offsets", {offsets->shape(0)}, {rows + 1});
    keys.push_back({values.data(), values.shape(0), offsets ? offsets->data() : nullptr});
  }
  nb::gil_scoped_release release;
  return Lookup::of(keys, rows, threads);
}

nb::tuple forward(const Lookup& lookup, In<float, 2> rows, bool linear, const Columns& picked, size_t threads) {
  if (linear && rows.shape(1) == 0) throw nb::value_error("rows without columns hold no first-order weight");
  expect("rows", {rows.shape(0)}, {lookup.keys.size()});
  std::vector<PoolColumn> columns = columns_of(lookup, picked);
  PoolShape shape{rows.shape(1) - linear, linear, columns};
  Output<float> weights({lookup.rows, linear ? columns.size() : 0});
  Output<float> vectors({lookup.rows, columns.size(), shape.dim});
  Output<int32_t> winners({lookup.rows, shape.maxima(), shape.width()});
  {
    nb::gil_scoped_release release;
    pool_forward(lookup, shape, rows.data(), weights.data(), vectors.data(), winners.data(), threads);
  }
  return nb::make_tuple(linear ? weights.array() : nb::none(), vectors.array(), winners.array());
}

nb::object backward(const Lookup& lookup, std::optional<In<float, 2>> weights, std::optional<In<float, 3>> vectors,
                    In<int32_t, 3> winners, size_t dim, bool linear, const Columns& picked, size_t threads) {
  std::vector<PoolColumn> columns = columns_of(lookup, picked);
  PoolShape shape{dim, linear, columns};
  if (weights) expect("gradients of weights", {weights->shape(0), weights->shape(1)}, {lookup.rows, columns.size()});
  if (vectors) {
    expect("gradients of vectors", {vectors->shape(0), vectors->shape(1), vectors->shape(2)},
           {lookup.rows, columns.size(), dim});
  }
  expect("winners", {winners.shape(0), winners.shape(1), winners.shape(2)},
         {lookup.rows, shape.maxima(), shape.width()});
  Output<float> out({lookup.keys.size(), shape.width()});
  {
    nb::gil_scoped_release release;
    pool_backward(lookup, shape, weights && linear ? weights->data() : nullptr, vectors ? vectors->data() : nullptr,
                  winners.data(), out.data(), threads);
  }
  return out.array();
}

nb::object sequence(const Lookup& lookup, In<float, 2> rows, bool linear, size_t field, size_t longest,
                    size_t threads) {
  expect("rows", {rows.shape(0)}, {lookup.keys.size()});
  if (field >= lookup.fields() || rows.shape(1) < linear)
    throw nb::value_error("there is no field or no column with this number");
  const size_t dim = rows.shape(1) - linear;
  Output<float> vectors({lookup.rows, longest, dim});
  {
    nb::gil_scoped_release release;
    sequence_forward(lookup, field, dim, linear, longest, rows.data(), vectors.data(), threads);
  }
  return vectors.array();
}

nb::object sequence_gradient(const Lookup& lookup, In<float, 3> vectors, bool linear, size_t field, size_t threads) {
  if (field >= lookup.fields()) throw nb::value_error("there is no field with this number");
  expect("gradients of vectors", {vectors.shape(0)}, {lookup.rows});
  const size_t dim = vectors.shape(2);
  Output<float> out({lookup.keys.size(), dim + linear});
  {
    nb::gil_scoped_release release;
    sequence_backward(lookup, field, dim, linear, vectors.shape(1), vectors.data(), out.data(), threads);
  }
  return out.array();
}

}  // namespace

void bind_unique_keys(nb::module_& m) {
  // Opaque: what was checked when it was made cannot change, so pooling need not look again.
  nb::class_<Lookup>(m, "Lookup", "Unique keys of a batch and the references to them.")
      .def_static("of", &make, nb::arg("fields"), nb::arg("rows"), nb::arg("threads"))
      .def_ro("rows", &Lookup::rows)
      .def_prop_ro("starts", [](const Lookup& l) { return l.starts; })
      .def_prop_ro("keys", [](std::shared_ptr<Lookup> l) { return shared_array(l->keys.data(), {l->keys.size()}, l); })
      .def_prop_ro("inverse",
                   [](std::shared_ptr<Lookup> l) { return shared_array(l->inverse.data(), {l->starts.back()}, l); })
      .def("single", [](const Lookup& l, size_t field) { return field < l.fields() && l.single(field); })
      .def("pool", &forward, nb::arg("rows"), nb::arg("linear"), nb::arg("columns"), nb::arg("threads"))
      .def("pool_gradient", &backward, nb::arg("weights").none(), nb::arg("vectors").none(), nb::arg("winners"),
           nb::arg("dim"), nb::arg("linear"), nb::arg("columns"), nb::arg("threads"))
      .def("sequence", &sequence, nb::arg("rows"), nb::arg("linear"), nb::arg("field"), nb::arg("longest"),
           nb::arg("threads"))
      .def("sequence_gradient", &sequence_gradient, nb::arg("vectors"), nb::arg("linear"), nb::arg("field"),
           nb::arg("threads"));
}
