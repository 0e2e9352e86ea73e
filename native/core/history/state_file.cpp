#include "core/history/state_file.h"

#include <cstring>
#include <stdexcept>

#include "core/system/checked_file.h"

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'B', 'P', 'A', 'S', 'T'};
constexpr char kEnd[8] = {'C', 'T', 'R', 'B', 'P', 'E', 'N', 'D'};
constexpr uint32_t kVersion = 3;

void put_shape(CheckedWriter& file, const PastShape& shape) {
  file.put(static_cast<uint32_t>(shape.words.size()));
  for (const PastWord& word : shape.words) {
    file.put(static_cast<uint32_t>(word.kind));
    file.put(word.half_life);
  }
  file.put(shape.gap);
  file.put(shape.lateness);
  file.put(shape.back);
  file.put(shape.within);
  file.put(shape.last);
  file.put(uint32_t{shape.keeps_last});
}

PastShape get_shape(CheckedReader& file) {
  PastShape shape;
  const uint32_t words = file.get<uint32_t>();
  if (words > kMostPastWords) throw DamagedFile("its head names " + std::to_string(words) + " words");
  for (uint32_t k = 0; k < words; ++k) {
    PastWord word;
    word.kind = static_cast<PastWordKind>(file.get<uint32_t>());
    word.half_life = file.get<double>();
    shape.words.push_back(word);
  }
  shape.gap = file.get<int64_t>();
  shape.lateness = file.get<int64_t>();
  shape.back = file.get<int64_t>();
  shape.within = file.get<int64_t>();
  shape.last = file.get<uint64_t>();
  shape.keeps_last = file.get<uint32_t>() != 0;
  return shape;
}

void get_texts(CheckedReader& file, TextPool& texts) {
  const uint64_t count = file.get<uint64_t>();
  if (count > file.left() / sizeof(uint32_t)) throw DamagedFile("it claims more texts than it can hold");
  std::string text;
  for (uint64_t k = 0; k < count; ++k) {
    const uint32_t length = file.get<uint32_t>();
    if (length > file.left()) throw DamagedFile("a text is longer than the file");
    text.resize(length);
    file.get(text.data(), length);
    if (texts.number(text) != k) throw DamagedFile("it holds a text twice");
  }
  file.check_seal("its texts");
}

void get_shard(CheckedReader& file, HistoryState& state, unsigned number) {
  PastShard& shard = state.shard(number);
  const std::string name = "shard " + std::to_string(number);
  const int64_t newest = file.get<int64_t>();
  const uint64_t swept = file.get<uint64_t>(), keys = file.get<uint64_t>();
  if (keys > file.left() / (2 * sizeof(uint64_t))) throw DamagedFile(name + " claims more keys than the file can hold");
  std::vector<uint64_t> event(shard.stride());
  for (uint64_t k = 0; k < keys; ++k) {
    const uint64_t key = file.get<uint64_t>(), events = file.get<uint64_t>();
    if (HistoryState::shard_of(key) != number || !shard.add(key))
      throw DamagedFile(name + " has a wrong or repeated key");
    if (events > file.left() / (event.size() * sizeof(uint64_t)))
      throw DamagedFile(name + " claims more events than the file can hold");
    int64_t before = std::numeric_limits<int64_t>::min();
    for (uint64_t e = 0; e < events; ++e) {
      file.get(event.data(), event.size() * sizeof(uint64_t));
      const int64_t time = static_cast<int64_t>(event[0]);
      if (time < before || time > newest) throw DamagedFile(name + " has events out of order");
      before = time;
      size_t at = 1;
      for (const PastWord& word : state.shape().words) {
        if (word.kind == PastWordKind::kText && event[at] >= state.texts().size())
          throw DamagedFile(name + " refers to a text that does not exist");
        at += word.stored();
      }
      shard.append_stored(event.data());
    }
  }
  file.check_seal(name);
  if (swept > uint64_t{1} << 40) throw DamagedFile(name + " contradicts itself");
  shard.restore(newest, swept);
}

}  // namespace

void save_past(const HistoryState& state, const std::string& path, bool append) {
  state.check_texts();
  CheckedWriter file(path, append);
  file.put(kMagic, sizeof kMagic);
  file.put(kVersion);
  put_shape(file, state.shape());
  file.put(uint32_t{state.newest().has_value()});
  file.put(state.newest().value_or(0));
  file.seal();
  file.put(uint64_t{state.texts().size()});
  for (size_t k = 0; k < state.texts().size(); ++k) {
    const std::string_view text = state.texts().text(k);
    file.put(static_cast<uint32_t>(text.size()));
    file.put(text.data(), text.size());
  }
  file.seal();
  std::vector<uint64_t> events;
  for (unsigned s = 0; s < kPastShards; ++s) {
    const PastShard& shard = state.shard(s);
    file.put(shard.newest());
    file.put(uint64_t{shard.swept_keys()});
    file.put(uint64_t{shard.keys()});
    for (const PastShard::Held& held : shard.held()) {
      file.put(held.key);
      file.put(uint64_t{held.ring.size()});
      shard.events_of(held, events);
      file.put(events.data(), events.size() * sizeof(uint64_t));
    }
    file.seal();
  }
  file.put(kEnd, sizeof kEnd);
  file.put(state.events());
  file.seal();
  file.close();
}

HistoryState load_past(const PastShape& shape, const std::string& path, uint64_t begin, uint64_t* behind) {
  return load_past(HistoryState(shape), path, begin, behind);
}

HistoryState load_past(HistoryState state, const std::string& path, uint64_t begin, uint64_t* behind) {
  CheckedReader file(path, begin);
  char magic[8];
  if (file.left() < sizeof magic) throw DamagedFile("it is not a saved state of past events: it is too short");
  file.get(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    throw DamagedFile("it is not a saved state of past events: it does not start with CTRBPAST");
  const uint32_t version = file.get<uint32_t>();
  if (version != kVersion)
    throw DamagedFile("it has version " + std::to_string(version) +
                      " of the format, but this version of CTRBox reads version 3");
  const PastShape met = get_shape(file);
  const bool reached = file.get<uint32_t>() != 0;
  const int64_t newest = file.get<int64_t>();
  file.check_seal("its head");
  if (met != state.shape()) throw std::invalid_argument("it holds the past of other features: its shape differs");
  get_texts(file, state.texts());
  state.share_room();
  for (unsigned s = 0; s < kPastShards; ++s) get_shard(file, state, s);
  char end[8];
  file.get(end, sizeof end);
  const uint64_t events = file.get<uint64_t>();
  file.check_seal("its end");
  if (std::memcmp(end, kEnd, sizeof end) != 0 || events != state.events() || (!behind && file.left() > 0))
    throw DamagedFile("its end mark is wrong");
  if (reached) state.reach(newest);
  if (behind) *behind = file.place();
  return state;
}

}  // namespace cb
