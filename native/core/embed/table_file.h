// Reads and writes the file of a table; the tables in memory and on a GPU share one format.
//
// Little-endian, CheckedWriter; [seal] is the checksum of the block before it:
//
//   8   "CTRTABLE"
//   4   version, 1; 2 where rows are counted or admitted (row_lifetime.h)
//   4   shards, 64
//   4   dim;  4  linear, 0 or 1
//   44  optimizer of the weight: 4 kind, 40 five parameters as doubles;  44  optimizer of the vector
//   8   init as double;  8  seed
//   version 2:  8 decay, 8 probability as doubles;  8 count;  8 bytes of the sketch
//   8   floats of a row in this file, without padding
//   [seal]
//   version 2:  8 clock;  8 pushes;  the sketch  [seal]
//   for each shard:  8 count, 8 × count keys ascending (as unsigned), rows in the same order  [seal]
//   8   "CTRTEND."  8 keys in all  [seal]
//
// A row is [first-order weight?][vector][states of the weight][states of the vector][clock?][counters?]. The bytes
// depend on the rows alone, not on the order in which they came, on how often they were restored or on where they lie.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/embed/row_lifetime.h"
#include "core/embed/row_optimizers.h"
#include "core/system/reused_buffers.h"

namespace cb {

class CheckedReader;
class CheckedWriter;

// At the end of a row of a table with a dense optimizer: steps of the table, and whether the key was pulled or pushed.
inline constexpr size_t kClockFloats = 2;

// What decides the shape and the meaning of rows; two tables of one shape read each other's files.
struct TableShape {
  uint32_t dim = 0;
  bool linear = false;
  OptimizerSpec weight, vector;
  double init = 0.0;  // standard deviation of a new vector's floats; new first-order weights are 0
  uint64_t seed = 0;
  Life life;

  size_t width() const { return dim + (linear ? 1u : 0u); }
  // Whether a push moves all rows; then both parts of a row have a dense optimizer, and rows have a clock.
  bool dense() const { return is_dense(dim ? vector.kind : weight.kind); }
  bool sound() const {
    const bool alike = !linear || !dim || is_dense(weight.kind) == is_dense(vector.kind);
    return alike && (!dense() || life.none());
  }
  size_t states() const {
    return states_of(weight.kind, linear ? 1 : 0) + states_of(vector.kind, dim) + (dense() ? kClockFloats : 0);
  }
  size_t counters() const { return life.counts() ? kCounterFloats : 0; }
  size_t floats() const { return width() + states() + counters(); }
};

inline constexpr uint32_t kMostDim = 4096;

// The head of a saved table. DamagedFile where there is none, or of another version.
TableShape saved_shape(const std::string& path);

// The clock, the pushes and the sketch of a saved table; none where its rows are neither counted nor admitted.
std::unique_ptr<LifeState> saved_life(const std::string& path);

// ---- parts of the file, in its order ----

void put_head(CheckedWriter& file, const TableShape& shape);
TableShape get_head(CheckedReader& file);

std::string shard_name(unsigned shard);
// The count and the keys of a shard, checked; its rows and its seal follow.
std::vector<int64_t> get_shard_keys(CheckedReader& file, unsigned shard, size_t row_floats);

void put_end(CheckedWriter& file, uint64_t total);
void check_end(CheckedReader& file, uint64_t total);

// ---- all rows at once, for tables that lie elsewhere ----

// Keys differ from each other and from 0, in any order; rows are (keys, shape.floats()).
void save_rows(const std::string& path, const TableShape& shape, std::span<const int64_t> keys, const float* rows,
               size_t threads);

struct SavedRows {
  TableShape shape;
  std::vector<int64_t> keys;
  Buffer<float> rows;  // (keys, shape.floats())
};
SavedRows load_rows(const std::string& path);

}  // namespace cb
