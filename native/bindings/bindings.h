// One bind_* function for each noun. Bindings check shapes and types, release the GIL and contain no arithmetic.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

namespace nb = nanobind;

void bind_catalogue(nb::module_& m);
void bind_operator_tables(nb::module_& m);
void bind_frame(nb::module_& m);
void bind_program(nb::module_& m);
void bind_spilled_view(nb::module_& m);
void bind_batch(nb::module_& m);
void bind_unique_keys(nb::module_& m);
void bind_memory_table(nb::module_& m);
void bind_published_rows(nb::module_& m);
void bind_network(nb::module_& m);
void bind_sparse_table(nb::module_& m);
void bind_ffm(nb::module_& m);
void bind_history_attention(nb::module_& m);
void bind_publish(nb::module_& m);
void bind_request_rows(nb::module_& m);
void bind_context_cache(nb::module_& m);
void bind_request_plan(nb::module_& m);
void bind_parquet(nb::module_& m);
void bind_history(nb::module_& m);
void bind_vectors(nb::module_& m);
void bind_truncated_mapping(nb::module_& m);

// An array that keeps `owner` (a shared_ptr on the heap) alive.
template <class T, class Owner>
nb::object shared_array(const T* data, std::initializer_list<size_t> shape, std::shared_ptr<Owner> owner) {
  static T empty{};  // an empty buffer has no address, an array needs one
  auto* hold = new std::shared_ptr<Owner>(std::move(owner));
  nb::capsule capsule(hold, [](void* p) noexcept { delete static_cast<std::shared_ptr<Owner>*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy, T>(const_cast<T*>(data ? data : &empty), shape.size(), shape.begin(), capsule));
}

// Raises ctrbox.errors.SourceError: a file that was opened cannot be read.
[[noreturn]] inline void raise_source_error(const char* what) {
  nb::object type = nb::module_::import_("ctrbox.errors").attr("SourceError");
  PyErr_SetString(type.ptr(), what);
  throw nb::python_error();
}

constexpr const char* kImageSignature = "def image(self, device_base: int) -> NDArray[numpy.uint8]";
constexpr const char* kImage = "The bytes to copy to device_base: its pointers are addresses there.";

// The image of a table or of records for memory at `device_base`, as bytes to copy there.
template <class T>
nb::object image_array(const T& table, uint64_t device_base) {
  size_t n = 0;
  std::shared_ptr<uint8_t[]> bytes;
  {
    nb::gil_scoped_release release;
    n = table.image_bytes();
    bytes = std::shared_ptr<uint8_t[]>(new uint8_t[n]);  // not make_shared: nobody reads zeros here
    table.image(reinterpret_cast<char*>(bytes.get()), device_base);
  }
  return shared_array(bytes.get(), {n}, bytes);
}
