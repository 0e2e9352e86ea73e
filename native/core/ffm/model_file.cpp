#include "core/ffm/model_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/system/checked_file.h"

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'F', 'F', 'M', 0, 0};
constexpr char kEnd[8] = {'C', 'T', 'R', 'F', 'E', 'N', 'D', '.'};
constexpr uint32_t kVersion = 2, kWithKinds = 3;
constexpr size_t kBlock = size_t{1} << 18;
enum Flag : uint32_t { kLr = 1, kFfm = 2, kNorm = 4, kResidual = 8, kAccumulators = 16 };

enum class Way { kOut, kIn };

// Weights from outside: whether all are finite. What is skipped because an input is 0 must be what multiplying would
// give, so nothing is infinite, and nothing is -0, which a step of 0 would change.
bool take_in(const float* from, float* to, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= std::isfinite(from[i]);
    to[i] = from[i] + 0.0f;
  }
  return finite;
}

// A layer that has a row per input in memory, neuron by neuron, as files have it.
template <class F>
void neurons(float* at, const FfmLayout::Layer& layer, float padding, Way way, F each) {
  if (way == Way::kIn) std::fill_n(at, layer.size(), padding);
  std::vector<float> neuron(layer.width, padding);
  for (size_t j = 0; j < layer.neurons; ++j) {
    for (size_t i = 0; way == Way::kOut && i <= layer.inputs; ++i) neuron[i] = at[i * layer.step() + j];
    each(neuron.data(), layer.width);
    for (size_t i = 0; way == Way::kIn && i <= layer.inputs; ++i) at[i * layer.step() + j] = neuron[i];
  }
}

// Calls each(p, n) for the runs of dense in the order of the file: the bias, then the layers.
template <class F>
void dense_runs(const DeepFfm& model, bool accumulators, Way way, F each) {
  const FfmLayout& l = model.layout();
  const size_t a = accumulators ? 1 : 0;
  each(model.dense() + a, size_t{1});
  for (const auto& layer : l.layers) {
    float* at = model.dense() + layer.at + a * layer.size();
    if (layer.by_input)
      neurons(at, layer, accumulators ? model.settings().nn_rates.initial : 0.0f, way, each);
    else
      each(at, layer.size());
  }
}

// Calls each(p, n) for the runs of weights (or accumulators) in the order of the file, which it reads or writes.
template <class F>
void runs(const DeepFfm& model, bool accumulators, Way way, F each) {
  const FfmLayout& l = model.layout();
  const size_t a = accumulators ? 1 : 0;
  for (uint64_t i = 0; i < l.lr_size; ++i) each(model.lr() + l.lr_step * i + a, size_t{1});
  for (uint64_t r = 0; r < l.rows; ++r) each(model.ffm() + l.row_step * r + a * l.stride, l.stride);
  dense_runs(model, accumulators, way, each);
}

// Floats in and out of the file in sealed blocks, whatever the runs' lengths.
template <class Seal>
class Blocks {
 public:
  explicit Blocks(Seal seal) : seal_(seal) {}
  template <class F>
  void run(float* p, size_t n, F move) {
    while (n > 0) {
      const size_t part = std::min(n, kBlock - held_);
      move(p, part);
      p += part;
      n -= part;
      held_ += part;
      if (held_ == kBlock) end();
    }
  }
  void end() {
    if (held_ > 0) seal_();
    held_ = 0;
  }

 private:
  Seal seal_;
  size_t held_ = 0;
};

void put_rates(CheckedWriter& file, const BlockRates& r) {
  file.put(r.rate);
  file.put(r.power_t);
  file.put(r.initial);
}

BlockRates get_rates(CheckedReader& file) {
  BlockRates r;
  r.rate = file.get<float>();
  r.power_t = file.get<float>();
  r.initial = file.get<float>();
  return r;
}

bool usable(const BlockRates& r) {
  return r.rate > 0.0f && r.rate <= 1e3f && r.power_t >= 0.0f && r.power_t <= 1.0f && r.initial >= 1e-10f &&
         r.initial <= 1e10f;
}

}  // namespace

uint64_t weights_of(const FfmLayout& layout) {
  uint64_t n = layout.lr_size + layout.rows * layout.stride + 1;
  for (const auto& layer : layout.layers) n += layer.neurons * layer.width;
  return n;
}

void take_weights(const DeepFfm& model, float* out) {
  runs(model, false, Way::kOut, [&](const float* p, size_t n) { out = std::copy_n(p, n, out); });
}

void give_weights(DeepFfm& model, const float* weights) {
  bool finite = true;
  runs(model, false, Way::kIn, [&](float* p, size_t n) {
    finite &= take_in(weights, p, n);
    weights += n;
  });
  model.changed();
  if (!finite) throw DamagedFile("a weight is not finite");
}

void give_dense(DeepFfm& model, const float* dense) {
  bool finite = true;
  dense_runs(model, false, Way::kIn, [&](float* p, size_t n) {
    finite &= take_in(dense, p, n);
    dense += n;
  });
  model.changed();
  if (!finite) throw DamagedFile("a weight is not finite");
}

std::string wrong_with(const FfmSettings& s) {
  if (s.fields < 1 || s.fields > kMostFields) return "fields must be 1 to 512";
  if (s.context > s.fields) return "the context cannot have more fields than the model";
  if (s.k < 1 || s.k > kMostK) return "k must be 1 to 64";
  if (s.bits < 4 || s.bits > kMostBits) return "bits must be 4 to 36";
  if (!s.lr && !s.ffm) return "lr and ffm cannot both be off";
  if (s.hidden.size() > kMostLayers) return "hidden must have at most 8 layers";
  for (uint32_t n : s.hidden)
    if (n < 1 || n > kMostNeurons) return "a hidden layer must have 1 to 1024 neurons";
  for (const BlockRates& r : {s.lr_rates, s.ffm_rates, s.nn_rates})
    if (!usable(r))
      return "a rate must be above 0 and at most 1000, power_t 0 to 1, the first accumulator 1e-10 to 1e10";
  if (!(s.ffm_init >= 0.0f && s.ffm_init <= 10.0f)) return "ffm_init must be 0 to 10";
  if (s.ffm && (uint64_t{1} << s.bits) < padded(s.fields * padded(s.k, kChunk), kLanes))
    return "bits is too small: 2^bits weights cannot hold one row of " +
           std::to_string(padded(s.fields * padded(s.k, kChunk), kLanes));
  return "";
}

void save_ffm(const std::string& path, const DeepFfm& model, const FfmHead& head) {
  const FfmSettings& s = head.settings;
  CheckedWriter file(path);
  file.put(kMagic, sizeof kMagic);
  const bool kinds =
      std::any_of(head.keys.begin(), head.keys.end(), [](KeyKind kind) { return kind != KeyKind::kUnknown; });
  file.put(kinds ? kWithKinds : kVersion);
  file.put(s.fields);
  file.put(s.context);
  file.put(s.k);
  file.put(s.bits);
  file.put((s.lr ? kLr : 0u) | (s.ffm ? kFfm : 0u) | (s.norm ? kNorm : 0u) | (s.residual ? kResidual : 0u) |
           kAccumulators);
  file.put(static_cast<uint32_t>(s.hidden.size()));
  for (uint32_t n : s.hidden) file.put(n);
  for (const BlockRates& r : {s.lr_rates, s.ffm_rates, s.nn_rates}) put_rates(file, r);
  file.put(s.ffm_init);
  file.put(s.seed);
  file.put(head.examples);
  uint32_t bytes = 0;
  for (const std::string& name : head.fields) bytes += static_cast<uint32_t>(2 + name.size());
  file.put(bytes);
  for (const std::string& name : head.fields) {
    file.put(static_cast<uint16_t>(name.size()));
    file.put(name.data(), name.size());
  }
  if (kinds)
    for (size_t f = 0; f < head.fields.size(); ++f) file.put(static_cast<uint8_t>(head.key_kind(f)));
  file.seal();
  auto seal = [&] { file.seal(); };
  for (bool accumulators : {false, true}) {
    Blocks blocks(seal);
    runs(model, accumulators, Way::kOut,
         [&](float* p, size_t n) { blocks.run(p, n, [&](float* q, size_t m) { file.put(q, m * sizeof(float)); }); });
    blocks.end();
  }
  file.put(kEnd, sizeof kEnd);
  file.seal();
  file.close();
}

std::unique_ptr<DeepFfm> load_ffm(const std::string& path, FfmHead& head) {
  CheckedReader file(path);
  char magic[8];
  if (file.left() < sizeof magic)
    throw DamagedFile("it is not a saved Deep FFM: only " + std::to_string(file.left()) + " bytes");
  file.get(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    throw DamagedFile("it is not a saved Deep FFM: it does not start with CTRFFM");
  const uint32_t version = file.get<uint32_t>();
  if (version != kVersion && version != kWithKinds)
    throw DamagedFile("it has version " + std::to_string(version) +
                      " of the format, but this version of CTRBox reads versions 2 and 3");
  FfmSettings& s = head.settings;
  s.fields = file.get<uint32_t>();
  s.context = file.get<uint32_t>();
  s.k = file.get<uint32_t>();
  s.bits = file.get<uint32_t>();
  const uint32_t flags = file.get<uint32_t>();
  s.lr = flags & kLr;
  s.ffm = flags & kFfm;
  s.norm = flags & kNorm;
  s.residual = flags & kResidual;
  const uint32_t layers = file.get<uint32_t>();
  if (layers > kMostLayers) throw DamagedFile("its header says " + std::to_string(layers) + " hidden layers");
  s.hidden.clear();
  for (uint32_t n = 0; n < layers; ++n) s.hidden.push_back(file.get<uint32_t>());
  s.lr_rates = get_rates(file);
  s.ffm_rates = get_rates(file);
  s.nn_rates = get_rates(file);
  s.ffm_init = file.get<float>();
  s.seed = file.get<uint64_t>();
  head.examples = file.get<uint64_t>();
  const uint32_t bytes = file.get<uint32_t>();
  if (bytes > file.left()) throw DamagedFile("its header declares more names than the file holds");
  std::vector<char> names(bytes);
  if (bytes > 0) file.get(names.data(), bytes);
  std::vector<uint8_t> kinds(version == kWithKinds ? std::min(s.fields, kMostFields) : 0);
  if (!kinds.empty()) {
    if (kinds.size() > file.left()) throw DamagedFile("its header declares more fields than the file holds");
    file.get(kinds.data(), kinds.size());
  }
  file.check_seal("its head");
  const std::string wrong = wrong_with(s);
  if (!wrong.empty()) throw DamagedFile("its header contradicts itself: " + wrong);
  head.fields.clear();
  for (size_t at = 0; at < bytes;) {
    uint16_t size = 0;
    if (bytes - at < 2) throw DamagedFile("its header contradicts itself");
    std::memcpy(&size, names.data() + at, 2);
    if (bytes - at - 2 < size) throw DamagedFile("its header contradicts itself");
    head.fields.emplace_back(names.data() + at + 2, size);
    at += 2 + size;
  }
  if (head.fields.size() != s.fields || !(flags & kAccumulators)) throw DamagedFile("its header contradicts itself");
  head.keys.clear();
  for (const uint8_t kind : kinds) {
    if (kind >= std::size(kKeyKinds))
      throw DamagedFile("its header says that a field has keys of kind " + std::to_string(kind));
    head.keys.push_back(static_cast<KeyKind>(kind));
  }
  const uint64_t floats = weights_of(FfmLayout(s));
  const uint64_t seals = 2 * ((floats + kBlock - 1) / kBlock) + 1;
  if (file.left() != 2 * floats * sizeof(float) + seals * 8 + sizeof kEnd)
    throw DamagedFile("its size does not match its header");
  auto model = std::make_unique<DeepFfm>(s, false);
  uint64_t block = 0;
  auto seal = [&] { file.check_seal("block " + std::to_string(block++)); };
  for (bool accumulators : {false, true}) {
    Blocks blocks(seal);
    bool positive = true, finite = true;  // as every accumulator is from its first value on; NaN is not
    runs(*model, accumulators, Way::kIn, [&](float* p, size_t n) {
      blocks.run(p, n, [&](float* q, size_t m) { file.get(q, m * sizeof(float)); });
      for (size_t i = 0; accumulators && i < n; ++i) positive &= p[i] > 0.0f;
      finite &= take_in(p, p, n);
    });
    blocks.end();
    if (!positive) throw DamagedFile("an accumulator is not above 0");
    if (!finite) throw DamagedFile("a weight is not finite");
  }
  char end[8];
  file.get(end, sizeof end);
  file.check_seal("its end");
  if (std::memcmp(end, kEnd, sizeof end) != 0) throw DamagedFile("its end mark is wrong");
  return model;
}

}  // namespace cb
