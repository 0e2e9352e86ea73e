// Lists the parts of each table's image: its view, with every pointer replaced by a part.
#include "core/join/device_image.h"

#include "core/join/as_of_index.h"
#include "core/join/view_rows.h"
#include "core/program/lookup_tables.h"
#include "core/program/operator_tables.h"
#include "core/program/program.h"

namespace cb {

// The size of the image that `put` writes. A writer without a place to write to only counts.
template <class Put>
static size_t bytes_of(Put put) {
  ImageWriter measure;
  put(measure);
  return measure.bytes();
}

size_t Table::image_bytes() const {
  return bytes_of([this](ImageWriter& to) { put_image(to); });
}

void Table::image(char* out, uint64_t device_base) const {
  ImageWriter to(out, device_base);
  put_image(to);
}

void IntSet::put_image(ImageWriter& to) const {
  to.image(view_, [&](IntSetView& v) { v.slots = to.part(slots_); });
}

void StrSet::put_image(ImageWriter& to) const {
  to.image(view_, [&](StrSetView& v) {
    v.slots = to.part(slots_);
    v.bytes = to.part(bytes_.data(), bytes_.size());
  });
}

void Boundaries::put_image(ImageWriter& to) const {
  to.image(view_, [&](BoundariesView& v) { v.p = to.part(boundaries_); });
}

void JsonPaths::put_image(ImageWriter& to) const {
  to.image(view_, [&](JsonPathsView& v) {
    v.nodes = to.part(nodes_);
    v.edges = to.part(edges_);
    v.keys = to.part(keys_.data(), keys_.size());
    v.kinds = to.part(kinds_);
  });
}

namespace {

IndexView index_part(const IndexView& index, ImageWriter& to) {
  return {to.part(index.slots, index.mask + 1), index.mask};
}

}  // namespace

void Dictionary::put_image(ImageWriter& to) const {
  to.image(view_, [&](DictionaryView& v) {
    v.index = index_part(view_.index, to);
    v.ids = to.part(view_.ids, ids_.size());
    v.vectors = to.part(view_.vectors, vectors_.size());
  });
}

void History::put_image(ImageWriter& to) const {
  to.image(view_, [&](HistoryView& v) {
    v.index = index_part(view_.index, to);
    v.begin = to.part(begin_);
    v.bucket = to.part(bucket_);
    v.shows = to.part(shows_);
    v.clicks = to.part(clicks_);
  });
}

void Index::put_image(ImageWriter& to) const {
  to.image(map.view(), [&](IndexView& v) { v = index_part(v, to); });
}

void AsOfIndex::put_image(ImageWriter& to) const {
  to.image(view_, [&](AsOfView& v) {
    v.index = index_part(view_.index, to);
    v.versions = to.part(versions_);
  });
}

// ---- records --------------------------------------------------------------------------------------------------------

namespace {

// Every list of strings of the records: where its entry lies in the blocks, and the list.
template <class Visit>
void lists_of_strings(const Records& records, Visit visit) {
  std::vector<uint32_t> offsets;
  for (const RecordField& f : records.fields())
    if (f.kind == "*s") offsets.push_back(f.offset);
  if (offsets.empty()) return;
  for (uint32_t handle : records.handles())
    for (uint32_t offset : offsets) {
      List<Str> list;
      std::memcpy(&list, records.at(handle) + offset, sizeof list);
      visit(size_t{handle} * 8 + offset, list);
    }
}

}  // namespace

// The blocks as they are, so that a handle means the same; behind them the elements of all lists of strings, then their
// bytes.
void Records::put_image(ImageWriter& to) const {
  to.part(blob_.data(), used_);
  size_t strings = 0, bytes = 0;
  lists_of_strings(*this, [&](size_t, List<Str> list) {
    strings += list.n;
    for (uint32_t k = 0; k < list.n; ++k) bytes += list.p[k].n;
  });
  size_t string_at = to.room(strings * sizeof(Str)), byte_at = to.room(bytes);
  to.close();
  if (to.measures()) return;
  lists_of_strings(*this, [&](size_t entry_at, List<Str> list) {
    const List<Str> there{list.n ? static_cast<const Str*>(to.address(string_at)) : nullptr, list.n};
    to.write(entry_at, &there, sizeof there);
    for (uint32_t k = 0; k < list.n; ++k) {
      const Str element{static_cast<const char*>(to.address(byte_at)), list.p[k].n};
      to.write(string_at, &element, sizeof element);
      to.write(byte_at, list.p[k].p, list.p[k].n);
      string_at += sizeof element;
      byte_at += list.p[k].n;
    }
  });
}

size_t Records::image_bytes() const {
  return bytes_of([this](ImageWriter& to) { put_image(to); });
}

void Records::image(char* out, uint64_t device_base) const {
  ImageWriter to(out, device_base);
  put_image(to);
}

}  // namespace cb
