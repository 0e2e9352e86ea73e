#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings/bindings.h"
#include "core/program/program.h"
#include "core/program/result_sinks.h"
#include "core/system/parallel.h"

using namespace cb;

namespace {

using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Pieces from Python: [(rows, [(frame or None, index or None, base), …]), …]. The caller's list keeps everything alive.
std::vector<Piece> pieces_from(nb::list list) {
  std::vector<Piece> pieces;
  pieces.reserve(nb::len(list));
  for (nb::handle item : list) {
    nb::tuple pair = nb::cast<nb::tuple>(item);
    Piece piece;
    piece.rows = nb::cast<int64_t>(pair[0]);
    for (nb::handle s : nb::cast<nb::list>(pair[1])) {
      nb::tuple source = nb::cast<nb::tuple>(s);
      Rows rows;
      if (!source[0].is_none()) rows.frame = nb::cast<Frame*>(source[0]);
      rows.base = nb::cast<int64_t>(source[2]);
      if (!source[1].is_none()) {
        Indices index = nb::cast<Indices>(source[1]);
        rows.index = index.data() + rows.base;
        rows.base = 0;
        if (static_cast<int64_t>(index.size()) < nb::cast<int64_t>(source[2]) + piece.rows)
          throw nb::value_error("there are fewer indices than rows");
        int32_t low = 0, high = -1;
        for (int64_t r = 0; r < piece.rows; ++r) {
          low = std::min(low, rows.index[r]);
          high = std::max(high, rows.index[r]);
        }
        if (low < -1 || (rows.frame && high >= rows.frame->rows()))
          throw nb::value_error("an index points outside its frame");
        rows.missing = low < 0;
      } else if (rows.frame && (rows.base < 0 || rows.base + piece.rows > rows.frame->rows())) {
        throw nb::value_error("the rows lie outside the frame");
      }
      piece.sources.push_back(rows);
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Rows from which on a short loop gives the interpreter's lock away. Below, a loop takes less time (some ten
// microseconds) than waiting for the lock again, which on sixteen cores several threads ask for at any time.
constexpr size_t kMostLocked = 100'000;

struct ReleaseIfLong {
  explicit ReleaseIfLong(size_t rows) {
    if (rows > kMostLocked) free_.emplace();
  }
  std::optional<nb::gil_scoped_release> free_;
};

// A bad row travels to Python as RowError(message, piece, position).
nb::object row_error_type;

template <class F>
void guarded(F f) {
  int64_t piece = -1, position = -1;
  std::string message;
  try {
    nb::gil_scoped_release free;
    const WorkerPool::Elsewhere here;
    f();
  } catch (const RowError& e) {
    piece = e.piece;
    position = e.position;
    message = e.what();
  } catch (const SpilledViewError& e) {
    raise_source_error(e.what());
  }
  if (piece >= 0) {
    nb::object error = row_error_type(message, piece, position);
    PyErr_SetObject(row_error_type.ptr(), error.ptr());
    throw nb::python_error();
  }
}

struct BatchPlan {
  std::vector<BatchSlot> slots;
  uint32_t dense_width = 0;
  size_t fields = 0;
};

nb::tuple run_frame(const Program& p, nb::list list, std::vector<std::string> kinds, std::vector<bool> nullable,
                    std::vector<std::shared_ptr<Frame>> keep) {
  std::vector<Piece> pieces = pieces_from(list);
  FrameBuilder builder(std::move(kinds), std::move(nullable), {keep.begin(), keep.end()});
  guarded([&] { p.run(pieces, builder); });
  auto picked = std::make_shared<std::vector<int32_t>>(builder.selected());
  return nb::make_tuple(builder.frame(), shared_array(picked->data(), {picked->size()}, picked));
}

}  // namespace

void bind_program(nb::module_& m) {
  row_error_type = nb::exception<RowError>(m, "RowError", PyExc_ValueError);

  nb::class_<Index, Table>(m, "Index", "From a hash to a row.")
      .def_prop_ro("rows", [](const Index& i) { return i.map.size(); })
      .def_static(
          "build",
          [](nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> hashes, bool keep_last,
             size_t threads) {
            nb::gil_scoped_release free;
            HashIndex::Duplicate duplicate;
            auto index = std::make_shared<Index>(
                HashIndex::of_rows({hashes.data(), hashes.size()}, keep_last, threads, duplicate));
            return std::make_tuple(index, duplicate.first, duplicate.second);
          },
          nb::arg("hashes"), nb::arg("keep_last"), nb::arg("threads") = 1,
          "Build the index on so many threads, the same for any number of them; also return the first two rows that "
          "share a hash (-1, -1: none).")
      .def(
          "point_at",
          [](Index& i, const Records& records, size_t threads) {
            nb::gil_scoped_release free;
            i.map.renumber(records.handles(), threads);
          },
          nb::arg("records"), nb::arg("threads") = 1,
          "Replace row numbers by the handles of the records made of those rows.");

  nb::class_<AsOfIndex, Table>(m, "AsOfIndex", "From a hash and a time to the newest row at or before that time.")
      .def_prop_ro("rows", &AsOfIndex::rows)
      .def_prop_ro("keys", &AsOfIndex::keys)
      .def_static(
          "build",
          [](nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> hashes,
             nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> times, bool keep_last,
             size_t threads) {
            nb::gil_scoped_release free;
            HashIndex::Duplicate duplicate;
            auto index =
                std::make_shared<AsOfIndex>(std::span(hashes.data(), hashes.size()),
                                            std::span(times.data(), times.size()), keep_last, threads, duplicate);
            return std::make_tuple(index, duplicate.first, duplicate.second);
          },
          nb::arg("hashes"), nb::arg("times"), nb::arg("keep_last"), nb::arg("threads") = 1,
          "Build the index on so many threads, the same for any number of them; also return two rows that share a hash "
          "and a time (-1, -1: none, or the last one counts).")
      .def(
          "point_at",
          [](AsOfIndex& i, const Records& records, size_t threads) {
            nb::gil_scoped_release free;
            i.renumber(records.handles(), threads);
          },
          nb::arg("records"), nb::arg("threads") = 1,
          "Replace row numbers by the handles of the records made of those rows.");

  m.def(
      "align",
      [](nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> ids,
         nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> others) {
        auto rows = std::make_shared<std::vector<int32_t>>(ids.size());
        size_t at = 0, found = 0, r = 0;
        const int64_t *id = ids.data(), *other = others.data();
        {
          const ReleaseIfLong lock(ids.size());
          constexpr size_t kBlock = 32;  // both sides mostly hold the same rows: those are met by blocks
          while (r < ids.size()) {
            if (ids.size() - r >= kBlock && others.size() - at >= kBlock) {
              int64_t differ = 0;
              for (size_t k = 0; k < kBlock; ++k) differ |= id[r + k] ^ other[at + k];
              if (!differ) {
                for (size_t k = 0; k < kBlock; ++k) (*rows)[r + k] = static_cast<int32_t>(at + k);
                r += kBlock;
                at += kBlock;
                found += kBlock;
                continue;
              }
            }
            for (size_t end = std::min(ids.size(), r + kBlock); r < end; ++r) {
              while (at < others.size() && other[at] < id[r]) ++at;
              bool here = at < others.size() && other[at] == id[r];
              (*rows)[r] = here ? static_cast<int32_t>(at) : -1;
              found += here;
              at += here;
            }
          }
        }
        return std::make_tuple(shared_array(rows->data(), {rows->size()}, rows), found);
      },
      nb::arg("ids"), nb::arg("others"),
      "For ascending ids the row of each among ascending others, -1 where it is missing; and how many were found.");

  m.def(
      "pick_rows",
      [](nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> rows,
         nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> picked) {
        auto out = std::make_shared<std::vector<int32_t>>(picked.size());
        {
          const ReleaseIfLong lock(picked.size());
          const int32_t *from = rows.data(), *at = picked.data();
          const size_t most = rows.size();
          uint32_t last = 0;
          for (size_t k = 0; k < picked.size(); ++k) last = std::max(last, static_cast<uint32_t>(at[k]));
          if (picked.size() && last >= most) throw std::out_of_range("a position lies outside the rows");
          for (size_t k = 0; k < picked.size(); ++k) (*out)[k] = from[at[k]];
        }
        return shared_array(out->data(), {out->size()}, out);
      },
      nb::arg("rows"), nb::arg("picked"),
      nb::sig("def pick_rows(rows: NDArray[numpy.int32], picked: NDArray[numpy.int32]) -> NDArray[numpy.int32]"),
      "Return rows[picked]; for many rows without the interpreter's lock.");

  m.def(
      "first_descent",
      [](nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> ids) {
        // Blocks without a branch inside become vectors: ids are looked at twice as fast as they are read from memory.
        constexpr size_t kBlock = 1024;
        const int64_t* id = ids.data();
        const ReleaseIfLong lock(ids.size());
        for (size_t from = 1; from < ids.size(); from += kBlock) {
          size_t to = std::min(ids.size(), from + kBlock);
          int64_t falls = 0;
          for (size_t r = from; r < to; ++r) falls |= static_cast<int64_t>(id[r] <= id[r - 1]);
          if (!falls) continue;
          for (size_t r = from; r < to; ++r)
            if (id[r] <= id[r - 1]) return static_cast<int64_t>(r);
        }
        return int64_t{-1};
      },
      nb::arg("ids"), "The first row whose id is not above the one before it, or -1.");

  nb::class_<BatchPlan>(m, "BatchPlan", "What the slots of a batch are.")
      .def(nb::init<>())
      .def("label", [](BatchPlan& b, const std::string& kind) { b.slots.push_back({BatchSlot::What::Label, kind}); })
      .def("weight", [](BatchPlan& b, const std::string& kind) { b.slots.push_back({BatchSlot::What::Weight, kind}); })
      .def("group", [](BatchPlan& b, const std::string& kind) { b.slots.push_back({BatchSlot::What::Group, kind}); })
      .def("dense",
           [](BatchPlan& b, const std::string& kind, uint32_t width) {
             b.slots.push_back({BatchSlot::What::Dense, kind, b.dense_width, width});
             b.dense_width += width;
           })
      .def("keys", [](BatchPlan& b, const std::string& kind) {
        b.slots.push_back({BatchSlot::What::Keys, kind, static_cast<uint32_t>(b.fields++), 1});
      });

  nb::class_<Program>(m, "Program", "The operators of a plan as instructions over registers.")
      .def(nb::init<uint32_t>(), nb::arg("chunk_rows"))
      .def("load", &Program::load)
      .def("literal", [](Program& p, const std::string& kind, int64_t i, double f,
                         nb::bytes s) { return p.literal(kind, i, f, std::string(s.c_str(), s.size())); })
      .def(
          "call",
          [](Program& p, const std::string& name, const std::string& args, const std::vector<int>& in,
             const std::vector<std::string>& results, const std::vector<bool>& nullable,
             const std::vector<int64_t>& ints, const std::vector<double>& floats, nb::list texts, nb::object table,
             bool strict) {
            std::vector<std::string> strings;
            for (nb::handle t : texts) {
              nb::bytes b = nb::cast<nb::bytes>(t);
              strings.emplace_back(b.c_str(), b.size());
            }
            std::shared_ptr<Table> held;
            if (!table.is_none()) held = nb::cast<std::shared_ptr<Table>>(table);
            return p.call(name, args, in, results, nullable, ints, floats, strings, held, strict);
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
          nb::arg())
      .def("lookup", nb::overload_cast<std::shared_ptr<Index>, int, int64_t>(&Program::lookup))
      .def("lookup", nb::overload_cast<std::shared_ptr<SpilledView>, int, int64_t>(&Program::lookup))
      .def("lookup_as_of", nb::overload_cast<std::shared_ptr<AsOfIndex>, int, int, int64_t>(&Program::lookup_as_of))
      .def("lookup_as_of", nb::overload_cast<std::shared_ptr<SpilledView>, int, int, int64_t>(&Program::lookup_as_of))
      .def("gather", nb::overload_cast<std::shared_ptr<Records>, int, const std::vector<int>&>(&Program::gather))
      .def("gather", nb::overload_cast<std::shared_ptr<SpilledView>, int, const std::vector<int>&>(&Program::gather))
      .def("emit", &Program::emit)
      .def("finish", &Program::finish)
      .def_prop_ro("chunk_rows", &Program::chunk_rows)
      .def_prop_ro("worker_bytes", &Program::worker_bytes)
      .def(
          "profile",
          [](const Program& p) {
            std::vector<std::tuple<std::string, uint64_t, uint64_t>> lines;
            for (size_t k = 0; k < p.instructions(); ++k)
              lines.emplace_back(p.instruction_name(k), p.nanos(k), p.warnings(k));
            return lines;
          },
          "Per instruction: name, nanoseconds so far, rows warned of.")
      .def(
          "looked",
          [](const Program& p) {
            std::vector<std::tuple<uint64_t, uint64_t>> lines;
            for (const Looked& met : p.looked()) lines.emplace_back(met.keys, met.missed);
            return lines;
          },
          "Per instruction: keys that it looked up for a join, nulls left out, and those among them without a row.")
      .def(
          "converted",
          [](const Program& p) {
            nb::list lines;
            for (const std::vector<Converted>& results : p.converted()) {
              nb::list line;
              for (const Converted& met : results) {
                nb::object example = nb::none();
                if (met.example) example = nb::bytes(met.example->data(), met.example->size());
                line.append(nb::make_tuple(met.values, met.lost, met.early, met.late, example));
              }
              lines.append(line);
            }
            return lines;
          },
          nb::sig("def converted(self) -> list[list[tuple[int, int, int, int, bytes | None]]]"),
          "Per instruction and result that it counts (a cast has one, JSON one for each path): rows that it converted, "
          "nulls left out; those that it lost; times that it made in January 1970 and from the year 2200 on; the first "
          "value lost, or the first time in microseconds.")
      .def("run_batch",
           [](const Program& p, nb::list list, const BatchPlan& plan, const std::vector<double>& hints) {
             std::vector<Piece> pieces = pieces_from(list);
             int64_t rows = 0;
             for (const Piece& piece : pieces) rows += piece.rows;
             std::shared_ptr<Batch> batch;
             guarded([&] {
               BatchSink sink(plan.slots, plan.dense_width, plan.fields, rows, hints);
               p.run(pieces, sink);
               batch = sink.batch();
             });
             return batch;
           })
      .def("run_frame", &run_frame)
      .def(
          "run_records",
          [](const Program& p, nb::list list, std::shared_ptr<Records> records) {
            std::vector<Piece> pieces = pieces_from(list);
            RecordSink sink(records);
            guarded([&] { p.run(pieces, sink); });
          },
          "Append the emitted fields of every row to the records.");
}
