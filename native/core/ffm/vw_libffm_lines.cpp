#include "core/ffm/vw_libffm_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

namespace cb {

namespace {

// Why a line cannot be used.
struct Refused {
  std::string why;
};

constexpr size_t kShown = 40;

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, kShown)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kShown ? "…'" : "'");
}

bool space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// The next token, taken from the front of `text`; empty where there is none.
std::string_view token(std::string_view& text) {
  const char *p = text.data(), *end = p + text.size();
  while (p < end && space(*p)) ++p;
  const char* begin = p;
  while (p < end && !space(*p)) ++p;
  text = {p, static_cast<size_t>(end - p)};
  return {begin, static_cast<size_t>(p - begin)};
}

float number(std::string_view text, const char* what) {
  if (text == "1") return 1.0f;
  std::string_view digits = text;
  if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
  float value = 0.0f;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range && end == digits.data() + digits.size()) {
    // Too small is 0, too large is refused below.
    const size_t e = digits.find_first_of("eE");
    if (e != std::string_view::npos && digits.substr(e + 1, 1) == "-") return 0.0f;
    value = INFINITY;
  } else if (error != std::errc() || end != digits.data() + digits.size()) {
    throw Refused{std::string(what) + " " + quoted(text) + " is no number"};
  }
  if (!std::isfinite(value)) throw Refused{std::string(what) + " " + quoted(text) + " is not finite"};
  return value;
}

uint64_t salt_of(std::string_view name) { return hash_bytes(name.data(), static_cast<uint32_t>(name.size())); }

float label_of(std::string_view text) {
  const float label = number(text, "label");
  if (label == 1.0f) return 1.0f;
  if (label == 0.0f || label == -1.0f) return 0.0f;
  throw Refused{"label " + quoted(text) + "; expected 1, 0 or -1"};
}

}  // namespace

ExampleParser::ExampleParser(bool libffm, std::vector<std::string> fields, const std::vector<std::string>& ignored)
    : libffm_(libffm), open_(fields.empty()), fields_(std::move(fields)) {
  if (fields_.size() > kMostFields) throw std::invalid_argument("the model has too many fields");
  for (const std::string& name : fields_) {
    known_[name] = {static_cast<uint16_t>(salts_.size()), salt_of(name)};
    salts_.push_back(salt_of(name));
  }
  for (const std::string& name : ignored)
    if (!known_.try_emplace(name, Field{kIgnored, 0}).second)
      throw std::invalid_argument("a field of the model is also in ignore=");
}

size_t ExampleParser::feed(std::string_view text) {
  const uint64_t before = bad_;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_;
    if (std::all_of(line.begin(), line.end(), space)) continue;
    try {
      libffm_ ? ffm(line) : vw(line);
    } catch (const Refused& refused) {
      examples_.drop();
      ++bad_;
      if (first_bad_.size() < kNamed) first_bad_.push_back({line_, refused.why});
    }
  }
  return bad_ - before;
}

Examples ExampleParser::take() {
  Examples out = std::move(examples_);
  examples_ = Examples();
  return out;
}

void ExampleParser::vw(std::string_view line) {
  size_t bar = line.find('|');
  if (bar == std::string_view::npos) throw Refused{"no | in it"};
  std::string_view head = line.substr(0, bar);
  // What touches the bar is the tag, if a label stands before it.
  const bool tagged = !head.empty() && !space(head.back());
  std::string_view words[4];
  size_t n = 0;
  for (std::string_view word = token(head); !word.empty(); word = token(head)) {
    if (n == 4) throw Refused{"more than a label, an importance, a base and a tag before the first |"};
    words[n++] = word;
  }
  if (n > 0 && (words[n - 1][0] == '\'' || (tagged && n > 1))) --n;
  if (n > 2) throw Refused{"a base " + quoted(words[2]) + " is not supported; expected label and importance"};
  const float label = n > 0 ? label_of(words[0]) : std::numeric_limits<float>::quiet_NaN();
  const float weight = n > 1 ? number(words[1], "importance") : 1.0f;
  if (weight < 0.0f) throw Refused{"importance " + quoted(words[1]) + " is negative"};
  while (bar != std::string_view::npos) {
    line.remove_prefix(bar + 1);
    bar = line.find('|');
    std::string_view part = line.substr(0, bar);
    std::string_view name;
    float scale = 1.0f;
    if (!part.empty() && !space(part[0])) {
      name = token(part);
      const size_t colon = name.find(':');
      if (colon != std::string_view::npos) {
        scale = number(name.substr(colon + 1), "scale");
        name = name.substr(0, colon);
      }
    }
    features(part, field(name), scale);
  }
  examples_.close(label, weight);
}

void ExampleParser::features(std::string_view text, Field field, float scale) {
  for (std::string_view word = token(text); !word.empty(); word = token(text)) {
    const size_t colon = word.find(':');
    if (colon == 0) throw Refused{"feature " + quoted(word) + " has no name"};
    const float value = colon == std::string_view::npos ? 1.0f : number(word.substr(colon + 1), "value");
    if (!std::isfinite(value * scale)) throw Refused{"value " + quoted(word) + " times its scale is not finite"};
    add(field, word.substr(0, colon), value * scale);
  }
}

void ExampleParser::ffm(std::string_view line) {
  const float label = label_of(token(line));
  for (std::string_view word = token(line); !word.empty(); word = token(line)) {
    const size_t first = word.find(':');
    const size_t second = first == std::string_view::npos ? first : word.find(':', first + 1);
    if (second == std::string_view::npos || first == 0 || second == first + 1)
      throw Refused{"feature " + quoted(word) + "; expected field:name:value"};
    const float value = number(word.substr(second + 1), "value");
    add(field(word.substr(0, first)), word.substr(first + 1, second - first - 1), value);
  }
  examples_.close(label, 1.0f);
}

void ExampleParser::add(Field field, std::string_view name, float value) {
  if (field.number == kIgnored) return;
  if (examples_.keys.size() - examples_.offsets.back() == kMostFeatures)
    throw Refused{"more than " + std::to_string(kMostFeatures) + " features"};
  const uint64_t hash = hash_bytes(name.data(), static_cast<uint32_t>(name.size()));
  examples_.add(feature_key(hash, field.salt), field.number, value);
}

ExampleParser::Field ExampleParser::field(std::string_view name) {
  // Lines name their fields in one order, mostly.
  const size_t next = last_ + 1 < fields_.size() ? last_ + 1 : 0;
  if (!fields_.empty() && fields_[next] == name) {
    last_ = next;
    return {static_cast<uint16_t>(next), salts_[next]};
  }
  name_.assign(name);  // a string of its own, used again: no allocation for each namespace
  const auto found = known_.find(name_);
  if (found != known_.end()) {
    if (found->second.number != kIgnored) last_ = found->second.number;
    return found->second;
  }
  if (!open_) throw Refused{"namespace " + quoted(name) + " is none of the fields"};
  if (fields_.size() == kMostFields) throw Refused{"namespace " + quoted(name) + " would be field 513"};
  if (name.size() > 1000) throw Refused{"namespace " + quoted(name) + " is longer than 1,000 bytes"};
  const Field made{static_cast<uint16_t>(fields_.size()), salt_of(name)};
  fields_.push_back(name_);
  salts_.push_back(made.salt);
  known_[name_] = made;
  return made;
}

}  // namespace cb
