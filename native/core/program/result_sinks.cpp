#include "core/program/result_sinks.h"

#include <algorithm>
#include <cstring>

namespace cb {

namespace {

// Deep copies of what an entry points at, into memory that outlives the chunk.
Str keep_text(Str s, Bump& to) {
  if (!s.n) return Str{"", 0};
  char* p = to.reserve_bytes(s.n);
  std::memcpy(p, s.p, s.n);
  to.commit(s.n);
  return Str{p, s.n};
}

List<uint64_t> keep_list(List<uint64_t> l, size_t width, Bump& to) {
  char* p = to.reserve(l.n * width);
  if (l.n) std::memcpy(p, l.p, l.n * width);
  to.commit(l.n * width);
  return {reinterpret_cast<const uint64_t*>(p), l.n};
}

List<uint64_t> keep_texts(List<uint64_t> l, Bump& to) {
  List<uint64_t> kept = keep_list(l, sizeof(Str), to);
  Str* s = reinterpret_cast<Str*>(const_cast<uint64_t*>(kept.p));
  for (uint32_t k = 0; k < l.n; ++k) s[k] = keep_text(s[k], to);
  return kept;
}

// An entry of 16 bytes with all it points at.
Str keep_entry(const std::string& kind, Str entry, Bump& to) {
  if (kind == "s") return keep_text(entry, to);
  List<uint64_t> l{reinterpret_cast<const uint64_t*>(entry.p), entry.n};
  l = kind == "*s" ? keep_texts(l, to) : keep_list(l, kind == "*b" ? 1 : 8, to);
  return Str{reinterpret_cast<const char*>(l.p), l.n};
}

}  // namespace

// ---- batch ------------------------------------------------------------------------------------------------------

BatchSink::BatchSink(const std::vector<BatchSlot>& slots, uint32_t dense_width, size_t fields, int64_t expected,
                     const std::vector<double>& hints)
    : slots_(slots), batch_(std::make_shared<Batch>()), expected_(expected) {
  size_t n = static_cast<size_t>(expected);
  batch_->dense_width = dense_width;
  batch_->fields.resize(fields);
  for (const BatchSlot& s : slots) switch (s.what) {
      case BatchSlot::What::Label:
        batch_->label.reserve(n);
        break;
      case BatchSlot::What::Weight:
        batch_->weight.reserve(n);
        break;
      case BatchSlot::What::Group:
        batch_->group.reserve(n);
        break;
      case BatchSlot::What::Dense:
        batch_->dense.reserve(n * dense_width);
        break;
      case BatchSlot::What::Keys: {
        Batch::Field& f = batch_->fields[s.at];
        f.ragged = s.kind[0] == '*';
        if (!f.ragged) {
          f.values.reserve(n);
          break;
        }
        f.offsets.reserve(n + 1);
        f.offsets.resize(1);
        f.offsets.data()[0] = 0;
        if (s.at < hints.size()) f.values.reserve(static_cast<size_t>(hints[s.at] * static_cast<double>(n)) + 64);
        break;
      }
    }
}

void BatchSink::begin(uint32_t rows) {
  chunk_ = rows;
  // 16 floats more than the chunk: columns 4 KiB apart would fall into one set of the L1 cache.
  staged_stride_ = std::max(staged_stride_, (size_t{rows} + 15) / 16 * 16 + 16);
  staged_.resize(staged_stride_ * batch_->dense_width);
  size_t n = static_cast<size_t>(batch_->rows) + rows;
  for (const BatchSlot& s : slots_) switch (s.what) {
      case BatchSlot::What::Label:
        batch_->label.resize(n);
        break;
      case BatchSlot::What::Weight:
        batch_->weight.resize(n);
        break;
      case BatchSlot::What::Group:
        batch_->group.resize(n);
        break;
      case BatchSlot::What::Dense:
        batch_->dense.resize(n * batch_->dense_width);
        break;
      case BatchSlot::What::Keys: {
        Batch::Field& f = batch_->fields[s.at];
        if (f.ragged)
          f.offsets.resize(n + 1);
        else
          f.values.resize(n);
        break;
      }
    }
}

void* BatchSink::direct(int slot) {
  const BatchSlot& s = slots_[static_cast<size_t>(slot)];
  if (s.what == BatchSlot::What::Keys && s.kind == "k") return batch_->fields[s.at].values.data() + batch_->rows;
  if (s.what == BatchSlot::What::Group && s.kind == "k") return batch_->group.data() + batch_->rows;
  return nullptr;
}

namespace {

void put_floats(const std::string& kind, const Column& c, uint32_t rows, float* out) {
  if (kind == "f") {
    const double* from = entries<double>(c);
    for (uint32_t r = 0; r < rows; ++r) out[r] = static_cast<float>(from[r]);
  } else if (kind == "b") {
    const uint8_t* from = entries<uint8_t>(c);
    for (uint32_t r = 0; r < rows; ++r) out[r] = from[r];
  } else {
    const int64_t* from = entries<int64_t>(c);
    for (uint32_t r = 0; r < rows; ++r) out[r] = static_cast<float>(from[r]);
  }
}

// One column of a vector; elements that a row lacks are 0.
void put_element(const Column& c, uint32_t rows, uint32_t k, float* out) {
  const List<double>* from = entries<List<double>>(c);
  for (uint32_t r = 0; r < rows; ++r) out[r] = k < from[r].n ? static_cast<float>(from[r].p[k]) : 0.0f;
}

// Lists are short, a handful of keys: four at a time and a few too many (Bump::kSlack behind every list, room in the
// output) mispredict less than an exact loop.
constexpr uint32_t kCopy = 4;
static_assert(kCopy * sizeof(uint64_t) <= Bump::kSlack);

inline void copy_keys(int64_t* out, const uint64_t* p, uint32_t n) {
  for (uint32_t k = 0; k < n; k += kCopy) std::memcpy(out + k, p + k, kCopy * sizeof(uint64_t));
}

}  // namespace

void BatchSink::take(int slot, const Column& c, const Bump&) {
  const BatchSlot& s = slots_[static_cast<size_t>(slot)];
  size_t row = static_cast<size_t>(batch_->rows);
  switch (s.what) {
    case BatchSlot::What::Label:
      put_floats(s.kind, c, chunk_, batch_->label.data() + row);
      break;
    case BatchSlot::What::Weight:
      put_floats(s.kind, c, chunk_, batch_->weight.data() + row);
      break;
    case BatchSlot::What::Dense:
      if (s.kind != "*f") {
        put_floats(s.kind, c, chunk_, staged_.data() + s.at * staged_stride_);
        break;
      }
      for (uint32_t k = 0; k < s.width; ++k) put_element(c, chunk_, k, staged_.data() + (s.at + k) * staged_stride_);
      break;
    case BatchSlot::What::Group:
      if (c.data != batch_->group.data() + row) std::memcpy(batch_->group.data() + row, c.data, chunk_ * 8);
      break;
    case BatchSlot::What::Keys: {
      Batch::Field& f = batch_->fields[s.at];
      if (!f.ragged) {
        if (c.data != f.values.data() + row) std::memcpy(f.values.data() + row, c.data, chunk_ * 8);
        break;
      }
      const List<uint64_t>* lists = entries<List<uint64_t>>(c);
      int64_t* offsets = f.offsets.data() + row + 1;
      int64_t total = f.offsets.data()[row], from = total;
      for (uint32_t r = 0; r < chunk_; ++r) offsets[r] = total += lists[r].n;
      if (static_cast<size_t>(total) + kCopy > f.values.capacity()) {
        // As many as the rows so far make likely, and a tenth more: growing step by step would copy all of them each
        // time.
        const double per_row = static_cast<double>(total) / static_cast<double>(row + chunk_);
        const size_t likely = static_cast<size_t>(per_row * 1.1 * static_cast<double>(expected_));
        f.values.reserve(std::max(static_cast<size_t>(total), likely) + kCopy);
      }
      f.values.resize(static_cast<size_t>(total));
      int64_t* out = f.values.data() + from;
      if (detail::end_to_end(lists, chunk_)) {
        if (total > from) std::memcpy(out, lists[0].p, static_cast<size_t>(total - from) * sizeof(uint64_t));
        break;
      }
      for (uint32_t r = 0; r < chunk_; ++r) {
        copy_keys(out, lists[r].p, lists[r].n);
        out += lists[r].n;
      }
      break;
    }
  }
}

void BatchSink::end() {
  constexpr uint32_t kRows = 16;  // a cache line of each staged column
  uint32_t width = batch_->dense_width;
  float* out = batch_->dense.data() + static_cast<size_t>(batch_->rows) * width;
  for (uint32_t from = 0; from < chunk_; from += kRows) {
    uint32_t to = from + kRows < chunk_ ? from + kRows : chunk_;
    for (uint32_t r = from; r < to; ++r) {
      const float* column = staged_.data() + r;
      for (uint32_t k = 0; k < width; ++k, column += staged_stride_) out[size_t{r} * width + k] = *column;
    }
  }
  batch_->rows += chunk_;
}

// ---- frame ------------------------------------------------------------------------------------------------------

FrameBuilder::FrameBuilder(std::vector<std::string> kinds, std::vector<bool> nullable,
                           std::vector<std::shared_ptr<const Frame>> keep)
    : kinds_(std::move(kinds)),
      nullable_(std::move(nullable)),
      entries_(kinds_.size()),
      valid_(kinds_.size()),
      frame_(std::make_shared<Frame>()) {
  frame_->keep_ = std::move(keep);
}

void FrameBuilder::begin(uint32_t rows) {
  chunk_ = rows;
  chunk_from_ = picked_.size();
  masked_ = false;
}

void FrameBuilder::take(int slot, const Column& c, const Bump& pool) {
  if (slot == kMask) {
    const uint8_t* mask = entries<uint8_t>(c);
    if (!masked_) {
      masked_ = true;
      for (uint32_t r = 0; r < chunk_; ++r)
        if (mask[r] && (!c.valid || c.valid[r])) picked_.push_back(static_cast<int32_t>(seen_ + r));
    }
    return;
  }
  size_t k = static_cast<size_t>(slot);
  size_t width = entry_width(kinds_[k]);
  size_t n = masked_ ? picked_.size() - chunk_from_ : chunk_;
  std::vector<char>& to = entries_[k];
  size_t before = to.size();
  to.resize(before + n * width);
  const char* from = static_cast<const char*>(c.data);
  auto source = [&](size_t r) { return masked_ ? static_cast<size_t>(picked_[chunk_from_ + r] - seen_) : r; };
  for (size_t r = 0; r < n; ++r) std::memcpy(to.data() + before + r * width, from + source(r) * width, width);
  if (nullable_[k]) {
    for (size_t r = 0; r < n; ++r) valid_[k].push_back(c.valid ? static_cast<char>(c.valid[source(r)]) : 1);
  }
  if (width != 16) return;
  Str* entry = reinterpret_cast<Str*>(to.data() + before);
  const bool texts = kinds_[k] == "*s";
  for (size_t r = 0; r < n; ++r) {
    // Bytes in Arrow buffers or dimension tables stay where they are; only the chunk's pool is about to be reset.
    bool pooled = pool.owns(entry[r].p);
    if (texts && !pooled) {
      const Str* s = reinterpret_cast<const Str*>(entry[r].p);
      for (uint32_t j = 0; j < entry[r].n && !pooled; ++j) pooled = pool.owns(s[j].p);
    }
    if (pooled) entry[r] = keep_entry(kinds_[k], entry[r], frame_->memory_);
  }
}

void FrameBuilder::end() { seen_ += chunk_; }

std::shared_ptr<Frame> FrameBuilder::frame() {
  for (size_t k = 0; k < kinds_.size(); ++k) {
    frame_->entries_.push_back(std::move(entries_[k]));
    FrameColumn c;
    c.storage = Storage::Entries;
    c.is_list = kinds_[k][0] == '*';
    c.kind = c.is_list ? kinds_[k][1] : kinds_[k][0];
    c.values = frame_->entries_.back().data();
    size_t rows = frame_->entries_.back().size() / entry_width(kinds_[k]);
    c.rows = frame_->rows_ = static_cast<int64_t>(rows);
    if (nullable_[k]) {
      frame_->entries_.push_back(std::move(valid_[k]));
      c.bytes_valid = reinterpret_cast<const uint8_t*>(frame_->entries_.back().data());
    }
    frame_->columns_.push_back(std::move(c));
  }
  return frame_;
}

std::shared_ptr<Frame> Frame::compacted() const {
  auto aligned = [](size_t n) { return (n + 7) / 8 * 8; };
  size_t total = 0;
  for (const FrameColumn& c : columns_) {
    if (c.storage != Storage::Entries)
      throw std::invalid_argument("only a frame whose columns are stored can be compacted");
    if (!c.is_list && c.kind != 's') continue;
    const Str* entry = static_cast<const Str*>(c.values);
    for (int64_t r = 0; r < c.rows; ++r) {
      if (c.bytes_valid && !c.bytes_valid[r]) continue;
      const size_t n = entry[r].n;
      if (!c.is_list) {
        total += aligned(n) + 8;
        continue;
      }
      total += aligned(n * (c.kind == 's' ? sizeof(Str) : c.kind == 'b' ? 1 : 8)) + 8;
      if (c.kind == 's')
        for (size_t j = 0; j < n; ++j) total += aligned(reinterpret_cast<const Str*>(entry[r].p)[j].n) + 8;
    }
  }
  auto out = std::make_shared<Frame>();
  out->rows_ = rows_;
  out->memory_ = Bump(total + 8);
  out->entries_.reserve(2 * columns_.size());
  out->columns_.reserve(columns_.size());
  for (const FrameColumn& c : columns_) {
    const std::string kind = c.is_list ? std::string("*") + c.kind : std::string(1, c.kind);
    const size_t rows = static_cast<size_t>(c.rows), width = entry_width(kind);
    const char* from = static_cast<const char*>(c.values);
    out->entries_.emplace_back(from, from + rows * width);
    FrameColumn copy;
    copy.storage = Storage::Entries;
    copy.is_list = c.is_list;
    copy.kind = c.kind;
    copy.rows = c.rows;
    copy.values = out->entries_.back().data();
    if (width == 16) {
      Str* entry = reinterpret_cast<Str*>(out->entries_.back().data());
      for (size_t r = 0; r < rows; ++r)
        entry[r] = c.bytes_valid && !c.bytes_valid[r] ? Str{"", 0} : keep_entry(kind, entry[r], out->memory_);
    }
    if (c.bytes_valid) {
      const char* valid = reinterpret_cast<const char*>(c.bytes_valid);
      out->entries_.emplace_back(valid, valid + rows);
      copy.bytes_valid = reinterpret_cast<const uint8_t*>(out->entries_.back().data());
    }
    out->columns_.push_back(std::move(copy));
  }
  return out;
}

size_t Frame::bytes() const {
  size_t total = sizeof *this + memory_.capacity() + columns_.capacity() * sizeof(FrameColumn);
  for (const std::vector<char>& e : entries_) total += sizeof e + e.capacity() + 16;  // 16: an allocator's own
  return total;
}

// ---- records ----------------------------------------------------------------------------------------------------

void RecordSink::take(int slot, const Column& c, const Bump&) {
  size_t k = static_cast<size_t>(slot), width = entry_width(records_->fields()[k].kind);
  const char* from = static_cast<const char*>(c.data);
  entries_[k].assign(from, from + width * chunk_);
  valid_[k].assign(chunk_, 1);
  if (c.valid) valid_[k].assign(c.valid, c.valid + chunk_);
}

void RecordSink::end() {
  const std::vector<RecordField>& fields = records_->fields();
  for (uint32_t r = 0; r < chunk_; ++r) {
    size_t bytes = records_->fixed_bytes();
    for (size_t k = 0; k < fields.size(); ++k)
      if (fields[k].inside()) {
        const Str& entry = reinterpret_cast<const Str*>(entries_[k].data())[r];
        bytes += (entry.n * fields[k].element() + 7) / 8 * 8;
      }
    if (bytes > UINT32_MAX) throw std::length_error("a row of a joined view has 4 GiB or more; expected less");
    char* block = records_->add(bytes);
    uint32_t at = records_->fixed_bytes();
    for (size_t k = 0; k < fields.size(); ++k) {
      const RecordField& f = fields[k];
      if (f.nullable) block[f.valid_offset] = static_cast<char>(valid_[k][r]);
      size_t width = entry_width(f.kind);
      if (width != 16) {
        std::memcpy(block + f.offset, entries_[k].data() + r * width, width);
        continue;
      }
      Str entry = reinterpret_cast<const Str*>(entries_[k].data())[r];
      if (!f.inside()) {
        entry = keep_entry(f.kind, entry, records_->memory());
        std::memcpy(block + f.offset, &entry, sizeof entry);
        continue;
      }
      Inside inside{at, entry.n};
      std::memcpy(block + f.offset, &inside, sizeof inside);
      size_t n = entry.n * f.element();
      if (n) std::memcpy(block + at, entry.p, n);
      at += static_cast<uint32_t>((n + 7) / 8 * 8);
    }
  }
}

}  // namespace cb
