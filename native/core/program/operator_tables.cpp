#include "core/program/operator_tables.h"

#include <algorithm>
#include <stdexcept>

namespace cb {

namespace {

// At most half full, so that a search ends after a slot or two.
uint32_t slots_for(size_t members) {
  if (members > (size_t{1} << 30)) throw std::invalid_argument("is_in takes at most 2^30 values");
  uint32_t slots = 16;
  while (slots < 2 * members) slots *= 2;
  return slots;
}

std::vector<int64_t> without_repeats(std::vector<int64_t> v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
  return v;
}

// The smallest gap-free answer: some value of 0…n is no member.
int64_t not_in(const std::vector<int64_t>& sorted) {
  int64_t candidate = 0;
  for (auto at = std::lower_bound(sorted.begin(), sorted.end(), 0); at != sorted.end() && *at == candidate; ++at)
    ++candidate;
  return candidate;
}

std::vector<int64_t> float_members(const std::vector<double>& members) {
  std::vector<int64_t> bits;
  for (double x : members)
    if (x == x) bits.push_back(float_member(x));
  return without_repeats(std::move(bits));
}

}  // namespace

IntSet::IntSet(const std::vector<int64_t>& members)
    : IntSet(without_repeats(members), not_in(without_repeats(members))) {}

IntSet::IntSet(std::vector<int64_t> members, int64_t empty) {
  uint32_t mask = 0;
  uint32_t n = static_cast<uint32_t>(members.size());
  if (members.size() <= kLinear) {
    slots_ = std::move(members);
  } else {
    slots_.assign(slots_for(members.size()), empty);
    mask = static_cast<uint32_t>(slots_.size() - 1);
    for (int64_t x : members) {
      uint32_t at = static_cast<uint32_t>(hash_int(x)) & mask;
      while (slots_[at] != empty) at = (at + 1) & mask;
      slots_[at] = x;
    }
  }
  view_ = {slots_.data(), n, mask, empty};
}

// A NaN marks the empty slots: it is never a member.
FloatSet::FloatSet(const std::vector<double>& members)
    : IntSet(float_members(members), static_cast<int64_t>(bits_of(not_a_number()))) {}

StrSet::StrSet(const std::vector<std::string>& members) {
  std::vector<std::string> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  size_t total = 0;
  for (const std::string& s : sorted) total += s.size();
  if (total > UINT32_MAX) throw std::invalid_argument("is_in takes at most 4 GB of strings");
  bytes_.reserve(total);
  bool linear = sorted.size() <= kLinear;
  slots_.assign(linear ? sorted.size() : slots_for(sorted.size()), StrSlot{});
  uint32_t mask = linear ? 0 : static_cast<uint32_t>(slots_.size() - 1);
  for (size_t k = 0; k < sorted.size(); ++k) {
    const std::string& s = sorted[k];
    StrSlot slot{hash_bytes(s.data(), static_cast<uint32_t>(s.size())) | 1, static_cast<uint32_t>(bytes_.size()),
                 static_cast<uint32_t>(s.size())};
    bytes_ += s;
    size_t at = k;
    if (!linear) {
      at = (slot.hash >> 32) & mask;
      while (slots_[at].hash) at = (at + 1) & mask;
    }
    slots_[at] = slot;
  }
  view_ = {slots_.data(), bytes_.data(), static_cast<uint32_t>(sorted.size()), mask};
}

Boundaries::Boundaries(std::vector<double> boundaries) : boundaries_(std::move(boundaries)) {
  for (size_t k = 0; k < boundaries_.size(); ++k) {
    if (boundaries_[k] != boundaries_[k])
      throw std::invalid_argument("bucketize: boundary " + std::to_string(k) + " is NaN");
    if (k > 0 && boundaries_[k] < boundaries_[k - 1])
      throw std::invalid_argument("bucketize: boundary " + std::to_string(k) + " (" + std::to_string(boundaries_[k]) +
                                  ") is below the one before it; boundaries must ascend");
  }
  view_ = {boundaries_.data(), static_cast<uint32_t>(boundaries_.size())};
}

// ---- paths
// ----------------------------------------------------------------------------------------------------

namespace {

struct Step {
  bool by_index;
  std::string key;
  uint32_t index;
  bool operator==(const Step&) const = default;
};

[[noreturn]] void refuse(const std::string& path, size_t at, const std::string& why) {
  throw std::invalid_argument("JSON path '" + path + "': " + why + " at position " + std::to_string(at));
}

bool in_name(char c) {
  return is_digit(c) || c == '_' || c == '-' || static_cast<uint8_t>((c | 0x20) - 'a') < 26 ||
         static_cast<uint8_t>(c) >= 0x80;
}

std::vector<Step> read_path(const std::string& path) {
  if (path.empty() || path[0] != '$') refuse(path, 0, "a path starts with '$'");
  std::vector<Step> steps;
  size_t at = 1;
  while (at < path.size()) {
    if (path[at] == '.') {
      size_t start = ++at;
      while (at < path.size() && in_name(path[at])) ++at;
      if (at == start)
        refuse(path, at,
               at < path.size() && path[at] == '.'   ? "'..' is not supported"
               : at < path.size() && path[at] == '*' ? "'*' is not supported"
                                                     : "a name was expected (other keys: ['the key'])");
      steps.push_back({false, path.substr(start, at - start), 0});
    } else if (path[at] == '[') {
      ++at;
      if (at < path.size() && (path[at] == '\'' || path[at] == '"')) {
        char quote = path[at++];
        std::string key;
        while (at < path.size() && path[at] != quote) {
          if (path[at] == '\\') {
            ++at;
            if (at == path.size() || (path[at] != quote && path[at] != '\\'))
              refuse(path, at, "only the quote and the backslash can be escaped");
          }
          key += path[at++];
        }
        if (at == path.size()) refuse(path, at, "the quote is not closed");
        ++at;
        steps.push_back({false, key, 0});
      } else {
        if (at < path.size() && path[at] == '-') refuse(path, at, "an index that counts from the end is not supported");
        size_t start = at;
        uint64_t index = 0;
        while (at < path.size() && is_digit(path[at])) {
          index = index * 10 + static_cast<uint64_t>(path[at] - '0');
          if (index > INT32_MAX) refuse(path, start, "the index is too large");
          ++at;
        }
        if (at == start) refuse(path, at, "an index or a quoted key was expected");
        steps.push_back({true, {}, static_cast<uint32_t>(index)});
      }
      if (at == path.size() || path[at] != ']') refuse(path, at, "']' was expected");
      ++at;
    } else {
      refuse(path, at, "'.' or '[' was expected");
    }
    if (steps.size() > kJsonDepth) refuse(path, at, "the path has more than 64 levels");
  }
  return steps;
}

uint8_t kind_code(const std::string& path, const std::string& kind) {
  if (kind == "s" || kind == "i" || kind == "f" || kind == "b") return static_cast<uint8_t>(kind[0]);
  if (kind == "*s") return kJsonSs;
  if (kind == "*i") return kJsonIs;
  if (kind == "*f") return kJsonFs;
  throw std::invalid_argument("JSON path '" + path + "': no result of kind '" + kind +
                              "'; there are s, i, f, b, *s, *i, *f");
}

struct TrieNode {
  uint32_t ends = 0, under = 0;
  std::vector<std::pair<Step, uint32_t>> children;
};

}  // namespace

JsonPaths::JsonPaths(const std::vector<std::string>& paths, const std::vector<std::string>& kinds)
    : paths_(paths), result_kinds_(kinds) {
  if (paths.size() != kinds.size()) throw std::invalid_argument("JSON: expected one kind for each path");
  if (paths.empty() || paths.size() > kJsonPaths)
    throw std::invalid_argument("JSON: " + std::to_string(paths.size()) + " paths; from 1 to 32 are possible");
  std::vector<TrieNode> trie(2);
  for (size_t k = 0; k < paths.size(); ++k) {
    kinds_.push_back(kind_code(paths[k], kinds[k]));
    const uint32_t bit = uint32_t{1} << k;
    uint32_t node = 1;
    trie[node].under |= bit;
    for (const Step& step : read_path(paths[k])) {
      auto& children = trie[node].children;
      auto known = std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == step; });
      if (known != children.end()) {
        node = known->second;
      } else {
        uint32_t fresh = static_cast<uint32_t>(trie.size());
        children.emplace_back(step, fresh);
        trie.emplace_back();
        node = fresh;
      }
      trie[node].under |= bit;
    }
    trie[node].ends |= bit;
  }
  for (const TrieNode& t : trie) {
    JsonNode node{t.ends, t.under, 0, static_cast<uint16_t>(edges_.size()), 0, 0};
    for (bool by_index : {false, true})
      for (const auto& [step, to] : t.children) {
        if (step.by_index != by_index) continue;
        JsonEdge edge{0, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(step.key.size()), step.index, to};
        for (size_t b = 0; b < step.key.size() && b < 8; ++b)
          edge.head |= static_cast<uint64_t>(static_cast<uint8_t>(step.key[b])) << (8 * b);
        keys_ += step.key;
        if (!by_index) node.lengths |= uint32_t{1} << std::min<size_t>(step.key.size(), 31);
        edges_.push_back(edge);
        ++(by_index ? node.indexes : node.keys);
      }
    nodes_.push_back(node);
  }
  view_ = {nodes_.data(), edges_.data(), keys_.data(), kinds_.data(), static_cast<uint32_t>(paths.size())};
}

size_t JsonPaths::bytes() const {
  return nodes_.size() * sizeof(JsonNode) + edges_.size() * sizeof(JsonEdge) + keys_.size() + kinds_.size();
}

}  // namespace cb
