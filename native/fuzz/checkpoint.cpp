// A checkpoint of the sparse table: four bytes that say how long the MANIFEST is, the MANIFEST, the one segment.
#include <fcntl.h>
#include <sys/stat.h>

#include "core/ssd/checkpoint_manifest.h"
#include "core/ssd/damaged_files.h"
#include "fuzz/fuzz.h"

using namespace cb;

namespace {

struct Folder {
  Folder() : path("/dev/shm/ctrbox-fuzz-" + std::to_string(::getpid())) {
    ::mkdir(path.c_str(), 0700);
    ::mkdir((path + "/segments").c_str(), 0700);
    manifest = ::open((path + "/MANIFEST").c_str(), O_RDWR | O_CREAT, 0600);
    segment = ::open((path + "/segments/0000000001.seg").c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT(manifest >= 0 && segment >= 0);
  }
  ~Folder() {
    for (const char* name : {"/MANIFEST", "/segments/0000000001.seg"}) ::unlink((path + name).c_str());
    ::rmdir((path + "/segments").c_str());
    ::rmdir(path.c_str());
  }
  std::string path;
  int manifest, segment;
};

void walk(const std::string& folder) {
  const Manifest manifest = read_manifest(folder);
  const PageShape shape(manifest.shape.floats());
  Segments segments(segments_folder(folder, manifest.generation));
  AlignedBuffer page(shape.bytes);
  for (const auto& facts : manifest.runs) {
    const Run* of = nullptr;  // whose page is in the buffer, and which: it is read once for many keys
    uint32_t held = 0;
    std::vector<RunPtr> runs;
    for (const RunFacts& f : facts) runs.push_back(open_run(segments, f, shape));
    uint64_t visited = 0;
    merge_runs(
        runs, shape, nullptr, [&] { return visited > 10000; },
        [&](uint64_t mix, int64_t key, uint32_t, const float* row) {
          ++visited;
          fuzz::look_at(row, shape.row_floats * sizeof(float));
          for (const RunPtr& run : runs) {
            const auto [first, last] = run->pages_of(mix);
            run->filter.maybe(mix);
            if (first > last || last >= run->pages) continue;
            if (of != run.get() || held != first) {
              of = nullptr;
              run->place.segment->read(page.data(), shape.bytes, run->offset_of(first));
              check_page(*run, first, page.data(), shape);
              of = run.get();
              held = first;
            }
            EXPECT(find_on(page.data(), shape, key) < static_cast<int>(shape.room));
          }
        });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::begin();
  static Folder folder;
  fuzz::Input in(data, size);
  const uint32_t length = in.take<uint32_t>();
  fuzz::MemoryFile::put(folder.manifest, in.piece(length));
  fuzz::MemoryFile::put(folder.segment, in.rest());
  try {
    walk(folder.path);
  } catch (const DamagedFile&) {
  }
  try {
    damaged_segments(folder.path);
  } catch (const DamagedFile&) {
  }
  return 0;
}
