// Writes finished programs, with the tables and joined views that they read, to a checked file, and reads them again.
//
// Little-endian, CheckedWriter; a text is u32 bytes and the bytes. A program is a list of steps, which are the calls
// that build it (core/program/program.h), so what is read is the very program that was written:
//
//   u8 1  load      u32 source, u32 column, text kind, u8 nullable, text name
//   u8 2  literal   text kind, i64, f64, text
//   u8 3  call      text operator, u32 n and n × u32 registers, u32 n and n × u8 nullable results,
//                   u32 n and n × i64, u32 n and n × f64, u32 n and n × text, table, u8 strict
//   u8 4  look-up   u32 view, u32 n (2: as-of) and n × u32 registers, i64 handle of the row of missing keys
//   u8 5  gather    u32 view, u32 register, u32 n and n × u32 fields
//   u8 6  emit      i32 slot, u32 register
//   u8 0  end
//
//   table           u32 number; 0: none. The first mention of a number is followed by the table: u8 what
//                     1 whole numbers   u64 n, n × i64              2 texts        u64 n, n × text
//                     3 boundaries      u64 n, n × f64              4 JSON paths   u32 n, n × (text path, text kind)
//                     5 dictionary      u64 n, n × u64 hash, u32 width, then n × i64 (width 0) or n × width × f64
//                     6 click history   u64 n, n × (u64 hash, i64 bucket, i64 shows, i64 clicks)
//   view            u8 as-of, u32 fields, each: text kind, u8 nullable; u64 rows; the rows in chunks of 1,024, field by
//                   field: validity bytes where nullable, then the values: 8 bytes, or a byte of a bool; of a string or
//                   list u32 counts, then what they hold; of a list of strings u32 counts, u32 bytes of each, the
//                   bytes; a row without fields is a zero byte. Then the index: u64 n, n × (u64 hash, i64 time where
//                   as-of, u32 row)
//
// The reader trusts nothing in a file: it compares counts with the bytes that are left before it allocates memory, and
// checks that registers, kinds, parameters, tables and rows are as the planner of Python would make them. Anything else
// is DamagedFile. A program that was read can therefore run on any rows, even if an attacker made its file.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "core/system/checked_file.h"

namespace cb {

namespace program_file {

enum SavedStep : uint8_t { kEnd, kLoad, kLiteral, kCall, kLookup, kGather, kEmit };
enum KeptTable : uint8_t { kInts = 1, kTexts, kBoundaries, kPaths, kWords, kClicks };
inline constexpr uint32_t kRowsTogether = 1024;  // of a joined view

}  // namespace program_file

// A joined view in memory, as programs read it.
struct JoinedRows {
  std::shared_ptr<Table> index;  // Index, or AsOfIndex for an as-of join
  std::shared_ptr<Records> records;
};

// The kind of the values of a column. `view`: if they are handles of rows of a joined view, the number of this view;
// else -1.
struct SourceColumn {
  std::string kind;
  int view = -1;
};

// The columns of a source of a program; nullopt: a source that has no rows, so that its columns are null.
using SourceShape = std::optional<std::vector<SourceColumn>>;

// The columns that a program emits, by slot.
using Emitted = std::map<int, SourceColumn>;

void put_text(CheckedWriter& to, const std::string& text);
std::string get_text(CheckedReader& from);
// A count of things of at least `least` bytes each, which must still be in the file, and at most `most`.
uint64_t get_count(CheckedReader& from, uint64_t least, uint64_t most);
bool get_flag(CheckedReader& from);

class ProgramWriter {
 public:
  // Throws std::invalid_argument for a program that no file can hold: one that reads a view on disk or one that is not
  // among `views`.
  ProgramWriter(CheckedWriter& to, std::vector<JoinedRows> views);
  void put(const Program& program);

 private:
  void put_table(const std::shared_ptr<Table>& table);
  void put_view(const JoinedRows& view);
  uint32_t view_of(const Table* index, const Records* records) const;

  CheckedWriter& to_;
  std::vector<JoinedRows> views_;
  std::map<const Table*, uint32_t> tables_;
};

class ProgramReader {
 public:
  static constexpr uint32_t kChunkRows = 1024;  // of every program that is read
  static constexpr size_t kMostSteps = size_t{1} << 14;
  static constexpr size_t kMostBytes = size_t{64} << 20;  // memory of the registers of a program

  explicit ProgramReader(CheckedReader& from);
  // A program over these sources. `emitted` gets what it emits; each slot is emitted once.
  std::shared_ptr<Program> get(const std::vector<SourceShape>& sources, Emitted& emitted);
  size_t views() const { return views_.size(); }

 private:
  std::shared_ptr<Table> get_table();
  JoinedRows get_view();

  CheckedReader& from_;
  std::vector<JoinedRows> views_;
  std::vector<std::shared_ptr<Table>> tables_;
};

}  // namespace cb
