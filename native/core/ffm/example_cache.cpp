#include "core/ffm/example_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/ffm/weight_layout.h"

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'E', 'X', 'A', 'M', 'P'};
constexpr uint32_t kVersion = 1, kBlock = 1, kEnd = 2;
constexpr uint32_t kValues = 1, kWeights = 2, kWide = 4;
constexpr size_t kKeyBytes = 6;

template <class T>
void put_all(CheckedWriter& file, const std::vector<T>& column) {
  if (!column.empty()) file.put(column.data(), column.size() * sizeof(T));
}

template <class T>
std::vector<T> get_all(CheckedReader& file, uint64_t n) {
  if (n > file.left() / sizeof(T)) throw DamagedFile("a block declares more bytes than the file has");
  std::vector<T> column(n);
  if (n > 0) file.get(column.data(), n * sizeof(T));
  return column;
}

}  // namespace

ExampleWriter::ExampleWriter(const std::string& path) : file_(path) {
  file_.put(kMagic, sizeof kMagic);
  file_.put(kVersion);
  file_.seal();
}

void ExampleWriter::put(const Examples& examples, const std::vector<std::string>& fields) {
  const size_t rows = examples.rows(), features = examples.keys.size();
  const bool wide = fields.size() > 256;
  file_.put(kBlock);
  file_.put(static_cast<uint32_t>(rows));
  file_.put(static_cast<uint32_t>(features));
  file_.put((examples.values.empty() ? 0 : kValues) | (examples.weights.empty() ? 0 : kWeights) | (wide ? kWide : 0));
  file_.put(static_cast<uint32_t>(fields.size() - named_));
  for (; named_ < fields.size(); ++named_) {
    file_.put(static_cast<uint16_t>(fields[named_].size()));
    file_.put(fields[named_].data(), fields[named_].size());
  }
  std::vector<uint16_t> counts(rows);
  std::vector<uint8_t> labels(rows), narrow, packed(features * kKeyBytes);
  for (size_t e = 0; e < rows; ++e) {
    counts[e] = static_cast<uint16_t>(examples.offsets[e + 1] - examples.offsets[e]);
    const float label = examples.labels.empty() ? std::numeric_limits<float>::quiet_NaN() : examples.labels[e];
    labels[e] = std::isnan(label) ? 2 : label > 0.5f ? 1 : 0;
    unlabeled_ += labels[e] == 2;
  }
  put_all(file_, counts);
  put_all(file_, labels);
  put_all(file_, examples.weights);
  if (wide) {
    put_all(file_, examples.fields);
  } else {
    narrow.assign(examples.fields.begin(), examples.fields.end());
    put_all(file_, narrow);
  }
  for (size_t i = 0; i < features; ++i) {
    const uint64_t key = examples.keys[i] >> 16;
    std::memcpy(packed.data() + i * kKeyBytes, &key, kKeyBytes);
  }
  put_all(file_, packed);
  put_all(file_, examples.values);
  file_.seal();
  rows_ += rows;
}

void ExampleWriter::close(uint64_t lines, uint64_t bad) {
  file_.put(kEnd);
  for (uint64_t n : {rows_, unlabeled_, lines, bad}) file_.put(n);
  file_.seal();
  file_.close();
}

ExampleReader::ExampleReader(const std::string& path) : file_(path) {
  char magic[8];
  if (file_.left() < sizeof magic + 12)
    throw DamagedFile("it is not a file of examples: it has only " + std::to_string(file_.left()) + " bytes");
  file_.get(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    throw DamagedFile("it is not a file of examples: it does not start with CTREXAMP");
  const uint32_t version = file_.get<uint32_t>();
  if (version != kVersion)
    throw DamagedFile("it has version " + std::to_string(version) +
                      " of the format, but this version of CTRBox reads version 1");
  file_.check_seal("its head");
}

std::optional<PackedExamples> ExampleReader::read() {
  if (done_) return std::nullopt;
  const uint32_t kind = file_.get<uint32_t>();
  if (kind == kEnd) {
    for (uint64_t* n : {&totals_.rows, &totals_.unlabeled, &totals_.lines, &totals_.bad}) *n = file_.get<uint64_t>();
    file_.check_seal("its end");
    if (totals_.rows != rows_ || file_.left() != 0) throw DamagedFile("its end does not match its blocks");
    done_ = true;
    return std::nullopt;
  }
  const std::string block = "the block behind example " + std::to_string(rows_);
  if (kind != kBlock) throw DamagedFile(block + " is of an unknown kind");
  const uint32_t rows = file_.get<uint32_t>(), features = file_.get<uint32_t>(), flags = file_.get<uint32_t>();
  const uint32_t fresh = file_.get<uint32_t>();
  if (fresh > kMostFields - fields_.size()) throw DamagedFile(block + " has too many fields");
  for (uint32_t f = 0; f < fresh; ++f) {
    const std::vector<char> name = get_all<char>(file_, file_.get<uint16_t>());
    fields_.emplace_back(name.begin(), name.end());
  }
  PackedExamples out;
  out.counts = get_all<uint16_t>(file_, rows);
  out.labels = get_all<uint8_t>(file_, rows);
  if (flags & kWeights) out.weights = get_all<float>(file_, rows);
  if (flags & kWide)
    out.wide = get_all<uint16_t>(file_, features);
  else
    out.narrow = get_all<uint8_t>(file_, features);
  if (uint64_t{features} * kKeyBytes > file_.left()) throw DamagedFile("a block declares more bytes than the file has");
  out.keys.resize(uint64_t{features} * kKeyBytes + 2);  // the last key is read as eight bytes
  file_.get(out.keys.data(), out.keys.size() - 2);
  if (flags & kValues) out.values = get_all<float>(file_, features);
  file_.check_seal(block);
  out.fields = fields_.size();
  out.block = block;
  rows_ += rows;
  return out;
}

Examples PackedExamples::unpack() const {
  const size_t rows = counts.size(), features = (keys.size() - 2) / kKeyBytes;
  Examples out;
  out.values = values;
  out.weights = weights;
  if (narrow.empty())
    out.fields = wide;
  else
    out.fields.assign(narrow.begin(), narrow.end());
  const std::string odd = block + " contradicts itself";
  out.keys.resize(features);
  for (size_t i = 0; i < features; ++i) {
    uint64_t key;
    std::memcpy(&key, keys.data() + i * kKeyBytes, sizeof key);
    out.keys[i] = key << 16;
  }
  out.offsets.resize(rows + size_t{1});
  out.labels.resize(rows);
  // Fields ascend within an example: all places where they fall must be the first of one. Counted in two plain loops.
  const uint16_t* of = out.fields.data();
  uint32_t falls = 0, at_begins = 0;
  uint16_t most = 0;
  for (size_t i = 0; i < features; ++i) most = std::max(most, of[i]);
  for (size_t i = 1; i < features; ++i) falls += of[i] < of[i - 1];
  uint64_t end = 0;
  for (size_t e = 0; e < rows; ++e) {
    const uint64_t begin = end;
    end += counts[e];
    if (end > features || labels[e] > 2) throw DamagedFile(odd);
    at_begins += begin > 0 && begin < end && of[begin] < of[begin - 1];
    out.offsets[e + 1] = static_cast<uint32_t>(end);
    out.labels[e] = labels[e] == 2 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(labels[e]);
    out.unlabeled += labels[e] == 2;
  }
  if (falls != at_begins || (features > 0 && most >= fields)) throw DamagedFile(odd);
  if (end != features) throw DamagedFile(odd);
  for (float x : out.values)
    if (!std::isfinite(x) || x == 0.0f) throw DamagedFile(odd);
  for (float w : out.weights)
    if (!std::isfinite(w) || w < 0.0f) throw DamagedFile(odd);
  return out;
}

}  // namespace cb
