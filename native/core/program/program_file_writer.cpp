// Writes finished programs, with the tables and joined views that they read, to a checked file: program_file.h.
#include "core/program/program_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"
#include "core/program/result_sinks.h"

namespace cb {

using namespace program_file;

namespace {

template <class T>
void put_many(CheckedWriter& to, const std::vector<T>& values) {
  to.put(static_cast<uint32_t>(values.size()));
  to.put(values.data(), values.size() * sizeof(T));
}

}  // namespace

namespace {

// The hashes of an index by what it says of each, in ascending order of that.
std::vector<std::pair<uint32_t, uint64_t>> hashes_by_row(const IndexView& index) {
  std::vector<std::pair<uint32_t, uint64_t>> out;
  for (uint64_t k = 0; k <= index.mask; ++k)
    if (index.slots[k].row != kNoRow) out.emplace_back(index.slots[k].row, index.slots[k].hash);
  std::sort(out.begin(), out.end());
  return out;
}

void put_ints(CheckedWriter& to, const IntSetView& set) {
  to.put(uint64_t{set.n});
  if (set.n <= kLinear) return to.put(set.slots, set.n * sizeof(int64_t));
  for (uint64_t k = 0; k <= set.mask; ++k)
    if (set.slots[k] != set.empty) to.put(set.slots[k]);
}

void put_texts(CheckedWriter& to, const StrSetView& set) {
  to.put(uint64_t{set.n});
  const uint64_t slots = set.n <= kLinear ? set.n : uint64_t{set.mask} + 1;
  for (uint64_t k = 0; k < slots; ++k) {
    const StrSlot& slot = set.slots[k];
    if (set.n <= kLinear || slot.hash != 0) put_text(to, std::string(set.bytes + slot.at, slot.n));
  }
}

// Words whose hash another word had before are left out: nothing finds them.
void put_words(CheckedWriter& to, const DictionaryView& words) {
  const auto rows = hashes_by_row(words.index);
  to.put(uint64_t{rows.size()});
  for (const auto& row : rows) to.put(row.second);
  to.put(words.vectors ? words.width : 0);
  for (const auto& row : rows)
    if (words.vectors)
      to.put(words.vectors + size_t{row.first} * words.width, words.width * sizeof(double));
    else
      to.put(words.ids[row.first]);
}

void put_clicks(CheckedWriter& to, const HistoryView& history) {
  const auto keys = hashes_by_row(history.index);
  to.put(keys.empty() ? uint64_t{0} : history.begin[keys.size()]);
  for (const auto& [row, hash] : keys)
    for (uint64_t k = history.begin[row]; k < history.begin[row + 1]; ++k) {
      const bool first = k == history.begin[row];  // sums run on within a key
      to.put(hash);
      to.put(history.bucket[k]);
      to.put(history.shows[k] - (first ? 0 : history.shows[k - 1]));
      to.put(history.clicks[k] - (first ? 0 : history.clicks[k - 1]));
    }
}

template <class T>
T entry_at(const char* block, uint32_t offset) {
  T out;
  std::memcpy(&out, block + offset, sizeof out);
  return out;
}

// One field of some rows.
void put_field(CheckedWriter& to, const Records& records, const RecordField& field, size_t begin, size_t end) {
  std::vector<const char*> blocks;
  for (size_t r = begin; r < end; ++r) blocks.push_back(records.at(records.handles()[r]));
  if (field.nullable)
    for (const char* block : blocks) to.put(static_cast<uint8_t>(block[field.valid_offset]));
  if (entry_width(field.kind) != 16) {
    for (const char* block : blocks) to.put(block + field.offset, entry_width(field.kind));
  } else if (field.inside()) {
    for (const char* block : blocks) to.put(entry_at<Inside>(block, field.offset).count);
    for (const char* block : blocks) {
      const Inside inside = entry_at<Inside>(block, field.offset);
      to.put(block + inside.offset, inside.count * field.element());
    }
  } else {
    std::vector<List<Str>> lists;
    for (const char* block : blocks) lists.push_back(entry_at<List<Str>>(block, field.offset));
    for (const List<Str>& list : lists) to.put(list.n);
    for (const List<Str>& list : lists)
      for (uint32_t k = 0; k < list.n; ++k) to.put(list.p[k].n);
    for (const List<Str>& list : lists)
      for (uint32_t k = 0; k < list.n; ++k) to.put(list.p[k].p, list.p[k].n);
  }
}

}  // namespace

ProgramWriter::ProgramWriter(CheckedWriter& to, std::vector<JoinedRows> views) : to_(to), views_(std::move(views)) {
  to_.put(static_cast<uint32_t>(views_.size()));
  for (const JoinedRows& view : views_) put_view(view);
}

void ProgramWriter::put_view(const JoinedRows& view) {
  const Records& records = *view.records;
  const auto* as_of = dynamic_cast<const AsOfIndex*>(view.index.get());
  to_.put(static_cast<uint8_t>(as_of != nullptr));
  to_.put(static_cast<uint32_t>(records.fields().size()));
  for (const RecordField& field : records.fields()) {
    put_text(to_, field.kind);
    to_.put(static_cast<uint8_t>(field.nullable));
  }
  to_.put(uint64_t{records.rows()});
  for (size_t begin = 0; begin < records.rows(); begin += kRowsTogether) {
    const size_t end = std::min(records.rows(), begin + kRowsTogether);
    for (const RecordField& field : records.fields()) put_field(to_, records, field, begin, end);
    if (records.fields().empty()) to_.put(std::string(end - begin, '\0').data(), end - begin);
  }
  const std::vector<uint32_t>& handles = records.handles();  // ascending
  auto row_of = [&](uint32_t handle) {
    const auto at = std::lower_bound(handles.begin(), handles.end(), handle);
    if (at == handles.end() || *at != handle)
      throw std::invalid_argument("an index points to a row that its view does not have");
    return static_cast<uint32_t>(at - handles.begin());
  };
  if (as_of) {
    const AsOfView& found = *static_cast<const AsOfView*>(as_of->view());
    to_.put(uint64_t{as_of->rows()});
    for (const auto& [first, hash] : hashes_by_row(found.index))
      for (uint32_t k = first; k < first + found.versions[first].left; ++k) {
        to_.put(hash);
        to_.put(found.versions[k].time);
        to_.put(row_of(found.versions[k].row));
      }
  } else {
    const auto* index = dynamic_cast<const Index*>(view.index.get());
    if (!index) throw std::invalid_argument("a view needs an index");
    const auto rows = hashes_by_row(index->map.view());
    to_.put(uint64_t{rows.size()});
    for (const auto& [handle, hash] : rows) {
      to_.put(hash);
      to_.put(row_of(handle));
    }
  }
}

uint32_t ProgramWriter::view_of(const Table* index, const Records* records) const {
  for (size_t k = 0; k < views_.size(); ++k)
    if (index ? views_[k].index.get() == index : views_[k].records.get() == records) return static_cast<uint32_t>(k);
  throw std::invalid_argument("a program reads a joined view that is not in the file");
}

void ProgramWriter::put_table(const std::shared_ptr<Table>& table) {
  if (!table) return to_.put(uint32_t{0});
  const auto [at, fresh] = tables_.emplace(table.get(), static_cast<uint32_t>(tables_.size() + 1));
  to_.put(at->second);
  if (!fresh) return;
  const void* view = table->view();
  auto what = [&](KeptTable kept) { to_.put(static_cast<uint8_t>(kept)); };
  if (dynamic_cast<const IntSet*>(table.get())) {
    what(kInts);
    put_ints(to_, *static_cast<const IntSetView*>(view));
  } else if (dynamic_cast<const StrSet*>(table.get())) {
    what(kTexts);
    put_texts(to_, *static_cast<const StrSetView*>(view));
  } else if (dynamic_cast<const Boundaries*>(table.get())) {
    const auto& found = *static_cast<const BoundariesView*>(view);
    what(kBoundaries);
    to_.put(uint64_t{found.n});
    to_.put(found.p, found.n * sizeof(double));
  } else if (const auto* paths = dynamic_cast<const JsonPaths*>(table.get())) {
    what(kPaths);
    to_.put(static_cast<uint32_t>(paths->paths().size()));
    for (size_t k = 0; k < paths->paths().size(); ++k) {
      put_text(to_, paths->paths()[k]);
      put_text(to_, paths->result_kinds()[k]);
    }
  } else if (dynamic_cast<const Dictionary*>(table.get())) {
    what(kWords);
    put_words(to_, *static_cast<const DictionaryView*>(view));
  } else if (dynamic_cast<const History*>(table.get())) {
    what(kClicks);
    put_clicks(to_, *static_cast<const HistoryView*>(view));
  } else {
    throw std::invalid_argument("a program has a table that cannot be written");
  }
}

void ProgramWriter::put(const Program& program) {
  if (!program.finished_) throw std::invalid_argument("only a finished program can be written");
  size_t literal = 0;
  // Literals up to a register: registers are numbered in the order of the calls that made them.
  auto literals_below = [&](int bound) {
    for (; literal < program.literals_.size() && program.literals_[literal].reg < bound; ++literal) {
      const Program::Literal& l = program.literals_[literal];
      to_.put(static_cast<uint8_t>(kLiteral));
      put_text(to_, program.kind(l.reg));
      to_.put(l.i);
      to_.put(l.f);
      put_text(to_, *l.s);
    }
  };
  auto registers = [&](const std::vector<int>& given) {
    put_many(to_, std::vector<uint32_t>(given.begin(), given.end()));
  };
  auto step = [&](SavedStep what) { to_.put(static_cast<uint8_t>(what)); };
  for (const Program::Instruction& k : program.code_) {
    int bound = k.out.empty() ? 0 : k.out[0];
    for (int r : k.in) bound = std::max(bound, r + 1);
    literals_below(bound);
    switch (k.what) {
      case Program::Do::Load:
        step(kLoad);
        to_.put(static_cast<uint32_t>(k.fields[0]));
        to_.put(static_cast<uint32_t>(k.fields[1]));
        put_text(to_, program.kind(k.out[0]));
        to_.put(static_cast<uint8_t>(program.nullable(k.out[0])));
        put_text(to_, k.name);
        break;
      case Program::Do::Call: {
        step(kCall);
        put_text(to_, k.name);
        registers(k.in);
        std::vector<uint8_t> nullable;
        for (int r : k.out) nullable.push_back(program.nullable(r));
        put_many(to_, nullable);
        put_many(to_, std::vector<int64_t>(std::begin(k.params.i), std::end(k.params.i)));
        put_many(to_, std::vector<double>(std::begin(k.params.f), std::end(k.params.f)));
        to_.put(static_cast<uint32_t>(std::size(k.params.s)));
        for (const Str& s : k.params.s) put_text(to_, std::string(s.p ? s.p : "", s.n));
        put_table(k.table);
        to_.put(static_cast<uint8_t>(k.strict));
        break;
      }
      case Program::Do::Lookup:
      case Program::Do::LookupAsOf:
        step(kLookup);
        to_.put(view_of(k.table.get(), nullptr));
        registers(k.in);
        to_.put(k.missing);
        break;
      case Program::Do::Gather:
        step(kGather);
        to_.put(view_of(nullptr, k.records.get()));
        to_.put(static_cast<uint32_t>(k.in[0]));
        registers(k.fields);
        break;
      case Program::Do::Emit:
        step(kEmit);
        to_.put(static_cast<int32_t>(k.fields[0]));
        to_.put(static_cast<uint32_t>(k.in[0]));
        break;
      case Program::Do::LookupOnDisk:
      case Program::Do::GatherOnDisk:
        throw std::invalid_argument("a program reads a joined view that lies on a disk");
    }
  }
  literals_below(static_cast<int>(program.registers_.size()));
  step(kEnd);
}

}  // namespace cb
