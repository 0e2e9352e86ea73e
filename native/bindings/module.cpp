// The native module of CTRBox, as a table of contents.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>

#include "bindings/bindings.h"
#include "core/system/heap_before_fork.h"
#include "core/system/parallel.h"
#include "core/system/usable_cores.h"

NB_MODULE(_native, m) {
  m.doc() = "Native core of CTRBox: operators, programs, indexes, batches.";
  nb::set_leak_warnings(false);  // arrays still alive when the interpreter ends are no leak
  bind_catalogue(m);             // which kernels there are; hashing of names
  bind_operator_tables(m);       // sets, boundaries, JSON paths, dictionaries
  bind_frame(m);                 // columns in, columns out
  bind_program(m);               // instructions over registers
  bind_spilled_view(m);          // joined views on disk
  bind_batch(m);                 // what training gets
  bind_unique_keys(m);           // unique keys, pooling, gradients
  bind_memory_table(m);          // tables of trainable rows
  bind_published_rows(m);        // rows of a published version, by key
  bind_network(m);               // a step of the usual click models
  bind_sparse_table(m);          // such a table on an SSD
  bind_ffm(m);                   // the online engine, its examples and files
  bind_history_attention(m);     // over the history of a request
  bind_publish(m);               // weights as 16-bit codes, patches
  bind_request_rows(m);          // candidates of a request from its JSON
  bind_context_cache(m);         // what was worked out from contexts of requests
  bind_request_plan(m);          // requests without Python: plans as files, bytes to scores
  bind_parquet(m);               // columns of a row group from their bytes
  bind_history(m);               // earlier events by key: histories and sliding windows
  bind_vectors(m);               // the best rows by inner product
  bind_truncated_mapping(m);     // files that are cut while they are mapped

  m.def(
      "parallel_calls",
      [] {
        const cb::WorkerPool::Calls& c = cb::WorkerPool::calls_of_this_thread();
        return std::map<std::string, size_t>{
            {"calls", c.calls}, {"asked", c.asked}, {"room", c.room}, {"came", c.came}};
      },
      "Count this thread's parallel calls, the helpers they asked for, those for whom other stages left a core, and "
      "those "
      "that came before the work was done.");
  m.def(
      "fill_heap_holes", [] { return cb::fill_heap_holes(); },
      "Fill the holes of the heap before forking, so that processes that are forked copy fewer pages; return how many "
      "bytes were filled.");
  m.def("usable_cores", &cb::usable_cores,
        "Count the cores that this process may use: by affinity and by limits of CPU time.");
  m.def(
      "cgroup_cores",
      [](const std::string& memberships, const std::string& root) { return cb::cgroup_cores(memberships, root); },
      nb::arg("memberships"), nb::arg("root"),
      "Return the limit of cores of the cgroups in a text like /proc/self/cgroup, mounted at a folder; 0.0: no limit.");
}
