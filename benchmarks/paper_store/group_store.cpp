#include "paper_store/group_store.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "core/embed/memory_table.h"
#include "core/system/parallel.h"

namespace cb {

namespace {

constexpr size_t kFewKeys = 2048;  // below it, waking threads costs more than it gives
constexpr unsigned kTogether = 8;  // shards whose groups are read together: the disk's queue stays full
constexpr size_t kAhead = 8;       // keys between asking for a bucket or a row and using it
constexpr size_t kSlotGroups = 16;
constexpr size_t kLeastRows = 16;                 // of a shard
constexpr size_t kWindowBytes = size_t{4} << 20;  // groups on their way to one thread

}  // namespace

// ---- rows in memory -------------------------------------------------------------------------------------------

void BucketCache::begin(uint32_t capacity, size_t buckets, uint32_t max_lfu, uint32_t flush_step, float* rows,
                        size_t stride) {
  policy::fit(buckets_, buckets, Bucket{});
  policy::fit(nodes_, capacity, Node{});
  links_.resize(capacity);
  freed_.resize(capacity);
  for (uint32_t k = 0; k < capacity; ++k) freed_[k] = capacity - 1 - k;  // the first node is given first
  max_lfu_ = max_lfu;
  flush_step_ = flush_step;
  rows_ = rows;
  stride_ = stride;
}

uint32_t BucketCache::find(size_t bucket, int64_t key) const {
  for (const auto* list : {&buckets_[bucket].lru, &buckets_[bucket].lfu})
    for (uint32_t at = list->front; at != kNone; at = links_.after(at))
      if (nodes_[at].key == key) return at;
  return kNone;
}

void BucketCache::ask(size_t bucket, uint32_t at, uint32_t pass) {
  Bucket& lists = buckets_[bucket];
  Node& node = nodes_[at];
  if (node.asked < 0xffff) ++node.asked;
  candidates_ -= node.in_lfu;
  links_.cut(node.in_lfu ? lists.lfu : lists.lru, at);
  links_.put(lists.lru, at, lists.lru.front);
  node.in_lfu = false;
  node.pass = pass;
}

uint32_t BucketCache::insert(size_t bucket, int64_t key, uint32_t pass) {
  const uint32_t at = freed_.back();
  freed_.pop_back();
  nodes_[at] = {key, pass, 1, false, false};
  links_.put(buckets_[bucket].lru, at, buckets_[bucket].lru.front);
  return at;
}

void BucketCache::end_pass(uint32_t pass) {
  for (Bucket& bucket : buckets_) {
    while (bucket.lru.rows > 0 && nodes_[bucket.lru.back].pass != pass) {
      const uint32_t at = bucket.lru.back;
      links_.cut(bucket.lru, at);
      // Among equals the one asked for last stands in front.
      uint32_t before = bucket.lfu.back;
      while (before != kNone && nodes_[before].asked <= nodes_[at].asked) before = links_.before(before);
      links_.put(bucket.lfu, at, before == kNone ? bucket.lfu.front : links_.after(before));
      nodes_[at].in_lfu = true;
      ++candidates_;
    }
  }
}

void BucketCache::victims(size_t wanted, std::vector<uint32_t>& out) {
  // Every round takes from each bucket that has enough; first of those that are too long, then of all.
  for (const uint32_t least : {max_lfu_ + 1, 1u}) {
    for (size_t before = wanted + 1; wanted > 0 && wanted != before;) {
      before = wanted;
      for (size_t k = 0; k < buckets_.size() && wanted > 0; ++k) {
        if (hand_ >= buckets_.size()) hand_ = 0;
        Bucket& bucket = buckets_[hand_++];
        if (bucket.lfu.rows < least) continue;
        for (uint32_t n = 0; n < flush_step_ && wanted > 0 && bucket.lfu.rows > 0; ++n, --wanted) {
          out.push_back(bucket.lfu.back);
          links_.cut(bucket.lfu, bucket.lfu.back);
          --candidates_;
        }
      }
    }
  }
}

size_t BucketCache::bytes() const {
  return policy::bytes_of(buckets_) + policy::bytes_of(nodes_) + policy::bytes_of(freed_) + links_.bytes();
}

// Where the blocks are read to.
struct GroupStore::Buffers {
  BlockReader reader{128};
  AlignedBuffer in, out;

  void aim(std::span<BlockRead> blocks, size_t bytes) {
    in.reserve(std::max(bytes, kWindowBytes));
    char* to = in.data();
    for (BlockRead& block : blocks) {
      block.to = to;
      to += block.bytes;
    }
  }
};

// ---- begin ----------------------------------------------------------------------------------------------------

size_t GroupStore::group_keys(const TableShape& shape) {
  return std::max<size_t>(1, kBlock / (sizeof(int64_t) + shape.floats() * sizeof(float)));
}

GroupStore::GroupStore(const std::string& folder, const TableShape& shape, const GroupOptions& options)
    : shape_(shape),
      options_(options),
      row_floats_(shape.floats()),
      row_bytes_(sizeof(int64_t) + row_floats_ * sizeof(float)),
      threads_(options.threads ? options.threads : usable_cores()),
      fresh_(shape),
      segments_(folder, options.segment_bytes),
      shards_(new Shard[kShards]) {
  if (shape.width() == 0 || shape.dim > kMostDim) throw std::invalid_argument("a row must have 1 to 4,097 values");
  if (!(options.fill > 0 && options.fill <= 1)) throw std::invalid_argument("groups are filled to above 0, at most 1");
  if (options.bucket_groups == 0 || kSlotGroups % options.bucket_groups != 0)
    throw std::invalid_argument("a bucket has 1, 2, 4, 8 or 16 groups");
  if (options.flush_step == 0) throw std::invalid_argument("a flush takes one row at least");

  const double each = options.fill * static_cast<double>(group_keys(shape)) * kShards;
  const size_t slots = static_cast<size_t>(static_cast<double>(options.keys) / each) / kSlotGroups + 1;
  groups_ = slots * kSlotGroups;
  const size_t buckets = groups_ / options.bucket_groups;
  const BloomFilter filter(options.keys / (slots * kShards) + 1, options.filter_bits);
  const size_t index = groups_ * sizeof(Place) + buckets * sizeof(BucketCache::Bucket) +
                       slots * (sizeof(BloomFilter) + filter.bytes() + 2 * sizeof(void*));
  const size_t node = BucketCache::kNodeBytes + row_floats_ * sizeof(float), budget = options.ram / kShards;
  if (budget < index + kLeastRows * node) throw TableFull("the budget holds fewer than 1,024 rows beside the index");
  const size_t capacity = std::min<size_t>((budget - index) / node, BucketCache::kNone - 1);
  const size_t share = options.max_lfu ? options.max_lfu : std::max<size_t>(1, capacity / buckets);

  rows_memory_ = HugeBlock(capacity * kShards * row_floats_ * sizeof(float));
  for (unsigned s = 0; s < kShards; ++s) {
    policy::fit(shards_[s].groups, groups_, Place{});
    shards_[s].filters.assign(slots, filter);
    shards_[s].cache.begin(static_cast<uint32_t>(capacity), buckets, static_cast<uint32_t>(share), options.flush_step,
                           reinterpret_cast<float*>(rows_memory_.data()) + s * capacity * row_floats_, row_floats_);
  }
}

GroupStore::~GroupStore() = default;

size_t GroupStore::threads_for(size_t keys) const { return keys < kFewKeys ? 1 : threads_; }

GroupStore::Batch GroupStore::batch_of(std::span<const int64_t> keys) const {
  if (keys.size() >= UINT32_MAX) throw std::length_error("more than 4,294,967,294 keys in one call");
  Batch batch;
  batch.keys.assign(keys.begin(), keys.end());
  batch.nodes.assign(keys.size(), BucketCache::kNone);
  unsigned before = 0;
  bool grouped = true;
  for (int64_t key : keys) {
    const unsigned shard = shard_of(key);
    grouped = grouped && shard >= before;
    before = shard;
    ++batch.bounds[shard + 1];
  }
  for (unsigned s = 0; s < kShards; ++s) batch.bounds[s + 1] += batch.bounds[s];
  if (grouped) return batch;
  batch.order.resize(keys.size());
  std::array<size_t, kShards> next{};
  std::copy_n(batch.bounds.begin(), kShards, next.begin());
  for (size_t k = 0; k < keys.size(); ++k) batch.order[next[shard_of(keys[k])]++] = static_cast<uint32_t>(k);
  return batch;
}

// work(first, end, buffers) for every kTogether shards.
template <class Work>
void GroupStore::on_all_shards(size_t threads, Work work) {
  parallel_for(threads, kShards / kTogether, [&](size_t t) {
    std::unique_ptr<Buffers> buffers;
    {
      std::lock_guard<std::mutex> hold(idle_lock_);
      if (!idle_.empty()) {
        buffers = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!buffers) buffers = std::make_unique<Buffers>();
    work(static_cast<unsigned>(t) * kTogether, static_cast<unsigned>(t + 1) * kTogether, *buffers);
    std::lock_guard<std::mutex> hold(idle_lock_);
    idle_.push_back(std::move(buffers));
  });
}

// ---- pull and push --------------------------------------------------------------------------------------------

void GroupStore::pull(std::span<const int64_t> keys, float* out) {
  load(keys);
  const size_t width = shape_.width();
  parallel_for(threads_for(keys.size()), kShards, [&](size_t s) {
    const BucketCache& cache = shards_[s].cache;
    for (size_t k = last_.bounds[s], end = last_.bounds[s + 1]; k < end; ++k) {
      if (k + kAhead < end) {
        const uint32_t ahead = last_.nodes[last_.at(k + kAhead)];
        if (ahead != BucketCache::kNone) __builtin_prefetch(cache.row(ahead));
      }
      const size_t at = last_.at(k);
      if (last_.nodes[at] == BucketCache::kNone)
        std::fill_n(out + at * width, width, 0.0f);
      else
        std::memcpy(out + at * width, cache.row(last_.nodes[at]), width * sizeof(float));
    }
  });
}

int64_t GroupStore::push(std::span<const int64_t> keys, const float* gradients, double factor) {
  const size_t width = shape_.width(), threads = threads_for(keys.size());
  const int64_t bad = first_not_finite(keys, gradients, width, threads);
  if (bad >= 0) return bad;
  if (!std::equal(keys.begin(), keys.end(), last_.keys.begin(), last_.keys.end())) load(keys);
  const RowStep step(shape_, factor);
  parallel_for(threads, kShards, [&](size_t s) {
    BucketCache& cache = shards_[s].cache;
    for (size_t k = last_.bounds[s], end = last_.bounds[s + 1]; k < end; ++k) {
      if (k + kAhead < end) {
        const uint32_t ahead = last_.nodes[last_.at(k + kAhead)];
        if (ahead != BucketCache::kNone) __builtin_prefetch(cache.row(ahead), 1);
      }
      const size_t at = last_.at(k);
      if (last_.nodes[at] == BucketCache::kNone) continue;
      step(cache.row(last_.nodes[at]), gradients + at * width);
      cache.node(last_.nodes[at]).dirty = true;
    }
  });
  return -1;
}

void GroupStore::flush() {
  last_ = {};
  ++pass_;
  on_all_shards(threads_, [&](unsigned first, unsigned end, Buffers& buffers) {
    std::array<size_t, kShards> wanted{};
    for (unsigned s = first; s < end; ++s) {
      shards_[s].cache.end_pass(pass_);
      wanted[s] = shards_[s].cache.candidates();
    }
    let_go(first, end, wanted, buffers);
  });
  merge_files();
}

// ---- loading --------------------------------------------------------------------------------------------------

void GroupStore::load(std::span<const int64_t> keys) {
  last_ = {};  // what a failed load leaves is not to be pushed to
  Batch batch = batch_of(keys);
  ++pass_;
  on_all_shards(threads_for(keys.size()),
                [&](unsigned first, unsigned end, Buffers& buffers) { load_shards(first, end, batch, buffers); });
  merge_files();
  last_ = std::move(batch);
}

void GroupStore::load_shards(unsigned first, unsigned end, Batch& batch, Buffers& buffers) {
  std::vector<Missing> missing = find(first, end, batch);
  std::sort(missing.begin(), missing.end(), [](const Missing& a, const Missing& b) {
    return std::tie(a.shard, a.group, a.key) < std::tie(b.shard, b.group, b.key);
  });
  std::array<size_t, kShards> wanted{};
  for (size_t k = 0; k < missing.size(); ++k)
    if (k == 0 || missing[k].key != missing[k - 1].key) ++wanted[missing[k].shard];
  for (unsigned s = first; s < end; ++s) {
    const BucketCache& cache = shards_[s].cache;
    wanted[s] -= std::min(wanted[s], cache.room());
    if (wanted[s] > cache.candidates()) throw TableFull("a batch has more rows than the budget holds");
  }
  let_go(first, end, wanted, buffers);
  read(missing, batch, buffers);
}

// Keys that are not in memory; the others are asked for, and what nobody asked for becomes a candidate.
std::vector<GroupStore::Missing> GroupStore::find(unsigned first, unsigned end, Batch& batch) {
  std::vector<Missing> missing;
  uint64_t asked = 0, hits = 0;
  for (unsigned s = first; s < end; ++s) {
    BucketCache& cache = shards_[s].cache;
    const size_t stop = batch.bounds[s + 1];
    for (size_t k = batch.bounds[s]; k < stop; ++k) {
      if (k + kAhead < stop) cache.prefetch(bucket_of(group_of(mix_of(batch.keys[batch.at(k + kAhead)]))));
      const size_t at = batch.at(k);
      const int64_t key = batch.keys[at];
      if (key == 0) continue;
      ++asked;
      const uint32_t group = group_of(mix_of(key)), node = cache.find(bucket_of(group), key);
      if (node == BucketCache::kNone) {
        missing.push_back({key, s, group, static_cast<uint32_t>(at)});
        continue;
      }
      ++hits;
      cache.ask(bucket_of(group), node, pass_);
      batch.nodes[at] = node;
    }
    cache.end_pass(pass_);
  }
  counters_.asked += asked;
  counters_.hits += hits;
  return missing;
}

// As many rows of each shard as are wanted leave memory, dirty ones to their groups.
void GroupStore::let_go(unsigned first, unsigned end, const std::array<size_t, kShards>& wanted, Buffers& buffers) {
  std::vector<std::pair<unsigned, uint32_t>> leaving;
  std::vector<Change> changes;
  std::vector<uint32_t> some;
  for (unsigned s = first; s < end; ++s) {
    BucketCache& cache = shards_[s].cache;
    const size_t before = changes.size();
    some.clear();
    cache.victims(wanted[s], some);
    for (const uint32_t node : some) {
      leaving.emplace_back(s, node);
      if (cache.node(node).dirty) changes.push_back({s, group_of(mix_of(cache.node(node).key)), node});
    }
    // Dirty rows that stay travel with their group: one write more saved each.
    std::vector<uint32_t> groups;
    for (size_t k = before; k < changes.size(); ++k) groups.push_back(changes[k].group);
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    for (const uint32_t group : groups)
      cache.visit(bucket_of(group), [&](uint32_t node) {
        if (cache.node(node).dirty && group_of(mix_of(cache.node(node).key)) == group)
          changes.push_back({s, group, node});
      });
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.shard, a.group, a.node) < std::tie(b.shard, b.group, b.node);
  });
  rewrite(changes, buffers);
  for (const Change& change : changes) shards_[change.shard].cache.node(change.node).dirty = false;
  for (const auto& [shard, node] : leaving) shards_[shard].cache.free(node);
  counters_.evicted += leaving.size();
}

uint32_t GroupStore::create(const Missing& key) {
  Shard& shard = shards_[key.shard];
  const uint32_t node = shard.cache.insert(bucket_of(key.group), key.key, pass_);
  fresh_.row(key.key, shard.cache.row(node), 0);
  shard.cache.node(node).dirty = true;
  shard.filters[key.group / kSlotGroups].add(mix_of(key.key));
  ++counters_.keys;
  ++counters_.fresh;
  return node;
}

// `missing` is sorted by shard, group and key.
void GroupStore::read(std::vector<Missing>& missing, Batch& batch, Buffers& buffers) {
  std::vector<Missing> wanted;
  for (size_t k = 0; k < missing.size(); ++k) {
    const Missing& key = missing[k];
    if (k > 0 && key.key == missing[k - 1].key) continue;
    const Shard& shard = shards_[key.shard];
    const bool maybe = shard.filters[key.group / kSlotGroups].maybe(mix_of(key.key));
    counters_.pruned += !maybe;
    if (maybe && shard.groups[key.group].file != 0)
      wanted.push_back(key);
    else
      batch.nodes[key.at] = create(key);
  }
  std::vector<BlockRead> blocks;
  std::vector<size_t> begins;
  for (size_t k = 0; k < wanted.size();) {
    blocks.clear();
    begins.clear();
    size_t used = 0;
    while (k < wanted.size()) {
      const auto [shard, group] = std::pair(wanted[k].shard, wanted[k].group);
      const Place& place = shards_[shard].groups[group];
      const size_t bytes = bytes_of(place.rows);
      if (used > 0 && used + bytes > kWindowBytes) break;
      begins.push_back(k);
      blocks.push_back({file_of(place.file), uint64_t{place.block} * kBlock, nullptr, static_cast<uint32_t>(bytes)});
      used += bytes;
      while (k < wanted.size() && wanted[k].shard == shard && wanted[k].group == group) ++k;
    }
    begins.push_back(k);
    buffers.aim(blocks, used);
    counters_.reads += blocks.size();
    counters_.bytes_read += used;
    buffers.reader.read(blocks, [&](size_t b) {
      Shard& shard = shards_[wanted[begins[b]].shard];
      const size_t rows = shard.groups[wanted[begins[b]].group].rows;
      const int64_t* keys = static_cast<const int64_t*>(blocks[b].to);
      const float* values = reinterpret_cast<const float*>(keys + rows);
      for (size_t w = begins[b]; w < begins[b + 1]; ++w) {
        const size_t row = static_cast<size_t>(std::find(keys, keys + rows, wanted[w].key) - keys);
        if (row == rows) {
          ++counters_.false_positives;
          batch.nodes[wanted[w].at] = create(wanted[w]);
          continue;
        }
        const uint32_t node = shard.cache.insert(bucket_of(wanted[w].group), wanted[w].key, pass_);
        std::memcpy(shard.cache.row(node), values + row * row_floats_, row_floats_ * sizeof(float));
        batch.nodes[wanted[w].at] = node;
        ++counters_.misses;
      }
    });
  }
  // A key given twice is loaded by the first.
  for (size_t k = 1; k < missing.size(); ++k)
    if (missing[k].key == missing[k - 1].key) batch.nodes[missing[k].at] = batch.nodes[missing[k - 1].at];
}

// ---- files ----------------------------------------------------------------------------------------------------

struct GroupStore::Merged {
  size_t begin, end;  // of the changes
  Place old, place;
};

// The rows of a group, its changed ones anew, as they will lie on disk; how many there are.
size_t GroupStore::merge(const Merged& group, std::span<const Change> changes, const char* from, char* to) const {
  const BucketCache& cache = shards_[changes[group.begin].shard].cache;
  const size_t old = group.old.rows, floats = row_floats_ * sizeof(float);
  const int64_t* old_keys = reinterpret_cast<const int64_t*>(from);
  size_t rows = old;
  std::vector<std::pair<uint32_t, size_t>> places;  // node, row
  for (const Change& change : changes.subspan(group.begin, group.end - group.begin)) {
    if (change.node == BucketCache::kNone) continue;
    size_t row = 0;
    while (row < old && old_keys[row] != cache.node(change.node).key) ++row;
    places.emplace_back(change.node, row < old ? row : rows++);
  }
  int64_t* keys = reinterpret_cast<int64_t*>(to);
  char* values = to + rows * sizeof(int64_t);
  if (old) {
    std::memcpy(keys, from, old * sizeof(int64_t));
    std::memcpy(values, from + old * sizeof(int64_t), old * floats);
  }
  for (const auto& [node, row] : places) {
    keys[row] = cache.node(node).key;
    std::memcpy(values + row * floats, cache.row(node), floats);
  }
  std::memset(to + rows * row_bytes_, 0, bytes_of(rows) - rows * row_bytes_);
  return rows;
}

// Groups with their changed rows into the current file; `changes` are sorted by shard and group.
void GroupStore::rewrite(std::span<const Change> changes, Buffers& buffers) {
  std::vector<Merged> merged;
  std::vector<BlockRead> blocks;
  std::vector<size_t> of_block;
  for (size_t k = 0; k < changes.size();) {
    merged.clear();
    blocks.clear();
    of_block.clear();
    size_t old_bytes = 0, most = 0;
    while (k < changes.size()) {
      size_t end = k;
      while (end < changes.size() && changes[end].shard == changes[k].shard && changes[end].group == changes[k].group)
        ++end;
      const Place& old = shards_[changes[k].shard].groups[changes[k].group];
      const size_t here = bytes_of(old.rows), then = bytes_of(old.rows + end - k);
      if (most > 0 && most + then > kWindowBytes) break;
      if (old.file != 0) {
        of_block.push_back(merged.size());
        blocks.push_back({file_of(old.file), uint64_t{old.block} * kBlock, nullptr, static_cast<uint32_t>(here)});
      }
      merged.push_back({k, end, old, {}});
      old_bytes += here;
      most += then;
      k = end;
    }
    buffers.aim(blocks, old_bytes);
    buffers.out.reserve(std::max(most, kWindowBytes));
    size_t used = 0;
    const auto put = [&](Merged& group, const char* from) {
      const size_t rows = merge(group, changes, from, buffers.out.data() + used);
      group.place = {0, static_cast<uint32_t>(used / kBlock), static_cast<uint32_t>(rows)};
      used += bytes_of(rows);
    };
    for (Merged& group : merged)
      if (group.old.file == 0) put(group, nullptr);
    buffers.reader.read(blocks, [&](size_t b) { put(merged[of_block[b]], static_cast<const char*>(blocks[b].to)); });
    counters_.flush_reads += blocks.size();
    counters_.bytes_read += old_bytes;
    counters_.groups_written += merged.size();
    adopt(segments_.append(buffers.out.data(), used, [](uint64_t, uint64_t) {}), changes, merged);
  }
}

// The groups lie at their new places, and the files where they lay count them no longer.
void GroupStore::adopt(const cb::Place& written, std::span<const Change> changes, std::span<Merged> merged) {
  const uint32_t file = static_cast<uint32_t>(written.segment->id);
  std::lock_guard<std::mutex> hold(files_lock_);
  files_.try_emplace(file, written.segment);
  for (Merged& group : merged) {
    written.segment->live += bytes_of(group.place.rows);
    counters_.live_bytes += bytes_of(group.place.rows);
  }
  for (Merged& group : merged) {
    group.place.file = file;
    group.place.block += static_cast<uint32_t>(written.offset / kBlock);
    shards_[changes[group.begin].shard].groups[changes[group.begin].group] = group.place;
    if (group.old.file == 0) continue;
    const size_t bytes = bytes_of(group.old.rows);
    counters_.live_bytes -= bytes;
    const auto old = files_.find(group.old.file);
    if (old->second->live.fetch_sub(bytes) == bytes) files_.erase(old);  // the last holder's end deletes the file
  }
}

// When the disk holds too much, the groups of the files with the fewest live bytes move to a new one. Nobody else is at
// work.
void GroupStore::merge_files() {
  const double most = options_.max_replication * static_cast<double>(counters_.live_bytes);
  double held = static_cast<double>(segments_.disk_bytes());
  if (held <= most) return;
  segments_.roll();
  std::vector<std::pair<uint64_t, uint32_t>> files;  // live bytes, file
  for (const auto& [file, segment] : files_) files.emplace_back(segment->live, file);
  std::sort(files.begin(), files.end());
  // A tenth less than allowed, so that the next is not at once.
  std::vector<uint32_t> some;
  for (size_t k = 0; k < files.size() && held > 0.9 * most; ++k) {
    held -= static_cast<double>(files_.at(files[k].second)->bytes() - files[k].first);
    some.push_back(files[k].second);
  }
  std::sort(some.begin(), some.end());
  ++counters_.merges;
  on_all_shards(threads_, [&](unsigned first, unsigned end, Buffers& buffers) {
    std::vector<Change> changes;
    for (unsigned s = first; s < end; ++s)
      for (uint32_t group = 0; group < groups_; ++group)
        if (std::binary_search(some.begin(), some.end(), shards_[s].groups[group].file))
          changes.push_back({s, group, BucketCache::kNone});
    counters_.moved += changes.size();
    rewrite(changes, buffers);
  });
}

int GroupStore::file_of(uint32_t file) const {
  std::lock_guard<std::mutex> hold(files_lock_);
  return files_.at(file)->file();
}

std::map<std::string, uint64_t> GroupStore::stats() const {
  uint64_t capacity = 0, resident = 0, index = 0;
  for (unsigned s = 0; s < kShards; ++s) {
    const Shard& shard = shards_[s];
    capacity += shard.cache.capacity();
    resident += shard.cache.capacity() - shard.cache.room();
    index += shard.cache.bytes() + policy::bytes_of(shard.groups);
    for (const BloomFilter& filter : shard.filters) index += sizeof filter + filter.bytes() + 2 * sizeof(void*);
  }
  return {{"keys", counters_.keys},
          {"asked", counters_.asked},
          {"hits", counters_.hits},
          {"misses", counters_.misses},
          {"new", counters_.fresh},
          {"pruned", counters_.pruned},
          {"false_positives", counters_.false_positives},
          {"reads", counters_.reads},
          {"flush_reads", counters_.flush_reads},
          {"bytes_read", counters_.bytes_read},
          {"bytes_written", segments_.written},
          {"evicted", counters_.evicted},
          {"groups_written", counters_.groups_written},
          {"groups_moved", counters_.moved},
          {"merges", counters_.merges},
          {"resident", resident},
          {"capacity", capacity},
          {"memory", index + capacity * row_floats_ * sizeof(float)},
          {"disk_bytes", segments_.disk_bytes()},
          {"live_bytes", counters_.live_bytes}};
}

}  // namespace cb
