#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/request_rows.h"

using namespace cb;

void bind_requests(nb::module_& m) {
  // name, kind, smallest and largest whole number, whether float32
  using Described = std::tuple<std::string, std::string, int64_t, int64_t, bool>;
  nb::class_<RequestRows>(m, "RequestRows", "Candidates of a request, from its JSON straight into a frame.")
      .def(
          "__init__",
          [](RequestRows* self, const std::vector<Described>& described, std::vector<std::string> ignored,
             int64_t most) {
            std::vector<RequestRows::Column> columns;
            for (const auto& [name, kind, low, high, single] : described) {
              if (kind != "b" && kind != "i" && kind != "f" && kind != "s") throw nb::value_error("kinds are b i f s");
              columns.push_back({name, kind[0], low, high, single});
            }
            new (self) RequestRows(std::move(columns), std::move(ignored), most);
          },
          nb::arg("columns"), nb::arg("ignored"), nb::arg("most"))
      .def(
          "read",
          [](const RequestRows& self, nb::bytes body) -> nb::object {
            auto found = self.read({body.c_str(), body.size()});  // some microseconds: not worth the GIL
            if (!found) return nb::none();
            return nb::make_tuple(found->context_begin, found->context_end, found->frame);
          },
          nb::arg("body"), nb::sig("def read(self, body: bytes) -> tuple[int, int, Frame] | None"),
          "Where the context lies, and the candidates; None: read it the slow way, which also says what is wrong.");
}
