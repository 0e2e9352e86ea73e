// Collects the list of kernels once.
#include <stdexcept>
#include <unordered_map>

#include "core/program/kernel_shapes.h"
#include "core/program/operator_tables.h"

namespace cb {

const Catalogue& catalogue() {
  static const Catalogue all = [] {
    Catalogue c;
    add_keys(c);
    add_numbers(c);
    add_times(c);
    add_strings(c);
    add_lists(c);
    add_nulls(c);
    add_json(c);
    add_tables(c);
    return c;
  }();
  return all;
}

const Entry& find_kernel(const std::string& name, const std::string& args) {
  static const std::unordered_map<std::string, const Entry*> by_name = [] {
    std::unordered_map<std::string, const Entry*> m;
    for (const Entry& e : catalogue()) m[e.name + "(" + e.args + ")"] = &e;
    return m;
  }();
  auto it = by_name.find(name + "(" + args + ")");
  if (it == by_name.end()) throw std::invalid_argument("there is no kernel " + name + "(" + args + ")");
  return *it->second;
}

}  // namespace cb
