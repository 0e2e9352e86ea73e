#include "core/request/v2_request.h"

#include <charconv>

#include "core/request/json_cursor.h"

namespace cb {
namespace {

constexpr std::string_view kOutput = "score";  // the output of a model of one label

// Reads the members of an object, each of which is called by its name. One that occurs twice is for the slow path.
template <class Member>
bool members(JsonCursor& c, Member member) {
  if (!c.take('{')) return false;
  std::vector<std::string_view> seen;
  if (!c.peek('}')) do {
      std::string_view name;
      c.blank();
      if (!c.text(name) || !c.take(':')) return false;
      for (const std::string_view other : seen)
        if (other == name) return false;
      seen.push_back(name);
      c.blank();
      if (!member(name)) return false;
    } while (c.take(','));
  return c.take('}');
}

template <class Item>
bool items(JsonCursor& c, Item item) {
  if (!c.take('[')) return false;
  if (c.take(']')) return true;
  do {
    c.blank();
    if (!item()) return false;
  } while (c.take(','));
  return c.take(']');
}

bool flag(JsonCursor& c, bool& out) {
  out = c.word("true");
  return out || c.word("false");
}

// A whole number that is not negative.
bool count(JsonCursor& c, int64_t& out) {
  const char* begin;
  bool whole;
  if (!c.number(begin, whole) || !whole) return false;
  const auto done = std::from_chars(begin, c.p, out);
  return done.ec == std::errc() && done.ptr == c.p && out >= 0;
}

bool short_text(JsonCursor& c, std::string_view& out) {
  return c.text(out) && out.size() <= InferRequest::kLongestText;
}

// Reads an input; `rest` loses its bytes.
bool input(JsonCursor& c, InputTensor& out, std::string_view& rest) {
  bool named = false, typed = false, data = false;
  std::optional<int64_t> size;
  const bool read = members(c, [&](std::string_view name) {
    if (name == "name") return named = short_text(c, out.name);
    if (name == "datatype") return typed = short_text(c, out.datatype);
    if (name == "shape") {
      return items(c, [&] {
        int64_t n;
        if (out.shape.size() == 2 || !count(c, n)) return false;
        out.shape.push_back(n);
        return true;
      });
    }
    if (name == "data") {
      const char* begin = c.p;
      if (!c.peek('[') || !c.over_object()) return false;
      out.data = {begin, static_cast<size_t>(c.p - begin)};
      return data = out.json = true;
    }
    return name == "parameters" && members(c, [&](std::string_view parameter) {
             int64_t n;
             if (parameter != "binary_data_size" || !count(c, n)) return false;
             size = n;
             return true;
           });
  });
  if (!read || !named || !typed || out.shape.empty() || data == size.has_value()) return false;
  if (!size) return true;
  if (static_cast<uint64_t>(*size) > rest.size()) return false;
  out.data = rest.substr(0, static_cast<size_t>(*size));
  rest.remove_prefix(out.data.size());
  return true;
}

}  // namespace

std::optional<InferRequest> InferRequest::read(std::string_view json, std::string_view rest) {
  InferRequest out;
  JsonCursor c{json.data(), json.data() + json.size()};
  std::optional<bool> of_output;
  const bool read = members(c, [&](std::string_view name) {
    if (name == "id") return short_text(c, out.id);
    if (name == "inputs") {
      return items(c, [&] {
        if (out.inputs.size() == kMostInputs) return false;
        return input(c, out.inputs.emplace_back(), rest);
      });
    }
    if (name == "parameters") {
      return members(
          c, [&](std::string_view parameter) { return parameter == "binary_data_output" && flag(c, out.binary); });
    }
    size_t outputs = 0;
    return name == "outputs" && items(c, [&] {
             std::string_view called;
             return ++outputs == 1 && members(c, [&](std::string_view of) {
               if (of == "name") return c.text(called);
               return of == "parameters" && members(c, [&](std::string_view parameter) {
                        bool binary = false;
                        if (parameter != "binary_data" || !flag(c, binary)) return false;
                        of_output = binary;
                        return true;
                      });
             }) && called == kOutput;
           });
  });
  c.blank();
  if (!read || c.p != c.end || !rest.empty() || out.inputs.empty()) return std::nullopt;
  if (of_output) out.binary = *of_output;
  return out;
}

}  // namespace cb
