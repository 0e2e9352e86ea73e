#include "core/program/program.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace cb {

namespace {

uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// Rows ahead of their use that the index and the records are asked for: enough to cover a miss to memory.
constexpr uint32_t kBlock = 64;

void lookup_rows(const HashIndex& index, uint32_t rows, const Column& hash, int64_t missing, int64_t* out,
                 Looked& looked) {
  const uint64_t* h = entries<uint64_t>(hash);
  uint32_t keys = 0, found = 0;
  for (uint32_t from = 0; from < rows; from += kBlock) {
    uint32_t to = std::min(rows, from + kBlock);
    for (uint32_t r = from; r < to; ++r) index.prefetch(h[r]);
    for (uint32_t r = from; r < to; ++r) {
      const bool valid = !hash.valid || hash.valid[r];
      uint32_t row = valid ? index.find(h[r]) : HashIndex::kEmpty;
      out[r] = row == HashIndex::kEmpty ? missing : static_cast<int64_t>(row);
      keys += valid;
      found += row != HashIndex::kEmpty;
    }
  }
  looked.keys += keys;
  looked.missed += keys - found;
}

// Like lookup_rows(), but finds the newest row of each key at or before a time. A row with a null key or time finds no
// row and is not counted.
void lookup_rows_as_of(const AsOfIndex& index, uint32_t rows, const Column& hash, const Column& time, int64_t missing,
                       int64_t* out, Looked& looked) {
  const uint64_t* h = entries<uint64_t>(hash);
  const int64_t* t = entries<int64_t>(time);
  uint32_t keys = 0, found = 0;
  const Version* first[kBlock];
  for (uint32_t from = 0; from < rows; from += kBlock) {
    uint32_t to = std::min(rows, from + kBlock);
    for (uint32_t r = from; r < to; ++r) index.prefetch(h[r]);
    for (uint32_t r = from; r < to; ++r) {
      const bool valid = (!hash.valid || hash.valid[r]) && (!time.valid || time.valid[r]);
      first[r - from] = valid ? index.find(h[r]) : nullptr;
      if (first[r - from]) __builtin_prefetch(first[r - from]);
      keys += valid;
    }
    for (uint32_t r = from; r < to; ++r) {
      uint32_t row = first[r - from] ? newest_row(first[r - from], t[r]) : HashIndex::kEmpty;
      out[r] = row == HashIndex::kEmpty ? missing : static_cast<int64_t>(row);
      found += row != HashIndex::kEmpty;
    }
  }
  looked.keys += keys;
  looked.missed += keys - found;
}

// One field of the blocks `at` (a row each, from row `from` on) into a register.
void gather_field(const RecordField& f, const char* const* at, uint32_t from, uint32_t rows, Column& out) {
  const uint32_t offset = f.offset;
  if (f.inside()) {
    Str* data = static_cast<Str*>(out.data) + from;
    const uint32_t element = static_cast<uint32_t>(f.element());
    for (uint32_t r = 0; r < rows; ++r) {
      Inside inside;
      std::memcpy(&inside, at[r] + offset, sizeof inside);
      data[r] = Str{at[r] + inside.offset, inside.count};
      // What it holds is read by the next layers. Four lines at most: a history of 20 keys has three.
      const uint32_t bytes = inside.count < 256 / element ? inside.count * element : 256;
      for (uint32_t line = 0; line < bytes; line += 64) __builtin_prefetch(data[r].p + line);
    }
  } else if (f.width() == 16) {
    Str* data = static_cast<Str*>(out.data) + from;
    for (uint32_t r = 0; r < rows; ++r) std::memcpy(&data[r], at[r] + offset, sizeof(Str));
  } else if (f.width() == 8) {
    uint64_t* data = static_cast<uint64_t*>(out.data) + from;
    for (uint32_t r = 0; r < rows; ++r) std::memcpy(&data[r], at[r] + offset, sizeof(uint64_t));
  } else {
    uint8_t* data = static_cast<uint8_t*>(out.data) + from;
    for (uint32_t r = 0; r < rows; ++r) data[r] = static_cast<uint8_t>(at[r][offset]);
  }
  if (!out.valid) return;
  for (uint32_t r = 0; r < rows; ++r)
    out.valid[from + r] = f.nullable ? static_cast<uint8_t>(at[r][f.valid_offset]) : 1;
}

// at_row(row): where the record of a row lies. rows[k] of the chunk, in blocks that fit into the cache.
template <class At>
void gather_rows(const std::vector<RecordField>& all, uint32_t fixed_bytes, At at_row, const std::vector<int>& fields,
                 const int64_t* row, uint32_t rows, const std::vector<int>& out, std::vector<Column>& columns) {
  const char* at[kBlock];
  for (uint32_t from = 0; from < rows; from += kBlock) {
    uint32_t n = std::min(rows - from, kBlock);
    for (uint32_t r = 0; r < n; ++r) {
      at[r] = at_row(row[from + r]);
      for (uint32_t line = 0; line < fixed_bytes; line += 64) __builtin_prefetch(at[r] + line);
    }
    for (size_t f = 0; f < fields.size(); ++f)
      gather_field(all[static_cast<size_t>(fields[f])], at, from, n, columns[static_cast<size_t>(out[f])]);
  }
}

void lookup_rows_on_disk(const SpilledView& view, uint32_t rows, const Column& hash, const Column* time, Bump& pool,
                         int64_t* out, Looked& looked) {
  const uint8_t* const valid[2] = {hash.valid, time ? time->valid : nullptr};
  uint32_t keys = 0;
  for (uint32_t r = 0; r < rows; ++r) keys += (!valid[0] || valid[0][r]) && (!valid[1] || valid[1][r]);
  const uint32_t found =
      view.look_up(rows, entries<uint64_t>(hash), time ? entries<int64_t>(*time) : nullptr, valid, pool, out);
  looked.keys += keys;
  looked.missed += keys - found;
}

}  // namespace

// Registers and pools of one thread.
struct Program::Worker {
  std::unique_ptr<char[]> memory;
  std::vector<Column> columns;
  Bump pool{size_t{1} << 18};
  Bump scratch{size_t{1} << 14};
  std::vector<uint64_t> nanos;
  std::vector<uint64_t> warnings;
  std::vector<Looked> looked;
  std::vector<std::vector<Converted>> converted;  // by instruction and counted result
};

Program::Program(uint32_t chunk_rows) : chunk_rows_(std::max<uint32_t>(1, chunk_rows)) {}
Program::~Program() = default;

int Program::new_register(const std::string& kind, bool nullable) {
  if (finished_) throw std::logic_error("the program is finished");
  registers_.push_back(Register{kind, nullable});
  return static_cast<int>(registers_.size()) - 1;
}

const std::string* Program::own(const std::string& s) {
  texts_.push_back(s);
  return &texts_.back();
}

int Program::load(int source, int column, const std::string& kind, bool nullable, const std::string& name) {
  int reg = new_register(kind, nullable);
  Instruction k{};
  k.what = Do::Load;
  k.name = name;
  k.out = {reg};
  k.fields = {source, column};
  code_.push_back(std::move(k));
  return reg;
}

int Program::literal(const std::string& kind, int64_t i, double f, const std::string& s) {
  int reg = new_register(kind, false);
  registers_.back().is_literal = true;
  literals_.push_back({reg, i, f, own(s)});
  return reg;
}

std::vector<int> Program::call(const std::string& name, const std::string& args, const std::vector<int>& in,
                               const std::vector<std::string>& results, const std::vector<bool>& nullable,
                               const std::vector<int64_t>& ints, const std::vector<double>& floats,
                               const std::vector<std::string>& texts, std::shared_ptr<Table> table, bool strict) {
  const Entry& entry = find_kernel(name, args);
  Instruction k{};
  k.what = Do::Call;
  k.name = name;
  k.in = in;
  k.kernel = entry.kernel;
  if (ints.size() > 4 || floats.size() > 2 || texts.size() > 2)
    throw std::invalid_argument("operator '" + name + "' has too many parameters");
  for (size_t n = 0; n < ints.size(); ++n) k.params.i[n] = ints[n];
  for (size_t n = 0; n < floats.size(); ++n) k.params.f[n] = floats[n];
  for (size_t n = 0; n < texts.size(); ++n) {
    const std::string* s = own(texts[n]);
    k.params.s[n] = Str{s->data(), static_cast<uint32_t>(s->size())};
  }
  if (table) k.params.table = table->view();
  k.table = std::move(table);
  k.strict = strict;
  k.conversion = conversion_of(name, args);
  for (size_t n = 0; n < results.size(); ++n) {
    if (entry.makes_nulls && !nullable[n])
      throw std::invalid_argument("operator '" + name + "' returns nulls, so its result must be nullable");
    k.out.push_back(new_register(results[n], nullable[n]));
  }
  std::vector<int> out = k.out;
  code_.push_back(std::move(k));
  return out;
}

int Program::lookup(std::shared_ptr<Index> index, int hash, int64_t missing) {
  int reg = new_register("i", false);
  Instruction k{};
  k.what = Do::Lookup;
  k.name = "lookup";
  k.in = {hash};
  k.out = {reg};
  k.table = std::move(index);
  k.missing = missing;
  code_.push_back(std::move(k));
  return reg;
}

int Program::lookup_as_of(std::shared_ptr<AsOfIndex> index, int hash, int time, int64_t missing) {
  if (kind(hash) != "k" || kind(time) != "t") throw std::invalid_argument("an as-of look-up takes a key and a time");
  int reg = new_register("i", false);
  Instruction k{};
  k.what = Do::LookupAsOf;
  k.name = "lookup";
  k.in = {hash, time};
  k.out = {reg};
  k.table = std::move(index);
  k.missing = missing;
  code_.push_back(std::move(k));
  return reg;
}

std::vector<int> Program::gather(std::shared_ptr<Records> records, int row, const std::vector<int>& fields) {
  Instruction k{};
  k.what = Do::Gather;
  const std::vector<RecordField>& kinds = records->fields();
  k.records = std::move(records);
  return gather(std::move(k), kinds, row, fields);
}

std::vector<int> Program::gather(Instruction k, const std::vector<RecordField>& kinds, int row,
                                 const std::vector<int>& fields) {
  k.name = "gather";
  k.in = {row};
  for (int f : fields) {
    const RecordField& field = kinds.at(static_cast<size_t>(f));
    k.out.push_back(new_register(field.kind, field.nullable));
  }
  k.fields = fields;
  std::vector<int> out = k.out;
  code_.push_back(std::move(k));
  return out;
}

int Program::lookup_on_disk(std::shared_ptr<SpilledView> view, std::vector<int> in, int64_t missing) {
  if (missing != view->null_row()) throw std::invalid_argument("missing keys get the null row of the view");
  if (view->shape().as_of != (in.size() == 2))
    throw std::invalid_argument("an as-of look-up takes a key and a time, any other a key");
  int reg = new_register("i", false);
  Instruction k{};
  k.what = Do::LookupOnDisk;
  k.name = "lookup";
  k.in = std::move(in);
  k.out = {reg};
  k.spilled = std::move(view);
  code_.push_back(std::move(k));
  return reg;
}

int Program::lookup(std::shared_ptr<SpilledView> view, int hash, int64_t missing) {
  if (kind(hash) != "k") throw std::invalid_argument("a look-up takes a key");
  return lookup_on_disk(std::move(view), {hash}, missing);
}

int Program::lookup_as_of(std::shared_ptr<SpilledView> view, int hash, int time, int64_t missing) {
  if (kind(hash) != "k" || kind(time) != "t") throw std::invalid_argument("an as-of look-up takes a key and a time");
  return lookup_on_disk(std::move(view), {hash, time}, missing);
}

std::vector<int> Program::gather(std::shared_ptr<SpilledView> view, int row, const std::vector<int>& fields) {
  // An address is only what a look-up in the same view has just found in this program.
  const bool looked_up = std::any_of(code_.begin(), code_.end(), [&](const Instruction& k) {
    return k.what == Do::LookupOnDisk && k.out[0] == row && k.spilled == view;
  });
  if (!looked_up) throw std::invalid_argument("the row of a view on disk must be looked up in the same program");
  Instruction k{};
  k.what = Do::GatherOnDisk;
  const std::vector<RecordField>& kinds = view->shape().fields;
  k.spilled = std::move(view);
  return gather(std::move(k), kinds, row, fields);
}

void Program::emit(int slot, int reg) {
  for (const Instruction& k : code_)
    if (k.what == Do::LookupOnDisk && k.out[0] == reg)
      throw std::invalid_argument("the row of a view on disk is an address, which ends with its chunk");
  Instruction k{};
  k.what = Do::Emit;
  k.name = "emit";
  k.in = {reg};
  k.fields = {slot};
  code_.push_back(std::move(k));
}

void Program::finish() {
  size_t n = registers_.size();
  std::vector<int> last(n, -1), uses(n, 0), emits(n, -1);
  for (size_t k = 0; k < code_.size(); ++k)
    for (int r : code_[k].in) {
      last[static_cast<size_t>(r)] = static_cast<int>(k);
      ++uses[static_cast<size_t>(r)];
      if (code_[k].what == Do::Emit) emits[static_cast<size_t>(r)] = code_[k].fields[0];
    }
  for (const Instruction& k : code_)
    if (k.what == Do::Call)
      for (int r : k.out) {
        Register& reg = registers_[static_cast<size_t>(r)];
        if (uses[static_cast<size_t>(r)] == 1 && emits[static_cast<size_t>(r)] >= 0 && reg.kind == "k" &&
            !reg.nullable) {
          reg.direct_slot = emits[static_cast<size_t>(r)];
          directs_.push_back({r, reg.direct_slot});
        }
      }

  // Slots of equal size are handed on from a register that died to the next one born.
  std::map<size_t, std::vector<size_t>> free_slots;
  auto allocate = [&](size_t width) {
    size_t bytes = (width * chunk_rows_ + 63) / 64 * 64;
    std::vector<size_t>& pool = free_slots[bytes];
    if (!pool.empty()) {
      size_t at = pool.back();
      pool.pop_back();
      return at;
    }
    size_t at = slot_bytes_;
    slot_bytes_ += bytes;
    return at;
  };
  auto release = [&](size_t width, size_t at) { free_slots[(width * chunk_rows_ + 63) / 64 * 64].push_back(at); };
  auto give = [&](int r) {
    Register& reg = registers_[static_cast<size_t>(r)];
    reg.data_at = allocate(entry_width(reg.kind));
    if (reg.nullable) reg.valid_at = allocate(1);
  };
  for (const Literal& l : literals_) give(l.reg);
  for (size_t k = 0; k < code_.size(); ++k) {
    for (int r : code_[k].out) give(r);
    auto retire = [&](int r) {
      const Register& reg = registers_[static_cast<size_t>(r)];
      if (reg.is_literal) return;
      release(entry_width(reg.kind), reg.data_at);
      if (reg.nullable) release(1, reg.valid_at);
    };
    std::vector<int> dying;
    for (int r : code_[k].in)
      if (last[static_cast<size_t>(r)] == static_cast<int>(k) &&
          std::find(dying.begin(), dying.end(), r) == dying.end())
        dying.push_back(r);
    for (int r : code_[k].out)
      if (last[static_cast<size_t>(r)] < 0) dying.push_back(r);
    for (int r : dying) retire(r);
  }
  nanos_ = std::vector<std::atomic<uint64_t>>(code_.size());
  warnings_ = std::vector<std::atomic<uint64_t>>(code_.size());
  looked_.resize(code_.size());
  for (const Instruction& k : code_) converted_.emplace_back(counted(k.conversion, k.out.size()));
  finished_ = true;
}

std::unique_ptr<Program::Worker> Program::take_worker() const {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Worker> w = std::move(idle_.back());
      idle_.pop_back();
      return w;
    }
  }
  auto w = std::make_unique<Worker>();
  w->memory.reset(new char[slot_bytes_ + 64]());
  char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(w->memory.get()) + 63) & ~uintptr_t{63});
  w->nanos.resize(code_.size());
  w->warnings.resize(code_.size());
  w->looked.resize(code_.size());
  for (const Instruction& k : code_) w->converted.emplace_back(counted(k.conversion, k.out.size()));
  for (const Register& r : registers_)
    w->columns.push_back(
        Column{base + r.data_at, r.nullable ? reinterpret_cast<uint8_t*>(base + r.valid_at) : nullptr});
  for (const Literal& l : literals_) {
    const Register& reg = registers_[static_cast<size_t>(l.reg)];
    void* data = w->columns[static_cast<size_t>(l.reg)].data;
    for (uint32_t row = 0; row < chunk_rows_; ++row) {
      if (reg.kind[0] == '*')
        static_cast<Str*>(data)[row] = Str{nullptr, 0};
      else if (reg.kind == "s")
        static_cast<Str*>(data)[row] = Str{l.s->data(), static_cast<uint32_t>(l.s->size())};
      else if (reg.kind == "b")
        static_cast<uint8_t*>(data)[row] = static_cast<uint8_t>(l.i != 0);
      else if (reg.kind == "f")
        static_cast<double*>(data)[row] = l.f;
      else
        static_cast<int64_t*>(data)[row] = l.i;
    }
  }
  return w;
}

void Program::run_chunk(Worker& w, const Piece& piece, uint32_t piece_number, int64_t begin, uint32_t rows,
                        Sink& sink) const {
  char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(w.memory.get()) + 63) & ~uintptr_t{63});
  sink.begin(rows);
  for (auto [r, slot] : directs_) {
    void* at = sink.direct(slot);
    w.columns[static_cast<size_t>(r)].data = at ? at : base + registers_[static_cast<size_t>(r)].data_at;
  }
  uint64_t start = now();
  for (size_t n = 0; n < code_.size(); ++n) {
    const Instruction& k = code_[n];
    switch (k.what) {
      case Do::Load: {
        size_t r = static_cast<size_t>(k.out[0]);
        const Rows& source = piece.sources[static_cast<size_t>(k.fields[0])];
        Column& c = w.columns[r];
        c.data = base + registers_[r].data_at;  // a zero-copy load of the last chunk may have moved it
        int64_t null = -1;
        if (source.frame) {
          try {
            null = load_column(source.frame->columns()[static_cast<size_t>(k.fields[1])],
                               source.index ? source.index + begin : nullptr, source.missing, source.base + begin, rows,
                               c, w.pool);
          } catch (const BadEntry& e) {
            null = e.null;
            if (null < 0 || c.valid)
              throw RowError(piece_number, begin + e.position, "column '" + k.name + "' has " + e.what());
          }
        } else {  // a source that this run has no rows of
          std::memset(c.data, 0, entry_width(registers_[r].kind) * rows);
          if (c.valid) std::memset(c.valid, 0, rows);
          null = rows ? 0 : -1;
        }
        if (null >= 0 && !c.valid)
          throw RowError(
              piece_number, begin + null,
              "column '" + k.name +
                  "' is null, but the plan was built on data where it never is; give every row a value, or add .fill(" +
                  k.name + "=…) to its view");
        break;
      }
      case Do::Call: {
        Column in[8], out[40];
        for (size_t a = 0; a < k.in.size(); ++a) in[a] = w.columns[static_cast<size_t>(k.in[a])];
        for (size_t a = 0; a < k.out.size(); ++a) out[a] = w.columns[static_cast<size_t>(k.out[a])];
        Run run{rows, &w.pool, &w.scratch, &w.warnings[n], -1, w.converted[n].data()};
        k.kernel(run, k.params, in, out);
        w.scratch.reset();
        if (k.strict && run.bad_row >= 0)
          throw RowError(piece_number, begin + run.bad_row, k.name + ": the value is malformed");
        if (k.conversion != Conversion::None) w.converted[n][0].count(k.conversion, rows, in[0], out[0]);
        break;
      }
      case Do::Lookup:
        lookup_rows(static_cast<const Index&>(*k.table).map, rows, w.columns[static_cast<size_t>(k.in[0])], k.missing,
                    static_cast<int64_t*>(w.columns[static_cast<size_t>(k.out[0])].data), w.looked[n]);
        break;
      case Do::LookupAsOf:
        lookup_rows_as_of(static_cast<const AsOfIndex&>(*k.table), rows, w.columns[static_cast<size_t>(k.in[0])],
                          w.columns[static_cast<size_t>(k.in[1])], k.missing,
                          static_cast<int64_t*>(w.columns[static_cast<size_t>(k.out[0])].data), w.looked[n]);
        break;
      case Do::Gather:
        gather_rows(
            k.records->fields(), k.records->fixed_bytes(), [&](int64_t row) { return k.records->at(row); }, k.fields,
            entries<int64_t>(w.columns[static_cast<size_t>(k.in[0])]), rows, k.out, w.columns);
        break;
      case Do::LookupOnDisk:
        lookup_rows_on_disk(*k.spilled, rows, w.columns[static_cast<size_t>(k.in[0])],
                            k.in.size() > 1 ? &w.columns[static_cast<size_t>(k.in[1])] : nullptr, w.pool,
                            static_cast<int64_t*>(w.columns[static_cast<size_t>(k.out[0])].data), w.looked[n]);
        break;
      case Do::GatherOnDisk:
        gather_rows(
            k.spilled->shape().fields, k.spilled->shape().fixed_bytes,
            [](int64_t row) { return reinterpret_cast<const char*>(row); }, k.fields,
            entries<int64_t>(w.columns[static_cast<size_t>(k.in[0])]), rows, k.out, w.columns);
        break;
      case Do::Emit:
        sink.take(k.fields[0], w.columns[static_cast<size_t>(k.in[0])], w.pool);
        break;
    }
    uint64_t end = now();
    w.nanos[n] += end - start;
    start = end;
  }
  sink.end();
  w.pool.reset();
}

bool Program::emits_nulls(int slot) const {
  for (const Instruction& k : code_)
    if (k.what == Do::Emit && k.fields[0] == slot) return nullable(k.in[0]);
  return false;
}

std::vector<Looked> Program::looked() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return looked_;
}

std::vector<std::vector<Converted>> Program::converted() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return converted_;
}

void Program::run(const std::vector<Piece>& pieces, Sink& sink) const {
  if (!finished_) throw std::logic_error("the program is not finished");
  std::unique_ptr<Worker> w = take_worker();
  auto put_back = [&] {
    for (size_t n = 0; n < code_.size(); ++n) {
      nanos_[n].fetch_add(w->nanos[n], std::memory_order_relaxed);
      warnings_[n].fetch_add(w->warnings[n], std::memory_order_relaxed);
      w->nanos[n] = w->warnings[n] = 0;
    }
    w->pool.reset();
    w->scratch.reset();
    std::lock_guard<std::mutex> hold(mutex_);
    for (size_t n = 0; n < code_.size(); ++n) {
      if (code_[n].what == Do::Lookup || code_[n].what == Do::LookupAsOf || code_[n].what == Do::LookupOnDisk) {
        looked_[n].keys += w->looked[n].keys;
        looked_[n].missed += w->looked[n].missed;
        w->looked[n] = {};
      }
      for (size_t k = 0; k < converted_[n].size(); ++k) {
        converted_[n][k].add(w->converted[n][k]);
        w->converted[n][k] = {};
      }
    }
    idle_.push_back(std::move(w));
  };
  try {
    for (size_t p = 0; p < pieces.size(); ++p)
      for (int64_t begin = 0; begin < pieces[p].rows; begin += chunk_rows_)
        run_chunk(*w, pieces[p], static_cast<uint32_t>(p), begin,
                  static_cast<uint32_t>(std::min<int64_t>(chunk_rows_, pieces[p].rows - begin)), sink);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
}

}  // namespace cb
