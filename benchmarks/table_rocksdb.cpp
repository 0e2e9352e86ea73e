// RocksDB behind four C functions, for benchmarks/table_rocksdb.py. Keys are eight bytes, big-endian, so that the order
// of the store is that of the numbers; values are `width` floats.
//
// A call sorts its keys first: neighbors share blocks, and MultiGet reads a block once for all of them. Pieces of the
// sorted keys go to threads, as RocksDB reads one block at a time within a call when it was built without io_uring.
// Every function gives null, or what went wrong, valid until the next call on the same store.
#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using rocksdb::Slice;
using rocksdb::Status;

struct Store {
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ReadOptions reads;
  rocksdb::WriteOptions writes;
  std::shared_ptr<rocksdb::Cache> blocks, rows;
  size_t width = 0;
  std::string said;

  const char* say(const Status& status) {
    if (status.ok()) return nullptr;
    said = status.ToString();
    return said.c_str();
  }
};

using Sorted = std::vector<std::pair<uint64_t, uint32_t>>;  // key, place in the call

Sorted sorted_keys(const int64_t* keys, size_t n) {
  Sorted found(n);
  for (size_t k = 0; k < n; ++k) found[k] = {static_cast<uint64_t>(keys[k]), static_cast<uint32_t>(k)};
  std::sort(found.begin(), found.end());
  return found;
}

// Pieces of `piece` keys, taken by threads as they come free; the first failure is kept.
template <class Work>
Status in_pieces(size_t n, size_t piece, size_t threads, const Work& work) {
  std::atomic<size_t> next{0};
  std::mutex lock;
  Status first;
  auto run = [&] {
    for (size_t begin; (begin = next.fetch_add(piece)) < n;) {
      const Status status = work(begin, std::min(n, begin + piece));
      if (status.ok()) continue;
      const std::lock_guard<std::mutex> held(lock);
      if (first.ok()) first = status;
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < threads; ++t) others.emplace_back(run);
  run();
  for (std::thread& other : others) other.join();
  return first;
}

}  // namespace

extern "C" {

// `options`, `columns` and `table` are RocksDB's own option strings. One cache holds blocks, filters, indexes and,
// charged to it, the memtables; `row_bytes` above 0 gives a cache of rows besides.
const char* rocks_open(const char* path, const char* options, const char* columns, const char* table,
                       uint64_t cache_bytes, uint64_t row_bytes, uint64_t memtable_bytes, uint64_t width, Store** out) {
  auto* store = new Store;
  *out = store;
  store->width = width;
  store->blocks = rocksdb::NewLRUCache(cache_bytes, -1, false, 0.5);
  rocksdb::ConfigOptions strict;
  rocksdb::DBOptions db;
  rocksdb::ColumnFamilyOptions family;
  rocksdb::BlockBasedTableOptions blocks, read;
  blocks.block_cache = store->blocks;
  Status status = rocksdb::GetDBOptionsFromString(strict, rocksdb::DBOptions(), options, &db);
  if (status.ok()) status = rocksdb::GetColumnFamilyOptionsFromString(strict, family, columns, &family);
  if (status.ok()) status = rocksdb::GetBlockBasedTableOptionsFromString(strict, blocks, table, &read);
  if (!status.ok()) return store->say(status);
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(read));
  db.create_if_missing = true;
  db.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(memtable_bytes, store->blocks);
  if (row_bytes > 0) db.row_cache = store->rows = rocksdb::NewLRUCache(row_bytes);
  store->writes.disableWAL = true;
  store->writes.memtable_insert_hint_per_batch = true;
  rocksdb::DB* opened = nullptr;
  status = rocksdb::DB::Open(rocksdb::Options(db, family), path, &opened);
  store->db.reset(opened);
  return store->say(status);
}

// Rows of the keys that are there, and which those are.
const char* rocks_get(Store* store, const int64_t* keys, uint64_t n, float* rows, uint8_t* found, uint64_t threads,
                      uint64_t piece) {
  const Sorted sorted = sorted_keys(keys, n);
  rocksdb::ColumnFamilyHandle* family = store->db->DefaultColumnFamily();
  const size_t bytes = store->width * sizeof(float);
  return store->say(in_pieces(n, piece, threads, [&](size_t begin, size_t end) {
    const size_t count = end - begin;
    std::vector<uint64_t> big(count);
    std::vector<Slice> wanted(count);
    std::vector<rocksdb::PinnableSlice> values(count);
    std::vector<Status> statuses(count);
    for (size_t k = 0; k < count; ++k) {
      big[k] = __builtin_bswap64(sorted[begin + k].first);
      wanted[k] = Slice(reinterpret_cast<const char*>(&big[k]), 8);
    }
    store->db->MultiGet(store->reads, family, count, wanted.data(), values.data(), statuses.data(), true);
    for (size_t k = 0; k < count; ++k) {
      const uint32_t place = sorted[begin + k].second;
      found[place] = statuses[k].ok();
      if (!statuses[k].ok()) {
        if (statuses[k].IsNotFound()) continue;
        return statuses[k];
      }
      if (values[k].size() != bytes) return Status::Corruption("a value of another size");
      std::memcpy(rows + place * store->width, values[k].data(), bytes);
    }
    return Status::OK();
  }));
}

const char* rocks_put(Store* store, const int64_t* keys, uint64_t n, const float* rows, uint64_t threads,
                      uint64_t piece) {
  const Sorted sorted = sorted_keys(keys, n);
  const size_t bytes = store->width * sizeof(float);
  return store->say(in_pieces(n, piece, threads, [&](size_t begin, size_t end) {
    rocksdb::WriteBatch batch((end - begin) * (bytes + 16));
    for (size_t k = begin; k < end; ++k) {
      const uint64_t big = __builtin_bswap64(sorted[k].first);
      batch.Put(Slice(reinterpret_cast<const char*>(&big), 8),
                Slice(reinterpret_cast<const char*>(rows + sorted[k].second * store->width), bytes));
    }
    return store->db->Write(store->writes, &batch);
  }));
}

// Bytes of a property such as "rocksdb.total-sst-files-size"; 0 when there is none of that name.
uint64_t rocks_number(Store* store, const char* name) {
  uint64_t value = 0;
  return store->db->GetIntProperty(name, &value) ? value : 0;
}

void rocks_close(Store* store) { delete store; }

}  // extern "C"
