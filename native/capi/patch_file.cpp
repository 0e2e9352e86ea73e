#include "capi/patch_file.h"

#include <algorithm>
#include <cstring>

#include "capi/sha256.h"
#include "capi/whole_file.h"
#include "core/system/checked_file.h"

#ifdef CTRBOX_ZSTD
// Of libzstd's stable interface; declared here, so that the library alone is enough to build with.
extern "C" {
size_t ZSTD_decompress(void* to, size_t room, const void* from, size_t size);
unsigned ZSTD_isError(size_t code);
}
#endif

namespace cb {

namespace {

constexpr char kMagic[8] = {'C', 'T', 'R', 'P', 'A', 'T', 'C', 'H'};
constexpr uint32_t kVersion = 1, kMostRegions = 65536;
constexpr uint64_t kSeal = 32, kRoom = 4u << 20, kGrowth = uint64_t{1} << 30;

#pragma pack(push, 1)
struct Head {
  char magic[8];
  uint32_t version, word;
  uint64_t base_bytes;
  Digest base_sum;
  uint64_t result_bytes;
  Digest result_sum;
  uint32_t regions, streams;
};
#pragma pack(pop)
static_assert(sizeof(Head) == 104);

struct Stream {
  uint64_t bytes, packed;
};

bool same_digest(const Digest& met, const Digest& expected) {
  uint64_t a[4], b[4];
  std::memcpy(a, met.data(), sizeof a);
  std::memcpy(b, expected.data(), sizeof b);
  bool same = true;
  for (int k = 0; k < 4; ++k) same = seal_fits(a[k], b[k]) && same;
  return same;
}

std::vector<uint8_t> unpacked(Bytes packed, uint64_t bytes) {
  std::vector<uint8_t> out(bytes);
  if (bytes == 0) return out;
#ifdef CTRBOX_ZSTD
  const size_t met = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
  if (ZSTD_isError(met) || met != bytes) throw BadPatch("a stream cannot be decompressed");
  return out;
#else
  (void)packed;
  throw NoZstd("this libctrbox was built without zstd");
#endif
}

uint64_t limit_of(uint64_t base, uint64_t most) { return most ? most : std::max(2 * base, base + kGrowth); }

std::vector<uint8_t> contents(const std::string& path, uint64_t most) {
  const FileBytes file(path);
  if (file.size() > most)
    throw TooLarge("it has " + std::to_string(file.size()) + " bytes; at most " + std::to_string(most) +
                   " are accepted");
  std::vector<uint8_t> out(file.size());
  file.read(out.data(), out.size(), 0);
  return out;
}

template <class F>
auto about(const std::string& path, F f) {
  const std::string where = path + ": ";
  try {
    return f();
  } catch (const CannotRead& e) {
    throw CannotRead("cannot read " + where + e.what());
  } catch (const TooLarge& e) {
    throw TooLarge(where + e.what());
  } catch (const WrongBase& e) {
    throw WrongBase(where + e.what());
  } catch (const BadPatch& e) {
    throw BadPatch(where + "it is damaged: " + e.what());
  }
}

}  // namespace

std::vector<uint8_t> patched(Bytes base, Bytes patch, uint64_t most_bytes) {
  Head h;
  if (patch.size() < sizeof h + kSeal || std::memcmp(patch.data(), kMagic, sizeof kMagic) != 0)
    throw BadPatch("it is not a patch, or was truncated: it has " + std::to_string(patch.size()) + " bytes");
  Digest seal;
  std::memcpy(seal.data(), patch.data() + patch.size() - kSeal, kSeal);
  if (!same_digest(Sha256::of(patch.data(), patch.size() - kSeal), seal)) throw BadPatch("its checksum does not match");
  std::memcpy(&h, patch.data(), sizeof h);
  if (h.version != kVersion)
    throw BadPatch("it has version " + std::to_string(h.version) +
                   " of the format, but this version of CTRBox reads 1");
  if ((h.word != 1 && h.word != 2 && h.word != 4) || h.streams != 1 + h.word || h.regions > kMostRegions)
    throw BadPatch("it contradicts itself: its head has an invalid number of words, streams or regions");
  const uint64_t streams_at = sizeof h + uint64_t{h.regions} * sizeof(Region);
  const uint64_t data_at = streams_at + h.streams * sizeof(Stream), end = patch.size() - kSeal;
  if (data_at > end)
    throw BadPatch("it contradicts itself: its head has an invalid number of words, streams or regions");
  if (base.size() != h.base_bytes)
    throw WrongBase("it applies to a file of " + std::to_string(h.base_bytes) + " bytes; this one has " +
                    std::to_string(base.size()));
  if (h.result_bytes > most_bytes)
    throw TooLarge("it would make a file of " + std::to_string(h.result_bytes) + " bytes; at most " +
                   std::to_string(most_bytes) + " are allowed");
  if (!same_digest(Sha256::of(base.data(), base.size()), h.base_sum))
    throw WrongBase("it applies to another file: the checksums differ");

  std::vector<Region> regions(h.regions);
  std::vector<Stream> streams(h.streams);
  static_assert(sizeof(Region) == 24);
  if (h.regions) std::memcpy(regions.data(), patch.data() + sizeof h, regions.size() * sizeof(Region));
  std::memcpy(streams.data(), patch.data() + streams_at, streams.size() * sizeof(Stream));
  check_regions(base.size(), h.result_bytes, h.word, regions);
  // Runs lie three words apart, so their numbers take fewer bytes than the result has words.
  const uint64_t words = h.result_bytes / h.word + (h.result_bytes % h.word != 0), values = streams[1].bytes;
  bool fits = streams[0].bytes <= words + 32 && values <= words;
  for (size_t k = 1; k < streams.size(); ++k) fits = fits && streams[k].bytes == values;
  if (!fits) throw BadPatch("it contradicts itself: it changes more words than its result has");
  uint64_t left = end - data_at;
  for (const Stream& s : streams) {
    if (s.packed > left) throw BadPatch("it contradicts itself: its streams do not add up to its size");
    left -= s.packed;
  }
  if (left != 0) throw BadPatch("it contradicts itself: its streams do not add up to its size");

  std::vector<std::vector<uint8_t>> held;
  uint64_t at = data_at;
  for (const Stream& s : streams) {
    held.push_back(unpacked(patch.subspan(at, s.packed), s.bytes));
    at += s.packed;
  }
  const std::vector<Bytes> planes(held.begin() + 1, held.end());
  std::vector<uint8_t> result(h.result_bytes);
  apply(base, h.word, regions, held[0], planes, result);
  if (!same_digest(Sha256::of(result.data(), result.size()), h.result_sum))
    throw BadPatch("the checksum of its result does not match");
  return result;
}

void apply_patch(const std::string& base, const std::string& patch, const std::string& result, uint64_t most_bytes) {
  const std::vector<uint8_t> before = about(base, [&] { return contents(base, UINT64_MAX); });
  const uint64_t limit = limit_of(before.size(), most_bytes);
  const std::vector<uint8_t> after = about(patch, [&] {
    // Values take at most as many bytes as the result, positions as many again.
    const uint64_t most = limit > (UINT64_MAX - kRoom) / 2 ? UINT64_MAX : 2 * limit + kRoom;
    return patched(before, contents(patch, most), limit);
  });
  try {
    write_aside(result, after.data(), after.size());
  } catch (const CannotWrite& e) {
    throw CannotWrite("cannot write " + result + ": " + e.what() + "; the previous file is unchanged");
  }
}

}  // namespace cb
