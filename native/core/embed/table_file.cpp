#include "core/embed/table_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "core/embed/shard_of_key.h"
#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'T', 'A', 'B', 'L', 'E'};
constexpr char kEnd[8] = {'C', 'T', 'R', 'T', 'E', 'N', 'D', '.'};
constexpr uint32_t kPlain = 1, kWithLife = 2;

void put_optimizer(CheckedWriter& file, const OptimizerSpec& spec) {
  file.put(static_cast<uint32_t>(spec.kind));
  file.put(spec.parameters.data(), sizeof spec.parameters);
}

OptimizerSpec get_optimizer(CheckedReader& file) {
  OptimizerSpec spec;
  spec.kind = static_cast<OptimizerKind>(file.get<uint32_t>());
  file.get(spec.parameters.data(), sizeof spec.parameters);
  return spec;
}

bool known_kind(const OptimizerSpec& spec) {
  uint32_t kind = static_cast<uint32_t>(spec.kind);
  return kind >= 1 && kind <= kMostOptimizerKind;
}

}  // namespace

// ---- parts ----------------------------------------------------------------------------------------------------

void put_head(CheckedWriter& file, const TableShape& shape) {
  file.put(kMagic, sizeof kMagic);
  file.put(shape.life.none() ? kPlain : kWithLife);
  file.put(uint32_t{kShards});
  file.put(shape.dim);
  file.put(uint32_t{shape.linear});
  put_optimizer(file, shape.weight);
  put_optimizer(file, shape.vector);
  file.put(shape.init);
  file.put(shape.seed);
  if (!shape.life.none()) {
    file.put(shape.life.decay);
    file.put(shape.life.probability);
    file.put(uint64_t{shape.life.count});
    file.put(shape.life.sketch_bytes);
  }
  file.put(uint64_t{shape.floats()});
  file.seal();
}

TableShape get_head(CheckedReader& file) {
  char magic[8];
  if (file.left() < sizeof magic)
    throw DamagedFile("it is not a saved table: it has only " + std::to_string(file.left()) + " bytes");
  file.get(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    throw DamagedFile("it is not a saved table: it does not start with CTRTABLE");
  uint32_t version = file.get<uint32_t>();
  if (version != kPlain && version != kWithLife)
    throw DamagedFile("it has version " + std::to_string(version) +
                      " of the format, but this version of CTRBox reads versions 1 and 2");
  uint32_t shards = file.get<uint32_t>();
  TableShape shape;
  shape.dim = file.get<uint32_t>();
  uint32_t linear = file.get<uint32_t>();
  shape.linear = linear == 1;
  shape.weight = get_optimizer(file);
  shape.vector = get_optimizer(file);
  shape.init = file.get<double>();
  shape.seed = file.get<uint64_t>();
  uint64_t count = 0;
  if (version == kWithLife) {
    shape.life.decay = file.get<double>();
    shape.life.probability = file.get<double>();
    count = file.get<uint64_t>();
    shape.life.sketch_bytes = file.get<uint64_t>();
    shape.life.count = static_cast<uint32_t>(count);
  }
  uint64_t floats = file.get<uint64_t>();
  file.check_seal("its head");
  const Life& life = shape.life;
  if (!(life.decay >= 0 && life.decay <= 1) || !(life.probability > 0 && life.probability <= 1) ||
      count > kMostAdmissionCount || life.sketch_bytes > kMostSketch || (version == kWithLife) == life.none() ||
      (life.by_count() && life.sketch_bytes > file.left()))
    throw DamagedFile("its header contradicts itself");
  if (shards != kShards || linear > 1 || shape.dim > kMostDim || shape.width() == 0 || !known_kind(shape.weight) ||
      !known_kind(shape.vector) || !shape.sound() || floats != shape.floats())
    throw DamagedFile("its header contradicts itself");
  return shape;
}

TableShape saved_shape(const std::string& path) {
  CheckedReader file(path);
  return get_head(file);
}

std::unique_ptr<LifeState> saved_life(const std::string& path) {
  CheckedReader file(path);
  const TableShape shape = get_head(file);
  if (shape.life.none()) return nullptr;
  auto life = std::make_unique<LifeState>(shape.life, shape.seed);
  life->get(file);
  return life;
}

std::string shard_name(unsigned shard) { return "shard " + std::to_string(shard); }

// Counts are bounded by the bytes that are left before anything of their size is made.
std::vector<int64_t> get_shard_keys(CheckedReader& file, unsigned shard, size_t row_floats) {
  const uint64_t count = file.get<uint64_t>();
  if (count > file.left() / (sizeof(int64_t) + row_floats * sizeof(float)))
    throw DamagedFile(shard_name(shard) + " claims " + std::to_string(count) + " keys, more than the file can hold");
  std::vector<int64_t> keys(count);
  file.get(keys.data(), count * sizeof(int64_t));
  uint64_t before = 0;  // key 0 is never stored
  for (int64_t key : keys) {
    if (static_cast<uint64_t>(key) <= before || shard_of(key) != shard)
      throw DamagedFile(shard_name(shard) + " has keys out of order");
    before = static_cast<uint64_t>(key);
  }
  return keys;
}

void put_end(CheckedWriter& file, uint64_t total) {
  file.put(kEnd, sizeof kEnd);
  file.put(total);
  file.seal();
}

void check_end(CheckedReader& file, uint64_t total) {
  char end[8];
  file.get(end, sizeof end);
  const uint64_t met = file.get<uint64_t>();
  file.check_seal("its end");
  if (std::memcmp(end, kEnd, sizeof end) != 0 || met != total) throw DamagedFile("its end mark is wrong");
  if (file.left() > 0) throw DamagedFile(std::to_string(file.left()) + " bytes follow its end mark");
}

// ---- all rows at once -----------------------------------------------------------------------------------------

void save_rows(const std::string& path, const TableShape& shape, std::span<const int64_t> keys, const float* rows,
               size_t threads) {
  if (keys.size() > UINT32_MAX) throw std::length_error("the table has more than 4,294,967,295 rows");
  std::array<size_t, kShards + 1> bounds{};
  for (int64_t key : keys) ++bounds[shard_of(key) + 1];
  std::partial_sum(bounds.begin(), bounds.end(), bounds.begin());
  std::vector<uint32_t> order(keys.size());
  std::array<size_t, kShards> next{};
  std::copy_n(bounds.begin(), kShards, next.begin());
  for (size_t k = 0; k < keys.size(); ++k) order[next[shard_of(keys[k])]++] = static_cast<uint32_t>(k);
  parallel_for(threads, kShards, [&](size_t s) {
    std::sort(order.begin() + static_cast<ptrdiff_t>(bounds[s]), order.begin() + static_cast<ptrdiff_t>(bounds[s + 1]),
              [&](uint32_t a, uint32_t b) { return static_cast<uint64_t>(keys[a]) < static_cast<uint64_t>(keys[b]); });
  });
  const size_t floats = shape.floats();
  CheckedWriter file(path);
  put_head(file, shape);
  if (!shape.life.none()) LifeState(shape.life, shape.seed).put(file);
  for (unsigned s = 0; s < kShards; ++s) {
    file.put(uint64_t{bounds[s + 1] - bounds[s]});
    for (size_t k = bounds[s]; k < bounds[s + 1]; ++k) file.put(keys[order[k]]);
    for (size_t k = bounds[s]; k < bounds[s + 1]; ++k) file.put(rows + order[k] * floats, floats * sizeof(float));
    file.seal();
  }
  put_end(file, keys.size());
  file.close();
}

SavedRows load_rows(const std::string& path) {
  CheckedReader file(path);
  SavedRows out;
  out.shape = get_head(file);
  if (!out.shape.life.none()) LifeState(out.shape.life, out.shape.seed).get(file);
  const size_t floats = out.shape.floats();
  for (unsigned s = 0; s < kShards; ++s) {
    const std::vector<int64_t> keys = get_shard_keys(file, s, floats);
    const size_t before = out.rows.size(), more = keys.size() * floats;
    // The rest of the file bounds what can follow: one allocation, not one a shard.
    if (s == 0) out.rows.reserve(file.left() / sizeof(float));
    out.rows.resize(before + more);
    file.get(out.rows.data() + before, more * sizeof(float));
    file.check_seal(shard_name(s));
    out.keys.insert(out.keys.end(), keys.begin(), keys.end());
  }
  check_end(file, out.keys.size());
  return out;
}

}  // namespace cb
