#include "core/request/request_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'R', 'E', 'Q', 'P', 'L'};
constexpr char kEnd[8] = {'C', 'T', 'R', 'E', 'N', 'D', '.', '.'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostColumns = 10'000;
constexpr uint32_t kMostDense = 1u << 14;

[[noreturn]] void damaged(const std::string& what) { throw DamagedFile(what); }

bool is_dense(const BatchSlot& slot) { return slot.what == BatchSlot::What::Dense; }

}  // namespace

void RequestPart::name_features() {
  sparse.clear();
  dense.clear();
  dense_width = 0;
  for (size_t k = 0; k < slots.size(); ++k) {
    BatchSlot& slot = slots[k];
    slot.at = is_dense(slot) ? dense_width : static_cast<uint32_t>(sparse.size());
    if (!is_dense(slot)) {
      sparse.push_back(names[k]);
      continue;
    }
    for (uint32_t c = 0; c < slot.width; ++c)
      dense.push_back(slot.width == 1 ? names[k] : names[k] + "." + std::to_string(c));
    dense_width += slot.width;
  }
}

// ---- writing --------------------------------------------------------------------------------------------------------

namespace {

void put_names(CheckedWriter& to, const std::vector<std::string>& names) {
  to.put(static_cast<uint32_t>(names.size()));
  for (const std::string& name : names) put_text(to, name);
}

void put_columns(CheckedWriter& to, const RequestRows& rows) {
  to.put(static_cast<uint32_t>(rows.columns().size()));
  for (const RequestRows::Column& c : rows.columns()) {
    put_text(to, c.name);
    to.put(c.kind);
    to.put(c.low);
    to.put(c.high);
    to.put(static_cast<uint8_t>(c.single));
    to.put(c.unit);
  }
  put_names(to, rows.ignored());
}

}  // namespace

void RequestPlan::put_part(CheckedWriter& to, ProgramWriter& programs, const RequestPart& part) const {
  to.put(static_cast<uint32_t>(part.columns.size()));
  for (size_t column : part.columns) to.put(static_cast<uint32_t>(column));
  to.put(static_cast<uint8_t>(part.filter.has_value()));
  if (part.filter) {
    to.put(static_cast<uint32_t>(part.filter->kinds.size()));
    for (size_t k = 0; k < part.filter->kinds.size(); ++k) {
      put_text(to, part.filter->kinds[k]);
      to.put(static_cast<uint8_t>(part.filter->nullable[k]));
    }
    programs.put(*part.filter->program);
  }
  to.put(static_cast<uint32_t>(part.slots.size()));
  for (size_t k = 0; k < part.slots.size(); ++k) {
    to.put(static_cast<uint8_t>(!is_dense(part.slots[k])));
    put_text(to, part.slots[k].kind);
    to.put(part.slots[k].width);
    put_text(to, part.names[k]);
  }
  programs.put(*part.program);
}

void RequestPlan::write(const std::string& path) const {
  CheckedWriter to(path);
  to.put(kMagic);
  to.put(kVersion);
  to.put(merged);
  put_columns(to, context);
  put_columns(to, candidates);
  put_text(to, fingerprint);
  to.seal();
  ProgramWriter programs(to, views);
  put_part(to, programs, once);
  to.put(static_cast<uint8_t>(shared.has_value()));
  if (shared) put_part(to, programs, *shared);
  put_part(to, programs, each);
  to.put(kEnd);
  to.seal();
  to.close();
}

// ---- reading --------------------------------------------------------------------------------------------------------

namespace {

std::vector<std::string> get_names(CheckedReader& from) {
  std::vector<std::string> names(get_count(from, 4, kMostColumns));
  for (std::string& name : names) name = get_text(from);
  return names;
}

RequestRows get_columns(CheckedReader& from, int64_t most) {
  std::vector<RequestRows::Column> columns(get_count(from, 30, kMostColumns));
  for (RequestRows::Column& c : columns) {
    c.name = get_text(from);
    c.kind = from.get<char>();
    c.low = from.get<int64_t>();
    c.high = from.get<int64_t>();
    c.single = get_flag(from);
    c.unit = from.get<int64_t>();
    if (std::string_view("bifst").find(c.kind) == std::string_view::npos)
      damaged("column '" + c.name.substr(0, 40) + "' is of a kind that a request cannot contain");
    // Every time that is read must fit.
    constexpr int64_t kMostUnit = int64_t{1'000'000};
    if (c.kind == 't' && (c.unit < 0 || c.unit > kMostUnit ||
                          (c.unit && (c.low < std::numeric_limits<int64_t>::min() / c.unit ||
                                      c.high > std::numeric_limits<int64_t>::max() / c.unit))))
      damaged("the numbers of time column '" + c.name.substr(0, 40) + "' have an impossible unit or range");
  }
  std::vector<std::string> ignored = get_names(from);
  return {std::move(columns), std::move(ignored), most};
}

SourceShape shape_of(const RequestRows& rows, const std::vector<size_t>& columns) {
  std::vector<SourceColumn> shape;
  for (size_t k : columns) shape.push_back({std::string(1, rows.columns()[k].kind)});
  return shape;
}

// Refuses a program unless it emits exactly the slots below `slots` and, if `masked`, the mask as well.
void check_slots(const Emitted& emitted, size_t slots, bool masked) {
  const size_t first = masked ? 1 : 0;
  bool fits = emitted.size() == slots + first;
  int expected = masked ? FrameBuilder::kMask : 0;
  for (const auto& [slot, _] : emitted) fits = fits && slot == expected++;
  if (masked) fits = fits && emitted.begin()->second.kind == "b";
  if (!fits) damaged("a program does not emit what its part needs");
}

struct PartReader {
  CheckedReader& from;
  ProgramReader& programs;
  const RequestPlan& plan;

  // `given`: what the context hands to the candidates; nullptr: nothing.
  RequestPart part(const RequestRows& rows, const std::vector<SourceColumn>* given, bool is_shared, Emitted& emitted) {
    RequestPart out;
    const uint64_t columns = get_count(from, 4, kMostColumns);
    for (uint64_t k = 0; k < columns; ++k) {
      out.columns.push_back(from.get<uint32_t>());
      if (out.columns.back() >= rows.columns().size()) damaged("a part reads a column that requests do not contain");
    }
    std::vector<SourceShape> sources{shape_of(rows, out.columns)};
    sources.resize(1 + plan.merged);
    if (given) sources.emplace_back(*given);
    if (get_flag(from)) out.filter = filter(sources);
    const uint64_t slots = get_count(from, 13, kMostColumns);
    for (uint64_t k = 0; k < slots; ++k) out.slots.push_back(slot(out));
    out.name_features();
    if (out.dense_width > kMostDense) damaged("a part has more than " + std::to_string(kMostDense) + " dense columns");
    out.program = programs.get(sources, emitted);
    if (is_shared) {
      if (!out.slots.empty() || out.filter) damaged("the part of the context for candidates has features or a filter");
      check_slots(emitted, emitted.size(), false);
      return out;
    }
    check_slots(emitted, out.slots.size(), false);
    for (size_t k = 0; k < out.slots.size(); ++k)
      if (emitted.at(static_cast<int>(k)).kind != out.slots[k].kind)
        damaged("feature '" + out.names[k].substr(0, 40) + "' is of another kind than its program makes");
    return out;
  }

 private:
  RequestPart::Filter filter(std::vector<SourceShape>& sources) {
    RequestPart::Filter out;
    const uint64_t n = get_count(from, 5, kMostColumns);
    for (uint64_t k = 0; k < n; ++k) {
      out.kinds.push_back(get_text(from));
      out.nullable.push_back(get_flag(from));
    }
    Emitted emitted;
    out.program = programs.get(sources, emitted);
    check_slots(emitted, n, true);
    std::vector<SourceColumn> kept;
    for (uint64_t k = 0; k < n; ++k) {
      kept.push_back(emitted.at(static_cast<int>(k)));
      if (kept.back().kind != out.kinds[k]) damaged("a filter keeps another kind than its program makes");
    }
    sources.push_back(n ? SourceShape(std::move(kept)) : std::nullopt);
    return out;
  }

  BatchSlot slot(RequestPart& part) {
    const bool keys = get_flag(from);
    BatchSlot out{keys ? BatchSlot::What::Keys : BatchSlot::What::Dense, get_text(from)};
    out.width = from.get<uint32_t>();
    part.names.push_back(get_text(from));
    const bool vector = out.kind == "*f";
    const bool fits = keys ? (out.kind == "k" || out.kind == "*k") && out.width == 1
                           : (vector && out.width >= 1 && out.width <= kMostDense) ||
                                 ((out.kind == "f" || out.kind == "i" || out.kind == "b") && out.width == 1);
    if (!fits) damaged("feature '" + part.names.back().substr(0, 40) + "' is neither dense nor keys");
    return out;
  }
};

std::shared_ptr<RequestPlan> read_plan(const std::string& path) {
  CheckedReader from(path);
  if (from.left() < sizeof kMagic)
    damaged("it is not a request plan: it has " + std::to_string(from.left()) + " bytes");
  char magic[sizeof kMagic];
  from.get(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof kMagic) != 0)
    damaged("it is not a request plan: it does not start with CTRREQPL");
  const auto version = from.get<uint32_t>();
  if (version != kVersion)
    damaged("it has version " + std::to_string(version) + " of the format, but this version of CTRBox reads 1");
  auto out = std::make_shared<RequestPlan>();
  out->merged = from.get<uint32_t>();
  if (out->merged > 1000) damaged("it claims " + std::to_string(out->merged) + " merged views");
  out->context = get_columns(from, 1);
  out->candidates = get_columns(from, RequestPlan::kMostCandidates);
  out->fingerprint = get_text(from);
  from.check_seal("its head");
  ProgramReader programs(from);
  PartReader reader{from, programs, *out};
  Emitted emitted, given;
  out->once = reader.part(out->context, nullptr, false, emitted);
  if (get_flag(from)) {
    out->shared = reader.part(out->context, nullptr, true, given);
    for (const auto& [slot, shape] : given) {
      out->shared_kinds.push_back(shape.kind);
      out->shared_nullable.push_back(out->shared->program->emits_nulls(slot));
    }
    if (given.empty()) damaged("candidates read nothing of the context, but there is a program for it");
  }
  std::vector<SourceColumn> shapes;
  for (const auto& [_, shape] : given) shapes.push_back(shape);
  emitted.clear();
  out->each = reader.part(out->candidates, out->shared ? &shapes : nullptr, false, emitted);
  if (out->once.filter) damaged("a context is not filtered");
  for (size_t k = 0; k < out->each.columns.size(); ++k)
    if (out->each.columns[k] != k) damaged("the columns of candidates are out of order");
  char end[sizeof kEnd];
  from.get(end, sizeof end);
  if (std::memcmp(end, kEnd, sizeof kEnd) != 0) damaged("its end mark is missing");
  from.check_seal("its programs");
  if (from.left()) damaged(std::to_string(from.left()) + " bytes follow its end mark");
  return out;
}

}  // namespace

std::shared_ptr<const RequestPlan> RequestPlan::read(const std::string& path) {
  try {
    return read_plan(path);
  } catch (const std::logic_error& e) {  // a table or a view that cannot be made of what the file says
    damaged(e.what());
  }
}

}  // namespace cb
