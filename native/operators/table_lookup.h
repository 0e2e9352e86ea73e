// Look-ups in tables built once: the index from hash to row, dictionaries, counts and click rates over time.
#pragma once
#include "operators/types.h"

namespace cb {

// Open addressing, linear probing, a power of two of slots, at most half full.
struct IndexSlot {
  uint64_t hash;
  uint32_t row;  // kNoRow: free slot
};

struct IndexView {
  const IndexSlot* slots;
  uint64_t mask;
};

static const uint32_t kNoRow = 0xffffffffu;

CB_BODY uint32_t find_row(const IndexView& index, uint64_t hash) {
  for (uint64_t k = hash & index.mask;; k = (k + 1) & index.mask) {
    IndexSlot slot = index.slots[k];
    if (slot.row == 0xffffffffu) return slot.row;
    if (slot.hash == hash) return slot.row;
  }
}

// ---- join: i[0] is the row that stands for a missing key ------------------------------------------------------------

struct JoinRow {
  CB_BODY static int64_t apply(const Params& q, uint64_t hash) {
    uint32_t row = find_row(*(const IndexView*)q.table, hash);
    return row == 0xffffffffu ? q.i[0] : (int64_t)row;
  }
};

// ---- as-of join: the newest row of a key that is not later than a time --------------------------------------------

// A row of a dimension view that says from which time on it holds. Those of one key lie side by side, in order of time.
struct Version {
  int64_t time;   // microseconds
  uint32_t row;   // what the join gives
  uint32_t left;  // versions from here to the last one of the key, this one included
};

struct AsOfView {
  IndexView index;  // from the hash of a key to the place of its first version
  const Version* versions;
};

// Of the key whose versions begin at `first`: the row of the newest one with a time at or before `time`, or kNoRow.
CB_BODY uint32_t newest_row(const Version* first, int64_t time) {
  uint32_t low = 0, high = first->left;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (first[middle].time <= time)
      low = middle + 1;
    else
      high = middle;
  }
  return low == 0 ? 0xffffffffu : first[low - 1].row;
}

CB_BODY uint32_t find_as_of(const AsOfView& view, uint64_t hash, int64_t time) {
  uint32_t first = find_row(view.index, hash);
  return first == 0xffffffffu ? first : newest_row(view.versions + first, time);
}

// ---- dictionary: word → id, or word → vector ------------------------------------------------------------------------

struct DictionaryView {
  IndexView index;
  const int64_t* ids;     // one per row, or nullptr
  const double* vectors;  // width a row, or nullptr
  uint32_t width;
};

// i[0]: the id of a word the dictionary lacks.
struct DictionaryId {
  CB_BODY static int64_t apply(const Params& q, uint64_t hash) {
    const DictionaryView& d = *(const DictionaryView*)q.table;
    uint32_t row = find_row(d.index, hash);
    return row == 0xffffffffu ? q.i[0] : d.ids[row];
  }
};

struct DictionaryMaybeId {
  CB_BODY static bool apply(const Params& q, int64_t* out, uint64_t hash) {
    const DictionaryView& d = *(const DictionaryView*)q.table;
    uint32_t row = find_row(d.index, hash);
    if (row == 0xffffffffu) return false;
    *out = d.ids[row];
    return true;
  }
};

// A vector is a view of the table; a word it lacks has an empty one, which a dense feature reads as zeros.
struct DictionaryVector {
  CB_BODY static List<double> apply(const Params& q, uint64_t hash) {
    const DictionaryView& d = *(const DictionaryView*)q.table;
    uint32_t row = find_row(d.index, hash);
    if (row == 0xffffffffu) return List<double>{nullptr, 0};
    return List<double>{d.vectors + (uint64_t)row * d.width, d.width};
  }
};

// ---- history: shows and clicks of a key in the time buckets before a row's own --------------------------------------

// Of key row r: the buckets begin[r] … begin[r+1] in ascending order with running sums up to and including each.
struct HistoryView {
  IndexView index;
  const uint64_t* begin;
  const int64_t* bucket;
  const int64_t* shows;
  const int64_t* clicks;
};

// Running sums over buckets < bucket.
CB_BODY void sums_before(const HistoryView& h, uint64_t from, uint64_t to, int64_t bucket, int64_t* shows,
                         int64_t* clicks) {
  uint64_t low = from, high = to;
  while (low < high) {
    uint64_t middle = (low + high) >> 1;
    if (h.bucket[middle] < bucket)
      low = middle + 1;
    else
      high = middle;
  }
  *shows = low == from ? 0 : h.shows[low - 1];
  *clicks = low == from ? 0 : h.clicks[low - 1];
}

// i[0]: microseconds a bucket; i[1]: buckets in the window, 0 = all; f[0]: prior rate, f[1]: its weight in shows.
// Only buckets that ended before the row's own began are counted: a row never sees its own click, nor any later one.
CB_BODY void history_of(const Params& q, uint64_t hash, int64_t time, int64_t* shows, int64_t* clicks) {
  const HistoryView& h = *(const HistoryView*)q.table;
  *shows = *clicks = 0;
  uint32_t row = find_row(h.index, hash);
  if (row == 0xffffffffu) return;
  int64_t bucket = time / q.i[0] - (time % q.i[0] < 0);
  int64_t s = 0, c = 0;
  sums_before(h, h.begin[row], h.begin[row + 1], bucket, shows, clicks);
  // A window that begins before all time has nothing before it.
  const int64_t first = -9223372036854775807ll - 1;
  if (q.i[1] > 0 && bucket >= first + q.i[1]) sums_before(h, h.begin[row], h.begin[row + 1], bucket - q.i[1], &s, &c);
  *shows -= s;
  *clicks -= c;
}

struct HistoryShows {
  CB_BODY static int64_t apply(const Params& q, uint64_t hash, int64_t time) {
    int64_t shows, clicks;
    history_of(q, hash, time, &shows, &clicks);
    return shows;
  }
};
struct HistoryClicks {
  CB_BODY static int64_t apply(const Params& q, uint64_t hash, int64_t time) {
    int64_t shows, clicks;
    history_of(q, hash, time, &shows, &clicks);
    return clicks;
  }
};
struct HistoryRate {
  CB_BODY static double apply(const Params& q, uint64_t hash, int64_t time) {
    int64_t shows, clicks;
    history_of(q, hash, time, &shows, &clicks);
    double weight = (double)shows + q.f[1];
    return weight > 0 ? ((double)clicks + q.f[0] * q.f[1]) / weight : q.f[0];
  }
};

}  // namespace cb
