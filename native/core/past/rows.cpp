#include "core/past/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <stdexcept>

#include "core/system/parallel.h"

namespace cb {

namespace {

// The rows of each shard in their order, the place of each row that asks among these, and the values to feed.
struct Divided {
  std::array<std::vector<uint32_t>, kPastShards> rows;
  std::vector<uint32_t> place;
  size_t asking = 0;
  std::vector<std::vector<uint64_t>> numbers;  // of texts, by word; empty for other words

  Divided(PastState& state, const PastRows& in) : place(in.rows), numbers(in.columns.size()) {
    if (in.rows > UINT32_MAX) throw std::length_error("more than 4,294,967,295 rows in one call");
    for (size_t row = 0; row < in.rows; ++row) {
      place[row] = static_cast<uint32_t>(asking);
      const bool asks = !in.asks || in.asks[row];
      asking += asks;
      if ((in.valid && !in.valid[row]) || (!asks && !in.feeds[row])) continue;
      rows[PastState::shard_of(in.key[row])].push_back(static_cast<uint32_t>(row));
    }
    for (size_t w = 0; w < in.columns.size(); ++w) {
      if (state.shape().words[w].kind != PastWordKind::kText) continue;
      const PastColumn& column = in.columns[w];
      numbers[w].resize(in.rows);
      for (size_t row = 0; row < in.rows; ++row)
        if (in.feeds[row] && (!in.valid || in.valid[row]))
          numbers[w][row] = state.texts().number(
              {column.text + column.offsets[row], static_cast<size_t>(column.offsets[row + 1] - column.offsets[row])});
    }
  }
};

// Calls read(row, place, seen) for each row of a shard that asks, and feeds the row's event afterwards. Keys are met in
// no order, so nearly each one is a cache miss in the slots, then among the keys, then in the ring: these are fetched
// for rows that come kAhead, 2 kAhead and 3 kAhead later.
template <class F>
void each_row(PastShard& shard, const PastRows& in, const Divided& divided, unsigned k, F&& read) {
  constexpr size_t kAhead = 8;
  std::vector<uint64_t> values(in.columns.size());
  const std::vector<uint32_t>& mine = divided.rows[k];
  for (size_t at = 0; at < mine.size(); ++at) {
    if (at + 3 * kAhead < mine.size()) shard.fetch_slot(in.key[mine[at + 3 * kAhead]]);
    if (at + 2 * kAhead < mine.size()) shard.fetch_key(in.key[mine[at + 2 * kAhead]]);
    if (at + kAhead < mine.size()) shard.fetch_events(in.key[mine[at + kAhead]]);
    const uint32_t row = mine[at];
    if (!in.asks || in.asks[row]) read(row, divided.place[row], shard.read(in.key[row], in.time[row]));
    if (!in.feeds[row]) continue;
    for (size_t w = 0; w < values.size(); ++w)
      values[w] = divided.numbers[w].empty() ? in.columns[w].values[row] : divided.numbers[w][row];
    shard.feed(in.key[row], in.time[row], values.data());
  }
  shard.keep_room();
}

double seconds(int64_t from, int64_t to) { return EventRing::elapsed(from, to) / 1e6; }

// The first event of a read, from `begin` on, that is not too old.
uint32_t first_within(const PastSeen& seen, uint32_t begin, int64_t time, int64_t within, size_t stride) {
  return within ? seen.ring->before(time_before(time, within), stride, begin, seen.end) : begin;
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

PastLists past_lists(PastState& state, const PastRows& in, size_t threads) {
  const PastShape& shape = state.shape();
  for (const PastWord& word : shape.words)
    if (word.kind != PastWordKind::kValue && word.kind != PastWordKind::kText)
      throw std::invalid_argument("only values can be listed");
  state.check_texts();
  const Divided divided(state, in);
  state.share_room();
  const size_t words = shape.words.size();
  struct Found {  // by one shard, in the order of its rows
    std::vector<std::vector<uint64_t>> words;
    std::vector<double> ages;
  };
  std::array<Found, kPastShards> found;
  PastLists out;
  out.offsets.assign(divided.asking + 1, 0);
  parallel_for(threads, kPastShards, [&](size_t k) {
    PastShard& shard = state.shard(static_cast<unsigned>(k));
    const size_t stride = shard.stride();
    Found& mine = found[k];
    mine.words.resize(words);
    each_row(shard, in, divided, static_cast<unsigned>(k), [&](uint32_t row, uint32_t place, const PastSeen& seen) {
      if (!seen.end) return;
      const uint32_t begin = first_listed(shape, seen, in.time[row], stride);
      out.offsets[place + 1] = seen.end - begin;
      for (uint32_t e = begin; e < seen.end; ++e) {
        const uint64_t* event = seen.ring->at(e, stride);
        mine.ages.push_back(seconds(static_cast<int64_t>(event[0]), in.time[row]));
        for (size_t w = 0; w < words; ++w) mine.words[w].push_back(event[1 + w]);
      }
    });
  });
  for (size_t q = 0; q < divided.asking; ++q) out.offsets[q + 1] += out.offsets[q];
  const size_t total = static_cast<size_t>(out.offsets.back());
  out.ages.resize(total);
  out.words.assign(words, std::vector<uint64_t>(total));
  parallel_for(threads, kPastShards, [&](size_t k) {
    size_t at = 0;
    for (const uint32_t row : divided.rows[k]) {
      if (in.asks && !in.asks[row]) continue;
      const uint32_t place = divided.place[row];
      const size_t begin = static_cast<size_t>(out.offsets[place]);
      const size_t count = static_cast<size_t>(out.offsets[place + 1]) - begin;
      std::copy_n(found[k].ages.data() + at, count, out.ages.data() + begin);
      for (size_t w = 0; w < words; ++w) std::copy_n(found[k].words[w].data() + at, count, out.words[w].data() + begin);
      at += count;
    }
  });
  return out;
}

std::vector<int64_t> past_distinct(PastState& state, const PastRows& in, size_t threads) {
  const PastShape& shape = state.shape();
  if (shape.words.size() != 1 || shape.words[0].kind != PastWordKind::kValue || !shape.last)
    throw std::invalid_argument("expected one value and a limit of the number of events");
  const Divided divided(state, in);
  state.share_room();
  std::vector<int64_t> out(divided.asking);
  parallel_for(threads, kPastShards, [&](size_t k) {
    PastShard& shard = state.shard(static_cast<unsigned>(k));
    const size_t stride = shard.stride();
    std::vector<uint64_t> met(64), turn(64);  // a set of values; an entry counts if its turn is that of the row
    uint64_t row_turn = 0;
    each_row(shard, in, divided, static_cast<unsigned>(k), [&](uint32_t row, uint32_t place, const PastSeen& seen) {
      if (!seen.end) return;
      const uint32_t begin = first_listed(shape, seen, in.time[row], stride);
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
      out[place] = count;
    });
  });
  return out;
}

PastCounts past_counts(PastState& state, const PastRows& in, const std::vector<PastCounter>& counters, size_t threads) {
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
      if (counter.word >= shape.words.size()) throw std::invalid_argument("a counter of a word that is not there");
      static constexpr PastWordKind kinds[] = {PastWordKind::kTotal, PastWordKind::kFloatTotal, PastWordKind::kDecayed,
                                               PastWordKind::kValue, PastWordKind::kWideTotal};
      if (shape.words[counter.word].kind != kinds[static_cast<size_t>(counter.kind) - 1])
        throw std::invalid_argument("a counter of a word of another kind");
      for (size_t w = 0; w < counter.word; ++w) at += shape.words[w].stored();
    }
    stored.push_back(at);
  }
  const Divided divided(state, in);
  state.share_room();
  PastCounts out;
  out.values.assign(counters.size(), std::vector<uint64_t>(divided.asking));
  out.seen.assign(counters.size(), std::vector<uint8_t>(divided.asking));
  parallel_for(threads, kPastShards, [&](size_t k) {
    PastShard& shard = state.shard(static_cast<unsigned>(k));
    const size_t stride = shard.stride();
    std::vector<uint32_t> begins(windows.size());
    each_row(shard, in, divided, static_cast<unsigned>(k), [&](uint32_t row, uint32_t place, const PastSeen& seen) {
      if (!seen.end) return;
      const int64_t time = in.time[row];
      for (size_t w = 0; w < windows.size(); ++w)  // a shorter window begins inside the longer one
        begins[w] = first_within(seen, w ? begins[w - 1] : 0, time, windows[w], stride);
      const uint64_t* last = seen.ring->at(seen.end - 1, stride);
      const int64_t last_time = static_cast<int64_t>(last[0]);
      for (size_t c = 0; c < counters.size(); ++c) {
        const PastCounter& counter = counters[c];
        const uint32_t begin = begins[window_of[c]];
        if (begin == seen.end) continue;
        out.seen[c][place] = 1;
        uint64_t& value = out.values[c][place];
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
  return out;
}

}  // namespace cb
