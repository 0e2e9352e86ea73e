#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/kernel.h"
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
      "salt", [](nb::bytes name) { return hash_bytes(name.c_str(), static_cast<uint32_t>(name.size())); },
      nb::arg("name"), "The salt of a field: the hash of its name.");
}
