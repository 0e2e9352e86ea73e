#include "core/history/read_then_feed.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/system/parallel.h"
#include "core/system/reused_buffers.h"

namespace cb {

namespace {

// The rows of each shard in their order, copied out of the columns: key, time, place and flags, then the values to
// feed. A thread that works on a shard then reads memory in sequence. If it picked its rows from the columns instead,
// nearly every shard would fetch nearly every cache line of them.
class Divided {
 public:
  class Row {
   public:
    explicit Row(const uint64_t* words) : words_(words) {}
    uint64_t key() const { return words_[0]; }
    int64_t time() const { return static_cast<int64_t>(words_[1]); }
    uint32_t place() const { return static_cast<uint32_t>(words_[2]); }  // among the rows that ask
    bool asks() const { return words_[2] & kAsks; }
    bool feeds() const { return words_[2] & kFeeds; }
    const uint64_t* values() const { return words_ + kHead; }

   private:
    const uint64_t* words_;
  };

  size_t asking = 0;

  Divided(HistoryState& state, const PastRows& in, size_t threads) : width_(kHead + in.columns.size()) {
    if (in.rows > UINT32_MAX) throw std::length_error("the call has more than 4,294,967,295 rows; split it");
    const std::vector<std::vector<uint64_t>> numbers = numbers_of_texts(state, in);
    std::vector<const uint64_t*> values;
    for (size_t w = 0; w < in.columns.size(); ++w)
      values.push_back(numbers[w].empty() ? in.columns[w].values : numbers[w].data());
    struct Block {  // where the rows of a block begin: in each shard, and among those that ask
      std::array<size_t, kPastShards> begin{};
      size_t place = 0;
    };
    std::vector<Block> blocks((in.rows + kBlock - 1) / kBlock);
    parallel_for(threads, blocks.size(), [&](size_t b) {
      std::array<size_t, kPastShards> counts{};  // not in the block itself: its neighbors belong to other threads
      size_t asks_here = 0;
      for (size_t row = b * kBlock; row < std::min(in.rows, (b + 1) * kBlock); ++row) {
        asks_here += asks(in, row);
        if (taken(in, row)) ++counts[HistoryState::shard_of(in.key[row])];
      }
      blocks[b] = {counts, asks_here};
    });
    size_t at = 0;
    for (unsigned k = 0; k < kPastShards; ++k) {
      begin_[k] = at;
      for (Block& block : blocks) at += std::exchange(block.begin[k], at);
    }
    begin_[kPastShards] = at;
    for (Block& block : blocks) asking += std::exchange(block.place, asking);
    words_.resize(at * width_);
    parallel_for(threads, blocks.size(), [&](size_t b) {
      Block next = blocks[b];
      for (size_t row = b * kBlock; row < std::min(in.rows, (b + 1) * kBlock); ++row) {
        const size_t place = next.place;
        next.place += asks(in, row);
        if (!taken(in, row)) continue;
        uint64_t* to = words_.data() + next.begin[HistoryState::shard_of(in.key[row])]++ * width_;
        to[0] = in.key[row];
        to[1] = static_cast<uint64_t>(in.time[row]);
        to[2] = place | (asks(in, row) ? kAsks : 0) | (in.feeds[row] ? kFeeds : 0);
        for (size_t w = 0; w < values.size(); ++w) to[kHead + w] = values[w][row];
      }
    });
  }

  size_t rows(size_t shard) const { return begin_[shard + 1] - begin_[shard]; }
  Row row(size_t shard, size_t at) const { return Row(words_.data() + (begin_[shard] + at) * width_); }

 private:
  static constexpr size_t kHead = 3, kBlock = 8192;
  static constexpr uint64_t kAsks = uint64_t{1} << 32, kFeeds = uint64_t{1} << 33;

  static bool asks(const PastRows& in, size_t row) { return !in.asks || in.asks[row]; }
  static bool taken(const PastRows& in, size_t row) {
    return (!in.valid || in.valid[row]) && (asks(in, row) || in.feeds[row]);
  }

  // Numbers of texts, by word; empty for words that are not texts. One thread gives the numbers, in the order of the
  // rows.
  static std::vector<std::vector<uint64_t>> numbers_of_texts(HistoryState& state, const PastRows& in) {
    std::vector<std::vector<uint64_t>> numbers(in.columns.size());
    for (size_t w = 0; w < in.columns.size(); ++w) {
      if (state.shape().words[w].kind != PastWordKind::kText) continue;
      const PastColumn& column = in.columns[w];
      numbers[w].resize(in.rows);
      for (size_t row = 0; row < in.rows; ++row)
        if (in.feeds[row] && (!in.valid || in.valid[row]))
          numbers[w][row] = state.texts().number(
              {column.text + column.offsets[row], static_cast<size_t>(column.offsets[row + 1] - column.offsets[row])});
    }
    return numbers;
  }

  size_t width_;
  std::array<size_t, kPastShards + 1> begin_;
  Buffer<uint64_t> words_;
};

// Calls read(row, seen) for each row of a shard that asks, and feeds the row's event afterwards. Keys are met in no
// order, so nearly each one is a cache miss in the slots, then among the keys, then in the ring: these are fetched for
// rows that come kAhead, 2 kAhead and 3 kAhead later. What the last of these found is kept until its row is read.
template <class F>
void each_row(PastShard& shard, const Divided& divided, size_t k, F&& read) {
  constexpr size_t kAhead = 8;
  std::array<size_t, kAhead> places{};
  const size_t rows = divided.rows(k);
  for (size_t at = 0; at < rows; ++at) {
    const Divided::Row row = divided.row(k, at);
    const size_t place = std::exchange(places[at % kAhead],
                                       at + kAhead < rows ? shard.fetch_events(divided.row(k, at + kAhead).key()) : 0);
    if (at + 2 * kAhead < rows) shard.fetch_key(divided.row(k, at + 2 * kAhead).key());
    if (at + 3 * kAhead < rows) shard.fetch_slot(divided.row(k, at + 3 * kAhead).key());
    if (row.asks()) read(row, shard.read(row.key(), row.time(), place));
    if (row.feeds()) shard.feed(row.key(), row.time(), row.values(), place);
  }
  shard.keep_room();
}

double seconds(int64_t from, int64_t to) { return EventRing::elapsed(from, to) / 1e6; }

// The first event of a read, from `begin` on, that is not too old.
uint32_t first_within(const PastSeen& seen, uint32_t begin, int64_t time, int64_t within, size_t stride) {
  if (!within || begin == seen.end) return begin;
  const int64_t earliest = time_before(time, within);
  if (seen.ring->time(begin, stride) >= earliest) return begin;  // the usual case: older events were dropped
  return seen.ring->before(earliest, stride, begin + 1, seen.end);
}

// The first event that a read lists: of those that are not too old, the newest `last`.
uint32_t first_listed(const PastShape& shape, const PastSeen& seen, int64_t time, size_t stride) {
  const uint32_t begin = first_within(seen, 0, time, shape.within, stride);
  return shape.last && seen.end - begin > shape.last ? seen.end - static_cast<uint32_t>(shape.last) : begin;
}

// The difference of two totals, rounded once. `before`: null for 0.
double difference(const uint64_t* total, const uint64_t* before) {
  const TwoFloats end = EventRing::two_floats(total), begin = before ? EventRing::two_floats(before) : TwoFloats{};
  ExactSum sum;
  for (const double part : {end.high, end.low, -begin.high, -begin.low}) sum.add(part);
  return sum.rounded();
}

// The sum of the values from event `begin` on, whose word lies at `word`. `whole`: whether all of these are in the
// ring.
double window_sum(const PastSeen& seen, uint32_t begin, size_t word, size_t stride, bool whole) {
  const uint64_t* total = seen.ring->at(seen.end - 1, stride) + word;
  const uint64_t* before = begin ? seen.ring->at(begin - 1, stride) + word : nullptr;
  const double found = difference(total, before);
  const double lost = std::bit_cast<double>(total[2]) + (before ? std::bit_cast<double>(before[2]) : 0);
  if (!whole || lost == 0 || lost <= std::abs(found) * 0x1p-60) return found;
  ExactSum sum;
  for (uint32_t e = begin; e < seen.end; ++e) sum.add(std::bit_cast<double>(seen.ring->at(e, stride)[word + 3]));
  return sum.rounded();
}

}  // namespace

PastLists past_lists(HistoryState& state, const PastRows& in, size_t threads) {
  const PastShape& shape = state.shape();
  for (const PastWord& word : shape.words)
    if (word.kind != PastWordKind::kValue && word.kind != PastWordKind::kText)
      throw std::invalid_argument("only values can be listed");
  state.check_texts();
  const Divided divided(state, in, threads);
  state.share_room();
  const size_t words = shape.words.size();
  const size_t width = words + 1;
  std::array<std::vector<uint64_t>, kPastShards> found;  // by shard, in the order of its rows: of each event age, words
  PastLists out;
  out.offsets.assign(divided.asking + 1, 0);
  parallel_for(threads, kPastShards, [&](size_t k) {
    PastShard& shard = state.shard(static_cast<unsigned>(k));
    const size_t stride = shard.stride();
    std::vector<uint64_t> mine;
    each_row(shard, divided, k, [&](const Divided::Row& row, const PastSeen& seen) {
      if (!seen.end) return;
      const int64_t time = row.time();
      const uint32_t begin = first_listed(shape, seen, time, stride);
      out.offsets[row.place() + 1] = seen.end - begin;
      const size_t held = mine.size();
      mine.resize(held + (seen.end - begin) * width);
      uint64_t* to = mine.data() + held;
      for (uint32_t e = begin; e < seen.end; ++e) {
        const uint64_t* event = seen.ring->at(e, stride);
        *to++ = std::bit_cast<uint64_t>(seconds(static_cast<int64_t>(event[0]), time));
        for (size_t w = 0; w < words; ++w) *to++ = event[1 + w];
      }
    });
    found[k] = std::move(mine);
  });
  for (size_t q = 0; q < divided.asking; ++q) out.offsets[q + 1] += out.offsets[q];
  const size_t total = static_cast<size_t>(out.offsets.back());
  out.ages.resize(total);
  out.words.assign(words, std::vector<uint64_t>(total));
  parallel_for(threads, kPastShards, [&](size_t k) {
    const uint64_t* from = found[k].data();
    for (size_t at = 0; at < divided.rows(k); ++at) {
      const Divided::Row row = divided.row(k, at);
      if (!row.asks()) continue;
      const auto begin = static_cast<size_t>(out.offsets[row.place()]);
      const auto end = static_cast<size_t>(out.offsets[row.place() + 1]);
      for (size_t e = begin; e < end; ++e) {
        out.ages[e] = std::bit_cast<double>(*from++);
        for (size_t w = 0; w < words; ++w) out.words[w][e] = *from++;
      }
    }
  });
  return out;
}

std::vector<int64_t> past_distinct(HistoryState& state, const PastRows& in, size_t threads) {
  const PastShape& shape = state.shape();
  if (shape.words.size() != 1 || shape.words[0].kind != PastWordKind::kValue || !shape.last)
    throw std::invalid_argument("expected one value and a limit of the number of events");
  const Divided divided(state, in, threads);
  state.share_room();
  std::vector<int64_t> out(divided.asking);
  parallel_for(threads, kPastShards, [&](size_t k) {
    PastShard& shard = state.shard(static_cast<unsigned>(k));
    const size_t stride = shard.stride();
    std::vector<uint64_t> met(64), turn(64);  // a set of values; an entry counts if its turn is that of the row
    uint64_t row_turn = 0;
    each_row(shard, divided, k, [&](const Divided::Row& row, const PastSeen& seen) {
      if (!seen.end) return;
      const uint32_t begin = first_listed(shape, seen, row.time(), stride);
      if (const size_t room = std::bit_ceil(size_t{2} * (seen.end - begin) + 1); room > met.size()) {
        met.assign(room, 0);
        turn.assign(room, 0);
      }
      ++row_turn;
      int64_t count = 0;
      const size_t mask = met.size() - 1;
      for (uint32_t e = begin; e < seen.end; ++e) {
        const uint64_t value = seen.ring->at(e, stride)[1];
        size_t slot = finish(value) & mask;
        while (turn[slot] == row_turn && met[slot] != value) slot = (slot + 1) & mask;
        count += turn[slot] != row_turn;
        met[slot] = value;
        turn[slot] = row_turn;
      }
      out[row.place()] = count;
    });
  });
  return out;
}

PastCounts past_counts(HistoryState& state, const PastRows& in, const std::vector<PastCounter>& counters,
                       size_t threads) {
  const PastShape& shape = state.shape();
  std::vector<size_t> stored;    // where each counter's word lies in an event
  std::vector<int64_t> windows;  // the different ones, longest first; 0, all of the past, is the longest
  for (const PastCounter& counter : counters) windows.push_back(counter.within);
  std::ranges::sort(windows, std::greater{}, [](int64_t within) { return within ? within : INT64_MAX; });
  windows.erase(std::ranges::unique(windows).begin(), windows.end());
  std::vector<size_t> window_of;  // the window of each counter
  for (const PastCounter& counter : counters)
    window_of.push_back(static_cast<size_t>(std::ranges::find(windows, counter.within) - windows.begin()));
  for (const PastCounter& counter : counters) {
    size_t at = 1;
    if (counter.kind != CounterKind::kSince) {
      if (counter.word >= shape.words.size()) throw std::invalid_argument("a counter reads a word that does not exist");
      static constexpr PastWordKind kinds[] = {PastWordKind::kTotal, PastWordKind::kFloatTotal, PastWordKind::kDecayed,
                                               PastWordKind::kValue, PastWordKind::kWideTotal};
      if (shape.words[counter.word].kind != kinds[static_cast<size_t>(counter.kind) - 1])
        throw std::invalid_argument("a counter reads a word of another kind");
      for (size_t w = 0; w < counter.word; ++w) at += shape.words[w].stored();
    }
    stored.push_back(at);
  }
  const Divided divided(state, in, threads);
  state.share_room();
  // Shards write all counters of a row side by side, which costs one or two cache misses instead of one each.
  const size_t asked = counters.size();
  std::vector<uint64_t> values(divided.asking * asked);
  std::vector<uint8_t> sights(divided.asking * asked);
  parallel_for(threads, kPastShards, [&](size_t k) {
    PastShard& shard = state.shard(static_cast<unsigned>(k));
    const size_t stride = shard.stride();
    std::vector<uint32_t> begins(windows.size());
    each_row(shard, divided, k, [&](const Divided::Row& row, const PastSeen& seen) {
      if (!seen.end) return;
      const int64_t time = row.time();
      uint64_t* mine = values.data() + row.place() * asked;
      uint8_t* saw = sights.data() + row.place() * asked;
      uint32_t* hints = seen.end > PastShard::kFewEvents ? shard.begins(seen.place, windows.size()) : nullptr;
      uint32_t begin_of_longer = 0;  // a shorter window begins inside the longer one
      for (size_t w = 0; w < windows.size(); ++w) {
        uint32_t& begin = begins[w];
        if (windows[w] && hints)
          hints[w] = begin =
              seen.ring->before(time_before(time, windows[w]), stride, begin_of_longer, seen.end, hints[w]);
        else
          begin = first_within(seen, begin_of_longer, time, windows[w], stride);
        begin_of_longer = begin;
      }
      const uint64_t* last = seen.ring->at(seen.end - 1, stride);
      const int64_t last_time = static_cast<int64_t>(last[0]);
      for (size_t c = 0; c < counters.size(); ++c) {
        const PastCounter& counter = counters[c];
        const uint32_t begin = begins[window_of[c]];
        if (begin == seen.end) continue;
        saw[c] = 1;
        uint64_t& value = mine[c];
        const uint64_t* before = begin ? seen.ring->at(begin - 1, stride) + stored[c] : nullptr;
        const uint64_t* total = last + stored[c];
        switch (counter.kind) {
          case CounterKind::kTotal:
            value = *total - (before ? *before : 0);
            break;
          case CounterKind::kFloatTotal:
            value = std::bit_cast<uint64_t>(difference(total, before));
            break;
          case CounterKind::kWideTotal:
            value = std::bit_cast<uint64_t>(window_sum(seen, begin, stored[c], stride, counter.within != 0));
            break;
          case CounterKind::kDecayed:
            value = std::bit_cast<uint64_t>(
                std::bit_cast<double>(*total) *
                EventRing::decay(EventRing::elapsed(last_time, time), shape.words[counter.word]));
            break;
          case CounterKind::kSince:
            value = std::bit_cast<uint64_t>(seconds(last_time, time));
            break;
        }
      }
    });
  });
  PastCounts out;
  out.values.resize(asked);
  out.seen.resize(asked);
  parallel_for(threads, asked, [&](size_t c) {
    std::vector<uint64_t>& column = out.values[c];
    std::vector<uint8_t>& seen = out.seen[c];
    column.resize(divided.asking);
    seen.resize(divided.asking);
    for (size_t q = 0; q < divided.asking; ++q) {
      column[q] = values[q * asked + c];
      seen[q] = sights[q * asked + c];
    }
  });
  return out;
}

}  // namespace cb
