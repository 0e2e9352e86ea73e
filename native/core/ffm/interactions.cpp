#include "core/ffm/interactions.h"

#include <stdexcept>
#include <string>

namespace cb {

namespace {

struct Made {
  uint64_t key;
  float value;
};

// The features of one field of example e; fields ascend.
std::vector<Made> of_field(const Examples& examples, size_t e, uint16_t field) {
  std::vector<Made> out;
  for (uint32_t i = examples.offsets[e]; i < examples.offsets[e + 1] && examples.fields[i] <= field; ++i)
    if (examples.fields[i] == field) out.push_back({examples.keys[i], examples.value(i)});
  return out;
}

[[noreturn]] void refuse(size_t e, const std::string& why) {
  throw std::invalid_argument("example " + std::to_string(e) + ": " + why);
}

}  // namespace

Examples crossed(const Examples& examples, const std::vector<Interaction>& interactions) {
  Examples out;
  for (size_t e = 0; e < examples.rows(); ++e) {
    for (uint32_t i = examples.offsets[e]; i < examples.offsets[e + 1]; ++i)
      out.add(examples.keys[i], examples.fields[i], examples.value(i));
    for (const Interaction& interaction : interactions) {
      std::vector<Made> made = {{0, 1.0f}};
      for (uint16_t field : interaction.fields) {
        const std::vector<Made> others = of_field(examples, e, field);
        if (made.size() * others.size() > kMostFeatures) refuse(e, "an interaction has more than 65,535 features");
        std::vector<Made> next;
        for (const Made& a : made)
          for (const Made& b : others) next.push_back({fold(a.key, b.key), a.value * b.value});
        made = std::move(next);
      }
      for (const Made& m : made) {
        if (!std::isfinite(m.value)) refuse(e, "the product of an interaction's values is not finite");
        out.add(feature_key(m.key, interaction.salt), interaction.to, m.value);
      }
    }
    if (out.keys.size() - out.offsets.back() > kMostFeatures) refuse(e, "it has more than 65,535 features");
    out.close(examples.labels.empty() ? std::numeric_limits<float>::quiet_NaN() : examples.labels[e],
              examples.weight(e));
  }
  return out;
}

}  // namespace cb
