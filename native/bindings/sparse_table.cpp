#include <nanobind/stl/map.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings/shared_by_tables.h"
#include "core/ssd/damaged_files.h"
#include "core/ssd/next_use.h"
#include "core/ssd/sparse_table.h"

using namespace cb;

namespace {

using Distances = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::list next_uses_of(const std::vector<Keys>& batches, size_t answered) {
  std::vector<std::span<const int64_t>> keys;
  for (const Keys& batch : batches) keys.push_back(span_of(batch));
  auto found = std::make_shared<std::vector<std::vector<uint8_t>>>();
  {
    nb::gil_scoped_release free;
    *found = next_uses(keys, answered);
  }
  nb::list out;
  for (const auto& one : *found) out.append(shared_array(one.data(), {one.size()}, found));
  return out;
}

}  // namespace

void bind_sparse_table(nb::module_& m) {
  m.def("next_uses", &next_uses_of, nb::arg("batches"), nb::arg("answered"),
        nb::sig("def next_uses(batches: Sequence[NDArray[numpy.int64]], answered: int) -> list[NDArray[numpy.uint8]]"),
        "Of each key of the first `answered` batches: how many batches later it comes again, 0 where none of the next "
        "127 that are given has it.");
  m.def(
      "shard_bounds", [](Keys keys) { return shard_bounds(span_of(keys)); }, nb::arg("keys"),
      "Keys before each of 64 shards, and all; ValueError where they are not in the order of shards.");
  nb::class_<Scan>(m, "TableScan", "Where a scan of one of 64 shards of a SparseTable stands.")
      .def(
          "__init__",
          [](Scan* self, unsigned shard, uint64_t since) {
            if (shard >= kShards) throw nb::value_error("expected the number of a shard, 0 to 63");
            new (self) Scan(shard, since);
          },
          nb::arg("shard"), nb::arg("since"));
  nb::class_<SparseTable> table(m, "SparseTable", "Keys to rows of floats and their optimizers' states, on an SSD.");
  bind_life(table);
  bind_pull_and_push(table);
  table
      .def(
          "join_life",
          [](SparseTable& t, const std::string& folder, bool first) {
            with_file(folder + "/MANIFEST", [&] {
              const Manifest manifest = read_manifest(folder);
              if (manifest.life) t.join_life(*manifest.life, first);
            });
          },
          nb::arg("folder"), nb::arg("first"), "Take the clock and the sketch of one part of a saved table.")
      .def(
          "__init__",
          [](SparseTable* self, const std::string& folder, const Shape& shape, size_t ram, size_t threads,
             const std::string& policy, size_t segment_bytes, double compaction_bytes_per_s, bool read_only) {
            const TableShape s = shape_of(shape);
            with_file(folder, [&] {
              SparseOptions options;
              options.ram = ram;
              options.threads = threads;
              options.policy = policy;
              options.segment_bytes = segment_bytes;
              options.compaction_bytes_per_s = compaction_bytes_per_s;
              options.read_only = read_only;
              new (self) SparseTable(folder, s, options);
              return 0;
            });
          },
          nb::arg("folder"), nb::arg("shape"), nb::arg("ram"), nb::arg("threads"), nb::arg("policy"),
          nb::arg("segment_bytes"), nb::arg("compaction_bytes_per_s"), nb::arg("read_only"))
      .def_static(
          "saved_shape",
          [](const std::string& folder) -> Shape {
            return tuple_of(with_file(folder + "/MANIFEST", [&] { return read_manifest(folder).shape; }));
          },
          nb::arg("folder"))
      .def_static(
          "generation",
          [](const std::string& folder) {
            return with_file(folder + "/MANIFEST", [&] { return read_manifest(folder).generation; });
          },
          nb::arg("folder"), "Which folder of segments a table's MANIFEST names.")
      .def_static(
          "adopt",
          [](const std::string& folder, const std::string& source, uint64_t generation) {
            with_file(folder, [&] {
              Manifest manifest = read_manifest(source);
              manifest.generation = generation;
              sync_folder(segments_folder(folder, generation));
              write_manifest(folder, manifest);
              return 0;
            });
          },
          nb::arg("folder"), nb::arg("source"), nb::arg("generation"),
          "Make a folder's MANIFEST that of another, whose segments are already in the folder of that generation.")
      .def_static(
          "damaged",
          [](const std::string& folder) { return with_file(folder, [&] { return damaged_segments(folder); }); },
          nb::arg("folder"), "Segments that are not as they were written, and what is wrong with each.")
      .def_static(
          "runs_by_segment",
          [](const std::string& folder) {
            nb::dict out;
            for (const auto& [segment, runs] : with_file(folder, [&] { return runs_by_segment(folder); })) {
              nb::list facts;
              for (const std::string& one : runs) facts.append(nb::bytes(one.data(), one.size()));
              out[nb::int_(segment)] = facts;
            }
            return out;
          },
          nb::arg("folder"), nb::sig("def runs_by_segment(folder: str) -> dict[int, list[bytes]]"))
      .def_static(
          "ram_bounds",
          [](const Shape& shape, const std::string& policy) {
            return std::pair(least_memory(shape_of(shape), policy), most_memory(shape_of(shape), policy));
          },
          nb::arg("shape"), nb::arg("policy"), "The least and the most bytes that a table can use.")
      .def_static(
          "plan_memory",
          [](const Shape& shape, const std::string& policy, size_t ram) {
            const MemoryPlan plan = plan_memory(shape_of(shape), policy, ram);
            return std::map<std::string, uint64_t>{{"rows", plan.rows},
                                                   {"shards", kShards},
                                                   {"rows_a_shard", plan.places},
                                                   {"place_bits", plan.place_bits},
                                                   {"tag_bits", plan.tag_bits},
                                                   {"row_bytes", plan.row_bytes},
                                                   {"index_bytes", plan.index_bytes}};
          },
          nb::arg("shape"), nb::arg("policy"), nb::arg("ram"), "How a table would divide its memory; takes none.")
      .def(
          "prefetch",
          [](SparseTable& t, Keys keys, std::optional<Distances> next_use) {
            SparseTable::NextUse known;
            if (next_use) known.emplace(next_use->data(), next_use->size());
            with_file("", [&] { t.prefetch(span_of(keys), known); });
          },
          nb::arg("keys"), nb::arg("next_use") = nb::none())
      .def(
          "read",
          [](SparseTable& t, Keys keys) {
            auto rows = std::make_shared<Buffer<float>>();
            with_file("", [&] {
              rows->resize(keys.size() * t.shape().floats());
              t.read(span_of(keys), rows->data());
            });
            return shared_array(rows->data(), {keys.size(), t.shape().floats()}, rows);
          },
          nb::arg("keys"))
      .def(
          "write",
          [](SparseTable& t, Keys keys, Gradients rows, bool known) {
            if (rows.shape(0) != keys.size() || rows.shape(1) != t.shape().floats())
              throw nb::value_error("rows must have the shape (keys, floats)");
            with_file("", [&] { t.write(span_of(keys), rows.data(), known); });
          },
          nb::arg("keys"), nb::arg("rows"), nb::arg("known"))
      .def("checkpoint", [](SparseTable& t) { return with_file("", [&] { return t.checkpoint(); }); })
      .def(
          "save", [](SparseTable& t, const std::string& folder) { with_file(folder, [&] { t.save(folder); }); },
          nb::arg("folder"))
      .def("flush", [](SparseTable& t) { with_file("", [&] { t.flush(); }); })
      .def("compact", [](SparseTable& t) { with_file("", [&] { t.compact(); }); })
      .def("verify", [](SparseTable& t) { return with_file("", [&] { return t.verify(); }); })
      .def(
          "scan_next",
          [](SparseTable& t, Scan& scan) {
            auto found = std::make_shared<Scanned>(with_file("", [&] { return t.scan_next(scan); }));
            const size_t n = found->keys.size(), floats = t.shape().floats();
            return nb::make_tuple(shared_array(found->keys.data(), {n}, found),
                                  shared_array(found->versions.data(), {n}, found),
                                  shared_array(found->rows.data(), {n, floats}, found));
          },
          nb::arg("scan"), "Keys, versions and rows of the next step of a scan; none at its end.")
      .def("stats", &SparseTable::stats)
      .def_prop_ro("last_compaction_error", &SparseTable::last_compaction_error,
                   "Text of the last error of the background compaction; empty where there was none.")
      .def(
          "take_compaction_errors",
          [](SparseTable& t) {
            const CompactionErrors::News news = t.take_compaction_errors();
            return std::pair(news.count, news.last);
          },
          "How often the background compaction failed since the last call, and the text of the last error.")
      .def_prop_ro("floats", [](const SparseTable& t) { return t.shape().floats(); })
      .def_prop_ro("version", &SparseTable::number)
      .def_prop_ro("size", &SparseTable::size)
      .def_prop_ro("bytes", &SparseTable::memory);
}
