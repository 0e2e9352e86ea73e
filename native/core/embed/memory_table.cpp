#include "core/embed/memory_table.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/system/checked_file.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kFewKeys = 2048;      // below it, waking threads costs more than it gives
constexpr size_t kBlock = 8;           // keys whose misses are awaited together
constexpr size_t kAhead = 16;          // rows between asking for one and using it
constexpr size_t kMostPrefetched = 4;  // batches between prefetch and pull whose addresses are kept
constexpr size_t kLeastSlots = 16;
constexpr size_t kLeastChunk = size_t{4} << 10, kMostChunk = size_t{2} << 20;

// Rows begin anywhere in a line, so the last float may lie one line beyond the steps.
void prefetch_row(const float* row, size_t floats) {
  for (size_t k = 0; k < floats; k += 16) __builtin_prefetch(row + k);
  __builtin_prefetch(row + floats - 1);
}

void copy_floats(float* __restrict to, const float* __restrict from, size_t n) {
  size_t k = 0;
  for (; k + 4 <= n; k += 4) std::memcpy(to + k, from + k, 16);
  for (; k < n; ++k) to[k] = from[k];
}

}  // namespace

MemoryTable::MemoryTable(const TableShape& shape, size_t budget_bytes, size_t threads)
    : shape_(shape),
      width_(shape.width()),
      row_floats_(shape.floats()),
      stride_((row_floats_ + 3) / 4 * 4),
      fresh_(shape),
      budget_(budget_bytes),
      threads_(threads ? threads : usable_cores()),
      life_(shape.life, shape.seed),
      dense_(shape.dense()),
      shards_(new Shard[kShards]) {
  if (width_ == 0 || shape.dim > kMostDim) throw std::invalid_argument("a row must have 1 to 4,097 values");
  if (!shape.sound())
    throw std::invalid_argument(
        "a dense optimizer needs a dense optimizer of first-order weights and cannot be combined with counters or "
        "admission");
}

size_t MemoryTable::threads_for(size_t keys) const { return keys < kFewKeys ? 1 : threads_; }

// ---- rows -----------------------------------------------------------------------------------------------------

void MemoryTable::initial_row(int64_t key, float* row) const {
  fresh_->row(key, row, life_.clock.load(std::memory_order_relaxed));
  for (size_t k = row_floats_; k < stride_; ++k) row[k] = 0.0f;
}

void MemoryTable::reserve_bytes(size_t more) {
  size_t before = bytes_.fetch_add(more, std::memory_order_relaxed);
  if (before + more <= budget_) return;
  bytes_.fetch_sub(more, std::memory_order_relaxed);
  throw TableFull("the budget of the table is spent");
}

void MemoryTable::add_chunk(Shard& shard) {
  const size_t row_bytes = stride_ * sizeof(float);
  size_t rows = std::max<size_t>(1, std::clamp(shard.chunk_bytes / 8, kLeastChunk, kMostChunk) / row_bytes);
  size_t bytes = (rows * row_bytes + 63) / 64 * 64;
  reserve_bytes(bytes);
  try {
    shard.fresh = static_cast<float*>(rows_.take(bytes));
  } catch (...) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
  shard.chunk_bytes += bytes;
  shard.fresh_rows = rows;
}

void MemoryTable::grow_slots(Shard& shard, size_t size) {
  const size_t old_bytes = shard.slots ? (shard.mask + 1) * sizeof(Slot) : 0, bytes = size * sizeof(Slot);
  reserve_bytes(bytes);  // for a moment both are there
  std::vector<Slot> few;
  HugeBlock many;
  try {
    if (bytes < HugeBlock::kPage)
      few.resize(size);
    else
      many = HugeBlock(bytes);
  } catch (...) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
  Slot* slots = few.empty() ? reinterpret_cast<Slot*>(many.data()) : few.data();
  const size_t mask = size - 1;
  for (size_t k = 0; old_bytes && k <= shard.mask; ++k) {
    const Slot& s = shard.slots[k];
    if (s.key == 0) continue;
    size_t at = mix_of(s.key) & mask;
    while (slots[at].key != 0) at = (at + 1) & mask;
    slots[at] = s;
  }
  shard.few_slots = std::move(few);
  shard.many_slots = std::move(many);
  shard.slots = slots;
  shard.mask = mask;
  bytes_.fetch_sub(old_bytes, std::memory_order_relaxed);
}

// The new row's floats are whatever was there: the caller writes them.
float* MemoryTable::create_row(Shard& shard, int64_t key, uint64_t mix) {
  if (!shard.slots || (shard.count + 1) * 4 > (shard.mask + 1) * 3)
    grow_slots(shard, shard.slots ? (shard.mask + 1) * 2 : kLeastSlots);
  if (shard.freed.empty() && shard.fresh_rows == 0) add_chunk(shard);
  size_t at = mix & shard.mask;
  while (shard.slots[at].key != 0) at = (at + 1) & shard.mask;
  float* row;
  if (shard.freed.empty()) {
    row = shard.fresh;
    shard.fresh += stride_;
    --shard.fresh_rows;
  } else {
    row = shard.freed.back();
    shard.freed.pop_back();
  }
  shard.slots[at] = {key, row};
  ++shard.count;
  count_.fetch_add(1, std::memory_order_relaxed);
  return row;
}

// ---- keys to rows ---------------------------------------------------------------------------------------------

bool MemoryTable::Known::same_keys(std::span<const int64_t> others) const {
  return keys.size() == others.size() &&
         (others.empty() || std::memcmp(keys.data(), others.data(), others.size_bytes()) == 0);
}

// Where the shards begin if the keys are grouped; `walk` notices if they are not.
void MemoryTable::find_bounds(std::span<const int64_t> keys, Known& known) const {
  known.bounds[0] = 0;
  for (unsigned s = 1; s < kShards; ++s) {
    size_t low = known.bounds[s - 1], high = keys.size();
    while (low < high) {
      size_t middle = low + (high - low) / 2;
      if (shard_of(keys[middle]) < s)
        low = middle + 1;
      else
        high = middle;
    }
    known.bounds[s] = low;
  }
  known.bounds[kShards] = keys.size();
}

void MemoryTable::sort_by_shard(std::span<const int64_t> keys, Known& known) const {
  if (keys.size() > UINT32_MAX) throw std::length_error("the call has more than 4,294,967,295 keys; split it");
  known.order.resize(keys.size());
  known.bounds.fill(0);
  for (int64_t key : keys) ++known.bounds[shard_of(key) + 1];
  for (unsigned s = 0; s < kShards; ++s) known.bounds[s + 1] += known.bounds[s];
  std::array<size_t, kShards> next{};
  std::copy_n(known.bounds.begin(), kShards, next.begin());
  uint32_t* order = known.order.data();
  for (size_t k = 0; k < keys.size(); ++k) order[next[shard_of(keys[k])]++] = static_cast<uint32_t>(k);
}

float* MemoryTable::find(const Shard& shard, int64_t key, uint64_t mix) const {
  if (key == 0 || !shard.slots) return nullptr;
  size_t at = mix & shard.mask;
  while (shard.slots[at].key != key && shard.slots[at].key != 0) at = (at + 1) & shard.mask;
  return shard.slots[at].key == key ? shard.slots[at].row : nullptr;
}

// kReads: visit reads the row's values. visit(place, key, row) for the keys of one shard, in order; row is nullptr for
// key 0 and, without create, for keys that are not there. False, and no more visits, where a key turns out to be of
// another shard. Three blocks are on their way at once: slots of the third are being fetched while the second is probed
// and the rows of the first are visited.
template <bool kReads, class Visit>
bool MemoryTable::walk(unsigned number, const Known& known, const int64_t* keys, bool create, Visit visit) {
  struct Block {
    size_t n = 0;
    size_t place[kBlock];
    uint64_t mix[kBlock];
    float* row[kBlock];
  };
  Shard& shard = shards_[number];
  std::lock_guard<std::mutex> hold(shard.lock);
  const size_t begin = known.bounds[number], end = known.bounds[number + 1];
  const uint32_t* order = known.order.size() ? known.order.data() : nullptr;
  Block blocks[3];
  const size_t turns = (end - begin + kBlock - 1) / kBlock;
  for (size_t turn = 0; turn < turns + 2; ++turn) {
    if (turn < turns) {
      Block& b = blocks[turn % 3];
      const size_t first = begin + turn * kBlock;
      b.n = std::min(kBlock, end - first);
      for (size_t k = 0; k < b.n; ++k) {
        b.place[k] = order ? order[first + k] : first + k;
        b.mix[k] = mix_of(keys[b.place[k]]);
        if (shard_of_mix(b.mix[k]) != number) return false;
        __builtin_prefetch(shard.slots + (b.mix[k] & shard.mask));
      }
    }
    if (turn >= 1 && turn - 1 < turns) {
      Block& b = blocks[(turn - 1) % 3];
      for (size_t k = 0; k < b.n; ++k) {
        const int64_t key = keys[b.place[k]];
        float* row = find(shard, key, b.mix[k]);
        if (row) {
          if constexpr (kReads) prefetch_row(row, width_);
        } else if (create && key != 0) {
          row = create_row(shard, key, b.mix[k]);
          initial_row(key, row);
        }
        b.row[k] = row;
      }
    }
    if (turn >= 2) {
      Block& b = blocks[(turn - 2) % 3];
      for (size_t k = 0; k < b.n; ++k) visit(b.place[k], keys[b.place[k]], b.row[k]);
    }
  }
  return true;
}

template <bool kReads, class Visit>
void MemoryTable::visit_all(std::span<const int64_t> keys, Known& known, bool create, Visit visit) {
  const size_t threads = threads_for(keys.size());
  find_bounds(keys, known);
  std::atomic<bool> grouped{true};
  parallel_for(threads, kShards, [&](size_t s) {
    if (grouped.load(std::memory_order_relaxed) &&
        !walk<kReads>(static_cast<unsigned>(s), known, keys.data(), create, visit))
      grouped.store(false, std::memory_order_relaxed);
  });
  if (grouped) return;
  sort_by_shard(keys, known);
  parallel_for(threads, kShards,
               [&](size_t s) { walk<kReads>(static_cast<unsigned>(s), known, keys.data(), create, visit); });
}

std::unique_ptr<MemoryTable::Known> MemoryTable::find_or_create(std::span<const int64_t> keys) {
  auto known = std::make_unique<Known>();
  known->keys.resize(keys.size());
  known->rows.resize(keys.size());
  int64_t* kept = known->keys.data();
  float** rows = known->rows.data();
  visit_all<false>(keys, *known, shape_.life.admits_all(), [=](size_t place, int64_t key, float* row) {
    kept[place] = key;
    rows[place] = row;
  });
  return known;
}

std::unique_ptr<MemoryTable::Known> MemoryTable::take_prefetched(std::span<const int64_t> keys) {
  std::lock_guard<std::mutex> hold(prefetched_lock_);
  for (auto it = prefetched_.begin(); it != prefetched_.end(); ++it) {
    if (!(*it)->same_keys(keys)) continue;
    auto found = std::move(*it);
    prefetched_.erase(it);
    return found;
  }
  return nullptr;
}

// ---- the three verbs ------------------------------------------------------------------------------------------

void MemoryTable::prefetch(std::span<const int64_t> keys) {
  uint64_t before;
  {
    std::lock_guard<std::mutex> hold(prefetched_lock_);
    before = expiries_;
  }
  auto known = find_or_create(keys);
  std::lock_guard<std::mutex> hold(prefetched_lock_);
  if (expiries_ != before) return;
  prefetched_.push_back(std::move(known));
  if (prefetched_.size() > kMostPrefetched) prefetched_.pop_front();
}

void MemoryTable::pull(std::span<const int64_t> keys, float* out, bool create) {
  const size_t width = width_;
  const bool waking = create && dense_;
  auto give = [this, out, width, waking](size_t place, int64_t key, float* row) {
    float* to = out + place * width;
    if (row && waking) wake(row);
    if (row)
      copy_floats(to, row, width);
    else if (key != 0)
      fresh_->values(key, to);
    else
      std::fill_n(to, width, 0.0f);
  };
  if (!create) {
    Known known;
    visit_all<true>(keys, known, false, give);
    return;
  }
  std::lock_guard<std::mutex> hold(calls_);
  last_.reset();  // its buffers are used again by this call
  auto known = take_prefetched(keys);
  if (known) {
    if (!shape_.life.admits_all()) refresh(*known);
    parallel_for(threads_for(keys.size()), kShards, [&](size_t s) {
      std::lock_guard<std::mutex> hold_shard(shards_[s].lock);
      const uint32_t* order = known->order.size() ? known->order.data() : nullptr;
      float* const* rows = known->rows.data();
      const size_t end = known->bounds[s + 1];
      for (size_t k = known->bounds[s]; k < end; ++k) {
        if (k + kAhead < end) {
          const float* ahead = rows[order ? order[k + kAhead] : k + kAhead];
          if (ahead) prefetch_row(ahead, width);
        }
        const size_t place = order ? order[k] : k;
        give(place, keys[place], rows[place]);
      }
    });
  } else {
    known = std::make_unique<Known>();
    known->keys.resize(keys.size());
    known->rows.resize(keys.size());
    int64_t* kept = known->keys.data();
    float** rows = known->rows.data();
    visit_all<true>(keys, *known, shape_.life.admits_all(), [=](size_t place, int64_t key, float* row) {
      kept[place] = key;
      rows[place] = row;
      give(place, key, row);
    });
  }
  last_ = std::move(known);
}

int64_t MemoryTable::push(std::span<const int64_t> keys, const float* gradients, double factor, const Shown& shown,
                          bool skip) {
  std::lock_guard<std::mutex> hold(calls_);
  const int64_t bad = first_not_finite(keys, gradients, width_, threads_for(keys.size()));
  if (bad >= 0 && !skip) return bad;
  if (!last_ || !last_->same_keys(keys)) {
    last_.reset();
    last_ = find_or_create(keys);
  }
  ++life_.pushes;
  const Pushed pushed{gradients, shown, bad >= 0};
  if (dense_) return push_dense(*last_, pushed, factor);
  if (!shape_.life.admits_all()) admit(*last_, pushed);
  apply(*last_, pushed, factor);
  return -1;
}

// Rows that were created since the addresses were found.
void MemoryTable::refresh(Known& known) {
  for (unsigned s = 0; s < kShards; ++s) {
    std::lock_guard<std::mutex> hold(shards_[s].lock);
    for (size_t k = known.bounds[s]; k < known.bounds[s + 1]; ++k) {
      const size_t place = known.order.size() ? known.order.data()[k] : k;
      const int64_t key = known.keys.data()[place];
      if (!known.rows.data()[place]) known.rows.data()[place] = find(shards_[s], key, mix_of(key));
    }
  }
}

// Rows for those keys without one that this push admits.
void MemoryTable::admit(Known& known, const Pushed& pushed) {
  parallel_for(threads_for(known.keys.size()), kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    for (size_t k = known.bounds[s]; k < known.bounds[s + 1]; ++k) {
      const size_t place = known.order.size() ? known.order.data()[k] : k;
      const int64_t key = known.keys.data()[place];
      float*& row = known.rows.data()[place];
      if (row || key == 0 || (pushed.some_bad && !all_finite(pushed.gradients + place * width_, width_))) continue;
      const uint64_t mix = mix_of(key);
      row = find(shard, key, mix);  // a key given twice may be there by now
      if (row) continue;
      if (!life_.admit(mix, pushed.shown.shows_of(place))) {
        not_admitted_.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      row = create_row(shard, key, mix);
      initial_row(key, row);
    }
  });
}

void MemoryTable::apply(const Known& known, const Pushed& pushed, double factor) {
  const RowStep step(shape_, factor);
  const RowCount count(shape_, life_.clock.load());
  const uint32_t* order = known.order.size() ? known.order.data() : nullptr;
  float* const* rows = known.rows.data();
  parallel_for(threads_for(known.keys.size()), kShards, [&](size_t s) {
    std::lock_guard<std::mutex> hold(shards_[s].lock);
    const size_t end = known.bounds[s + 1];
    for (size_t k = known.bounds[s]; k < end; ++k) {
      if (k + kAhead < end) {
        const float* ahead = rows[order ? order[k + kAhead] : k + kAhead];
        if (ahead) prefetch_row(ahead, row_floats_);
      }
      const size_t place = order ? order[k] : k;
      float* row = rows[place];
      const float* gradient = pushed.gradients + place * width_;
      if (pushed.some_bad && known.keys.data()[place] != 0 && !all_finite(gradient, width_)) {
        skipped_.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      if (!row) continue;
      step(row, gradient);
      count(row, pushed.shown.shows_of(place), pushed.shown.clicks_of(place));
    }
  });
}

// ---- how rows come and go -------------------------------------------------------------------------------------

void MemoryTable::advance(uint64_t periods) {
  std::lock_guard<std::mutex> hold(calls_);
  if (periods >= kMostPeriods - life_.clock.load())
    throw std::length_error("the clock of the table cannot go beyond 16,777,215 periods");
  life_.clock += periods;
}

void MemoryTable::join_life(const LifeState& part, bool first) {
  std::lock_guard<std::mutex> hold(calls_);
  life_.join(part, first);
}

size_t MemoryTable::expire(const Expiry& rule) {
  std::lock_guard<std::mutex> hold(calls_);
  last_.reset();
  {
    std::lock_guard<std::mutex> hold_prefetched(prefetched_lock_);
    prefetched_.clear();
    ++expiries_;
  }
  const RowCount count(shape_, life_.clock.load());
  std::atomic<size_t> gone{0};
  parallel_for(threads_, kShards, [&](size_t s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold_shard(shard.lock);
    if (!shard.slots) return;
    std::vector<Slot> stay;
    stay.reserve(shard.count);
    for (size_t k = 0; k <= shard.mask; ++k) {
      const Slot& slot = shard.slots[k];
      if (slot.key == 0) continue;
      if (count.expired(slot.row, rule))
        shard.freed.push_back(slot.row);
      else
        stay.push_back(slot);
    }
    const size_t went = shard.count - stay.size();
    if (went == 0) return;
    std::fill_n(shard.slots, shard.mask + 1, Slot{0, nullptr});
    for (const Slot& slot : stay) {
      size_t at = mix_of(slot.key) & shard.mask;
      while (shard.slots[at].key != 0) at = (at + 1) & shard.mask;
      shard.slots[at] = slot;
    }
    shard.count = stay.size();
    gone += went;
  });
  count_ -= gone;
  return gone;
}

void MemoryTable::counters(std::span<const int64_t> keys, float* out) {
  const size_t at = row_floats_ - kCounterFloats;
  Known known;
  visit_all<false>(keys, known, false, [&](size_t place, int64_t, const float* row) {
    float* to = out + place * kCounterFloats;
    to[0] = row ? row[at] : 0.0f;
    to[1] = row ? row[at + 1] : 0.0f;
    to[2] = row ? row[at + 2] : -1.0f;
  });
}

size_t MemoryTable::copy_out(int64_t* keys, float* values, float* states, size_t room) {
  size_t n = 0;
  for (unsigned s = 0; s < kShards; ++s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    for (size_t k = 0; shard.slots && k <= shard.mask && n < room; ++k) {
      const Slot& slot = shard.slots[k];
      if (slot.key == 0) continue;
      keys[n] = slot.key;
      copy_floats(values + n * width_, slot.row, width_);
      copy_floats(states + n * (row_floats_ - width_), slot.row + width_, row_floats_ - width_);
      ++n;
    }
  }
  return n;
}

void MemoryTable::set_optimizers(const OptimizerSpec& weight, const OptimizerSpec& vector) {
  // A part that rows do not have has no states either: any kind will do.
  if ((shape_.linear && weight.kind != shape_.weight.kind) || (shape_.dim && vector.kind != shape_.vector.kind))
    throw std::invalid_argument("the optimizers are of other kinds than those of the table");
  std::lock_guard<std::mutex> alone(calls_);
  shape_.weight = weight;
  shape_.vector = vector;
  fresh_.emplace(shape_);
}

// ---- the file -------------------------------------------------------------------------------------------------

void MemoryTable::save(const std::string& path) {
  CheckedWriter file(path);
  put_head(file, shape_);
  std::lock_guard<std::mutex> alone(calls_);  // rows, clock and counts as they are after the same push
  if (!shape_.life.none()) life_.put(file);
  uint64_t total = 0;
  std::vector<Slot> rows;
  for (unsigned s = 0; s < kShards; ++s) {
    Shard& shard = shards_[s];
    std::lock_guard<std::mutex> hold(shard.lock);
    rows.clear();
    rows.reserve(shard.count);
    for (size_t k = 0; shard.slots && k <= shard.mask; ++k)
      if (shard.slots[k].key != 0) rows.push_back(shard.slots[k]);
    std::sort(rows.begin(), rows.end(),
              [](const Slot& a, const Slot& b) { return static_cast<uint64_t>(a.key) < static_cast<uint64_t>(b.key); });
    file.put(uint64_t{rows.size()});
    for (const Slot& slot : rows) file.put(slot.key);
    for (size_t k = 0; k < rows.size(); ++k) {
      if (k + kAhead < rows.size()) prefetch_row(rows[k + kAhead].row, row_floats_);
      file.put(rows[k].row, row_floats_ * sizeof(float));
    }
    file.seal();
    total += rows.size();
  }
  put_end(file, total);
  file.close();
}

void MemoryTable::read_shard(CheckedReader& file, unsigned number) {
  Shard& shard = shards_[number];
  const std::vector<int64_t> keys = get_shard_keys(file, number, row_floats_);
  size_t slots = kLeastSlots;
  while (slots * 3 < keys.size() * 4) slots *= 2;
  if (!keys.empty()) grow_slots(shard, slots);
  for (int64_t key : keys) {
    float* row = create_row(shard, key, mix_of(key));
    file.get(row, row_floats_ * sizeof(float));
    for (size_t k = row_floats_; k < stride_; ++k) row[k] = 0.0f;
  }
  file.check_seal(shard_name(number));
  for (size_t k = 0; dense_ && shard.slots && k <= shard.mask; ++k)
    if (shard.slots[k].key != 0) take_clock(shard.slots[k].row);
}

std::unique_ptr<MemoryTable> MemoryTable::load(const std::string& path, size_t budget_bytes, size_t threads) {
  CheckedReader file(path);
  auto table = std::make_unique<MemoryTable>(get_head(file), budget_bytes, threads);
  if (!table->shape_.life.none()) table->life_.get(file);
  for (unsigned s = 0; s < kShards; ++s) table->read_shard(file, s);
  check_end(file, table->size());
  return table;
}

}  // namespace cb
