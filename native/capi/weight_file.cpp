#include "capi/weight_file.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "capi/whole_file.h"
#include "core/publish/quantize.h"
#include "core/system/checked_file.h"
#include "operators/json.h"

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'W', 'G', 'H', 'T', 'S'};
constexpr uint32_t kVersion = 1, kMostDirectory = 64u << 20;
constexpr uint64_t kAligned = 64;

struct Head {
  char magic[8];
  uint32_t version, directory;
  uint64_t sum, size;
  uint8_t zeros[32];
};
static_assert(sizeof(Head) == 64);

[[noreturn]] void contradicts(const std::string& what) {
  throw DamagedFile("its directory contradicts itself: " + what);
}

uint64_t to_whole(uint64_t n) { return (n + kAligned - 1) / kAligned * kAligned; }

// ---- the directory's JSON

// The whole of a document, once all of it has been checked: what walks it below need not.
JsonSlice checked(Str text) {
  static const JsonNode nodes[2] = {{}, {1, 1, 0, 0, 0, 0}};  // one path, the root
  static const uint8_t kinds[1] = {kJsonS};
  JsonSlice root;
  if (!JsonScan::scan({nodes, nullptr, nullptr, kinds, 1}, text, &root)) contradicts("it is not JSON");
  return root;
}

std::string text(const JsonSlice& v, const char* what) {
  if (v.type != kJsonString) contradicts(what);
  if (!v.escaped) return {v.p, v.n};
  std::string out(v.n, 0);
  out.resize(json_unescape(v, out.data()));
  return out;
}

// The members of an object, by name; of a name that comes twice the last.
class Members {
 public:
  Members(const JsonSlice& object, const char* what) : what_(what) {
    if (object.type != kJsonObject) contradicts(what);
    const char *p = object.p + 1, *end = object.p + object.n;
    for (;;) {
      p = skip_blank(p);
      if (*p == ',') p = skip_blank(p + 1);
      if (*p == '}') return;
      JsonSlice key, value;
      json_next(&p, end, &key);  // a string, and then a colon: the document has been checked
      p = skip_blank(p) + 1;
      json_next(&p, end, &value);
      found_[text(key, what)] = value;
    }
  }
  const JsonSlice* find(const char* name) const {
    const auto at = found_.find(name);
    return at == found_.end() ? nullptr : &at->second;
  }
  const JsonSlice& at(const char* name) const {
    const JsonSlice* found = find(name);
    if (!found) contradicts(std::string(what_) + " without " + name);
    return *found;
  }

 private:
  const char* what_;
  std::map<std::string, JsonSlice> found_;
};

int64_t whole(const JsonSlice& v, const char* what, int64_t low, int64_t high) {
  int64_t out = 0;
  if (!json_int(v, &out) || out < low || out > high) contradicts(what);
  return out;
}

double number(const JsonSlice& v, const char* what) {
  double out = 0;
  if (!json_float(v, &out) || !std::isfinite(out)) contradicts(what);
  return out;
}

bool truth(const JsonSlice& v, const char* what) {
  uint8_t out = 0;
  if (!json_bool(v, &out)) contradicts(what);
  return out != 0;
}

template <class F>
void each(const JsonSlice& array, const char* what, size_t most, F f) {
  if (array.type != kJsonArray) contradicts(what);
  const char* p = array.p + 1;
  size_t n = 0;
  for (JsonSlice item; json_next(&p, array.p + array.n, &item); f(item))
    if (++n > most) contradicts(what);
}

BlockRates rates(const JsonSlice& v, const char* what) {
  float found[3] = {};
  size_t n = 0;
  each(v, what, 3, [&](const JsonSlice& item) { found[n++] = static_cast<float>(number(item, what)); });
  if (n != 3) contradicts(what);
  return {found[0], found[1], found[2]};
}

struct PartEntry {
  std::string name;
  uint64_t at, bytes, count, sum;
  std::optional<float> bucket;
  int32_t first = 0;
};

uint64_t sum_of(const std::string& digits) {
  if (digits.size() != 16) contradicts("a checksum");
  uint64_t out = 0;
  for (char c : digits) {
    const bool decimal = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!decimal && !letter) contradicts("a checksum");
    out = out << 4 | static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return out;
}

PartEntry entry(const JsonSlice& item) {
  const Members v(item, "a part");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;
  PartEntry out;
  out.name = text(v.at("name"), "a part's name");
  if (text(v.at("dtype"), "a part's type") != "F32") contradicts("part '" + out.name + "' is not of float32");
  out.at = static_cast<uint64_t>(whole(v.at("at"), "a part's place", 0, kMost));
  out.bytes = static_cast<uint64_t>(whole(v.at("bytes"), "a part's bytes", 0, kMost));
  out.sum = sum_of(text(v.at("sum"), "a checksum"));
  uint64_t count = 1;
  each(v.at("shape"), "a part's shape", 32, [&](const JsonSlice& side) {
    const uint64_t n = static_cast<uint64_t>(whole(side, "a part's shape", 0, kMost));
    if (n != 0 && count > static_cast<uint64_t>(kMost) / n) contradicts("a part's shape");
    count *= n;
  });
  out.count = count;
  if (const JsonSlice* bucket = v.find("bucket")) {
    out.bucket = static_cast<float>(number(*bucket, "a part's bucket"));
    out.first = static_cast<int32_t>(whole(v.at("first"), "a part's first code", -kMostFirst, kMostFirst));
    if (!(*out.bucket > 0.0f) || !std::isfinite(*out.bucket)) contradicts("a part's bucket");
  }
  // At most 2^60: four times it is no overflow.
  if (out.count > static_cast<uint64_t>(kMost) || out.count * (out.bucket ? 2 : 4) != out.bytes)
    contradicts("part '" + out.name + "'");
  return out;
}

struct Directory {
  FfmHead head;
  std::vector<PartEntry> parts;
};

Directory directory_of(Str json) {
  const Members top(checked(json), "the directory"), v(top.at("about"), "about");
  const std::string kind = text(top.at("kind"), "kind");
  if (kind != "deep_ffm")
    throw DamagedFile("it holds weights of kind '" + kind.substr(0, 40) + "'; expected 'deep_ffm'");
  Directory out;
  FfmSettings& s = out.head.settings;
  s.fields = static_cast<uint32_t>(whole(v.at("fields"), "fields", 1, kMostFields));
  s.context = static_cast<uint32_t>(whole(v.at("context"), "context", 0, kMostFields));
  s.k = static_cast<uint32_t>(whole(v.at("k"), "k", 1, kMostK));
  s.bits = static_cast<uint32_t>(whole(v.at("bits"), "bits", 1, kMostBits));
  s.lr = truth(v.at("lr"), "lr");
  s.ffm = truth(v.at("ffm"), "ffm");
  each(v.at("hidden"), "hidden", kMostLayers,
       [&](const JsonSlice& n) { s.hidden.push_back(static_cast<uint32_t>(whole(n, "hidden", 1, kMostNeurons))); });
  s.norm = truth(v.at("norm"), "norm");
  s.residual = truth(v.at("residual"), "residual");
  s.lr_rates = rates(v.at("lr_rates"), "lr_rates");
  s.ffm_rates = rates(v.at("ffm_rates"), "ffm_rates");
  s.nn_rates = rates(v.at("nn_rates"), "nn_rates");
  s.ffm_init = static_cast<float>(number(v.at("ffm_init"), "ffm_init"));
  each(v.at("names"), "names", kMostFields,
       [&](const JsonSlice& name) { out.head.fields.push_back(text(name, "names")); });
  out.head.examples = static_cast<uint64_t>(whole(v.at("learned"), "learned", 0, std::numeric_limits<int64_t>::max()));
  if (const JsonSlice* keys = v.find("keys")) {  // older files have none
    each(*keys, "keys", kMostFields, [&](const JsonSlice& name) {
      const auto found = key_kind_named(text(name, "keys"));
      if (!found) contradicts("a kind of keys that is none");
      out.head.keys.push_back(*found);
    });
    if (out.head.keys.size() != s.fields) contradicts("keys and fields");
  }
  const std::string wrong = wrong_with(s);
  if (!wrong.empty()) contradicts(wrong);
  if (out.head.fields.size() != s.fields) contradicts("names and fields");
  each(top.at("parts"), "parts", 1000, [&](const JsonSlice& item) { out.parts.push_back(entry(item)); });
  return out;
}

// Parts fill the file from the directory's end on, in order, with zeros up to the next multiple of 64.
void check_places(const Directory& found, uint64_t data_at, uint64_t size) {
  std::set<std::string> names;
  uint64_t at = data_at;
  for (const PartEntry& e : found.parts) {
    if (e.at != at || e.bytes > size - at || to_whole(e.bytes) > size - at) contradicts("part '" + e.name + "'");
    if (!names.insert(e.name).second) contradicts("two parts have the same name");
    at += to_whole(e.bytes);
  }
  if (at != size) contradicts("parts and size");
}

void read_part(const FileBytes& file, const PartEntry& e, std::vector<float>& out) {
  std::vector<uint8_t> held(to_whole(e.bytes));
  file.read(held.data(), held.size(), e.at);
  Checksum sum;
  sum.add(held.data(), e.bytes);
  bool clean = seal_fits(e.sum, sum.value());
  for (uint64_t k = e.bytes; k < held.size(); ++k) clean = clean && held[k] == 0;
  if (!clean) throw DamagedFile("the checksum of part '" + e.name + "' is wrong");
  const size_t before = out.size();
  out.resize(before + e.count);
  if (e.bucket)
    dequantize(reinterpret_cast<const uint16_t*>(held.data()), e.count, *e.bucket, e.first, out.data() + before);
  else if (e.count)
    std::memcpy(out.data() + before, held.data(), e.bytes);
}

}  // namespace

bool is_weight_file(const std::string& path) {
  const FileBytes file(path);
  char magic[sizeof kMagic];
  if (file.size() < sizeof magic) return false;
  file.read(magic, sizeof magic, 0);
  return std::memcmp(magic, kMagic, sizeof magic) == 0;
}

std::unique_ptr<DeepFfm> load_weights(const std::string& path, FfmHead& head) {
  const FileBytes file(path);
  Head h;
  if (file.size() < sizeof h)
    throw DamagedFile("it is not a weight file: only " + std::to_string(file.size()) + " bytes");
  file.read(&h, sizeof h, 0);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0)
    throw DamagedFile("it is not a weight file: it does not start with CTRWGHTS");
  if (h.version != kVersion)
    throw DamagedFile("it has version " + std::to_string(h.version) +
                      " of the format, but this version of CTRBox reads 1");
  bool fits = h.size == file.size() && h.directory <= file.size() - sizeof h && h.directory <= kMostDirectory;
  for (uint8_t zero : h.zeros) fits = fits && zero == 0;
  if (!fits)
    throw DamagedFile("it has " + std::to_string(file.size()) + " bytes, but its header says " +
                      std::to_string(h.size));
  std::vector<char> json(h.directory);
  file.read(json.data(), json.size(), sizeof h);
  Checksum sum;
  sum.add(json.data(), json.size());
  if (!seal_fits(h.sum, sum.value())) throw DamagedFile("the checksum of its directory is wrong");

  const Directory found = directory_of(Str{json.data(), h.directory});
  check_places(found, sizeof h + h.directory, file.size());
  const FfmSettings& s = found.head.settings;
  // The parts lie within the file, so their sum bounds the model that is made for them.
  uint64_t held = 0;
  for (const PartEntry& e : found.parts) held += e.count;
  if (held != weights_of(FfmLayout(s))) contradicts("its parts do not have as many weights as its settings need");
  std::vector<float> flat;
  flat.reserve(held);
  for (const char* name : {"lr", "ffm", "dense"}) {
    const PartEntry* part = nullptr;
    for (const PartEntry& e : found.parts)
      if (e.name == name) part = &e;
    if (!part) contradicts("it has no part '" + std::string(name) + "'");
    read_part(file, *part, flat);
  }
  if (flat.size() != held) contradicts("parts that no Deep FFM has");
  auto model = std::make_unique<DeepFfm>(s, false, false);
  give_weights(*model, flat.data());
  head = found.head;
  return model;
}

}  // namespace cb
