#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "core/request/request_scorer.h"

using namespace cb;

namespace {

// A Python object as a value of the cache. The thread that destroys the last copy may be one without the lock of the
// interpreter, so the deleter takes the lock.
ContextCache::Value value_of(nb::object object) {
  if (nb::isinstance<RequestContext>(object)) return {nb::cast<std::shared_ptr<RequestContext>>(object), true};
  return {std::shared_ptr<const void>(object.release().ptr(),
                                      [](PyObject* held) {
                                        const nb::gil_scoped_acquire acquire;
                                        Py_DECREF(held);
                                      }),
          false};
}

nb::object object_of(const ContextCache::Value& value) {
  if (!value) return nb::none();
  if (!value.native) return nb::borrow(static_cast<PyObject*>(const_cast<void*>(value.held.get())));
  const auto context = std::static_pointer_cast<const RequestContext>(value.held);
  return nb::cast(std::const_pointer_cast<RequestContext>(context));
}

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

void bind_context_cache(nb::module_& m) {
  nb::class_<RequestContext>(m, "RequestContext",
                             "What a Deep FFM and its plan worked out from the context of a request.")
      .def(
          "__init__",
          [](RequestContext* self, std::shared_ptr<Frame> frame, const FfmContext& prepared) {
            new (self) RequestContext{std::move(frame), prepared, nullptr};
          },
          nb::arg("frame").none(), nb::arg("prepared"))
      .def_ro("frame", &RequestContext::frame, "What candidates read of the context; None: nothing.")
      .def_ro("prepared", &RequestContext::prepared)
      .def_prop_ro("bytes", &RequestContext::bytes);

  nb::class_<ContextCache::Counts>(m, "ContextCacheCounts")
      .def_ro("hits", &ContextCache::Counts::hits)
      .def_ro("misses", &ContextCache::Counts::misses)
      .def_ro("evictions", &ContextCache::Counts::evictions)
      .def_ro("given_back", &ContextCache::Counts::given_back,
              "How often free pages of the allocator were given back to the system.");

  nb::class_<ContextCache>(
      m, "ContextCache",
      "Contexts of requests within a budget of bytes; the one used the longest time ago is evicted "
      "first (core/request/context_cache.h).")
      .def(nb::init<uint64_t, uint64_t>(), nb::arg("budget"), nb::arg("given_back") = ContextCache::kGivenBack)
      .def(
          "get", [](ContextCache& cache, const nb::bytes& key) { return object_of(cache.get(view_of(key))); },
          nb::arg("key"), nb::sig("def get(self, key: bytes) -> object"),
          "Return the value of a key and count a hit, or return None and count a miss.")
      .def(
          "put",
          [](ContextCache& cache, const nb::bytes& key, nb::object object, uint64_t bytes) {
            ContextCache::Value value = value_of(std::move(object));
            const nb::gil_scoped_release release;
            cache.put(view_of(key), std::move(value), bytes);
          },
          nb::arg("key"), nb::arg("value"), nb::arg("bytes"),
          nb::sig("def put(self, key: bytes, value: object, bytes: int) -> None"),
          "Keep a value of so many bytes, those of the key included; one larger than a quarter of the budget, with the "
          "bytes of its entry, is not kept.")
      .def("clear", &ContextCache::clear, nb::call_guard<nb::gil_scoped_release>())
      .def("__len__", &ContextCache::size)
      .def_prop_rw(
          "budget", [](const ContextCache& c) { return c.budget(); },
          [](ContextCache& c, uint64_t bytes) { c.budget(bytes); })
      .def_prop_ro("bytes", &ContextCache::bytes)
      .def_prop_ro("counts", &ContextCache::counts, "Counts so far, as a copy.")
      .def_prop_ro_static("ENTRY", [](nb::handle) { return ContextCache::kEntry; });
}
