// What fuzzing (native/fuzz) found, kept: files with true checksums and false contents, numbers at the ends of their
// range.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "core/embed/table_file.h"
#include "core/ffm/model_file.h"
#include "core/ssd/checkpoint_manifest.h"
#include "core/ssd/damaged_files.h"
#include "core/system/checked_file.h"
#include "tests/check.h"

using namespace cb;

namespace {

const std::string kFolder = "test_hostile." + std::to_string(getpid());

template <class F>
bool damaged(F f) {
  try {
    f();
  } catch (const DamagedFile&) {
    return true;
  }
  return false;
}

// A folder with one segment of three blocks, and a manifest that says what it likes about a run in it.
void runs_that_cannot_be() {
  Manifest manifest;
  manifest.shape.dim = 2;
  ::mkdir((kFolder + "/segments").c_str(), 0700);
  const std::string segment = kFolder + "/segments/0000000001.seg";
  std::FILE* file = std::fopen(segment.c_str(), "wb");
  CHECK(file && std::fseek(file, 3 * 4096 - 1, SEEK_SET) == 0 && std::fputc(0, file) == 0 && std::fclose(file) == 0);
  const PageShape shape(manifest.shape.floats());
  auto met = [&](auto change) {
    RunFacts facts{1, 0, 1, 4096, 1, 0, 5, 0, 1, 8};
    change(facts);
    manifest.runs[0] = {facts};
    write_manifest(kFolder, manifest);
    // As verify does it, and as a second run of an open segment.
    Segments segments(segments_folder(kFolder, 0));
    const SegmentPtr open = segments.open(1, 0);
    return damaged_segments(kFolder).size() == 1 && damaged([&] { open_run(segments, facts, shape); });
  };
  CHECK(met([](RunFacts&) {}));  // its footer has no checksum
  CHECK(met([](RunFacts& f) { f.hashes = 50331647; }));
  CHECK(met([](RunFacts& f) { f.hashes = 0; }));
  CHECK(met([](RunFacts& f) { f.filter_words = 9; }));
  CHECK(met([](RunFacts& f) { f.offset = ~uint64_t{0} - 4095; }));  // place and length wrap around to little
  // 256 GiB of filter, more than any segment here has: refused before it is asked for.
  CHECK(met([](RunFacts& f) {
    f.filter_words = uint64_t{1} << 35;
    f.footer_bytes = whole_blocks(8 * (f.fence_words + f.filter_words + 1));
  }));
  ::unlink(segment.c_str());
  ::unlink((kFolder + "/MANIFEST").c_str());
  ::rmdir((kFolder + "/segments").c_str());
}

void accumulators_below_zero() {
  FfmSettings s;
  s.fields = 2;
  s.bits = 5;
  const std::string path = kFolder + "/model";
  auto load = [&] {
    FfmHead head;
    load_ffm(path, head);
  };
  DeepFfm model(s);
  const FfmHead head{s, {"a", "b"}, 0};
  save_ffm(path, model, head);
  load();
  model.lr()[3] = -1.0f;
  save_ffm(path, model, head);
  CHECK(damaged(load));
  model.lr()[3] = 1.0f;
  model.ffm()[model.layout().stride] = std::numeric_limits<float>::quiet_NaN();
  save_ffm(path, model, head);
  CHECK(damaged(load));
  ::unlink(path.c_str());
}

// A shard without keys is read into no memory at all.
void tables_of_no_rows() {
  TableShape shape;
  shape.dim = 2;
  const std::string path = kFolder + "/table";
  save_rows(path, shape, {}, nullptr, 1);
  CHECK(load_rows(path).keys.empty());
  ::unlink(path.c_str());
}

// A pipe would be waited for, a folder and a device hold no bytes of ours: each is refused at once.
void files_that_are_no_files() {
  ::alarm(20);  // a program that waits for the pipe is ended
  const std::string folder = kFolder + "/segments", segment = folder + "/0000000001.seg", table = kFolder + "/table";
  CHECK(::mkdir(folder.c_str(), 0700) == 0 && ::mkfifo(segment.c_str(), 0600) == 0 &&
        ::mkfifo(table.c_str(), 0600) == 0);
  Segments segments(folder);
  CHECK(damaged([&] { segments.open(1, 0); }));
  for (const std::string& path : {table, kFolder, std::string("/dev/zero")}) {
    CHECK(damaged([&] { load_rows(path); }));
    CHECK(damaged([&] { CheckedReader reader(path); }));
  }
  ::unlink(segment.c_str());
  ::unlink(table.c_str());
  ::rmdir(folder.c_str());
  ::alarm(0);
}

}  // namespace

int main() {
  CHECK(::mkdir(kFolder.c_str(), 0700) == 0);
  runs_that_cannot_be();
  accumulators_below_zero();
  tables_of_no_rows();
  files_that_are_no_files();
  ::rmdir(kFolder.c_str());
  return 0;
}
