// Chooses the rows of a shard to evict from memory when it is full.
//
// A policy knows rows by their places in the slab, 0 ... capacity-1, and is told what happens to them: insert, reload,
// hit, remove. One object a shard, called under the shard's lock; it takes no locks and starts no threads. It never
// gives a row that `pinned` says is in use, and a row it gives has left its lists: the next insert of that place is
// another row.
//
//   name     bytes a row   what it is
//   heat     2             the default: asks, fading with time, as a logarithm; the coldest rows leave first, those
//                          that are known to be asked for again last
//   clock    1             second chance, two bits: the hand moves over the places of the slab itself; for keys that
//                          change quickly
//   lfu      15.4          the paper's: per bucket an LRU list of the current pass and an LFU list of candidates
//
// Others (S3-FIFO, LRU) were measured and removed: docs/tried.md. Misuse (a row inserted twice, a hit on a row that is
// not there) is the caller's mistake and not looked for.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ssd/zeroed_array.h"

namespace cb {

class Policy {
 public:
  virtual ~Policy() = default;
  // A row became resident; mix is the mixed hash of its key.
  virtual void insert(uint32_t row, uint64_t mix) = 0;
  // The same for a row that was read from disk: its key is not new, and `worth` is what worth() said when it was
  // written, kSeen where nobody knows.
  virtual void reload(uint32_t row, uint64_t mix, uint8_t worth) {
    (void)worth;
    insert(row, mix);
  }
  static constexpr uint8_t kSeen = 8;
  // What to keep beside a row on disk, 1 ... 15: of a resident row, or of one that victims() just gave and nobody has
  // replaced.
  virtual uint8_t worth(uint32_t row) const {
    (void)row;
    return kSeen;
  }
  // A resident row was asked for by a load, once a batch.
  virtual void hit(uint32_t row) = 0;
  // Rows to let go, added to `out`: `wanted` of those not pinned, fewer only where all others are pinned.
  virtual void victims(size_t wanted, const std::function<bool(uint32_t)>& pinned, std::vector<uint32_t>& out) = 0;
  // A row left for another reason (expired).
  virtual void remove(uint32_t row) = 0;
  // Rows the slab has from now on; every resident row's place is below it.
  virtual void resize(uint32_t capacity) = 0;
  // Memory held, all of it part of the table's budget.
  virtual size_t bytes() const = 0;
  // A new batch of loads begins.
  virtual void next_pass() {}
  // Batch `number`, of which next uses are known, begins; numbers rise, and some may be left out.
  virtual void foresee(uint64_t number) { (void)number; }
  // A row that this batch asks for is asked for again `in` batches later, 1 ... kFarthest; 0: nobody knows.
  virtual void due(uint32_t row, uint8_t in) { (void)row, (void)in; }
  static constexpr uint8_t kFarthest = 127;
};

namespace policy {

inline constexpr uint32_t kNone = 0xffffffffu;

template <typename T>
size_t bytes_of(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

// A vector of exactly n elements, so that growth takes no more than what is asked for.
template <typename T>
void fit(std::vector<T>& v, size_t n, T fill) {
  if (n > v.capacity()) v.reserve(n);
  v.resize(n, fill);
  if (v.capacity() > n) v.shrink_to_fit();
}

// The default. A row's heat is log2 of its asks, each counted half after every `half_life` times as many asks as the
// shard has rows; kept in steps of an eighth of a power of two, relative to a clock that counts such steps, so that
// nothing is touched as rows cool. It stops two powers above the clock, at four asks: what is asked for more often is
// hit again before it cools, and what was hot once must not stay for ever. Rows come back from disk with the heat they
// left with.
//
// Where batches ahead are known (foresee, due) a row asked for within them stays before all rows that are not, the
// soonest longest: Belady's rule as far as anybody sees, heat beyond. A row that was due and not asked for is one of
// which nobody knows.
//
// victims() counts the rows of each rank and takes the lowest, equals in the order of a hand: it looks at every row
// a few times, so it should be asked for many (an eighth to a sixty-fourth of the shard).
class Heat final : public Policy {
 public:
  explicit Heat(uint32_t capacity, double half_life = 12) : half_life_(half_life) { resize(capacity); }
  void insert(uint32_t row, uint64_t) override {
    tick();
    heat_[row] = now_;
    due_[row] = 0;
  }
  void reload(uint32_t row, uint64_t, uint8_t worth) override {
    tick();
    heat_[row] = warmer(static_cast<uint8_t>(now_ + std::clamp<int>(worth, 1, 15) - kSeen));
    due_[row] = 0;
  }
  void hit(uint32_t row) override {
    tick();
    heat_[row] = warmer(heat_[row]);
    due_[row] = 0;
  }
  void foresee(uint64_t number) override {
    foreseeing_ = true;
    batch_ = static_cast<unsigned>(number % kRound);
    // Due numbers go round: what is overdue is forgotten before it looks like something to come.
    if (number - swept_ < kSweep) return;
    const bool lost = number - swept_ > kFarthest;
    swept_ = number;
    for (uint8_t& due : due_)
      if (due > 0 && (lost || batches_until(due) > kFarthest)) due = 0;
  }
  void due(uint32_t row, uint8_t in) override {
    const unsigned then = batch_ + in;
    due_[row] = in == 0 || in > kFarthest ? 0 : static_cast<uint8_t>(1 + (then < kRound ? then : then - kRound));
  }
  uint8_t worth(uint32_t row) const override {
    const uint8_t heat = heat_[row];
    return heat >= kLeft ? heat - kLeft : static_cast<uint8_t>(std::clamp<int>(heat - now_ + kSeen, 1, 15));
  }
  void victims(size_t wanted, const std::function<bool(uint32_t)>& pinned, std::vector<uint32_t>& out) override {
    if (!foreseeing_) {
      lowest([this](uint32_t row) { return heat_[row] < kLeft ? heat_[row] : 0u; }, wanted, pinned, out);
      return;
    }
    std::array<uint16_t, 256> of_due{};  // the rank of a row that is due, 0 where nobody knows
    for (unsigned due = 1; due <= kRound; ++due)
      if (const unsigned in = batches_until(static_cast<uint8_t>(due)); in <= kFarthest)
        of_due[due] = static_cast<uint16_t>(kLeft + kFarthest - in);
    const auto rank = [&](uint32_t row) -> unsigned {
      const uint8_t heat = heat_[row];
      if (heat == 0 || heat >= kLeft) return 0;
      const uint16_t known = of_due[due_[row]];
      return known ? known : heat;
    };
    lowest(rank, wanted, pinned, out);
  }
  void remove(uint32_t row) override { heat_[row] = 0; }
  void resize(uint32_t capacity) override {
    heat_.resize(capacity);
    due_.resize(capacity);
    period_ = std::max<uint64_t>(1, static_cast<uint64_t>(half_life_ * capacity / kSteps));
  }
  size_t bytes() const override { return sizeof(*this) + heat_.bytes() + due_.bytes(); }

 private:
  static constexpr unsigned kSteps = 8;                // a power of two
  static constexpr uint8_t kMost = 2 * kSteps;         // above the clock
  static constexpr uint8_t kStart = 128, kTurn = 192;  // the clock goes from one to the other and is set back
  static constexpr uint8_t kLeft = 240;                // and above: not resident, left with the worth over it
  static constexpr unsigned kRound = 255;              // due numbers; kFarthest of them may be overdue
  static constexpr uint64_t kSweep = 64;
  static constexpr unsigned kRanks = kLeft + kFarthest + 1;  // heats, then rows that are due

  unsigned batches_until(uint8_t due) const { return (due - 1u + kRound - batch_) % kRound; }
  // The rows of the lowest ranks leave; rank 0 is nobody's.
  template <class Rank>
  void lowest(Rank rank_of, size_t wanted, const std::function<bool(uint32_t)>& pinned, std::vector<uint32_t>& out) {
    const uint32_t all = static_cast<uint32_t>(heat_.size());
    const auto take = [&](uint32_t row) {
      if (pinned(row)) return;
      heat_[row] = kLeft + worth(row);
      out.push_back(row);
      --wanted;
    };
    // Whether a row is pinned is seldom asked first: that takes three times as long as counting. Where pins leave too
    // few of the ranks found so, the ranks above them are counted again without pinned rows.
    unsigned first = 1;
    for (const bool without_pinned : {false, true}) {
      std::array<size_t, kRanks> rows{};
      for (uint32_t row = 0; row < all; ++row) {
        const unsigned rank = rank_of(row);
        rows[rank] += !without_pinned || (rank >= first && !pinned(row));
      }
      // All rows below `edge` are not enough, those of `edge` included they are, unless there are too few in all.
      unsigned edge = first;
      size_t below = 0;
      for (; edge < kRanks && below + rows[edge] < wanted; ++edge) below += rows[edge];
      if (below > 0)
        for (uint32_t row = 0; row < all; ++row)
          if (const unsigned rank = rank_of(row); rank < edge && rank >= first) take(row);
      for (size_t k = 0; k < all && wanted > 0 && edge < kRanks; ++k) {
        if (hand_ >= all) hand_ = 0;
        const uint32_t row = hand_++;
        if (rank_of(row) == edge) take(row);
      }
      if (wanted == 0 || edge == kRanks) return;
      first = edge + 1;
    }
  }

  // The heat of a row asked for now: log2(2^heat + 2^now) in steps.
  uint8_t warmer(uint8_t heat) const {
    // 8 log2(1 + 2^(-d/8)), rounded, for a distance of d steps; nothing from 36 on.
    static constexpr std::array<uint8_t, 36> kSum = {8, 8, 7, 7, 6, 6, 5, 5, 5, 4, 4, 4, 3, 3, 3, 3, 3, 2,
                                                     2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const unsigned apart = heat > now_ ? heat - now_ : now_ - heat;
    const unsigned sum = std::max(heat, now_) + (apart < kSum.size() ? kSum[apart] : 0u);
    return static_cast<uint8_t>(std::min<unsigned>(sum, now_ + kMost));
  }
  void tick() {
    if (++asks_ < period_) return;
    asks_ = 0;
    if (++now_ < kTurn) return;
    for (uint8_t& heat : heat_)
      if (heat > 0 && heat < kLeft) heat = heat > kTurn - kStart ? heat - (kTurn - kStart) : 1;
    now_ = kStart;
  }
  double half_life_;
  uint8_t now_ = kStart;
  uint32_t hand_ = 0;
  uint64_t asks_ = 0, period_ = 1;
  unsigned batch_ = 0;  // by kRound
  uint64_t swept_ = 0;
  bool foreseeing_ = false;
  ZeroedArray<uint8_t> heat_;  // 0: nobody there yet
  ZeroedArray<uint8_t> due_;   // 0: nobody knows; else 1 + the batch that asks again, by kRound
};

// The places of the slab are the ring: a row that leaves makes room for one that is then the last the hand meets.
class Clock final : public Policy {
 public:
  explicit Clock(uint32_t capacity, uint8_t most = 3) : most_(most) { resize(capacity); }
  void insert(uint32_t row, uint64_t) override { state_[row] = 1; }
  void hit(uint32_t row) override { state_[row] = std::min<uint8_t>(state_[row] + 1, most_ + 1); }
  void victims(size_t wanted, const std::function<bool(uint32_t)>& pinned, std::vector<uint32_t>& out) override {
    for (size_t looks = state_.size() * (most_ + 1); wanted > 0 && looks > 0; --looks) {
      if (hand_ >= state_.size()) hand_ = 0;
      const uint32_t row = hand_++;
      if (state_[row] > 1) {
        --state_[row];
      } else if (state_[row] == 1 && !pinned(row)) {
        state_[row] = 0;
        out.push_back(row);
        --wanted;
      }
    }
  }
  void remove(uint32_t row) override { state_[row] = 0; }
  void resize(uint32_t capacity) override { state_.resize(capacity); }
  size_t bytes() const override { return sizeof(*this) + state_.bytes(); }

 private:
  uint8_t most_;
  uint32_t hand_ = 0;
  ZeroedArray<uint8_t> state_;  // 0: nobody there; else 1 + the asks left
};

// Doubly linked lists of rows in arrays of 32-bit numbers; a row is in one list at most.
class Links {
 public:
  struct List {
    uint32_t front = kNone, back = kNone, rows = 0;
  };
  void resize(size_t rows) {
    next_.resize(rows);
    prev_.resize(rows);
  }
  // Before `at`, or at the back where that is none.
  void put(List& list, uint32_t row, uint32_t at) {
    const uint32_t before = at == kNone ? list.back : prev_[at];
    prev_[row] = before;
    next_[row] = at;
    (before == kNone ? list.front : next_[before]) = row;
    (at == kNone ? list.back : prev_[at]) = row;
    ++list.rows;
  }
  void cut(List& list, uint32_t row) {
    (prev_[row] == kNone ? list.front : next_[prev_[row]]) = next_[row];
    (next_[row] == kNone ? list.back : prev_[next_[row]]) = prev_[row];
    --list.rows;
  }
  uint32_t before(uint32_t row) const { return prev_[row]; }
  uint32_t after(uint32_t row) const { return next_[row]; }
  size_t bytes() const { return next_.bytes() + prev_.bytes(); }

 private:
  ZeroedArray<uint32_t> next_, prev_;  // of rows that are in a list
};

// AIBox, section 4.2. A bucket's LRU list holds what the current pass asked for, latest first; what the next pass has
// not asked for moves to its LFU list, most frequent first. A bucket with more than `max_lfu` candidates gives its last
// `flush_step`; where no bucket has as many, all give, and at last the LRU lists do.
class PaperLfu final : public Policy {
 public:
  explicit PaperLfu(uint32_t capacity, uint32_t bucket_rows = 64, uint32_t max_lfu = 32, uint32_t flush_step = 8)
      : bucket_rows_(bucket_rows), max_lfu_(max_lfu), flush_step_(flush_step) {
    // Buckets stay as many as they were made: lists grow longer or shorter with the slab.
    fit(buckets_, std::max<size_t>(1, capacity / bucket_rows_), Bucket{});
    resize(capacity);
  }
  void insert(uint32_t row, uint64_t mix) override {
    bucket_[row] = static_cast<uint32_t>(((mix >> 16 & 0xffffffffu) * buckets_.size()) >> 32);
    asked_[row] = 1;
    in_lfu_[row] = 0;
    Bucket& bucket = buckets_[bucket_[row]];
    links_.put(bucket.lru, row, bucket.lru.front);
  }
  void hit(uint32_t row) override {
    if (asked_[row] < 0xffff) ++asked_[row];
    Bucket& bucket = buckets_[bucket_[row]];
    links_.cut(in_lfu_[row] ? bucket.lfu : bucket.lru, row);
    in_lfu_[row] = 0;
    links_.put(bucket.lru, row, bucket.lru.front);
  }
  void victims(size_t wanted, const std::function<bool(uint32_t)>& pinned, std::vector<uint32_t>& out) override {
    const size_t asked = out.size() + wanted;
    for (const uint32_t least : {max_lfu_ + 1, 1u}) {
      // Every round takes from each bucket that has enough; a round that takes nothing is the last.
      for (size_t before = asked + 1; out.size() < asked && out.size() != before;) {
        before = out.size();
        for (size_t k = 0; k < buckets_.size() && out.size() < asked; ++k) {
          if (hand_ >= buckets_.size()) hand_ = 0;
          Bucket& bucket = buckets_[hand_++];
          if (bucket.lfu.rows < least) continue;
          take(bucket.lfu, std::min<size_t>(flush_step_, asked - out.size()), pinned, out);
        }
      }
    }
    for (size_t k = 0; k < buckets_.size() && out.size() < asked; ++k)
      take(buckets_[k].lru, asked - out.size(), pinned, out);
  }
  void remove(uint32_t row) override {
    Bucket& bucket = buckets_[bucket_[row]];
    links_.cut(in_lfu_[row] ? bucket.lfu : bucket.lru, row);
  }
  void resize(uint32_t capacity) override {
    links_.resize(capacity);
    bucket_.resize(capacity);
    asked_.resize(capacity);
    in_lfu_.resize(capacity);
  }
  size_t bytes() const override {
    return sizeof(*this) + links_.bytes() + bucket_.bytes() + asked_.bytes() + in_lfu_.bytes() + bytes_of(buckets_);
  }
  void next_pass() override {
    for (Bucket& bucket : buckets_) {
      while (bucket.lru.rows > 0) {
        const uint32_t row = bucket.lru.back;
        links_.cut(bucket.lru, row);
        // Among equals the one asked for last stands in front.
        uint32_t at = bucket.lfu.back;
        while (at != kNone && asked_[at] <= asked_[row]) at = links_.before(at);
        links_.put(bucket.lfu, row, at == kNone ? bucket.lfu.front : links_.after(at));
        in_lfu_[row] = 1;
      }
    }
  }

 private:
  struct Bucket {
    Links::List lru, lfu;
  };
  void take(Links::List& list, size_t most, const std::function<bool(uint32_t)>& pinned, std::vector<uint32_t>& out) {
    for (uint32_t row = list.back; row != kNone && most > 0;) {
      const uint32_t next = links_.before(row);
      if (!pinned(row)) {
        links_.cut(list, row);
        out.push_back(row);
        --most;
      }
      row = next;
    }
  }
  uint32_t bucket_rows_, max_lfu_, flush_step_;
  size_t hand_ = 0;
  Links links_;
  std::vector<Bucket> buckets_;
  ZeroedArray<uint32_t> bucket_;
  ZeroedArray<uint16_t> asked_;
  ZeroedArray<uint8_t> in_lfu_;
};

}  // namespace policy

inline std::unique_ptr<Policy> make_policy(const std::string& name, uint32_t capacity) {
  if (name == "default" || name == "heat") return std::make_unique<policy::Heat>(capacity);
  if (name == "clock") return std::make_unique<policy::Clock>(capacity);
  if (name == "lfu") return std::make_unique<policy::PaperLfu>(capacity);
  throw std::invalid_argument("policy '" + name + "' is not one of default, heat, clock, lfu");
}

}  // namespace cb
