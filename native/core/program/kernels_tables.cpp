// Look-ups in dictionaries and histories.
#include <stdexcept>

#include "core/program/kernel_shapes.h"
#include "core/program/lookup_tables.h"

namespace cb {

Dictionary::Dictionary(const std::vector<uint64_t>& hashes, std::vector<int64_t> ids, std::vector<double> vectors,
                       uint32_t width)
    : index_(hashes.size()), ids_(std::move(ids)), vectors_(std::move(vectors)) {
  if (ids_.empty() ? vectors_.size() != hashes.size() * width : ids_.size() != hashes.size())
    throw std::invalid_argument("a dictionary needs one value per word");
  if (hashes.size() >= HashIndex::kEmpty)
    throw std::invalid_argument("a dictionary has 2^32 words or more; expected fewer");
  for (size_t k = 0; k < hashes.size(); ++k) index_.insert(hashes[k], static_cast<uint32_t>(k));
  view_ = {index_.view(), ids_.empty() ? nullptr : ids_.data(), vectors_.empty() ? nullptr : vectors_.data(), width};
}

History::History(const std::vector<uint64_t>& hashes, std::vector<int64_t> buckets, std::vector<int64_t> shows,
                 std::vector<int64_t> clicks)
    : index_(hashes.size() / 2 + 1), bucket_(std::move(buckets)), shows_(std::move(shows)), clicks_(std::move(clicks)) {
  size_t n = hashes.size();
  if (bucket_.size() != n || shows_.size() != n || clicks_.size() != n)
    throw std::invalid_argument("history: the columns have different lengths");
  uint32_t row = 0;
  for (size_t k = 0; k < n; ++k) {
    bool fresh = k == 0 || hashes[k] != hashes[k - 1];
    if (!fresh && bucket_[k] <= bucket_[k - 1]) throw std::invalid_argument("history: the buckets are out of order");
    if (fresh) {
      if (index_.insert(hashes[k], row++) != HashIndex::kEmpty)
        throw std::invalid_argument("history: the keys are out of order");
      begin_.push_back(k);
    } else {
      shows_[k] += shows_[k - 1];
      clicks_[k] += clicks_[k - 1];
    }
  }
  begin_.push_back(n);
  view_ = {index_.view(), begin_.data(), bucket_.data(), shows_.data(), clicks_.data()};
}

void add_tables(Catalogue& c) {
  Lines lookup(c, "table_lookup.h");
  lookup.add("dictionary_id", "k", "i", CB_RUN(map, DictionaryId));
  lookup.add("dictionary_id", "*k", "*i", CB_RUN(each, DictionaryId));
  lookup.add("dictionary_maybe", "k", "i", CB_RUN(partial, DictionaryMaybeId));
  lookup.add("dictionary_vector", "k", "*f", CB_RUN(map, DictionaryVector));
  lookup.add("history_shows", "k,t", "i", CB_RUN(map, HistoryShows));
  lookup.add("history_clicks", "k,t", "i", CB_RUN(map, HistoryClicks));
  lookup.add("history_rate", "k,t", "f", CB_RUN(map, HistoryRate));
}

}  // namespace cb
