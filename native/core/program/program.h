// Runs a program, which is the operators of a plan as instructions over registers, chunk by chunk.
//
// Registers hold one entry per row of the chunk (core/program/kernel_shapes.h). Instructions come layer by layer.
// finish() gives registers with disjoint lives the same memory, so that a chunk's working set stays near the L2 cache.
// After finish() a program is immutable; any number of threads may run it, each with a Worker (registers and pools)
// taken from a free list.
//
// Input comes as pieces: for every source of the program a frame and the rows of it, position by position.
// Results leave through a Sink (core/program/result_sinks.h).
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/join/as_of_index.h"
#include "core/join/hash_index.h"
#include "core/join/spilled_view.h"
#include "core/join/view_rows.h"
#include "core/program/frame.h"
#include "core/program/kernel_shapes.h"
#include "core/program/lost_values.h"
#include "core/program/operator_table.h"

namespace cb {

// The rows of one source for a piece. index: the frame's row for each position (-1: no such row, all null), or nullptr
// when rows run on from `base`.
struct Rows {
  const Frame* frame = nullptr;
  const int32_t* index = nullptr;
  int64_t base = 0;
  bool missing = false;  // some index is -1
};

struct Piece {
  std::vector<Rows> sources;
  int64_t rows = 0;
};

struct Sink {
  virtual ~Sink() = default;
  virtual void begin(uint32_t rows) = 0;  // a chunk of `rows` rows comes
  // Memory that the register emitted to `slot` may be computed into directly, or nullptr.
  virtual void* direct(int slot) = 0;
  virtual void take(int slot, const Column& column, const Bump& pool) = 0;
  virtual void end() = 0;  // the chunk is complete
};

// What the look-ups of a join met: keys that are not null, and those among them without a row.
struct Looked {
  uint64_t keys = 0, missed = 0;
};

class Index : public Table {
 public:
  explicit Index(size_t expected) : map(expected) {}
  explicit Index(HashIndex rows) : map(std::move(rows)) {}
  const void* view() const override { return &map; }
  size_t bytes() const override { return map.bytes(); }
  HashIndex map;

 protected:
  void put_image(ImageWriter& to) const override;
};

class Program {
 public:
  explicit Program(uint32_t chunk_rows);
  ~Program();

  // ---- building; each returns the register(s) of the result ----
  int load(int source, int column, const std::string& kind, bool nullable, const std::string& name);
  int literal(const std::string& kind, int64_t i, double f, const std::string& s);
  std::vector<int> call(const std::string& name, const std::string& args, const std::vector<int>& in,
                        const std::vector<std::string>& results, const std::vector<bool>& nullable,
                        const std::vector<int64_t>& ints, const std::vector<double>& floats,
                        const std::vector<std::string>& texts, std::shared_ptr<Table> table, bool strict);
  int lookup(std::shared_ptr<Index> index, int hash, int64_t missing);
  int lookup_as_of(std::shared_ptr<AsOfIndex> index, int hash, int time, int64_t missing);
  std::vector<int> gather(std::shared_ptr<Records> records, int row, const std::vector<int>& fields);
  // The same for a view on disk. A row is then an address, which is valid within its chunk: it must not be emitted.
  int lookup(std::shared_ptr<SpilledView> view, int hash, int64_t missing);
  int lookup_as_of(std::shared_ptr<SpilledView> view, int hash, int time, int64_t missing);
  std::vector<int> gather(std::shared_ptr<SpilledView> view, int row, const std::vector<int>& fields);
  void emit(int slot, int reg);
  void finish();

  // ---- running ----
  void run(const std::vector<Piece>& pieces, Sink& sink) const;

  uint32_t chunk_rows() const { return chunk_rows_; }
  const std::string& kind(int reg) const { return registers_[static_cast<size_t>(reg)].kind; }
  bool nullable(int reg) const { return registers_[static_cast<size_t>(reg)].nullable; }
  size_t instructions() const { return code_.size(); }
  std::string instruction_name(size_t k) const { return code_[k].name; }
  uint64_t nanos(size_t k) const { return nanos_[k].load(); }
  uint64_t warnings(size_t k) const { return warnings_[k].load(); }
  std::vector<Looked> looked() const;  // per instruction, so far; zeros where it is no look-up
  // Per instruction and counted result, so far; empty where the instruction converts nothing.
  std::vector<std::vector<Converted>> converted() const;
  size_t worker_bytes() const { return slot_bytes_; }
  // Whether what is emitted to a slot can be null.
  bool emits_nulls(int slot) const;

 private:
  friend class ProgramWriter;  // core/program/program_file.h

  struct Register {
    std::string kind;
    bool nullable;
    bool is_literal = false;
    int direct_slot = -1;  // computed straight into the sink
    size_t data_at = 0;    // byte offset of entries in a worker's memory
    size_t valid_at = 0;
  };
  enum class Do : uint8_t { Load, Call, Lookup, LookupAsOf, LookupOnDisk, Gather, GatherOnDisk, Emit };
  struct Instruction {
    Do what;
    std::string name;
    std::vector<int> in, out;
    Kernel kernel = nullptr;
    Params params{};
    bool strict = false;
    Conversion conversion = Conversion::None;
    std::shared_ptr<Table> table;
    std::shared_ptr<Records> records;
    std::shared_ptr<SpilledView> spilled;
    std::vector<int> fields;  // Gather: record fields; Load: {source, column}; Emit: {slot}
    int64_t missing = 0;
  };
  struct Literal {
    int reg;
    int64_t i;
    double f;
    const std::string* s;
  };
  struct Worker;

  int new_register(const std::string& kind, bool nullable);
  // `kinds`: all fields of what is gathered from, which `k` keeps alive.
  std::vector<int> gather(Instruction k, const std::vector<RecordField>& kinds, int row,
                          const std::vector<int>& fields);
  int lookup_on_disk(std::shared_ptr<SpilledView> view, std::vector<int> in, int64_t missing);
  const std::string* own(const std::string& s);
  std::unique_ptr<Worker> take_worker() const;
  void run_chunk(Worker& w, const Piece& piece, uint32_t piece_number, int64_t begin, uint32_t rows, Sink& sink) const;

  uint32_t chunk_rows_;
  bool finished_ = false;
  std::vector<Register> registers_;
  std::vector<Instruction> code_;
  std::vector<Literal> literals_;
  std::deque<std::string> texts_;
  size_t slot_bytes_ = 0;
  std::vector<std::pair<int, int>> directs_;  // register, slot

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
  mutable std::vector<std::atomic<uint64_t>> nanos_;
  mutable std::vector<std::atomic<uint64_t>> warnings_;
  mutable std::vector<Looked> looked_;                     // behind mutex_
  mutable std::vector<std::vector<Converted>> converted_;  // behind mutex_
};

}  // namespace cb
