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

constexpr uint64_t kMostText = uint64_t{1} << 30;

// Files of earlier versions call the operator "standardize" by its British name.
constexpr const char* kOldStandardize = "standardise";

[[noreturn]] void damaged(const std::string& what) { throw DamagedFile(what); }

template <class T>
std::vector<T> get_values(CheckedReader& from, uint64_t n) {
  if (n > from.left() / sizeof(T)) damaged("it claims more values than it has bytes");
  std::vector<T> out(n);
  from.get(out.data(), n * sizeof(T));
  return out;
}

template <class T>
std::vector<T> get_many(CheckedReader& from, uint32_t most) {
  const uint32_t n = from.get<uint32_t>();
  if (n > most) damaged("a step has " + std::to_string(n) + " values; expected at most " + std::to_string(most));
  return get_values<T>(from, n);
}

bool known_kind(const std::string& kind) {
  static const char* const kinds[] = {"b", "i", "f", "t", "s", "k", "*b", "*i", "*f", "*t", "*s", "*k"};
  return std::find(std::begin(kinds), std::end(kinds), kind) != std::end(kinds);
}

std::string get_kind(CheckedReader& from) {
  const std::string kind = get_text(from);
  if (!known_kind(kind)) damaged("there is no kind '" + kind.substr(0, 20) + "'");
  return kind;
}

}  // namespace

void put_text(CheckedWriter& to, const std::string& text) {
  to.put(static_cast<uint32_t>(text.size()));
  to.put(text.data(), text.size());
}

std::string get_text(CheckedReader& from) {
  std::string out(get_count(from, 1, kMostText), '\0');
  from.get(out.data(), out.size());
  return out;
}

uint64_t get_count(CheckedReader& from, uint64_t least, uint64_t most) {
  const uint32_t n = from.get<uint32_t>();
  if (n > most || n > from.left() / least) damaged("it claims " + std::to_string(n) + " parts that it does not have");
  return n;
}

bool get_flag(CheckedReader& from) {
  const uint8_t flag = from.get<uint8_t>();
  if (flag > 1) damaged("a flag is " + std::to_string(flag) + "; expected 0 or 1");
  return flag == 1;
}

namespace {

uint64_t get_rows(CheckedReader& from, uint64_t bytes_each) {
  const uint64_t n = from.get<uint64_t>();
  if (n > from.left() / bytes_each || n >= kNoRow)
    damaged("it claims " + std::to_string(n) + " rows that it does not have");
  return n;
}

std::shared_ptr<Table> get_words(CheckedReader& from) {
  const uint64_t n = get_rows(from, 8);
  const std::vector<uint64_t> hashes = get_values<uint64_t>(from, n);
  const uint32_t width = from.get<uint32_t>();
  if (width > (uint32_t{1} << 20)) damaged("a dictionary has vectors of " + std::to_string(width) + " numbers");
  std::vector<int64_t> ids;
  std::vector<double> vectors;
  if (width)
    vectors = get_values<double>(from, n * width);
  else
    ids = get_values<int64_t>(from, n);
  return std::make_shared<Dictionary>(hashes, std::move(ids), std::move(vectors), width);
}

std::shared_ptr<Table> get_clicks(CheckedReader& from) {
  const uint64_t n = get_rows(from, 32);
  std::vector<uint64_t> hashes(n);
  std::vector<int64_t> columns[3];
  for (auto& column : columns) column.resize(n);
  int64_t sums[2] = {0, 0};
  for (uint64_t k = 0; k < n; ++k) {
    hashes[k] = from.get<uint64_t>();
    for (auto& column : columns) column[k] = from.get<int64_t>();
    for (int c = 0; c < 2; ++c)  // so no difference of two sums overflows
      if (columns[c + 1][k] < 0 || __builtin_add_overflow(sums[c], columns[c + 1][k], &sums[c]))
        damaged("the counts of a click history are negative or too large");
  }
  return std::make_shared<History>(hashes, std::move(columns[0]), std::move(columns[1]), std::move(columns[2]));
}

// The entries of one field of some rows, with what they point at.
struct FieldRows {
  std::vector<uint8_t> valid, bytes;
  std::vector<uint64_t> numbers;
  std::vector<Str> texts, entries;
  Column column{nullptr, nullptr};

  void read(CheckedReader& from, const RecordField& field, uint32_t rows) {
    if (field.nullable) {
      valid = flags(from, rows);
      column.valid = valid.data();
    }
    if (field.kind == "b") {
      bytes = flags(from, rows);
      column.data = bytes.data();
    } else if (entry_width(field.kind) == 8) {
      numbers = get_values<uint64_t>(from, rows);
      column.data = numbers.data();
    } else {
      const std::vector<uint32_t> counts = get_values<uint32_t>(from, rows);
      uint64_t total = 0;
      for (uint32_t n : counts) total += n;
      const char* what = nullptr;
      size_t width = field.element();
      if (field.kind == "s" || field.kind == "*b") {
        bytes = field.kind == "s" ? get_values<uint8_t>(from, total) : flags(from, total);
        what = reinterpret_cast<const char*>(bytes.data());
      } else if (field.kind == "*s") {
        read_texts(from, total);
        what = reinterpret_cast<const char*>(texts.data());
        width = sizeof(Str);
      } else {
        numbers = get_values<uint64_t>(from, total);
        what = reinterpret_cast<const char*>(numbers.data());
      }
      entries.clear();
      for (uint32_t n : counts) {
        entries.push_back(Str{n ? what : "", n});
        what += n * width;
      }
      column.data = entries.data();
    }
  }

 private:
  static std::vector<uint8_t> flags(CheckedReader& from, uint64_t n) {
    std::vector<uint8_t> out = get_values<uint8_t>(from, n);
    for (uint8_t flag : out)
      if (flag > 1) damaged("a bool is stored as " + std::to_string(flag) + "; expected 0 or 1");
    return out;
  }
  void read_texts(CheckedReader& from, uint64_t n) {
    const std::vector<uint32_t> counts = get_values<uint32_t>(from, n);
    uint64_t total = 0;
    for (uint32_t count : counts) total += count;
    bytes = get_values<uint8_t>(from, total);
    const char* at = reinterpret_cast<const char*>(bytes.data());
    texts.clear();
    for (uint32_t count : counts) {
      texts.push_back(Str{count ? at : "", count});
      at += count;
    }
  }
};

std::shared_ptr<Table> get_index(CheckedReader& from, bool as_of, const Records& records) {
  const uint64_t n = get_rows(from, as_of ? 20 : 12);
  HashIndex map(as_of ? 0 : n);
  std::vector<uint64_t> hashes;
  std::vector<int64_t> times;
  std::vector<uint32_t> handles;
  for (uint64_t k = 0; k < n; ++k) {
    const uint64_t hash = from.get<uint64_t>();
    if (as_of) times.push_back(from.get<int64_t>());
    const uint32_t row = from.get<uint32_t>();
    if (row >= records.rows()) damaged("an index points to a row that its view does not have");
    const uint32_t handle = records.handles()[row];
    if (as_of) {
      hashes.push_back(hash);
      handles.push_back(handle);
    } else if (map.insert(hash, handle) != HashIndex::kEmpty) {
      damaged("an index has a key twice");
    }
  }
  if (!as_of) return std::make_shared<Index>(std::move(map));
  HashIndex::Duplicate duplicate;
  auto index = std::make_shared<AsOfIndex>(hashes, times, false, 1, duplicate);
  if (duplicate.second >= 0) damaged("an index has a key twice with the same time");
  index->renumber(handles);
  return index;
}

// Whether the operator can run with this table and these numbers (plan/language/check_parameters.py).
bool has_table(const Entry& e, const Table* table) {
  if (e.name == "is_in") {
    return e.args == "s" ? dynamic_cast<const StrSet*>(table) != nullptr
                         : dynamic_cast<const IntSet*>(table) != nullptr;
  }
  if (e.name == "bucketize") return dynamic_cast<const Boundaries*>(table) != nullptr;
  if (e.name == "json") return dynamic_cast<const JsonPaths*>(table) != nullptr;
  if (e.name.starts_with("dictionary_")) {
    if (!dynamic_cast<const Dictionary*>(table)) return false;
    const auto& words = *static_cast<const DictionaryView*>(table->view());
    return e.name == "dictionary_vector" ? words.ids == nullptr : words.vectors == nullptr;
  }
  if (e.name.starts_with("history_")) return dynamic_cast<const History*>(table) != nullptr;
  return table == nullptr;
}

bool has_numbers(const Entry& e, const std::vector<int64_t>& i, const std::vector<std::string>& texts) {
  constexpr int64_t kMost = int64_t{1} << 62;
  auto within = [&](size_t k, int64_t low, int64_t high) { return i.size() > k && i[k] >= low && i[k] <= high; };
  if (e.name == "key") return true;  // a salt: any bits
  for (int64_t number : i)
    if (number < -kMost || number > kMost) return false;
  if (e.name == "ngrams") return within(0, 1, 64);
  if (e.name == "edit_distance") return within(0, 0, 64);
  if (e.name == "round") return within(0, 0, 15);
  if (e.name == "cross" && e.args != "k,k") return within(0, 1, 1'000'000);
  if (e.name.starts_with("history_")) return within(0, 1, kMost) && within(1, 0, kMost);
  if (e.name == "split") return !texts.empty() && !texts[0].empty();
  return true;
}

}  // namespace

ProgramReader::ProgramReader(CheckedReader& from) : from_(from) {
  const uint64_t n = get_count(from_, 1, 1000);
  for (uint64_t k = 0; k < n; ++k) views_.push_back(get_view());
}

JoinedRows ProgramReader::get_view() {
  const bool as_of = get_flag(from_);
  std::vector<RecordField> fields;
  const uint64_t width = get_count(from_, 5, 10'000);
  for (uint64_t k = 0; k < width; ++k) {
    std::string kind = get_kind(from_);
    const bool nullable = get_flag(from_);
    fields.push_back({std::move(kind), nullable});
  }
  auto records = std::make_shared<Records>(fields);
  uint64_t least = 0;  // bytes of a row in the file
  for (const RecordField& f : fields) least += f.nullable + (f.inside() || f.kind == "*s" ? 4 : entry_width(f.kind));
  uint64_t rows = from_.get<uint64_t>();
  least = std::max<uint64_t>(least, 1);
  if (rows == 0 || rows >= kNoRow || rows > from_.left() / least)
    damaged("a view claims " + std::to_string(rows) + " rows that it does not have");
  RecordSink sink(records);
  std::vector<FieldRows> columns(fields.size());
  const Bump none;
  for (; rows > 0; rows -= std::min<uint64_t>(rows, kRowsTogether)) {
    const auto together = static_cast<uint32_t>(std::min<uint64_t>(rows, kRowsTogether));
    sink.begin(together);
    for (size_t k = 0; k < fields.size(); ++k) {
      columns[k].read(from_, records->fields()[k], together);
      sink.take(static_cast<int>(k), columns[k].column, none);
    }
    if (fields.empty()) get_values<uint8_t>(from_, together);
    sink.end();
  }
  std::shared_ptr<Table> index = get_index(from_, as_of, *records);
  return {std::move(index), std::move(records)};
}

std::shared_ptr<Table> ProgramReader::get_table() {
  const uint32_t number = from_.get<uint32_t>();
  if (number == 0) return nullptr;
  if (number <= tables_.size()) return tables_[number - 1];
  if (number != tables_.size() + 1) damaged("a step uses a table that the file has not defined yet");
  const uint8_t what = from_.get<uint8_t>();
  std::shared_ptr<Table> table;
  if (what == kInts) {
    table = std::make_shared<IntSet>(get_values<int64_t>(from_, get_rows(from_, 8)));
  } else if (what == kTexts) {
    std::vector<std::string> members(get_rows(from_, 4));
    for (std::string& member : members) member = get_text(from_);
    table = std::make_shared<StrSet>(members);
  } else if (what == kBoundaries) {
    table = std::make_shared<Boundaries>(get_values<double>(from_, get_rows(from_, 8)));
  } else if (what == kPaths) {
    std::vector<std::string> paths(get_count(from_, 8, kJsonPaths)), kinds;
    for (std::string& path : paths) {
      path = get_text(from_);
      kinds.push_back(get_text(from_));
    }
    table = std::make_shared<JsonPaths>(paths, kinds);
  } else if (what == kWords) {
    table = get_words(from_);
  } else if (what == kClicks) {
    table = get_clicks(from_);
  } else {
    damaged("there is no table of kind " + std::to_string(what));
  }
  tables_.push_back(table);
  return table;
}

std::shared_ptr<Program> ProgramReader::get(const std::vector<SourceShape>& sources, Emitted& emitted) {
  auto program = std::make_shared<Program>(kChunkRows);
  std::vector<int> rows_of;  // by register: the view whose rows it points at
  auto reg = [&](uint32_t r) {
    if (r >= rows_of.size()) damaged("a step reads register " + std::to_string(r) + " before a step wrote it");
    return static_cast<int>(r);
  };
  auto view = [&](uint32_t v) -> const JoinedRows& {
    if (v >= views_.size()) damaged("a step reads view " + std::to_string(v) + ", which the file does not have");
    return views_[v];
  };
  for (size_t steps = 0;; ++steps) {
    if (steps > kMostSteps) damaged("a program has more than " + std::to_string(kMostSteps) + " steps");
    const uint8_t what = from_.get<uint8_t>();
    if (what == kEnd) break;
    if (what == kLoad) {
      const uint32_t source = from_.get<uint32_t>(), column = from_.get<uint32_t>();
      const std::string kind = get_kind(from_);
      const bool nullable = get_flag(from_);
      const std::string name = get_text(from_);
      if (source >= sources.size()) damaged("a step loads from a source that its program does not have");
      int points_at = -1;
      if (sources[source]) {
        if (column >= sources[source]->size()) damaged("a step loads a column that its source does not have");
        const SourceColumn& shape = (*sources[source])[column];
        if (shape.kind != kind)
          damaged("column '" + name + "' is loaded as '" + kind + "', but it is '" + shape.kind + "'");
        points_at = shape.view;
      }
      program->load(static_cast<int>(source), static_cast<int>(column), kind, nullable, name);
      rows_of.push_back(points_at);
    } else if (what == kLiteral) {
      const std::string kind = get_kind(from_);
      const auto i = from_.get<int64_t>();
      const auto f = from_.get<double>();
      program->literal(kind, i, f, get_text(from_));
      rows_of.push_back(-1);
    } else if (what == kCall) {
      std::string name = get_text(from_);
      if (name == kOldStandardize) name = "standardize";
      std::vector<int> in;
      std::string args;
      for (uint32_t r : get_many<uint32_t>(from_, 8)) {
        in.push_back(reg(r));
        args += (args.empty() ? "" : ",") + program->kind(in.back());
      }
      const std::vector<uint8_t> flags = get_many<uint8_t>(from_, kJsonPaths);
      const std::vector<int64_t> ints = get_many<int64_t>(from_, 4);
      const std::vector<double> floats = get_many<double>(from_, 2);
      std::vector<std::string> texts(get_count(from_, 4, 2));
      for (std::string& text : texts) text = get_text(from_);
      std::shared_ptr<Table> table = get_table();
      const bool strict = get_flag(from_);
      const Entry* entry = nullptr;
      try {
        entry = &find_kernel(name, args);
      } catch (const std::invalid_argument&) {
        damaged("this version of CTRBox has no operator '" + name.substr(0, 40) + "' for columns of kind '" +
                args.substr(0, 40) + "'");
      }
      if (!has_table(*entry, table.get())) damaged("operator '" + name + "' lacks the table that it needs");
      if (!has_numbers(*entry, ints, texts)) damaged("operator '" + name + "' has parameters out of range");
      std::vector<std::string> results{entry->result};
      if (name == "json") results = static_cast<const JsonPaths&>(*table).result_kinds();
      if (flags.size() != results.size()) damaged("operator '" + name + "' has another number of results");
      std::vector<bool> nullable;
      for (uint8_t flag : flags) {
        if (flag > 1 || (entry->makes_nulls && !flag)) damaged("a result of operator '" + name + "' can be null");
        nullable.push_back(flag == 1);
      }
      program->call(name, args, in, results, nullable, ints, floats, texts, std::move(table), strict);
      rows_of.insert(rows_of.end(), results.size(), -1);
    } else if (what == kLookup) {
      const uint32_t number = from_.get<uint32_t>();
      const JoinedRows& found = view(number);
      std::vector<int> in;
      for (uint32_t r : get_many<uint32_t>(from_, 2)) in.push_back(reg(r));
      const auto missing = from_.get<int64_t>();
      const std::vector<uint32_t>& handles = found.records->handles();
      if (missing < 0 || missing > UINT32_MAX ||
          !std::binary_search(handles.begin(), handles.end(), static_cast<uint32_t>(missing)))
        damaged("the row for missing keys does not belong to its view");
      const auto as_of = std::dynamic_pointer_cast<AsOfIndex>(found.index);
      if (in.size() != (as_of ? 2 : 1) || program->kind(in[0]) != "k" || (as_of && program->kind(in[1]) != "t"))
        damaged("a look-up takes a key, and in an as-of join a time");
      if (as_of)
        program->lookup_as_of(as_of, in[0], in[1], missing);
      else
        program->lookup(std::static_pointer_cast<Index>(found.index), in[0], missing);
      rows_of.push_back(static_cast<int>(number));
    } else if (what == kGather) {
      const uint32_t number = from_.get<uint32_t>();
      const JoinedRows& found = view(number);
      const int row = reg(from_.get<uint32_t>());
      if (rows_of[static_cast<size_t>(row)] != static_cast<int>(number))
        damaged("a step reads rows of a view that were not looked up in this view");
      std::vector<int> fields;
      for (uint32_t f : get_many<uint32_t>(from_, 10'000)) {
        if (f >= found.records->fields().size()) damaged("a step reads a field that its view does not have");
        fields.push_back(static_cast<int>(f));
      }
      program->gather(found.records, row, fields);
      rows_of.insert(rows_of.end(), fields.size(), -1);
    } else if (what == kEmit) {
      const auto slot = from_.get<int32_t>();
      const int r = reg(from_.get<uint32_t>());
      if (!emitted.emplace(slot, SourceColumn{program->kind(r), rows_of[static_cast<size_t>(r)]}).second)
        damaged("slot " + std::to_string(slot) + " is emitted twice");
      program->emit(slot, r);
    } else {
      damaged("there is no step " + std::to_string(what));
    }
    if (rows_of.size() > kMostBytes / kChunkRows) damaged("a program has too many registers");
  }
  program->finish();
  if (program->worker_bytes() > kMostBytes)
    damaged("a program needs " + std::to_string(program->worker_bytes()) + " bytes of memory; at most " +
            std::to_string(kMostBytes) + " are possible");
  return program;
}

}  // namespace cb
