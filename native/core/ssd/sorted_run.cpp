#include "core/ssd/sorted_run.h"

#include <algorithm>
#include <cstring>

#include "core/system/checked_file.h"

namespace cb {

namespace {

constexpr size_t kMostInMemory = size_t{4} << 20;  // bytes of a run that is put together before it is written
constexpr size_t kDrain = size_t{1} << 20;
constexpr size_t kMostMixes = size_t{1} << 20;

uint64_t page_sum(uint64_t segment, uint64_t offset, const char* page, size_t bytes) {
  Checksum sum(finish(segment) ^ offset);
  sum.add(page + 8, bytes - 8);
  return sum.value();
}

uint64_t footer_sum(const char* footer, size_t bytes, uint64_t segment, uint64_t offset, uint64_t rows) {
  return page_sum(segment, offset, footer, bytes) ^ finish(rows);
}

void seal_footer(char* footer, size_t bytes, uint64_t segment, uint64_t offset, uint64_t rows) {
  const uint64_t seal = footer_sum(footer, bytes, segment, offset, rows);
  std::memcpy(footer, &seal, 8);
}

std::string where(const RowRun& run, uint64_t offset) {
  return run.place.segment->path + " at byte " + std::to_string(offset);
}

}  // namespace

RowRun::~RowRun() {
  if (place.segment) place.segment->live.fetch_sub(bytes());
}

std::pair<uint32_t, uint32_t> RowRun::pages_of(uint64_t mix) const {
  const uint32_t wanted = fence_of(mix);
  auto above = std::upper_bound(fences.begin(), fences.end(), wanted);
  if (above == fences.begin()) return {1, 0};
  const uint32_t last = static_cast<uint32_t>(above - fences.begin()) - 1;
  if (!straddles) return {last, last};
  auto first = std::lower_bound(fences.begin(), above, wanted);
  return {first == fences.begin() ? 0 : static_cast<uint32_t>(first - fences.begin()) - 1, last};
}

void check_page(const RowRun& run, uint32_t page, const char* bytes, const PageShape& shape) {
  const uint64_t offset = run.offset_of(page);
  uint64_t met;
  std::memcpy(&met, bytes, 8);
  if (!seal_fits(met, page_sum(run.place.segment->id, offset, bytes, shape.bytes)) ||
      PageShape::rows(bytes) > shape.room)
    throw DamagedFile(where(run, offset) + ": the checksum of a page is wrong");
}

void check_footer(const RowRun& run) {
  const uint64_t begin = run.offset_of(run.pages);
  AlignedBuffer part(std::min<uint64_t>(run.footer_bytes, kDrain));
  Checksum sum(finish(run.place.segment->id) ^ begin);
  uint64_t met = 0;
  for (uint64_t at = 0; at < run.footer_bytes; at += part.size()) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(part.size(), run.footer_bytes - at));
    run.place.segment->read(part.data(), bytes, begin + at);
    const size_t head = at == 0 ? sizeof met : 0;
    if (head) std::memcpy(&met, part.data(), head);
    sum.add(part.data() + head, bytes - head);
  }
  if (!seal_fits(met, sum.value() ^ finish(run.rows)))
    throw DamagedFile(where(run, begin) + ": the checksum of a run's footer is wrong");
}

int find_on(const char* page, const PageShape& shape, int64_t key) {
  const int64_t* keys = shape.keys(page);
  const uint32_t n = PageShape::rows(page);
  for (uint32_t k = 0; k < n; ++k)
    if (keys[k] == key) return static_cast<int>(k);
  return -1;
}

// ---- writing --------------------------------------------------------------------------------------------------

RunWriter::RunWriter(Segments& segments, const PageShape& shape, size_t most_rows, double bits)
    : segments_(segments), shape_(shape), bits_(bits) {
  const size_t most = (most_rows / shape.room + 2) * shape.bytes;
  own_allowed_ = most > kMostInMemory;
  buffer_.reserve(std::max(own_allowed_ ? std::max(kDrain, 2 * shape.bytes) : most, 2 * shape.bytes));
  here_.reserve(shape.room);
  // How many different rows come is known at the end: the mixes of few are kept until then, of many the filter is
  // larger.
  if (most_rows <= kMostMixes)
    mixes_.reserve(most_rows);
  else
    filter_ = BlockedFilter(most_rows, bits);
  collects_ = most_rows <= kMostMixes;
}

RunWriter::~RunWriter() = default;

void RunWriter::add(uint64_t mix, int64_t key, uint32_t stamp, const float* row) {
  if (count_ == shape_.room) begin_page(mix);
  char* page = buffer_.data() + used_;
  auto* keys = reinterpret_cast<int64_t*>(page + PageShape::kHead);
  auto* stamps = reinterpret_cast<uint32_t*>(page + PageShape::kHead + 8 * shape_.room);
  keys[count_] = key;
  stamps[count_] = stamp;
  std::memcpy(page + PageShape::kHead + 12 * shape_.room + count_ * shape_.row_floats * 4, row, shape_.row_floats * 4);
  if (count_ == 0) fences_.push_back(fence_of(mix));
  ++count_;
  ++rows_;
  here_.push_back(mix);
  if (collects_)
    mixes_.push_back(mix);
  else
    filter_.add(mix);
  newest_ = std::max(newest_, version_of(stamp));
}

// The page being filled has `rows` rows and no more.
void RunWriter::close_page(uint32_t rows) {
  char* page = buffer_.data() + used_;
  const size_t head = PageShape::kHead, room = shape_.room, row_bytes = shape_.row_floats * 4;
  const uint32_t facts[2] = {rows, 0};
  std::memcpy(page + 8, facts, 8);
  // Nothing of the past, and no byte whose value nobody decided, goes to the disk.
  std::memset(page + head + 8 * rows, 0, 8 * (room - rows));
  std::memset(page + head + 8 * room + 4 * rows, 0, 4 * (room - rows));
  std::memset(page + head + 12 * room + row_bytes * rows, 0, shape_.bytes - head - 12 * room - row_bytes * rows);
  used_ += shape_.bytes;
  ++pages_;
}

// The page is full and a row of `mix` comes. Rows at its end with the fence of that row go with it to the next page.
void RunWriter::begin_page(uint64_t mix) {
  const uint32_t coming = fence_of(mix);
  uint32_t stay = count_;
  while (stay > 0 && fence_of(here_[stay - 1]) == coming) --stay;
  if (stay == 0) {
    stay = count_;
    straddles_ = true;
  }
  const uint32_t move = count_ - stay;
  if (used_ + 2 * shape_.bytes > buffer_.size())
    buffer_.reserve(buffer_.size() + buffer_.size() / 2 + 2 * shape_.bytes);
  const size_t head = PageShape::kHead, room = shape_.room, row_bytes = shape_.row_floats * 4;
  char* page = buffer_.data() + used_;
  char* following = page + shape_.bytes;
  std::memcpy(following + head, page + head + 8 * stay, 8 * move);
  std::memcpy(following + head + 8 * room, page + head + 8 * room + 4 * stay, 4 * move);
  std::memcpy(following + head + 12 * room, page + head + 12 * room + row_bytes * stay, row_bytes * move);
  close_page(stay);
  here_.erase(here_.begin(), here_.begin() + stay);
  count_ = move;
  if (move) fences_.push_back(coming);
  if (own_allowed_ && used_ + 2 * shape_.bytes > buffer_.size()) drain();
}

// Whole pages of the buffer to a segment of their own; a page being filled moves to the front.
void RunWriter::drain() {
  if (!own_) own_ = segments_.begin_own();
  for (size_t at = 0; at < used_; at += shape_.bytes) {
    char* page = buffer_.data() + at;
    const uint64_t sum = page_sum(own_->id, drained_ + at, page, shape_.bytes);
    std::memcpy(page, &sum, 8);
  }
  own_->write(buffer_.data(), used_, drained_);
  segments_.wrote(own_, used_);
  drained_ += used_;
  if (count_) std::memcpy(buffer_.data(), buffer_.data() + used_, shape_.bytes);
  used_ = 0;
}

RunPtr RunWriter::finish() {
  if (rows_ == 0) return nullptr;
  if (count_) close_page(count_);
  count_ = 0;
  auto run = std::make_shared<RowRun>();
  run->page_bytes = shape_.bytes;
  run->rows = rows_;
  run->pages = pages_;
  run->newest = newest_;
  run->straddles = straddles_;
  if (collects_) {
    filter_ = BlockedFilter(rows_, bits_);
    for (uint64_t mix : mixes_) filter_.add(mix);
  }
  run->filter = std::move(filter_);
  fences_.shrink_to_fit();
  run->fences = std::move(fences_);

  const std::span<const uint64_t> words = run->filter.words();
  const size_t fence_words = (run->fences.size() + 1) / 2;
  run->footer_bytes = whole_blocks(8 * (1 + fence_words + words.size()));
  AlignedBuffer footer(run->footer_bytes);
  std::memset(footer.data(), 0, run->footer_bytes);
  std::memcpy(footer.data() + 8, run->fences.data(), 4 * run->fences.size());
  if (!words.empty()) std::memcpy(footer.data() + 8 * (1 + fence_words), words.data(), 8 * words.size());

  if (own_) {
    if (used_) drain();
    seal_footer(footer.data(), run->footer_bytes, own_->id, drained_, run->rows);
    own_->write(footer.data(), run->footer_bytes, drained_);
    segments_.wrote(own_, run->footer_bytes);
    segments_.wrote_all(own_);
    run->place = {std::move(own_), 0};
  } else {
    // The checksums need the place, and the place is known when all is there: reserve, seal, write.
    buffer_.reserve(used_ + run->footer_bytes);
    std::memcpy(buffer_.data() + used_, footer.data(), run->footer_bytes);
    run->place = segments_.append(buffer_.data(), used_ + run->footer_bytes, [&](uint64_t segment, uint64_t offset) {
      for (size_t at = 0; at < used_; at += shape_.bytes) {
        char* page = buffer_.data() + at;
        const uint64_t seal = page_sum(segment, offset + at, page, shape_.bytes);
        std::memcpy(page, &seal, 8);
      }
      seal_footer(buffer_.data() + used_, run->footer_bytes, segment, offset + used_, run->rows);
    });
  }
  run->place.segment->live.fetch_add(run->bytes());
  return run;
}

// ---- reading --------------------------------------------------------------------------------------------------

RunReader::RunReader(RunPtr run, const PageShape& shape, size_t buffer_bytes, uint32_t first_page)
    : run_(std::move(run)),
      shape_(shape),
      buffer_(std::max(shape.bytes, buffer_bytes / shape.bytes * shape.bytes)),
      next_page_(first_page),
      held_end_(first_page) {
  load();
}

void RunReader::load() {
  while (next_page_ < run_->pages) {
    if (next_page_ >= held_end_) {
      const uint32_t n = static_cast<uint32_t>(
          std::min<size_t>(run_->pages - next_page_, std::max<size_t>(1, buffer_.size() / shape_.bytes)));
      run_->place.segment->read(buffer_.data(), n * shape_.bytes, run_->offset_of(next_page_));
      read_ += n * shape_.bytes;
      held_first_ = next_page_;
      held_end_ = next_page_ + n;
    }
    page_ = buffer_.data() + size_t{next_page_ - held_first_} * shape_.bytes;
    check_page(*run_, next_page_, page_, shape_);
    ++next_page_;
    row_ = 0;
    count_ = PageShape::rows(page_);
    if (count_) {
      mix_ = mix_of(key());
      return;
    }
  }
  row_ = count_ = 0;
}

void RunReader::next() {
  if (++row_ < count_)
    mix_ = mix_of(key());
  else
    load();
}

void merge_runs(const std::vector<RunPtr>& runs, const PageShape& shape, uint64_t* bytes_read,
                const std::function<bool()>& stop,
                const std::function<void(uint64_t, int64_t, uint32_t, const float*)>& visit) {
  std::vector<std::unique_ptr<RunReader>> readers;  // newest first
  for (const RunPtr& run : runs) readers.push_back(std::make_unique<RunReader>(run, shape));
  for (size_t turn = 0;; ++turn) {
    if (turn % 1024 == 0 && stop && stop()) break;
    RunReader* least = nullptr;
    for (auto& reader : readers)
      if (reader->valid() && (!least || reader->mix() < least->mix())) least = reader.get();
    if (!least) break;
    const uint64_t mix = least->mix();
    visit(mix, least->key(), least->stamp(),
          least->row());  // mixes are as different as keys: finish() is a bijection
    for (auto& reader : readers)
      if (reader->valid() && reader->mix() == mix) reader->next();
  }
  if (bytes_read)
    for (auto& reader : readers) *bytes_read += reader->bytes_read();
}

// ---- reopening ------------------------------------------------------------------------------------------------

RunFacts facts_of(const RowRun& run) {
  RunFacts facts{};
  facts.segment = run.place.segment->id;
  facts.offset = run.place.offset;
  facts.rows = run.rows;
  facts.footer_bytes = run.footer_bytes;
  facts.pages = run.pages;
  facts.newest = run.newest;
  facts.hashes = run.filter.hashes();
  facts.straddles = run.straddles;
  facts.fence_words = (run.fences.size() + 1) / 2;
  facts.filter_words = run.filter.words().size();
  return facts;
}

RunPtr open_run(Segments& segments, const RunFacts& facts, const PageShape& shape) {
  const uint64_t pages = uint64_t{facts.pages} * shape.bytes;
  const uint64_t words = facts.fence_words + facts.filter_words + 1;
  if (facts.fence_words != (uint64_t{facts.pages} + 1) / 2 || facts.filter_words > (uint64_t{1} << 35) ||
      facts.filter_words % BlockedFilter::kBlockWords != 0 ||
      (facts.filter_words > 0 && (facts.hashes < 1 || facts.hashes > BlockedFilter::kMostHashes)) ||
      facts.footer_bytes != whole_blocks(8 * words) || facts.rows > uint64_t{facts.pages} * shape.room ||
      facts.offset > (uint64_t{1} << 62))  // sums below stay within 64 bits
    throw DamagedFile("MANIFEST names an impossible run: segment " + std::to_string(facts.segment));
  auto run = std::make_shared<RowRun>();
  run->page_bytes = shape.bytes;
  SegmentPtr segment = segments.open(facts.segment, facts.offset + pages + facts.footer_bytes);
  run->pages = facts.pages;
  run->rows = facts.rows;
  run->footer_bytes = facts.footer_bytes;
  run->newest = facts.newest;
  run->straddles = facts.straddles != 0;
  AlignedBuffer footer(facts.footer_bytes);
  segment->read(footer.data(), facts.footer_bytes, facts.offset + pages);
  uint64_t met;
  std::memcpy(&met, footer.data(), 8);
  if (!seal_fits(met, footer_sum(footer.data(), facts.footer_bytes, facts.segment, facts.offset + pages, facts.rows)))
    throw DamagedFile(segment->path + " at byte " + std::to_string(facts.offset + pages) +
                      ": the checksum of a run's footer is wrong");
  run->fences.resize(facts.pages);
  std::memcpy(run->fences.data(), footer.data() + 8, 4 * size_t{facts.pages});
  if (facts.filter_words) {
    std::vector<uint64_t> filter(facts.filter_words);
    std::memcpy(filter.data(), footer.data() + 8 * (1 + facts.fence_words), 8 * facts.filter_words);
    run->filter = BlockedFilter::of_words(std::move(filter), facts.hashes);
  }
  run->place = {std::move(segment), facts.offset};
  run->place.segment->live.fetch_add(run->bytes());
  return run;
}

}  // namespace cb
