// Names the kinds of keys: what the keys of a field are hashes of. The same value has another key as a whole number, as
// a string and in the text of examples, so a model that is asked with the wrong one answers as if it had never seen the
// value. A model's file therefore says the kind of each field (model_file.h; `keys` in the directory of a weight file).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace cb {

enum class KeyKind : uint8_t {
  kUnknown,  // the file is older than the kinds, or the field was learned from keys of several kinds
  kInt,      // col("user_id").key(), where the column holds whole numbers
  kString,   // the same of strings, or of the words of a list
  kText,     // the text of examples: |user u1
  kDense,    // a dense column, whose number is the value of the feature
  kPlan,     // another key that a plan computes: a cross, a time, a key with another space
};

struct KeyKindName {
  KeyKind kind;
  std::string_view name;  // in files
  const char* told;       // in messages
};

// In the order of the numbers, which are part of the file format.
constexpr KeyKindName kKeyKinds[] = {{KeyKind::kUnknown, "", "keys of an unknown kind"},
                                     {KeyKind::kInt, "int", "keys of whole numbers"},
                                     {KeyKind::kString, "string", "keys of strings"},
                                     {KeyKind::kText, "text", "keys of the text of examples"},
                                     {KeyKind::kDense, "dense", "the numbers of a dense column"},
                                     {KeyKind::kPlan, "plan", "keys that only the plan can compute, such as a cross"}};

inline const KeyKindName& described(KeyKind kind) { return kKeyKinds[static_cast<uint8_t>(kind)]; }

inline std::optional<KeyKind> key_kind_named(std::string_view name) {
  for (const KeyKindName& one : kKeyKinds)
    if (one.name == name) return one.kind;
  return std::nullopt;
}

}  // namespace cb
