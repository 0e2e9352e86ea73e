// Collects the results of a program: a training batch, the frame of a later stage, or the records of a dimension.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "core/system/reused_buffers.h"

namespace cb {

// What a slot of a batch is. Dense slots give the column of the matrix and how many columns they fill.
struct BatchSlot {
  enum class What : uint8_t { Label, Weight, Group, Dense, Keys };
  What what;
  std::string kind;  // of the register
  uint32_t at = 0;   // Dense: first column; Keys: field number
  uint32_t width = 1;
};

// label, weight: float32 (rows). dense: float32 (rows, dense_width), row-major. group: int64 hashes. Keys: int64
// values, and for lists int64 offsets of rows + 1 entries; a field of one key per row has no offsets of its own.
struct Batch {
  struct Field {
    Buffer<int64_t> values;
    Buffer<int64_t> offsets;
    bool ragged = false;
  };
  int64_t rows = 0;
  uint32_t dense_width = 0;
  Buffer<float> label, weight, dense;
  Buffer<int64_t> group;
  std::vector<Field> fields;
};

class BatchSink : public Sink {
 public:
  // expected: rows that will come in all; hints: list values seen a row by field, to reserve once.
  BatchSink(const std::vector<BatchSlot>& slots, uint32_t dense_width, size_t fields, int64_t expected,
            const std::vector<double>& hints);
  void begin(uint32_t rows) override;
  void* direct(int slot) override;
  void take(int slot, const Column& column, const Bump& pool) override;
  void end() override;
  std::shared_ptr<Batch> batch() { return batch_; }

 private:
  const std::vector<BatchSlot>& slots_;
  std::shared_ptr<Batch> batch_;
  int64_t expected_;  // rows in all
  uint32_t chunk_ = 0;
  // Dense values of the chunk column by column; end() turns them into rows. Writing each column straight into rows
  // would touch every row's cache line once per column.
  std::vector<float> staged_;
  size_t staged_stride_ = 0;
};

// Keeps registers as columns of a frame. With a mask (slot -1) only the rows it selects are kept.
class FrameBuilder : public Sink {
 public:
  FrameBuilder(std::vector<std::string> kinds, std::vector<bool> nullable,
               std::vector<std::shared_ptr<const Frame>> keep);
  void begin(uint32_t rows) override;
  void* direct(int) override { return nullptr; }
  void take(int slot, const Column& column, const Bump& pool) override;
  void end() override;

  std::shared_ptr<Frame> frame();                                   // after the last chunk
  const std::vector<int32_t>& selected() const { return picked_; }  // positions the mask selected

  static constexpr int kMask = -1;

 private:
  std::vector<std::string> kinds_;
  std::vector<bool> nullable_;
  std::vector<std::vector<char>> entries_;
  std::vector<std::vector<char>> valid_;
  std::shared_ptr<Frame> frame_;
  bool masked_ = false;
  int64_t seen_ = 0;  // rows before this chunk
  uint32_t chunk_ = 0;
  size_t chunk_from_ = 0;  // first of this chunk in picked_
  std::vector<int32_t> picked_;
};

// Registers of a chunk are copied when they are emitted (their memory is used again), blocks are written when all are
// there.
class RecordSink : public Sink {
 public:
  explicit RecordSink(std::shared_ptr<Records> records)
      : records_(std::move(records)), entries_(records_->fields().size()), valid_(records_->fields().size()) {}
  void begin(uint32_t rows) override { chunk_ = rows; }
  void* direct(int) override { return nullptr; }
  void take(int slot, const Column& column, const Bump& pool) override;
  void end() override;

 private:
  std::shared_ptr<Records> records_;
  std::vector<std::vector<char>> entries_;
  std::vector<std::vector<uint8_t>> valid_;
  uint32_t chunk_ = 0;
};

}  // namespace cb
