// Runs the rows of a log through a state of past events: for each row first read, then feed, in the order of the rows.
//
// Rows are divided among the state's shards by their keys, and threads take shards. A row touches only its key's shard,
// and rows of a shard keep their order, so neither the number of threads nor the cutting into calls changes a bit.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/history/state.h"

namespace cb {

// The values of one word: 64-bit values, or texts as offsets into bytes.
struct PastColumn {
  const uint64_t* values = nullptr;
  const int64_t* offsets = nullptr;
  const char* text = nullptr;
};

struct PastRows {
  size_t rows = 0;
  const uint64_t* key = nullptr;
  const int64_t* time = nullptr;
  const uint8_t* valid = nullptr;  // whether key and time are known; null: all are
  const uint8_t* asks = nullptr;   // whether the row reads; null: all do
  const uint8_t* feeds = nullptr;  // whether the row is an event
  std::vector<PastColumn> columns;
};

// For each row that asks, in their order: the values and ages of the events that it sees, oldest first.
struct PastLists {
  std::vector<int64_t> offsets;
  std::vector<std::vector<uint64_t>> words;  // of each word of the shape
  std::vector<double> ages;                  // seconds
};

enum class CounterKind : uint32_t { kTotal = 1, kFloatTotal = 2, kDecayed = 3, kSince = 4, kWideTotal = 5 };

struct PastCounter {
  CounterKind kind = CounterKind::kTotal;
  size_t word = 0;     // of the shape; of kSince none
  int64_t within = 0;  // longest age; 0: any
};

// For each counter one value for each row that asks: int64 for kTotal, else float64. `seen`: whether it saw an event.
struct PastCounts {
  std::vector<std::vector<uint64_t>> values;
  std::vector<std::vector<uint8_t>> seen;
};

// For each row that asks: how many different values the events have that past_lists would list. One word, kValue.
std::vector<int64_t> past_distinct(HistoryState& state, const PastRows& rows, size_t threads);

PastLists past_lists(HistoryState& state, const PastRows& rows, size_t threads);
PastCounts past_counts(HistoryState& state, const PastRows& rows, const std::vector<PastCounter>& counters,
                       size_t threads);

}  // namespace cb
