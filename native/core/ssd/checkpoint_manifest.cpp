#include "core/ssd/checkpoint_manifest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/system/checked_file.h"

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'S', 'P', 'A', 'R', 'S'};
constexpr char kEnd[8] = {'C', 'T', 'R', 'S', 'P', 'E', 'N', 'D'};
constexpr uint32_t kVersion = 1;
static_assert(sizeof(RunFacts) == 64);

}  // namespace

std::string segments_folder(const std::string& folder, uint64_t generation) {
  std::string name = folder;
  name += "/segments";
  if (generation) {
    name += '-';
    name += std::to_string(generation);
  }
  return name;
}

bool has_manifest(const std::string& folder) {
  struct stat facts;
  return ::stat((folder + "/MANIFEST").c_str(), &facts) == 0;
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  const std::string path = folder + "/MANIFEST", aside = path + ".aside";
  try {
    CheckedWriter file(aside);
    file.put(kMagic, sizeof kMagic);
    file.put(kVersion);
    file.seal();
    put_head(file, manifest.shape);
    if (manifest.life) manifest.life->put(file);
    file.put(manifest.number);
    file.put(manifest.keys);
    file.put(manifest.next_segment);
    file.put(manifest.generation);
    file.seal();
    for (const auto& runs : manifest.runs) {
      file.put(uint64_t{runs.size()});
      if (!runs.empty()) file.put(runs.data(), runs.size() * sizeof(RunFacts));
      file.seal();
    }
    file.put(kEnd, sizeof kEnd);
    file.seal();
    file.close();
    int again = ::open(aside.c_str(), O_RDONLY | O_CLOEXEC);
    if (again < 0) throw_errno();
    const int failed = ::fsync(again) != 0 ? errno : 0;
    ::close(again);
    if (failed) throw std::system_error(failed, std::generic_category());
    if (::rename(aside.c_str(), path.c_str()) != 0) throw_errno();
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  sync_folder(folder);
}

Manifest read_manifest(const std::string& folder) {
  CheckedReader file(folder + "/MANIFEST");
  Manifest manifest;
  char magic[8];
  if (file.left() < 20) throw DamagedFile("MANIFEST is not a manifest: only " + std::to_string(file.left()) + " bytes");
  file.get(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    throw DamagedFile("MANIFEST is not a manifest: it does not start with CTRSPARS");
  const uint32_t version = file.get<uint32_t>();
  if (version != kVersion) throw DamagedFile("MANIFEST has version " + std::to_string(version) + ", expected 1");
  file.check_seal("the version");
  manifest.shape = get_head(file);
  if (manifest.shape.dense()) throw DamagedFile("MANIFEST names a dense optimizer, which needs all rows in memory");
  if (!manifest.shape.life.none()) {
    auto life = std::make_shared<LifeState>(manifest.shape.life, manifest.shape.seed);
    life->get(file);
    manifest.life = std::move(life);
  }
  manifest.number = file.get<uint64_t>();
  manifest.keys = file.get<uint64_t>();
  manifest.next_segment = file.get<uint64_t>();
  manifest.generation = file.get<uint64_t>();
  file.check_seal("the counters");
  for (unsigned s = 0; s < kShards; ++s) {
    const uint64_t count = file.get<uint64_t>();
    if (count > file.left() / sizeof(RunFacts)) throw DamagedFile("MANIFEST claims more runs than it has bytes");
    manifest.runs[s].resize(count);
    if (count) file.get(manifest.runs[s].data(), count * sizeof(RunFacts));
    file.check_seal("the runs of shard " + std::to_string(s));
  }
  file.get(magic, sizeof magic);
  if (std::memcmp(magic, kEnd, sizeof magic) != 0) throw DamagedFile("MANIFEST has no end mark");
  file.check_seal("the end");
  if (file.left()) throw DamagedFile("MANIFEST has bytes after its end");
  return manifest;
}

}  // namespace cb
