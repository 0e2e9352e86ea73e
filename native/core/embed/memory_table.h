// The in-memory embedder: maps a 64-bit key to a row of floats and the states of its optimizers.
//
//   64 shards, chosen by the high bits of the key's mix (shard_of_key.h). A shard is
//     slots    a power of two of {key, row}, at most 3/4 full, linear probing from the low bits of the mix; key 0 is
//     free chunks   rows end to end; a chunk is about 1/8 of what the shard holds, 4 kB to 2 MB. Rows never move and
//     are
//              never freed, so an address once found stays good and growing never holds rows twice.
//     a lock   held while slots are read or changed, and while rows are read or changed
//   a row      as in table_row.h, a multiple of 16 bytes
//
// pull and push work shard by shard on all cores. Keys that come grouped by shard, as lookups give them, are used in
// place; others are put in order once. The addresses that a prefetch found are kept for the pull of the same keys, and
// those of a pull for its push: three calls, one probe. A key's row is changed by one thread in the order of the calls,
// and a key repeated in one push is updated once for each time, in order.
//
// Who may call what at once: prefetch, pull, save and size from any threads; push from one thread at a time with all of
// these. A pull with create = false remembers nothing and waits for no other pull.
//
// Refused: rows beyond the budget (TableFull; rows created until then stay, nothing is pushed), and gradients that are
// not finite (push says where, and has changed nothing).
//
// table_file.h has the format of a saved table.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/embed/row_optimizers.h"
#include "core/embed/shard_of_key.h"
#include "core/embed/table_file.h"
#include "core/embed/table_row.h"
#include "core/system/huge_pages.h"
#include "core/system/reused_buffers.h"

namespace cb {

struct TableFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class MemoryTable {
 public:
  MemoryTable(const TableShape& shape, size_t budget_bytes, size_t threads);
  static std::unique_ptr<MemoryTable> load(const std::string& path, size_t budget_bytes, size_t threads);
  void save(const std::string& path);

  void prefetch(std::span<const int64_t> keys);
  void pull(std::span<const int64_t> keys, float* out, bool create);
  // -1, or the place in `gradients` of the first number that is not finite. `factor` scales the learning rates.
  // With `skip` keys with such numbers are left as they are, and counted. A dense optimizer takes each key once: for a
  // repeated key, which changes nothing, the answer is kRepeatedKey minus its place.
  static constexpr int64_t kRepeatedKey = -2;
  int64_t push(std::span<const int64_t> keys, const float* gradients, double factor, const Shown& shown = {},
               bool skip = false);

  // ---- how rows come and go (row_lifetime.h)
  void advance(uint64_t periods);
  uint64_t clock() const { return life_.clock.load(); }
  void join_life(const LifeState& part, bool first);  // see LifeState::join
  size_t expire(const Expiry& rule);                  // how many rows went; their memory is used again for new ones
  // The last `shape.counters()` floats of rows; of keys that are not there 0, 0, -1.
  void counters(std::span<const int64_t> keys, float* out);
  uint64_t skipped() const { return skipped_.load(std::memory_order_relaxed); }
  uint64_t not_admitted() const { return not_admitted_.load(std::memory_order_relaxed); }

  // Keys, values (n, width) and states (n, states) of at most `room` rows in no promised order; returns how many.
  size_t copy_out(int64_t* keys, float* values, float* states, size_t room);

  const TableShape& shape() const { return shape_; }

  // Other settings of optimizers of the same kinds from the next push on; rows and states stay. std::invalid_argument
  // where a kind differs: the states of a row would mean something else.
  void set_optimizers(const OptimizerSpec& weight, const OptimizerSpec& vector);
  size_t size() const { return count_.load(std::memory_order_relaxed); }
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  size_t budget() const { return budget_; }

 private:
  struct Slot {
    int64_t key;
    float* row;
  };
  struct alignas(64) Shard {
    std::mutex lock;
    std::vector<Slot> few_slots;  // below a huge page
    HugeBlock many_slots;
    Slot* slots = nullptr;   // of one of the two
    size_t mask = 0;         // slots - 1; no slots yet: 0
    size_t count = 0;        // keys
    size_t chunk_bytes = 0;  // of all chunks
    float* fresh = nullptr;  // the next row to give away
    size_t fresh_rows = 0;
    std::vector<float*> freed;  // rows that expired
  };

  // Keys of one call and where their rows are. Range s of `bounds` is shard s; `order` lists the keys' places, or is
  // empty where the keys themselves are grouped.
  struct Known {
    Buffer<int64_t> keys;
    Buffer<float*> rows;
    Buffer<uint32_t> order;
    std::array<size_t, kShards + 1> bounds{};
    bool same_keys(std::span<const int64_t> others) const;
  };

  template <bool kReads, class Visit>
  bool walk(unsigned shard, const Known& known, const int64_t* keys, bool create, Visit visit);
  template <bool kReads, class Visit>
  void visit_all(std::span<const int64_t> keys, Known& known, bool create, Visit visit);
  void find_bounds(std::span<const int64_t> keys, Known& known) const;
  void sort_by_shard(std::span<const int64_t> keys, Known& known) const;
  std::unique_ptr<Known> find_or_create(std::span<const int64_t> keys);  // creates where every key is admitted
  std::unique_ptr<Known> take_prefetched(std::span<const int64_t> keys);
  struct Pushed {
    const float* gradients;
    const Shown& shown;
    bool some_bad;  // gradients that are not finite, whose keys are left alone
  };
  void admit(Known& known, const Pushed& pushed);
  void apply(const Known& known, const Pushed& pushed, double factor);
  float* find(const Shard& shard, int64_t key, uint64_t mix) const;

  // ---- dense optimizers (push_every_row.cpp)
  int64_t push_dense(const Known& known, const Pushed& pushed, double factor);
  void wake(float* row) const;
  void take_clock(const float* row);  // of a row that was read from a file

  void refresh(Known& known);

  float* create_row(Shard& shard, int64_t key, uint64_t mix);
  void grow_slots(Shard& shard, size_t size);
  void add_chunk(Shard& shard);
  void reserve_bytes(size_t more);
  void initial_row(int64_t key, float* row) const;
  size_t threads_for(size_t keys) const;
  void read_shard(class CheckedReader& file, unsigned number);

  TableShape shape_;
  const size_t width_, row_floats_, stride_;  // in floats; stride_ is row_floats_ with padding
  std::optional<NewRows> fresh_;              // always there; made anew when settings of optimizers change
  const size_t budget_, threads_;
  LifeState life_;
  const bool dense_;
  uint64_t dense_steps_ = 0;  // pushes so far, where the optimizer is dense
  std::atomic<size_t> count_{0}, bytes_{0};
  std::atomic<uint64_t> skipped_{0}, not_admitted_{0};
  HugeArena rows_;
  std::unique_ptr<Shard[]> shards_;

  std::mutex calls_;  // pulls that create, and pushes, one after the other
  std::unique_ptr<Known> last_;
  std::mutex prefetched_lock_;
  std::deque<std::unique_ptr<Known>> prefetched_;
  uint64_t expiries_ = 0;  // addresses found before the last one may be of rows that went
};

}  // namespace cb
