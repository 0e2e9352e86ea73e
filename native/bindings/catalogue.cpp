#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/program/kernel_shapes.h"
#include "operators/hash.h"

using namespace cb;

void bind_catalogue(nb::module_& m) {
  m.def(
      "catalogue",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string, bool>> lines;
        for (const Entry& e : catalogue()) lines.emplace_back(e.name, e.args, e.result, e.makes_nulls);
        return lines;
      },
      "Every kernel: name, argument kinds, result kind, whether it makes nulls.");
  m.def(
      "bodies",
      [] {
        nb::dict lines;
        for (const Entry& e : catalogue())
          lines[(e.name + "(" + e.args + ")").c_str()] =
              nb::make_tuple(e.result, e.shape, e.body, e.makes_nulls, e.header);
        return lines;
      },
      nb::sig("def bodies() -> dict[str, tuple[str, str, str, bool, str]]"),
      "What every kernel runs, by 'name(args)': result kind, shape, body, whether it makes nulls, header "
      "(core/program/kernel_shapes.h).");
  m.def(
      "salt", [](nb::bytes name) { return hash_bytes(name.c_str(), static_cast<uint32_t>(name.size())); },
      nb::arg("name"), "The salt of a field: the hash of its name.");
}
