// The Sparse Table with the disk layout of the AIBox paper (section 4), kept next to sparse_table.h for comparison.
//
//   group     m = ⌊4096 / (8 + value bytes)⌋ keys, the "small file": n keys, then n rows, in whole blocks. Which group
//   a
//             key is of is decided by its mix; where the group lies is kept in memory, 12 bytes a group.
//   slot      level 1: 16 neighboring groups (their numbers are hashed already) and one Bloom filter of all keys of
//             theirs ever created
//   bucket    level 2: `bucket_groups` groups of a slot. Its resident rows are in two lists, which are also what a key
//             is looked for in: LRU, of the current pass, and LFU, most frequent first, of candidates to leave
//   flush     a bucket whose LFU list is longer than MAX_LFU lets the last FLUSH_STEP go. The group of every dirty row
//             that leaves is read, merged with all its dirty rows and written anew
//   file      groups written together, one after the other; a counter of live bytes, deletion at zero; files with few
//             live bytes are merged when the disk holds more than MAX_REPLICATION times the groups
//
// Where the paper leaves it open, or its keys are not ours:
//   its keys are 1 ... 10^12 and fill groups evenly. Mixes do not, so a group is meant to be `fill` full, and one that
//   has more than m keys takes a second block. `keys`, the size of the model, must be known beforehand, as it is there;
//   the lists are asked before the filter: most keys are found in them;
//   a bucket is chosen by group, so that what leaves it together is one read and one write;
//   no background thread: rows leave within the pull that needs their room, by the threads that pull, 128 reads under
//   way each. Our table lets rows go there too.
//
// Gives the bits of MemoryTable. Not safe against crashes and not to be opened again: the index is in memory alone, the
// files end with the store. One caller at a time. Budget: groups, filters, buckets, nodes and rows; buffers are beside.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/embed/shard_of_key.h"
#include "core/embed/table_row.h"
#include "core/ssd/block_reader.h"
#include "core/ssd/eviction_policy.h"
#include "core/ssd/segment_files.h"
#include "core/system/huge_pages.h"
#include "paper_store/paper_bloom.h"

namespace cb {

// The rows of a shard that lie in memory: a slab of nodes, two lists a bucket.
class BucketCache {
 public:
  static constexpr uint32_t kNone = policy::kNone;

  struct Node {
    int64_t key;
    uint32_t pass;  // that asked for it last
    uint16_t asked;
    bool dirty, in_lfu;
  };
  static_assert(sizeof(Node) == 16);
  struct Bucket {
    policy::Links::List lru, lfu;
  };
  static constexpr size_t kNodeBytes = sizeof(Node) + 3 * sizeof(uint32_t);  // two links, a place among the free ones

  // `rows` (capacity × stride) belong to the caller.
  void begin(uint32_t capacity, size_t buckets, uint32_t max_lfu, uint32_t flush_step, float* rows, size_t stride);

  uint32_t find(size_t bucket, int64_t key) const;
  void prefetch(size_t bucket) const { __builtin_prefetch(&buckets_[bucket]); }
  // A row that was found becomes the first of its LRU list.
  void ask(size_t bucket, uint32_t node, uint32_t pass);
  // A key that is not there; there must be room. Its floats are whatever was there.
  uint32_t insert(size_t bucket, int64_t key, uint32_t pass);
  // What pass `pass` has not asked for goes from the LRU lists to the LFU lists.
  void end_pass(uint32_t pass);
  // `wanted` rows, of which candidates() must have as many, leave their lists; free() when they are written.
  void victims(size_t wanted, std::vector<uint32_t>& out);
  void free(uint32_t node) { freed_.push_back(node); }

  template <class Visit>
  void visit(size_t bucket, Visit visit) const {
    for (const auto* list : {&buckets_[bucket].lru, &buckets_[bucket].lfu})
      for (uint32_t node = list->front; node != kNone; node = links_.after(node)) visit(node);
  }

  Node& node(uint32_t at) { return nodes_[at]; }
  const Node& node(uint32_t at) const { return nodes_[at]; }
  float* row(uint32_t at) const { return rows_ + size_t{at} * stride_; }
  size_t room() const { return freed_.size(); }
  size_t candidates() const { return candidates_; }
  size_t capacity() const { return nodes_.size(); }
  size_t bytes() const;

 private:
  std::vector<Bucket> buckets_;
  std::vector<Node> nodes_;
  policy::Links links_;
  std::vector<uint32_t> freed_;
  float* rows_ = nullptr;
  size_t stride_ = 0, hand_ = 0, candidates_ = 0;
  uint32_t max_lfu_ = 0, flush_step_ = 0;
};

struct GroupOptions {
  size_t ram = size_t{2} << 30;
  size_t keys = 1'000'000;  // that the table is going to hold; more cost more blocks a group
  size_t threads = 0;       // 0: every core this process may use
  double filter_bits = 10;
  double fill = 0.8;  // of a group's m keys
  // The best of those tried, docs/tried.md: 64 are all candidates of a bucket, so that its groups are written once.
  uint32_t bucket_groups = 4;  // 1, 2, 4, 8 or 16
  uint32_t max_lfu = 0;        // 0: a bucket's share of the rows
  uint32_t flush_step = 64;
  double max_replication = 2.5;
  size_t segment_bytes = size_t{64} << 20;
};

class GroupStore {
 public:
  // An empty store; the folder exists.
  GroupStore(const std::string& folder, const TableShape& shape, const GroupOptions& options);
  ~GroupStore();

  void pull(std::span<const int64_t> keys, float* out);
  // -1, or the place in `gradients` of the first number that is not finite. `factor` scales the learning rates.
  int64_t push(std::span<const int64_t> keys, const float* gradients, double factor);
  void flush();  // all rows leave memory
  std::map<std::string, uint64_t> stats() const;

  // The paper's m.
  static size_t group_keys(const TableShape& shape);

 private:
  struct Place {
    uint32_t file = 0;  // 0: nothing on disk
    uint32_t block = 0;
    uint32_t rows = 0;
  };
  struct Shard {
    std::vector<Place> groups;
    std::vector<BloomFilter> filters;  // of the slots
    BucketCache cache;
  };
  // Keys of one call and their nodes; kNone: key 0.
  struct Batch {
    std::vector<int64_t> keys;
    std::vector<uint32_t> nodes;
    std::vector<uint32_t> order;  // by shard; empty where the keys are grouped
    std::array<size_t, kShards + 1> bounds{};
    size_t at(size_t k) const { return order.empty() ? k : order[k]; }
  };
  struct Missing {
    int64_t key;
    uint32_t shard, group, at;  // at: in the call
  };
  struct Change {
    uint32_t shard, group, node;  // kNone: the group only moves
  };
  struct Buffers;
  struct Merged;  // a group that is written anew

  uint32_t group_of(uint64_t mix) const { return static_cast<uint32_t>((mix << kShardBits >> 32) * groups_ >> 32); }
  size_t bucket_of(uint32_t group) const { return group / options_.bucket_groups; }
  size_t bytes_of(size_t rows) const { return whole_blocks(rows * row_bytes_); }

  Batch batch_of(std::span<const int64_t> keys) const;
  void load(std::span<const int64_t> keys);
  void load_shards(unsigned first, unsigned end, Batch& batch, Buffers& buffers);
  template <class Work>
  void on_all_shards(size_t threads, Work work);
  std::vector<Missing> find(unsigned first, unsigned end, Batch& batch);
  void let_go(unsigned first, unsigned end, const std::array<size_t, kShards>& wanted, Buffers& buffers);
  void read(std::vector<Missing>& missing, Batch& batch, Buffers& buffers);
  uint32_t create(const Missing& key);
  void rewrite(std::span<const Change> changes, Buffers& buffers);
  size_t merge(const Merged& group, std::span<const Change> changes, const char* from, char* to) const;
  void adopt(const cb::Place& written, std::span<const Change> changes, std::span<Merged> merged);
  void merge_files();
  int file_of(uint32_t file) const;
  size_t threads_for(size_t keys) const;

  const TableShape shape_;
  const GroupOptions options_;
  const size_t row_floats_, row_bytes_, threads_;
  const NewRows fresh_;
  size_t groups_ = 0;  // of a shard
  Segments segments_;
  HugeBlock rows_memory_;
  std::unique_ptr<Shard[]> shards_;
  uint32_t pass_ = 0;
  Batch last_;

  std::mutex idle_lock_;
  std::vector<std::unique_ptr<Buffers>> idle_;
  mutable std::mutex files_lock_;
  std::unordered_map<uint32_t, SegmentPtr> files_;

  struct Counters {
    std::atomic<uint64_t> keys{0}, asked{0}, hits{0}, misses{0}, fresh{0}, pruned{0}, false_positives{0}, reads{0},
        flush_reads{0}, bytes_read{0}, evicted{0}, groups_written{0}, moved{0}, merges{0}, live_bytes{0};
  };
  Counters counters_;
};

}  // namespace cb
