#include "core/history/read_then_feed.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/shared_by_tables.h"
#include "core/history/state_file.h"

using namespace cb;

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PastShape shape_of(const std::vector<std::pair<uint32_t, double>>& words, int64_t gap, int64_t lateness, int64_t within,
                   uint64_t last, bool keeps_last, int64_t back) {
  PastShape shape{{}, gap, lateness, within, last, keeps_last, back};
  for (auto [kind, half_life] : words) shape.words.push_back({static_cast<PastWordKind>(kind), half_life});
  return shape;
}

// An argument that may be None.
template <class T>
const T* rows_or_null(nb::handle argument, size_t rows, const char* name, std::vector<In<T>>& keep) {
  if (argument.is_none()) return nullptr;
  keep.push_back(nb::cast<In<T>>(argument));
  if (keep.back().shape(0) != rows)
    throw nb::value_error((std::string(name) + " must have one value for each row").c_str());
  return keep.back().data();
}

// The rows of a call, checked, and what keeps their memory.
struct Given {
  PastRows in;
  std::vector<In<uint8_t>> flags;
  std::vector<In<uint64_t>> values;
  std::vector<In<int64_t>> offsets;
  std::vector<In<uint8_t>> texts;

  Given(const HistoryState& state, In<uint64_t> key, In<int64_t> time, nb::handle valid, nb::handle asks,
        nb::handle feeds, nb::list columns) {
    in.rows = key.shape(0);
    in.key = key.data();
    in.time = time.data();
    if (time.shape(0) != in.rows) throw nb::value_error("time must have one value for each row");
    in.valid = rows_or_null(valid, in.rows, "valid", flags);
    in.asks = rows_or_null(asks, in.rows, "asks", flags);
    in.feeds = rows_or_null(feeds, in.rows, "feeds", flags);
    if (!in.feeds) throw nb::value_error("feeds must be given");
    const std::vector<PastWord>& words = state.shape().words;
    if (nb::len(columns) != words.size()) throw nb::value_error("expected one column for each word");
    for (size_t w = 0; w < words.size(); ++w) {
      PastColumn column;
      if (words[w].kind == PastWordKind::kText) {
        auto [at, text] = nb::cast<std::tuple<In<int64_t>, In<uint8_t>>>(columns[w]);
        check_texts(at, text);
        column.offsets = at.data();
        column.text = reinterpret_cast<const char*>(text.data());
        offsets.push_back(at);
        texts.push_back(text);
      } else {
        column.values = rows_or_null(columns[w], in.rows, "a column", values);
        if (!column.values) throw nb::value_error("a column must be given");
      }
      in.columns.push_back(column);
    }
  }

  void check_texts(const In<int64_t>& at, const In<uint8_t>& text) const {
    bool sound = at.shape(0) == in.rows + 1 && at.data()[0] >= 0;
    for (size_t r = 0; sound && r < in.rows; ++r) sound = at.data()[r] <= at.data()[r + 1];
    if (!sound || at.data()[in.rows] > static_cast<int64_t>(text.shape(0)))
      throw nb::value_error("offsets of a text column must ascend and lie inside its bytes");
  }
};

template <class T>
nb::object array_of(std::vector<T>&& values) {
  auto hold = std::make_shared<std::vector<T>>(std::move(values));
  return shared_array(hold->data(), {hold->size()}, hold);
}

// Texts by their numbers, as offsets and bytes.
nb::tuple texts_of(const TextPool& pool, const std::vector<uint64_t>& numbers) {
  std::vector<int64_t> offsets{0};
  std::vector<uint8_t> bytes;
  offsets.reserve(numbers.size() + 1);
  for (uint64_t number : numbers) {
    const std::string_view text = pool.text(number);
    bytes.insert(bytes.end(), text.begin(), text.end());
    offsets.push_back(static_cast<int64_t>(bytes.size()));
  }
  return nb::make_tuple(array_of(std::move(offsets)), array_of(std::move(bytes)));
}

nb::tuple lists(HistoryState& state, In<uint64_t> key, In<int64_t> time, nb::handle valid, nb::handle asks,
                nb::handle feeds, nb::list columns, size_t threads) {
  const Given given(state, key, time, valid, asks, feeds, columns);
  PastLists found;
  with_file("", [&] { found = past_lists(state, given.in, threads); });
  nb::list words;
  for (size_t w = 0; w < found.words.size(); ++w) {
    if (state.shape().words[w].kind == PastWordKind::kText)
      words.append(texts_of(state.texts(), found.words[w]));
    else
      words.append(array_of(std::move(found.words[w])));
  }
  with_file("", [&] { state.forget_texts(); });
  return nb::make_tuple(array_of(std::move(found.offsets)), words, array_of(std::move(found.ages)));
}

nb::object distinct(HistoryState& state, In<uint64_t> key, In<int64_t> time, nb::handle valid, nb::handle asks,
                    nb::handle feeds, nb::list columns, size_t threads) {
  const Given given(state, key, time, valid, asks, feeds, columns);
  return array_of(with_file("", [&] { return past_distinct(state, given.in, threads); }));
}

nb::list counters(HistoryState& state, In<uint64_t> key, In<int64_t> time, nb::handle valid, nb::handle asks,
                  nb::handle feeds, nb::list columns, const std::vector<std::tuple<uint32_t, size_t, int64_t>>& asked,
                  size_t threads) {
  const Given given(state, key, time, valid, asks, feeds, columns);
  std::vector<PastCounter> reads;
  for (auto [kind, word, within] : asked) {
    if (kind < 1 || kind > 5 || within < 0 || within > kMostSpan)
      throw nb::value_error("there is no counter with this number");
    reads.push_back({static_cast<CounterKind>(kind), word, within});
  }
  PastCounts found;
  with_file("", [&] { found = past_counts(state, given.in, reads, threads); });
  nb::list out;
  for (size_t c = 0; c < reads.size(); ++c)
    out.append(nb::make_tuple(array_of(std::move(found.values[c])), array_of(std::move(found.seen[c]))));
  return out;
}

// An empty state of the same shape, with the same budget and folder.
HistoryState empty_like(const HistoryState& like) {
  HistoryState state(like.shape());
  if (like.spills()) state.spill_to(like.spill_folder(), like.spill_budget());
  return state;
}

int64_t late(HistoryState& state, In<int64_t> time, nb::handle valid) {
  std::vector<In<uint8_t>> keep;
  return state.late(time.data(), rows_or_null(valid, time.shape(0), "valid", keep), time.shape(0));
}

}  // namespace

void bind_history(nb::module_& m) {
  nb::class_<HistoryState>(m, "HistoryState",
                           "Earlier events by key: histories and running totals (core/history/state.h).")
      .def(
          "__init__",
          [](HistoryState* self, const std::vector<std::pair<uint32_t, double>>& words, int64_t gap, int64_t lateness,
             int64_t within, uint64_t last, bool keeps_last,
             int64_t back) { new (self) HistoryState(shape_of(words, gap, lateness, within, last, keeps_last, back)); },
          nb::arg("words"), nb::arg("gap"), nb::arg("lateness"), nb::arg("within"), nb::arg("last"),
          nb::arg("keeps_last"), nb::arg("back") = 0)
      .def("late", &late, nb::arg("time"), nb::arg("valid").none(),
           "Return the first row that comes more than the lateness after the newest time, or -1.")
      .def("lists", &lists, nb::arg("key"), nb::arg("time"), nb::arg("valid").none(), nb::arg("asks").none(),
           nb::arg("feeds"), nb::arg("columns"), nb::arg("threads"),
           "Read and feed rows; return the offsets, the values of each word and the ages of what rows saw.")
      .def("distinct", &distinct, nb::arg("key"), nb::arg("time"), nb::arg("valid").none(), nb::arg("asks").none(),
           nb::arg("feeds"), nb::arg("columns"), nb::arg("threads"),
           "Read and feed rows; return how many different values each row that asks saw.")
      .def("counters", &counters, nb::arg("key"), nb::arg("time"), nb::arg("valid").none(), nb::arg("asks").none(),
           nb::arg("feeds"), nb::arg("columns"), nb::arg("asked"), nb::arg("threads"),
           "Read and feed rows; return for each counter its 64-bit values and whether rows saw an event.")
      .def(
          "save",
          [](const HistoryState& state, const std::string& path) {
            with_file(path, [&] { save_past(state, path, false); });
          },
          nb::arg("path"))
      .def(
          "append",
          [](const HistoryState& state, const std::string& path) {
            with_file(path, [&] { save_past(state, path, true); });
          },
          nb::arg("path"), "Save the state behind what the file holds.")
      .def(
          "loaded",
          [](const HistoryState& like, const std::string& path) {
            return with_file(path, [&] { return load_past(empty_like(like), path); });
          },
          nb::arg("path"), "Return the saved state of the same shape.")
      .def(
          "loaded_at",
          [](const HistoryState& like, const std::string& path, uint64_t begin) {
            uint64_t end = 0;
            HistoryState state = with_file(path, [&] { return load_past(empty_like(like), path, begin, &end); });
            return std::pair<HistoryState, uint64_t>(std::move(state), end);
          },
          nb::arg("path"), nb::arg("begin"),
          "Return the state of the same shape that begins at a byte of a file, and the place of the byte behind it.")
      .def(
          "spill_to",
          [](HistoryState& state, const std::string& folder, size_t budget) {
            with_file(folder, [&] { state.spill_to(folder, budget); });
          },
          nb::arg("folder"), nb::arg("budget"), "Move events to files in a folder where they need more memory.")
      .def("try_disk_again", &HistoryState::try_disk_again, "Move events to the disk again after a write that failed.")
      .def_prop_ro("spill_error", &HistoryState::spill_error, "The error number of a write that failed, or 0.")
      .def_prop_ro("spilled_bytes", &HistoryState::spilled_bytes)
      .def_prop_ro("newest", [](const HistoryState& state) { return state.newest(); })
      .def_prop_ro("keys", &HistoryState::keys)
      .def_prop_ro("events", &HistoryState::events)
      .def_prop_ro("bytes", &HistoryState::bytes);
}
